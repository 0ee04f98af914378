//! Operations against plain formulas in f64, and chance against counts.

use super::*;
use crate::image::batch_key;

const FILL: [u8; 3] = [9, 120, 250];
const SIZES: [[usize; 2]; 12] =
    [[1, 1], [1, 7], [7, 1], [2, 2], [2, 9], [3, 3], [4, 3], [5, 8], [16, 16], [17, 31], [33, 32], [64, 48]];

/// Images of chance, of gradients, of one level, and of few.
fn images([height, width]: [usize; 2], channels: usize) -> Vec<Vec<u8>> {
    let count = height * width * channels;
    let levels = |level: &dyn Fn(usize) -> u8| (0..count).map(level).collect();
    vec![
        levels(&|n| (mix(n as u64) >> 56) as u8),
        levels(&|n| (n / channels * 255 / count.div_ceil(channels).max(2)) as u8),
        levels(&|n| 100 + (mix(n as u64) >> 60) as u8),
        levels(&|n| if n == 0 { 255 } else { 3 }),
        vec![0; count],
        vec![77; count],
        vec![255; count],
    ]
}

fn pixels_of(shape: [usize; 3]) -> impl Iterator<Item = (isize, isize, usize)> {
    let [height, width, channels] = shape.map(|side| side as isize);
    (0..height).flat_map(move |y| (0..width).flat_map(move |x| (0..channels).map(move |c| (y, x, c as usize))))
}

/// By its definition, a level at a time; `None` where the nearest pixel is a matter of rounding.
fn plainly(operation: Operation, shape: [usize; 3], image: &[u8]) -> Vec<Option<u8>> {
    let [height, width, channels] = shape;
    let at = |y: isize, x: isize, c: usize| {
        let inside = (0..height as isize).contains(&y) && (0..width as isize).contains(&x);
        if inside { image[(y as usize * width + x as usize) * channels + c] } else { FILL[c] }
    };
    let nearest = |y: f64, x: f64, c: usize| {
        let sure = |place: f64| (place - place.floor() - 0.5).abs() > 1e-7;
        (sure(y) && sure(x)).then(|| at(y.round() as isize, x.round() as isize, c))
    };
    let channel = |c: usize| image.iter().skip(c).step_by(channels).map(|&level| usize::from(level));
    let (middle_y, middle_x) = ((height as f64 - 1.0) / 2.0, (width as f64 - 1.0) / 2.0);
    let level = |(y, x, c): (isize, isize, usize)| -> Option<u8> {
        let (here, down, across) = (at(y, x, c), y as f64, x as f64);
        let value = f64::from(here);
        match operation {
            Operation::Identity => Some(here),
            Operation::ShearX(by) => nearest(down, across + by * (down + 0.5), c),
            Operation::ShearY(by) => nearest(down + by * (across + 0.5), across, c),
            Operation::TranslateX(by) => Some(at(y, x - by, c)),
            Operation::TranslateY(by) => Some(at(y - by, x, c)),
            Operation::Rotate(degrees) => {
                let (sin, cos) = degrees.to_radians().sin_cos();
                let (down, across) = (down - middle_y, across - middle_x);
                nearest(sin * across + cos * down + middle_y, cos * across - sin * down + middle_x, c)
            }
            Operation::Color(_) => unreachable!("tested as colour jitter"),
            Operation::Sharpness(factor) => {
                let edge =
                    height < 3 || width < 3 || y == 0 || x == 0 || y + 1 == height as isize || x + 1 == width as isize;
                let around = (-1..2).flat_map(|down| (-1..2).map(move |across| (y + down, x + across)));
                let sum: f64 = around.map(|(y, x)| f64::from(at(y, x, c))).sum();
                let blurred = ((sum + 4.0 * value) / 13.0).round();
                let sharp = blurred + (value - blurred) * f64::from(factor);
                // A whole level is met or just missed, by rounding.
                if edge || blurred == value {
                    Some(here)
                } else {
                    ((sharp - sharp.round()).abs() > 1e-4).then_some(sharp as u8)
                }
            }
            Operation::Posterize(bits) => Some(here >> (8 - bits) << (8 - bits)),
            Operation::Solarize(from) => Some(if here >= from { 255 - here } else { here }),
            Operation::AutoContrast => {
                let (least, most) = (channel(c).min()? as f64, channel(c).max()? as f64);
                let stretched = (value - least) / (most - least) * 255.0;
                match stretched.is_nan() {
                    true => Some(here),
                    false => ((stretched - stretched.round()).abs() > 1e-4).then_some(stretched as u8),
                }
            }
            Operation::Equalize => {
                let highest = channel(c).max()?;
                let step = channel(c).filter(|&level| level != highest).count() / 255;
                let below = channel(c).filter(|&level| level < usize::from(here)).count();
                Some((step / 2 + below).checked_div(step).map_or(here, |level| level.min(255) as u8))
            }
        }
    };
    pixels_of(shape).map(level).collect()
}

fn made(operation: Operation, shape: [usize; 3], image: &[u8]) -> Vec<u8> {
    // What was in the memory to work in does not matter.
    let (mut pixels, mut before) = (image.to_vec(), vec![0x5a; 50]);
    operation.apply(shape, FILL, &mut pixels, &mut before);
    pixels
}

/// Compares with the plain formulas on every image; how many levels were a matter of rounding, of how many.
fn check(operation: Operation) -> [usize; 2] {
    let mut counts = [0, 0];
    for ([height, width], channels) in SIZES.into_iter().flat_map(|size| [(size, 1), (size, 3)]) {
        let shape = [height, width, channels];
        for image in images([height, width], channels) {
            let (made, plain) = (made(operation, shape, &image), plainly(operation, shape, &image));
            for (n, (made, plain)) in made.iter().zip(&plain).enumerate() {
                assert!(
                    plain.is_none_or(|plain| plain == *made),
                    "{operation:?} {shape:?}: {made}, not {plain:?}, at {n}"
                );
                counts = [counts[0] + usize::from(plain.is_none()), counts[1] + 1];
            }
        }
    }
    counts
}

#[test]
fn pixels_move_to_where_plain_formulas_say() {
    let mut counts = [0, 0];
    for (kind, bins) in [(AugmentKind::Trivial, 31), (AugmentKind::Trivial, 7)] {
        let augment = Augment::new([64, 64, 3], &AugmentOptions { kind, bins, fill: &FILL }).unwrap();
        for (number, bin) in (1..6).flat_map(|number| (0..bins).map(move |bin| (number, bin))) {
            for negative in [false, true] {
                let more = check(augment.operation(number, bin, negative));
                counts = [counts[0] + more[0], counts[1] + more[1]];
            }
        }
    }
    assert!(counts[0] * 100 < counts[1], "{counts:?}");
    for far in [isize::MIN / 1024, -3, -1, 0, 1, 2, 1000] {
        assert_eq!(check(Operation::TranslateX(far))[0], 0);
        assert_eq!(check(Operation::TranslateY(far))[0], 0);
    }
}

#[test]
fn levels_change_as_plain_formulas_say() {
    for operation in [Operation::Identity, Operation::Equalize] {
        assert_eq!(check(operation)[0], 0);
    }
    // Ends, and whole levels between them, are met or just missed.
    let [unsure, of] = check(Operation::AutoContrast);
    assert!(unsure < of, "{unsure} of {of}");
    for most in 1..=255 {
        let image: Vec<u8> = (0..=most).collect();
        let (shape, whole) = ([1, image.len(), 1], |level: &u8| f64::from(*level) * 255.0 / f64::from(most));
        for (level, made) in image.iter().zip(made(Operation::AutoContrast, shape, &image)) {
            assert!((-1e-4..1.0001).contains(&(whole(level) - f64::from(made))), "{level} of {most}: {made}");
        }
    }
    (1..=8).for_each(|bits| assert_eq!(check(Operation::Posterize(bits))[0], 0));
    [0, 1, 100, 128, 254, 255].into_iter().for_each(|from| assert_eq!(check(Operation::Solarize(from))[0], 0));
    for factor in [0.01, 0.123, 0.55, 1.0, 1.37, 1.99] {
        let [unsure, of] = check(Operation::Sharpness(factor));
        assert!(unsure * 10 < of || factor == 1.0, "{factor}: {unsure} of {of}");
    }
    // A factor of 1 is nothing, though every level of it is whole.
    let image = &images([17, 31], 3)[0];
    assert_eq!(&made(Operation::Sharpness(1.0), [17, 31, 3], image), image);
}

#[test]
fn a_quarter_turn_is_one_and_small_images_turn_too() {
    // Against the clock: the right column becomes the top line.
    let image = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    assert_eq!(made(Operation::Rotate(90.0), [3, 3, 1], &image), [3, 6, 9, 2, 5, 8, 1, 4, 7]);
    assert_eq!(made(Operation::Rotate(-90.0), [3, 3, 1], &image), [7, 4, 1, 8, 5, 2, 9, 6, 3]);
    assert_eq!(made(Operation::Rotate(90.0), [1, 1, 1], &[5]), [5]);
    // Of a line only the middle is left.
    assert_eq!(made(Operation::Rotate(90.0), [1, 3, 1], &[1, 2, 3]), [9, 2, 9]);
    assert_eq!(made(Operation::TranslateX(1), [1, 3, 1], &[1, 2, 3]), [9, 1, 2]);
    assert_eq!(made(Operation::TranslateY(-1), [3, 1, 1], &[1, 2, 3]), [2, 3, 9]);
    assert_eq!(made(Operation::ShearX(1.0), [2, 3, 1], &[1, 2, 3, 4, 5, 6]), [2, 3, 9, 6, 9, 9]);
    // A half is the next pixel, everywhere.
    assert_eq!(made(Operation::ShearX(-1.0), [2, 3, 1], &[1, 2, 3, 4, 5, 6]), [1, 2, 3, 9, 4, 5]);
}

#[test]
fn strengths_are_those_of_the_papers() {
    let of = |kind, number, bin, negative| {
        Augment::new([50, 200, 3], &AugmentOptions { kind, bins: 31, fill: &[] })
            .unwrap()
            .operation(number, bin, negative)
    };
    let rand = |number, magnitude, negative| of(AugmentKind::Rand { ops: 2, magnitude }, number, 5, negative);
    let wide = |number, bin, negative| of(AugmentKind::Trivial, number, bin, negative);
    assert_eq!(rand(1, 30, true), Operation::ShearX(-0.3));
    assert_eq!(wide(2, 10, false), Operation::ShearY(0.33));
    // 150 of 331 of 200 are 90.6, and of 50 are 22.7; 0.3 of that are 27.2 and 6.8.
    assert_eq!(rand(3, 30, false), Operation::TranslateX(90));
    assert_eq!(rand(3, 9, true), Operation::TranslateX(-27));
    assert_eq!(rand(4, 9, true), Operation::TranslateY(-6));
    assert_eq!(wide(3, 15, false), Operation::TranslateX(16));
    assert_eq!(wide(4, 30, true), Operation::TranslateY(-32));
    assert_eq!(rand(5, 9, false), Operation::Rotate(9.0));
    assert_eq!(wide(5, 20, true), Operation::Rotate(-90.0));
    assert_eq!(rand(6, 9, false), Operation::Color(Change::Brightness(1.27)));
    assert_eq!(rand(7, 30, true), Operation::Color(Change::Saturation(0.1)));
    assert_eq!(wide(8, 0, true), Operation::Color(Change::Contrast(1.0)));
    assert_eq!(wide(9, 30, false), Operation::Sharpness(1.99));
    let bits = |kind: &dyn Fn(usize) -> Operation| -> Vec<u32> {
        let bits = |bin| if let Operation::Posterize(bits) = kind(bin) { bits } else { 0 };
        (0..31).map(bits).collect()
    };
    assert_eq!(bits(&|bin| rand(10, bin, true))[..12], [8, 8, 8, 8, 7, 7, 7, 7, 7, 7, 7, 7]);
    assert_eq!(bits(&|bin| rand(10, bin, true))[30], 4);
    assert_eq!(bits(&|bin| wide(10, bin, true))[26..], [3, 3, 2, 2, 2]);
    assert_eq!((wide(11, 0, false), wide(11, 1, true)), (Operation::Solarize(255), Operation::Solarize(247)));
    assert_eq!((rand(11, 2, false), rand(11, 30, true)), (Operation::Solarize(238), Operation::Solarize(0)));
    assert_eq!(
        (wide(12, 3, true), wide(13, 3, true), wide(0, 3, true)),
        (Operation::AutoContrast, Operation::Equalize, Operation::Identity)
    );
}

#[test]
fn what_is_drawn_is_spread_evenly_and_is_the_same_again() {
    let n = 40_000;
    let near = |count: usize, of: usize, chance: f64| {
        let (share, error) = (count as f64 / of as f64, (chance * (1.0 - chance) / of as f64).sqrt());
        assert!((share - chance).abs() < 5.0 * error, "{count} of {of}, not {chance}");
    };
    let number = |operation: &Operation| match operation {
        Operation::Identity => 0,
        Operation::ShearX(_) => 1,
        Operation::ShearY(_) => 2,
        Operation::TranslateX(_) => 3,
        Operation::TranslateY(_) => 4,
        Operation::Rotate(_) => 5,
        Operation::Color(Change::Brightness(_)) => 6,
        Operation::Color(Change::Saturation(_)) => 7,
        Operation::Color(_) => 8,
        Operation::Sharpness(_) => 9,
        Operation::Posterize(_) => 10,
        Operation::Solarize(_) => 11,
        Operation::AutoContrast => 12,
        Operation::Equalize => 13,
    };
    for kind in [AugmentKind::Trivial, AugmentKind::Rand { ops: 2, magnitude: 9 }] {
        let augment = Augment::new([32, 32, 3], &AugmentOptions { kind, bins: 31, fill: &[] }).unwrap();
        let drawn = |key, id| augment.draw(key, id).collect::<Vec<_>>();
        let all: Vec<Vec<Operation>> = (0..n).map(|id| drawn(batch_key(1, 2, 3), id)).collect();
        assert_eq!(all[7], drawn(batch_key(1, 2, 3), 7));
        let others = (0..n).filter(|&id| drawn(batch_key(1, 2, 4), id) == all[id as usize]).count();
        assert!(others < n as usize / 10, "{others}");
        for place in 0..all[0].len() {
            let mut counts = [0; Operation::COUNT];
            all.iter().for_each(|operations| counts[number(&operations[place])] += 1);
            counts.into_iter().for_each(|count| near(count, n as usize, 1.0 / 14.0));
        }
        let turns: Vec<f64> =
            all.iter().flatten().filter_map(|o| if let Operation::Rotate(by) = o { Some(*by) } else { None }).collect();
        near(turns.iter().filter(|turn| turn.is_sign_negative()).count(), turns.len(), 0.5);
        if let AugmentKind::Rand { ops, .. } = kind {
            assert!(all.iter().all(|operations| operations.len() == ops) && turns.iter().all(|turn| turn.abs() == 9.0));
            let twice = all.iter().filter(|operations| number(&operations[0]) == number(&operations[1])).count();
            near(twice, n as usize, 1.0 / 14.0);
        } else {
            assert!(all.iter().all(|operations| operations.len() == 1));
            let mut counts = [0; 31];
            turns.iter().for_each(|turn| counts[(turn.abs() / 4.5).round() as usize] += 1);
            counts.into_iter().for_each(|count| near(count, turns.len(), 1.0 / 31.0));
        }
    }
}

#[test]
fn an_image_goes_through_its_operations_in_their_order() {
    let options = AugmentOptions { kind: AugmentKind::Rand { ops: 5, magnitude: 12 }, bins: 31, fill: &FILL };
    for channels in [1, 3] {
        let shape = [17, 31, channels];
        let options = AugmentOptions { fill: &FILL[..channels], ..options };
        let augment = Augment::new(shape, &options).unwrap();
        let image = &images([17, 31], channels)[0];
        let mut before = Vec::new();
        for id in 0..300 {
            let mut pixels = image.clone();
            augment.apply(5, id, &mut pixels, &mut before);
            let one_by_one = augment.draw(5, id).fold(image.clone(), |image, operation| made(operation, shape, &image));
            assert_eq!(pixels, one_by_one, "{:?}", augment.draw(5, id).collect::<Vec<_>>());
        }
        assert!(before.capacity() <= 2 * image.len(), "one image");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_its_numbers() {
    let good = AugmentOptions { kind: AugmentKind::Rand { ops: 2, magnitude: 9 }, bins: 31, fill: &[] };
    let refused = |shape, options: AugmentOptions<'_>| Augment::new(shape, &options).unwrap_err();
    for channels in [2, 4] {
        assert_eq!(refused([8, 8, channels], good), ImageError::Channels(channels));
    }
    assert_eq!(refused([0, 8, 3], good), ImageError::Source(0, 8, 3));
    for bins in [0, 1, 65_537] {
        assert_eq!(refused([8, 8, 3], AugmentOptions { bins, ..good }), ImageError::Augment("bins", bins, 2, 65_536));
    }
    for ops in [0, 101] {
        let kind = AugmentKind::Rand { ops, magnitude: 9 };
        assert_eq!(refused([8, 8, 3], AugmentOptions { kind, ..good }), ImageError::Augment("ops", ops, 1, 100));
    }
    let kind = AugmentKind::Rand { ops: 2, magnitude: 31 };
    let beyond = refused([8, 8, 3], AugmentOptions { kind, ..good });
    assert_eq!(beyond.to_string(), "augment: magnitude=31: need 0 to 30");
    assert_eq!(refused([8, 8, 3], AugmentOptions { fill: &[1, 2], ..good }), ImageError::Count("fill", 2, 3));
    assert_eq!(refused([8, 8, 1], AugmentOptions { fill: &FILL, ..good }), ImageError::Count("fill", 3, 1));
}
