//! What must hold of retouched images: the bytes that loader threads make, for every operation, strength, size and draw.

use std::collections::HashSet;

use lossfeed_kernels::image::{
    Augment, AugmentKind, AugmentOptions, Change, ColorJitter, ImageDtype, ImageOptions, ImageTransform, JitterOptions,
    Operation, Retouch, batch_key,
};
use lossfeed_kernels::launch::{Retouching, retouch};
use proptest::prelude::*;

use crate::cases::Lcg;
use crate::program::{Kind, Machine, Program};

/// A batch and what is done to it.
#[derive(Clone, Debug)]
pub(crate) struct RetouchCase {
    retouch: Retouch,
    source: Vec<u8>,
    rows: usize,
    seed: u64,
    /// In bytes.
    offset: usize,
}

impl RetouchCase {
    fn new(retouch: Retouch, shape: [usize; 3], rows: usize, seed: u64, offset: usize) -> Self {
        let source = pixels(shape, rows, &mut Lcg::new(seed));
        RetouchCase { retouch, source, rows, seed, offset }
    }
}

/// What is cut out before augmentation.
fn cut(shape: [usize; 3], crop: Option<[usize; 2]>, padding: usize, random_crop: bool, flip: f64) -> ImageTransform {
    let (dtype, channels_first) = (ImageDtype::U8, false);
    let options = ImageOptions { dtype, channels_first, crop, padding, random_crop, flip, mean: &[], std: &[] };
    ImageTransform::new(shape, &options).unwrap()
}

fn augment(shape: [usize; 3], kind: AugmentKind, bins: usize) -> Augment {
    Augment::new(shape, &AugmentOptions { kind, bins, fill: &[9, 130, 200][..shape[2]] }).unwrap()
}

/// Levels of every sort: noise, none but two, slopes, few that lie close together, and one alone.
fn pixels(shape: [usize; 3], rows: usize, rng: &mut Lcg) -> Vec<u8> {
    let [_, width, channels] = shape;
    let bytes: usize = shape.iter().product();
    let image = |row: usize, rng: &mut Lcg| -> Vec<u8> {
        let (base, spread) = (rng.below(200), 1 + rng.below(50));
        let level = |n: usize, rng: &mut Lcg| match row % 6 {
            0 | 1 => rng.below(256),
            2 => 255 * rng.below(2),
            3 => ((n / channels % width) * 255 / width + n / channels / width) as u32 % 256,
            4 => base + rng.below(spread),
            _ => base,
        };
        (0..bytes).map(|n| level(n, rng) as u8).collect()
    };
    (0..rows).flat_map(|row| image(row, rng)).collect()
}

pub(crate) fn any_retouch() -> impl Strategy<Value = RetouchCase> {
    let factors = || {
        prop_oneof![
            Just(None),
            Just(Some([0.0, 0.0])),
            Just(Some([1.0, 1.0])),
            Just(Some([0.0, 3.0])),
            Just(Some([0.3, 1.7])),
            Just(Some([1e30, 3e38]))
        ]
    };
    let turns = prop_oneof![
        Just(None),
        Just(Some([-0.5, -0.5])),
        Just(Some([0.5, 0.5])),
        Just(Some([0.0, 0.0])),
        Just(Some([-0.5, 0.5])),
        Just(Some([-1e-8, 1e-8]))
    ];
    let sides = prop_oneof![
        (1..4usize, 1..4usize),
        (1..40usize, 1..40usize),
        (Just(1), 1..300usize),
        (120..300usize, 1..4usize)
    ];
    let chance = || prop_oneof![Just(0.0), Just(0.5), Just(1.0)];
    let colors = (factors(), factors(), factors(), turns, chance(), chance());
    let cuts = (any::<bool>(), any::<(u16, u16, bool)>(), 0..5usize, any::<bool>(), chance());
    let augments = (0..4usize, prop_oneof![Just(2usize), Just(31), Just(1000)], 1..5usize, any::<u16>());
    (sides, prop_oneof![Just(1usize), Just(3)], colors, cuts, augments, (1..9usize, any::<u64>(), 0..5usize)).prop_map(
        |(
            (height, width),
            channels,
            colors,
            (cuts, (y, x, crops), padding, random, flip),
            augments,
            (rows, seed, offset),
        )| {
            let shape = [height, width, channels];
            let (brightness, contrast, saturation, hue, chance, grayscale) = colors;
            let jitter = JitterOptions { brightness, contrast, saturation, hue, chance, grayscale };
            let jitter = ColorJitter::new(jitter).unwrap();
            let side = |n: usize, by: u16| 1 + usize::from(by) % (n + 2 * padding);
            let crop = crops.then(|| [side(height, y), side(width, x)]);
            let (kind, bins, ops, magnitude) = augments;
            let cut = (cuts && kind > 0).then(|| cut(shape, crop, padding, random, flip));
            let of = cut.as_ref().map_or(shape, ImageTransform::shape);
            let rand = AugmentKind::Rand { ops, magnitude: usize::from(magnitude) % bins };
            let augment = (kind > 0).then(|| augment(of, if kind == 1 { AugmentKind::Trivial } else { rand }, bins));
            // Without a step at all there is no launch: grey, then.
            let grey = JitterOptions { grayscale: 1.0, ..JitterOptions::default() };
            let jitter = if augment.is_none() { jitter.or(ColorJitter::new(grey).unwrap()) } else { jitter };
            let retouch = Retouch::new(shape, jitter, cut, augment).unwrap();
            RetouchCase::new(retouch, shape, rows, seed, offset)
        },
    )
}

/// The batch's bytes, by the machine.
pub(crate) fn check(machine: &mut dyn Machine, case: &RetouchCase) -> Result<(), String> {
    let RetouchCase { retouch: r, source, rows, seed, .. } = case;
    let (rows, key) = (*rows, batch_key(*seed, 1, 2));
    // Ids repeat, are huge and negative: whatever the slot holds.
    let ids: Vec<i64> = (0..rows).map(|row| if row % 7 == 6 { 5 } else { (row as i64 - 1) << (row % 40) }).collect();
    let expected: Vec<u8> =
        ids.iter().zip(source.chunks_exact(r.source_bytes())).flat_map(|(&id, from)| r.plain(key, id, from)).collect();

    let room = r.room(rows);
    let mut program = Program::default();
    let mut memory = source.clone();
    memory.resize(room.bytes, 0xff);
    let at = program.buffer(Kind::Output, case.offset, memory);
    let named = program.input(&ids);
    let batch = Retouching { rows, key, ids: named, pixels: at };
    program.call(retouch(r, &batch).unwrap());
    for &schedule in machine.seeds() {
        let memory = machine.run(&program, schedule)?;
        let made = memory.bytes(batch.made(r));
        if let Some(n) = made.iter().zip(&expected).position(|(a, e)| a != e) {
            let row = n / r.out_bytes();
            let operations: Vec<Operation> = drawn(r, key, ids[row]);
            return Err(format!("byte {n} is {}, not {}: {r:?} drew {operations:?}", made[n], expected[n]));
        }
    }
    Ok(())
}

/// All that is done to a sample.
fn drawn(retouch: &Retouch, key: u64, id: i64) -> Vec<Operation> {
    let colors = retouch.jitter().into_iter().flat_map(|jitter| jitter.draw(key, id).changes).map(Operation::Color);
    colors.chain(retouch.augment().into_iter().flat_map(|augment| augment.draw(key, id))).collect()
}

/// Which operation it is, whatever its strength.
fn name(operation: Operation) -> String {
    let said = format!("{operation:?}");
    match operation {
        Operation::Color(Change::Brightness(_)) => "brightness".into(),
        Operation::Color(Change::Contrast(_)) => "contrast".into(),
        Operation::Color(Change::Saturation(_)) => "saturation".into(),
        Operation::Color(Change::Hue(_)) => "hue".into(),
        _ => said.split('(').next().unwrap().to_string(),
    }
}

/// Operations of all strengths, forwards and backwards, alone: on images whose lines are whole words and others.
pub(crate) fn every_operation(machine: &mut dyn Machine, bins: usize) {
    for (shape, offset) in [([16, 12, 3], 0), ([9, 13, 3], 1), ([11, 7, 1], 0), ([3, 3, 3], 2), ([2, 5, 1], 0)] {
        let rows = 8 * bins * 14;
        let augment = augment(shape, AugmentKind::Trivial, bins);
        let key = batch_key(3, 1, 2);
        let ids = (0..rows).map(|row| if row % 7 == 6 { 5 } else { (row as i64 - 1) << (row % 40) });
        let seen: HashSet<String> = ids.map(|id| format!("{:?}", augment.draw(key, id).next().unwrap())).collect();
        // Most have a strength, and some of these a sign.
        assert!(seen.len() > 8 * bins, "{} of them were drawn", seen.len());
        let retouch = Retouch::new(shape, None, None, Some(augment)).unwrap();
        check(machine, &RetouchCase::new(retouch, shape, rows, 3, offset)).unwrap();
    }
}

/// Every change of colours, of 32 levels a channel in every mixture: all sectors of the circle, and its joints.
pub(crate) fn every_color(machine: &mut dyn Machine) {
    let levels = (0..1u32 << 15).map(|color| [color & 31, color >> 5 & 31, color >> 10]);
    let source: Vec<u8> = levels.flat_map(|color| color.map(|level| (level * 255 / 31) as u8)).collect();
    let shape = [128, 256, 3];
    let off = JitterOptions { chance: 1.0, ..JitterOptions::default() };
    let turns = [-0.5, -1.0 / 3.0, -1e-8, 0.0, 1e-8, 0.17, 1.0 / 6.0, 0.5]
        .map(|turn| JitterOptions { hue: Some([turn; 2]), ..off });
    let factors = [0.0, 0.37, 1.0, 2.5].into_iter().flat_map(|factor| {
        let ends = Some([factor; 2]);
        let (brightness, contrast) =
            (JitterOptions { brightness: ends, ..off }, JitterOptions { contrast: ends, ..off });
        [brightness, contrast, JitterOptions { saturation: ends, ..off }]
    });
    let grey = JitterOptions { grayscale: 1.0, ..off };
    for options in turns.into_iter().chain(factors).chain([grey]) {
        let retouch = Retouch::new(shape, ColorJitter::new(options).unwrap(), None, None).unwrap();
        let case = RetouchCase { retouch, source: source.clone(), rows: 1, seed: 1, offset: 0 };
        check(machine, &case).unwrap();
    }
}

/// As people train: photographs cut, mirrored, coloured and augmented; nothing of it is left out.
pub(crate) fn trained_on(machine: &mut dyn Machine, rows: usize) {
    let all = JitterOptions {
        brightness: Some([0.6, 1.4]),
        contrast: Some([0.6, 1.4]),
        saturation: Some([0.6, 1.4]),
        hue: Some([-0.1, 0.1]),
        chance: 0.8,
        grayscale: 0.2,
    };
    let mut seen = HashSet::new();
    for (n, (shape, crop, padding)) in [
        ([32, 32, 3], None, 4),
        ([60, 80, 3], Some([56, 56]), 0),
        ([28, 28, 1], None, 2),
        ([150, 130, 3], Some([144, 128]), 0),
    ]
    .into_iter()
    .enumerate()
    {
        for kind in [
            AugmentKind::Trivial,
            AugmentKind::Rand { ops: 2, magnitude: 9 },
            AugmentKind::Rand { ops: 3, magnitude: 30 },
        ] {
            let cut = cut(shape, crop, padding, true, 0.5);
            let augment = augment(cut.shape(), kind, 31);
            let jitter = ColorJitter::new(all).unwrap();
            let retouch = Retouch::new(shape, jitter, Some(cut), Some(augment)).unwrap();
            let key = batch_key(n as u64, 1, 2);
            (0..rows as i64).for_each(|id| seen.extend(drawn(&retouch, key, id).into_iter().map(name)));
            check(machine, &RetouchCase::new(retouch, shape, rows, n as u64, 0)).unwrap();
        }
    }
    let missing = |what: &&str| !seen.contains(*what);
    let all = ["brightness", "contrast", "saturation", "hue", "ShearX", "ShearY", "TranslateX", "Rotate", "Sharpness"];
    let others = ["TranslateY", "Posterize", "Solarize", "AutoContrast", "Equalize", "Identity"];
    let missing: Vec<&str> = all.into_iter().chain(others).filter(missing).collect();
    assert!(rows < 16 || missing.is_empty(), "{missing:?} were not drawn");
}
