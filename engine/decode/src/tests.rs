//! Pixels against Pillow's (`tests/golden/images`, written by its `make.py`), and what is refused.

use std::path::PathBuf;

use super::contain::contained;
use super::*;
use crate::error::ErrorKind;

const HEIGHT: usize = 13;
const WIDTH: usize = 17;

pub(super) fn golden(name: &str) -> Vec<u8> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "tests", "golden", "images", name].iter().collect();
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A gray PNG of 2 × 3 pixels, all of `value`.
fn gray(value: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut bytes, 3, 2);
    encoder.set_color(::png::ColorType::Grayscale);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&[value; 6]).unwrap();
    writer.finish().unwrap();
    bytes
}

pub(super) fn refusal<T>(result: Result<T>, kind: ErrorKind, words: &[&str]) {
    let Err(error) = result else { panic!("this should have been refused: {words:?}") };
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} is missing from: {error}");
    }
}

pub(super) fn decoder(first: &[u8], mode: ImageMode, resize: Option<(usize, usize)>) -> Result<Decoder> {
    let resize = resize.map(|to| Resize { to, crop: None });
    Decoder::for_image(first, mode, resize)
}

pub(super) fn decode(decoder: &Decoder, encoded: &[u8]) -> Result<Vec<u8>> {
    // Dirty memory, so that what is not written is seen.
    let mut scratch = Scratch { pixels: vec![0xaa; 7], spare: vec![0xaa; 5000], ..Scratch::default() };
    let mut out = vec![0xaa; decoder.spec().bytes()];
    decoder.decode(encoded, &mut out, &mut scratch).map(|()| out)
}

/// The largest difference of two pixels' channels.
pub(super) fn distance(a: &[u8], b: &[u8]) -> u8 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0)
}

#[test]
fn png_pixels_equal_pillows() {
    for name in
        ["rgb.png", "rgba.png", "gray.png", "gray-alpha.png", "palette.png", "palette-transparent.png", "one-bit.png"]
    {
        let encoded = golden(name);
        let rgb = decoder(&encoded, ImageMode::Rgb, None).unwrap();
        assert_eq!(rgb.spec(), &TensorSpec::new(Dtype::U8, [HEIGHT, WIDTH, 3]));
        assert!(decode(&rgb, &encoded).unwrap() == golden(&format!("{name}.rgb")), "{name}");
        let gray = decoder(&encoded, ImageMode::Gray, None).unwrap();
        assert_eq!(gray.spec(), &TensorSpec::new(Dtype::U8, [HEIGHT, WIDTH, 1]));
        assert!(decode(&gray, &encoded).unwrap() == golden(&format!("{name}.l")), "{name} in gray");
    }
}

#[test]
fn jpeg_pixels_equal_pillows() {
    for name in ["rgb444.jpg", "rgb420.jpg", "progressive.jpg", "gray.jpg", "cmyk.jpg"] {
        let encoded = golden(name);
        let rgb = decode(&decoder(&encoded, ImageMode::Rgb, None).unwrap(), &encoded).unwrap();
        assert!(rgb == golden(&format!("{name}.rgb")), "{name}");
        let gray = decode(&decoder(&encoded, ImageMode::Gray, None).unwrap(), &encoded).unwrap();
        // The luminance that the file has, where Pillow's comes by way of RGB: torchvision's, within a level.
        let far = distance(&gray, &golden(&format!("{name}.l")));
        assert!(far <= 1, "{name}: {far} levels");
    }
}

#[test]
fn sixteen_bits_keep_their_high_byte() {
    let samples: Vec<u8> = (0..HEIGHT * WIDTH * 6).map(|i| (i * 37) as u8).collect();
    let mut encoded = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut encoded, WIDTH as u32, HEIGHT as u32);
    encoder.set_color(::png::ColorType::Rgb);
    encoder.set_depth(::png::BitDepth::Sixteen);
    encoder.write_header().unwrap().write_image_data(&samples).unwrap();
    let high: Vec<u8> = samples.chunks(2).map(|s| s[0]).collect();
    assert!(decode(&decoder(&encoded, ImageMode::Auto, None).unwrap(), &encoded).unwrap() == high);
}

#[test]
fn resizing_equals_pillows_bilinear() {
    let encoded = golden("rgb.png");
    let resized = decode(&decoder(&encoded, ImageMode::Auto, Some((7, 9))).unwrap(), &encoded).unwrap();
    let far = distance(&resized, &golden("resized.rgb"));
    assert!(far <= 1, "{far} levels");
}

#[test]
fn resizing_makes_ragged_images_one_shape_and_leaves_fitting_ones_alone() {
    let (a, b) = (golden("rgb.png"), gray(200));
    let to = decoder(&a, ImageMode::Auto, Some((HEIGHT, WIDTH))).unwrap();
    assert!(decode(&to, &a).unwrap() == golden("rgb.png.rgb"));
    assert_eq!(decode(&to, &b).unwrap(), vec![200; HEIGHT * WIDTH * 3]);
}

#[test]
fn auto_follows_the_first_image_and_never_drops_colour() {
    let (gray, color) = (golden("gray.png"), golden("rgb.png"));
    let from_color = decoder(&color, ImageMode::Auto, None).unwrap();
    assert_eq!(from_color.spec().shape, [HEIGHT, WIDTH, 3]);
    assert!(decode(&from_color, &gray).unwrap() == golden("gray.png.rgb"));
    let from_gray = decoder(&gray, ImageMode::Auto, None).unwrap();
    assert_eq!(from_gray.spec().shape, [HEIGHT, WIDTH, 1]);
    refusal(decode(&from_gray, &color), ErrorKind::Sample, &["coloured", "open it with mode=\"rgb\""]);
    refusal(decode(&from_gray, &golden("rgb444.jpg")), ErrorKind::Sample, &["coloured"]);
    assert!(decode(&from_gray, &golden("gray.jpg")).is_ok());
}

#[test]
fn ragged_images_are_refused_with_both_shapes_and_the_remedy() {
    let decoder = decoder(&golden("rgb.png"), ImageMode::Auto, None).unwrap();
    refusal(decode(&decoder, &gray(1)), ErrorKind::Sample, &["2 × 3", "13 × 17", "resize=(13, 17)"]);
}

#[test]
fn a_jpeg_cut_anywhere_is_refused() {
    for name in ["rgb444.jpg", "rgb420.jpg", "progressive.jpg", "gray.jpg", "cmyk.jpg"] {
        let encoded = golden(name);
        let decoder = decoder(&encoded, ImageMode::Rgb, None).unwrap();
        for len in 0..encoded.len() {
            refusal(decode(&decoder, &encoded[..len]), ErrorKind::Sample, &[]);
        }
    }
}

#[test]
fn a_png_cut_within_its_pixels_is_refused() {
    for name in ["rgb.png", "palette.png", "gray-alpha.png"] {
        let encoded = golden(name);
        let decoder = decoder(&encoded, ImageMode::Rgb, None).unwrap();
        let end = encoded.len() - 12;
        for len in 0..end - 8 {
            refusal(decode(&decoder, &encoded[..len]), ErrorKind::Sample, &[]);
        }
    }
}

#[test]
fn what_cannot_be_decoded_is_refused_at_construction() {
    for resize in [(0, 5), (5, 0), (1 << 20, 1 << 20), (usize::MAX, usize::MAX)] {
        refusal(decoder(&golden("rgb.png"), ImageMode::Auto, Some(resize)), ErrorKind::Settings, &["resize="]);
    }
    refusal(ImageMode::from_name("cmyk"), ErrorKind::Settings, &["cmyk", "rgb"]);
    let fits = decoder(&golden("rgb.png"), ImageMode::Auto, None).unwrap();
    refusal(fits.decode(&golden("rgb.png"), &mut [0; 5], &mut Scratch::default()), ErrorKind::Usage, &["663", "got 5"]);
}

/// A decoder and its bytes cannot make more than a bad sample, whatever they do: here the decoder is a panic.
#[test]
fn a_panic_in_a_decoder_is_a_bad_sample_and_the_memory_it_left_is_not_used_again() {
    let mut scratch = Scratch { decoded: vec![7], spare: vec![1; 9], pixels: vec![2; 9], ..Scratch::default() };
    let hurt = |scratch: &mut Scratch, panic: fn()| {
        contained("JPEG", 160, scratch, |scratch| {
            scratch.spare.push(3);
            panic();
            Ok(())
        })
    };
    refusal(hurt(&mut scratch, || panic!("row 3 of 2")), ErrorKind::Sample, &["JPEG of 160 bytes", "row 3 of 2"]);
    assert!(scratch.spare.is_empty() && scratch.pixels.is_empty());
    assert_eq!(scratch.decoded, [7], "the caller's row is not the decoder's");
    let formatted: fn() = || panic!("{}", 5);
    refusal(hurt(&mut scratch, formatted), ErrorKind::Sample, &["(5)"]);
    refusal(hurt(&mut scratch, || std::panic::panic_any(5)), ErrorKind::Sample, &["did not say why"]);
    hurt(&mut scratch, || ()).unwrap();
}

/// What is refused before the decoder sees it is refused quietly: no panic, so no word from a panic hook.
#[test]
fn what_is_known_to_make_a_decoder_panic_is_refused_before_it_does() {
    let corpus: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "tests", "fuzz", "corpus"].iter().collect();
    let encoded = std::fs::read(corpus.join("palette-not-of-threes.png")).unwrap();
    let words = ["palette of 50 bytes", "multiple of 3"];
    for mode in [ImageMode::Rgb, ImageMode::Gray] {
        let decoder = decoder(&golden("rgb.png"), mode, Some((8, 8))).unwrap();
        refusal(decode(&decoder, &encoded), ErrorKind::Sample, &words);
    }
    refusal(decoder(&encoded, ImageMode::Auto, None), ErrorKind::Sample, &words);
}

/// Batch slots are used again and again: what a decoder leaves unwritten would be a row of another sample's.
#[test]
fn no_image_shows_what_lay_in_the_memory_before_it() {
    let tests: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "tests"].iter().collect();
    let mut decoded = 0;
    let folders = ["fuzz/corpus", "golden/images"].map(|folder| std::fs::read_dir(tests.join(folder)).unwrap());
    for entry in folders.into_iter().flatten() {
        let encoded = std::fs::read(entry.unwrap().path()).unwrap();
        for mode in [ImageMode::Rgb, ImageMode::Gray] {
            let Ok(decoder) = decoder(&encoded, mode, None) else { continue };
            let [a, b] = [0x00, 0xaa].map(|dirt| {
                let mut scratch = Scratch { spare: vec![dirt; 5000], pixels: vec![dirt; 5000], ..Scratch::default() };
                let mut out = vec![dirt; decoder.spec().bytes()];
                decoder.decode(&encoded, &mut out, &mut scratch).unwrap();
                out
            });
            assert!(
                a == b,
                "{} of {} bytes were not written",
                a.iter().zip(&b).filter(|(a, b)| a != b).count(),
                a.len()
            );
            decoded += 1;
        }
    }
    assert!(decoded >= 80, "{decoded} of the golden ones, in two modes each");
}
