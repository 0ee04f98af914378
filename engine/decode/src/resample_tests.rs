//! Crops of images of any size against arithmetic without shortcuts, and what is refused.

use proptest::prelude::*;

use super::tests::{golden, refusal};
use super::*;
use crate::error::ErrorKind;
use lossfeed_kernels::image::CropKind;

/// The definition: every pixel of a result is the mean of all pixels, weighted by a triangle around its centre that is
/// one result's pixel wide to either side, and at least one of the image's.
fn plain(pixels: &[u8], size: [usize; 2], region: Region, to: [usize; 2], channels: usize) -> Vec<f64> {
    // What is alone has no surroundings.
    let (begin, end) = ([region.top, region.left], [region.top + region.height, region.left + region.width]);
    let weights = |axis: usize, at: usize| -> Vec<(usize, f64)> {
        let scale = (end[axis] - begin[axis]) / to[axis] as f64;
        let centre = begin[axis] + (at as f64 + 0.5) * scale;
        let inside = |p: &usize| !region.alone || (begin[axis]..end[axis]).contains(&(*p as f64));
        let weight = |p: usize| (p, (1.0 - (p as f64 + 0.5 - centre).abs() / scale.max(1.0)).max(0.0));
        let all: Vec<(usize, f64)> = (0..size[axis]).filter(inside).map(weight).filter(|(_, w)| *w > 0.0).collect();
        let sum: f64 = all.iter().map(|(_, w)| w).sum();
        all.into_iter().map(|(p, w)| (p, w / sum)).collect()
    };
    let across: Vec<_> = (0..to[1]).map(|x| weights(1, x)).collect();
    let mut out = Vec::with_capacity(to[0] * to[1] * channels);
    for y in 0..to[0] {
        let down = weights(0, y);
        for of_x in &across {
            for c in 0..channels {
                let value = |py: usize, px: usize| f64::from(pixels[(py * size[1] + px) * channels + c]);
                let line = |py: usize| of_x.iter().map(|&(px, w)| w * value(py, px)).sum::<f64>();
                out.push(down.iter().map(|&(py, w)| w * line(py)).sum());
            }
        }
    }
    out
}

/// Noise, which has the steepest edges there are, as a PNG and as pixels.
fn noise([height, width]: [usize; 2], channels: usize, seed: u64) -> (Vec<u8>, Vec<u8>) {
    let mut state = seed | 1;
    let pixels: Vec<u8> = (0..height * width * channels)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Black and white among the grays.
            [(state >> 56) as u8, 0, 255][(state >> 40) as usize % 3]
        })
        .collect();
    let mut encoded = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut encoded, width as u32, height as u32);
    encoder.set_color(if channels == 1 { ::png::ColorType::Grayscale } else { ::png::ColorType::Rgb });
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    (encoded, pixels)
}

/// A decoder of images of any size, which has seen one of another.
fn open(channels: usize, resize: Option<Resize>) -> Result<Decoder> {
    let mode = if channels == 1 { ImageMode::Gray } else { ImageMode::Rgb };
    Decoder::for_image(&noise([3, 2], channels, 0).0, mode, resize)
}

/// One level: the result is rounded between its two passes, and once more.
fn near(made: &[u8], expected: &[f64]) -> bool {
    made.len() == expected.len() && made.iter().zip(expected).all(|(m, e)| (f64::from(*m) - e).abs() < 1.05)
}

fn any_kind() -> impl Strategy<Value = CropKind> {
    let part = (0.01..1.0, 0.0..1.0, 0.1..3.0, 1.0..3.0).prop_map(|(least, more, narrow, wider)| CropKind::Part {
        scale: [least, least + (1.0 - least) * more],
        ratio: [narrow, narrow * wider],
    });
    // At least as large as any size below.
    let covering = (24..60usize, 24..60usize, any::<bool>())
        .prop_map(|(height, width, random)| CropKind::Covering { to: [height, width], random });
    prop_oneof![part, covering]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn crops_are_what_the_definition_says(
        size in (1..70usize, 1..70usize),
        to in (1..24usize, 1..24usize),
        channels in prop_oneof![Just(1usize), Just(3)],
        kind in any_kind(),
        seed in any::<u64>(),
        id in any::<i64>(),
    ) {
        let (size, to) = ([size.0, size.1], [to.0, to.1]);
        let (encoded, pixels) = noise(size, channels, seed);
        let crop = ResizedCrop::new(to, kind).unwrap();
        // Dirty memory, so that what is not written is seen.
        let mut scratch = Scratch { pixels: vec![0xaa; 99], spare: vec![0xaa; 99], ..Scratch::default() };
        let mut made = vec![0xaa; to[0] * to[1] * channels];
        let decoder = open(channels, None).unwrap();
        decoder.decode_crop(&encoded, &crop, (seed, id), &mut made, &mut scratch).unwrap();
        let region = crop.region(size, seed, id);
        let expected = plain(&pixels, size, region, to, channels);
        prop_assert!(near(&made, &expected), "{region:?} of {size:?}: {made:?} is not {expected:?}");
        // The same scratch memory again, for what is drawn at its opening.
        if let CropKind::Covering { to: cover, random: false } = kind {
            let resize = Resize { to: cover.into(), crop: Some(to.into()) };
            let mut opened = vec![0x55; made.len()];
            open(channels, Some(resize)).unwrap().decode(&encoded, &mut opened, &mut scratch).unwrap();
            prop_assert_eq!(made, opened);
        }
    }
}

#[test]
fn an_image_that_has_the_size_already_is_left_alone() {
    let encoded = golden("rgb.png");
    let as_it_is = golden("rgb.png.rgb");
    let resize = Resize { to: (13, 17), crop: Some((13, 17)) };
    let mut made = vec![0; as_it_is.len()];
    open(3, Some(resize)).unwrap().decode(&encoded, &mut made, &mut Scratch::default()).unwrap();
    assert!(made == as_it_is);
    // A window of it, without any scaling, is a copy too.
    let resize = Resize { to: (13, 17), crop: Some((5, 7)) };
    let mut made = vec![0; 5 * 7 * 3];
    open(3, Some(resize)).unwrap().decode(&encoded, &mut made, &mut Scratch::default()).unwrap();
    let lines = (4..9).flat_map(|y| &as_it_is[(y * 17 + 5) * 3..][..7 * 3]);
    assert!(made.iter().eq(lines), "the middle: lines 4 to 8, columns 5 to 11");
}

#[test]
fn jpegs_are_cropped_as_their_pixels_are() {
    for name in ["rgb444.jpg", "rgb420.jpg", "progressive.jpg", "gray.jpg", "cmyk.jpg"] {
        let encoded = golden(name);
        for channels in [1, 3] {
            let mode = if channels == 1 { ImageMode::Gray } else { ImageMode::Rgb };
            let whole = Decoder::for_image(&encoded, mode, None);
            let mut pixels = vec![0; 13 * 17 * channels];
            whole.unwrap().decode(&encoded, &mut pixels, &mut Scratch::default()).unwrap();
            let crop = ResizedCrop::new([6, 5], CropKind::Part { scale: [0.3, 0.9], ratio: [0.7, 1.4] }).unwrap();
            let mut made = vec![0; 6 * 5 * channels];
            open(channels, None)
                .unwrap()
                .decode_crop(&encoded, &crop, (1, 2), &mut made, &mut Scratch::default())
                .unwrap();
            let expected = plain(&pixels, [13, 17], crop.region([13, 17], 1, 2), [6, 5], channels);
            assert!(near(&made, &expected), "{name} of {channels} channels");
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_its_numbers() {
    let refused = |to, crop, words: &[&str]| {
        refusal(open(3, Some(Resize { to, crop: Some(crop) })), ErrorKind::Settings, words);
    };
    refused((256, 256), (257, 224), &["crop=(257, 224)", "resize=(256, 256)"]);
    refused((256, 256), (0, 224), &["crop=(0, 224)"]);
    refused((0, 256), (1, 1), &["resize=(0, 256)"]);
    let crop = ResizedCrop::new([4, 4], CropKind::Part { scale: [0.1, 1.0], ratio: [0.7, 1.4] }).unwrap();
    let (decoder, encoded) = (open(3, None).unwrap(), golden("rgb.png"));
    let into =
        |out: &mut [u8], encoded: &[u8]| decoder.decode_crop(encoded, &crop, (0, 0), out, &mut Scratch::default());
    refusal(into(&mut [0; 47], &encoded), ErrorKind::Usage, &["48 bytes", "got 47"]);
    refusal(into(&mut [0; 48], &encoded[..60]), ErrorKind::Sample, &["corrupt or truncated"]);
    // Without a crop other sizes are none of the dataset's, and both remedies are named.
    let mut out = vec![0; decoder.spec().bytes()];
    refusal(
        decoder.decode(&encoded, &mut out, &mut Scratch::default()),
        ErrorKind::Sample,
        &["13 × 17", "3 × 2", "resize=(3, 2)", "scale=", "cache_form=\"encoded\""],
    );
}
