//! Every format but JPEG and PNG: pixels against Pillow's, and what is refused.

use super::tests::{decode, decoder, distance, golden, refusal};
use super::*;
use crate::error::ErrorKind;

/// Images without loss, all 17 × 13, and whether each is in colour.
const EXACT: [(&str, bool); 34] = [
    ("lossless.webp", true),
    ("lossless-alpha.webp", true),
    ("animated.webp", true),
    ("palette.gif", true),
    ("transparent.gif", true),
    ("gray.gif", false),
    ("animated.gif", true),
    ("part-of-screen.gif", true),
    ("rgb.bmp", true),
    ("rgba.bmp", true),
    ("gray.bmp", false),
    ("palette.bmp", true),
    ("one-bit.bmp", false),
    ("top-first.bmp", true),
    ("555.bmp", true),
    ("565.bmp", true),
    ("sixteen-colors.bmp", true),
    ("os2.bmp", true),
    ("rgb.tif", true),
    ("lzw.tif", true),
    ("deflate.tif", true),
    ("packbits.tif", false),
    ("one-bit.tif", false),
    ("fax.tif", false),
    ("rgba.tif", true),
    ("gray-alpha.tif", false),
    ("cmyk.tif", true),
    ("planes.tif", true),
    ("sixteen-bit.tif", true),
    ("four-bit.tif", false),
    ("white-is-zero.tif", false),
    ("rgb.ppm", true),
    ("gray.pgm", false),
    ("one-bit.pbm", false),
];

/// Lossy ones, and how many levels they may differ by.
const LOSSY: [(&str, u8); 2] = [("lossy.webp", 0), ("lossy-alpha.webp", 0)];

fn pixels(name: &str, mode: ImageMode) -> Vec<u8> {
    let encoded = golden(name);
    let decoder = decoder(&encoded, mode, None).unwrap_or_else(|e| panic!("{name}: {e}"));
    decode(&decoder, &encoded).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn pixels_equal_pillows() {
    for (name, color) in EXACT {
        for (mode, suffix) in [(ImageMode::Rgb, "rgb"), (ImageMode::Gray, "l")] {
            let far = distance(&pixels(name, mode), &golden(&format!("{name}.{suffix}")));
            assert_eq!(far, 0, "{name} {suffix}: {far} levels");
        }
        let channels = decoder(&golden(name), ImageMode::Auto, None).unwrap().spec().shape[2];
        assert_eq!(channels, if color { 3 } else { 1 }, "{name}");
    }
}

#[test]
fn pixels_of_lossy_webp_are_pillows_to_a_few_levels() {
    for (name, within) in LOSSY {
        for (mode, suffix) in [(ImageMode::Rgb, "rgb"), (ImageMode::Gray, "l")] {
            let far = distance(&pixels(name, mode), &golden(&format!("{name}.{suffix}")));
            assert!(far <= within, "{name} {suffix}: {far} levels");
        }
    }
}

/// Pillow stretches fewer grays than 256 in floating point and rounds halves to even.
#[test]
fn grays_of_a_smaller_range_are_stretched() {
    assert!(distance(&pixels("few-grays.pgm", ImageMode::Gray), &golden("few-grays.pgm.l")) <= 1);
    let of = |header: &str, bytes: &[u8]| {
        let encoded = [header.as_bytes(), bytes].concat();
        decode(&decoder(&encoded, ImageMode::Auto, None).unwrap(), &encoded).unwrap()
    };
    // The first pixel's byte is a white space too.
    assert_eq!(of("P5 3 1 255\n", b"\n\r "), b"\n\r ");
    assert_eq!(of("P5\n3 1\n1\n", &[0, 1, 9]), [0, 255, 255]);
    assert_eq!(of("P5 2 1 65535 ", &[0x12, 0x34, 0xff, 0xff]), [0x12, 0xff]);
    assert_eq!(of("P6 1 1 1023 ", &[3, 255, 0, 0, 1, 255]), [255, 0, 127]);
    assert_eq!(of("P4#nine\n9 2\n", &[0xff, 0, 0, 0x80]), [[0; 8].as_slice(), &[255; 9], &[0]].concat());
}

#[test]
fn a_file_cut_anywhere_is_refused_or_whole() {
    for (name, _) in EXACT.into_iter().chain(LOSSY.map(|(name, _)| (name, true))) {
        let encoded = golden(name);
        let decoder = decoder(&encoded, ImageMode::Rgb, None).unwrap();
        let whole = decode(&decoder, &encoded).unwrap();
        for len in 0..encoded.len() {
            match decode(&decoder, &encoded[..len]) {
                // What stands behind the pixels can be missing: the end mark of a GIF, say.
                Ok(pixels) => assert!(pixels == whole && len + 400 > encoded.len(), "{name} cut to {len}"),
                Err(e) => assert_eq!(e.kind(), ErrorKind::Sample, "{name} cut to {len}: {e}"),
            }
        }
        refusal(decode(&decoder, &encoded[..encoded.len() / 3]), ErrorKind::Sample, &["remove it"]);
    }
}

/// Sixty thousand pixels each way in a hundred bytes: refused by the header, before memory is taken.
#[test]
fn what_declares_too_much_is_refused() {
    let side = 60_000u32;
    let gif = [
        &b"GIF89a"[..],
        &side.to_le_bytes()[..2],
        &side.to_le_bytes()[..2],
        &[0x80, 0, 0],
        &[0; 6],
        &[0x2c, 0, 0, 0, 0],
    ]
    .concat();
    let gif = [gif, side.to_le_bytes()[..2].repeat(2), vec![0, 2, 2, 0x4c, 1, 0, 0x3b]].concat();
    let bmp = |width: u32, height: u32| {
        let header: Vec<u8> =
            [40, width, height, 1 | 24 << 16, 0, 0, 0, 0, 0, 0].iter().flat_map(|n: &u32| n.to_le_bytes()).collect();
        [&b"BM"[..], &[0; 8], &54u32.to_le_bytes(), &header, &[0; 40]].concat()
    };
    let mut tiff = golden("rgb.tif");
    for (tag, value) in [(256u16, side), (257, side), (278, side)] {
        let at = tiff.windows(4).position(|w| w[..2] == tag.to_le_bytes() && w[3] == 0 && w[2] <= 4).unwrap();
        tiff[at + 2..at + 4].copy_from_slice(&4u16.to_le_bytes());
        tiff[at + 8..at + 12].copy_from_slice(&value.to_le_bytes());
    }
    // 16383 × 16383 in the frame's own header, and 16384 × 16384 in the one around a lossless image.
    let mut lossy = golden("lossy.webp");
    let frame = lossy.windows(3).position(|w| w == [0x9d, 1, 0x2a]).unwrap();
    lossy[frame + 3..frame + 7].fill(0xff);
    let mut lossless = golden("lossless.webp");
    let start = lossless.windows(4).position(|w| w == b"VP8L").unwrap() + 8;
    assert_eq!(lossless[start], 0x2f);
    lossless[start + 1..start + 4].fill(0xff);
    lossless[start + 4] |= 0x0f;
    for (name, encoded) in [
        ("GIF", gif),
        ("BMP", bmp(side, side)),
        ("BMP, the other way", bmp(side, side.wrapping_neg())),
        ("BMP, the least", bmp(i32::MAX as u32, i32::MIN as u32)),
        ("PPM", format!("P6 {side} {side} 255 ").into_bytes()),
        ("PBM", b"P4 999999999 999999999 ".to_vec()),
        ("TIFF", tiff),
        ("lossy WebP", lossy),
        ("lossless WebP", lossless),
    ] {
        let error = decoder(&encoded, ImageMode::Auto, None).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Sample, "{name}: {error}");
        assert!(error.to_string().contains("at most 67108864"), "{name}: {error}");
    }
    for none in [b"P5 0 4 255 ".to_vec(), bmp(0, 4), bmp(4, 0), bmp(4u32.wrapping_neg(), 4)] {
        refusal(decoder(&none, ImageMode::Auto, None), ErrorKind::Sample, &["at most 67108864"]);
    }
}

/// An image that is declared small around a frame that is not, for which the decoder would make room.
#[test]
fn a_webp_whose_frame_is_larger_than_the_image_is_refused() {
    let mut encoded = golden("lossy-alpha.webp");
    let frame = encoded.windows(3).position(|w| w == [0x9d, 1, 0x2a]).unwrap();
    encoded[frame + 3..frame + 7].fill(0xff);
    refusal(
        decoder(&encoded, ImageMode::Auto, None),
        ErrorKind::Sample,
        &["declares 13 × 17 pixels for a frame of 16383 × 16383"],
    );
    let cut = &golden("lossless.webp")[..40];
    refusal(decoder(cut, ImageMode::Auto, None), ErrorKind::Sample, &["WebP of 40 bytes is truncated (it says"]);
}

#[test]
fn kinds_that_are_not_read_are_refused_with_their_reason() {
    let mut run_lengths = golden("palette.bmp");
    run_lengths[30] = 1;
    let mut float = golden("sixteen-bit.tif");
    // The tag of the planes becomes that of the sample format, whose value becomes that of fractions.
    let at = float.windows(4).position(|w| w == [1, 28, 0, 3]).unwrap();
    float[at..at + 2].copy_from_slice(&339u16.to_be_bytes());
    float[at + 8..at + 10].copy_from_slice(&3u16.to_be_bytes());
    for (encoded, words) in [
        (run_lengths, ["BMP of", "8 bits a pixel, compression 1"]),
        (float, ["TIFF of", "sample format 3"]),
        (b"P3 1 1 255 1 2 3".to_vec(), ["PNM of", "its pixels are stored as text"]),
    ] {
        refusal(decoder(&encoded, ImageMode::Auto, None), ErrorKind::Sample, &words);
        refusal(decoder(&encoded, ImageMode::Auto, None), ErrorKind::Sample, &["is not read: ", "convert it"]);
    }
    refusal(decoder(b"P5 1 1 0 \0", ImageMode::Auto, None), ErrorKind::Sample, &["largest value is 0"]);
    let mut masks = golden("565.bmp");
    masks[54] = 0x05;
    refusal(decoder(&masks, ImageMode::Auto, None), ErrorKind::Sample, &["the bits of a colour are not contiguous"]);
}

/// A little-endian TIFF of 4 × 2 grays of 8 bits, uncompressed in one strip but for what `tags` say.
fn tiff(strip: &[u8], tags: &[(u16, u32)]) -> Vec<u8> {
    let mut all = std::collections::BTreeMap::from([
        (256u16, 4u32),
        (257, 2),
        (258, 8),
        (259, 1),
        (262, 1),
        (273, 8),
        (277, 1),
        (278, 2),
        (279, strip.len() as u32),
    ]);
    all.extend(tags.iter().copied());
    let mut file =
        [&b"II*\0"[..], &(8 + strip.len() as u32).to_le_bytes(), strip, &(all.len() as u16).to_le_bytes()].concat();
    for (tag, value) in all {
        file.extend([tag.to_le_bytes(), 4u16.to_le_bytes()].concat());
        file.extend([1, value].map(u32::to_le_bytes).concat());
    }
    file.extend([0; 4]);
    file
}

#[test]
fn tiffs_that_are_not_read_are_told_by_name() {
    let strip = [7; 64];
    let refused: [(&[(u16, u32)], &str); 15] = [
        (&[(259, 7)], "coded by JPEG"),
        (&[(259, 3)], "CCITT group 3"),
        (&[(259, 50_000)], "Zstandard"),
        (&[(259, 65_000)], "unknown coding (65000)"),
        (&[(262, 3)], "its pixels index a palette"),
        (&[(262, 6), (277, 3)], "YCbCr"),
        (&[(262, 8), (277, 3)], "Lab"),
        (&[(262, 2), (277, 2)], "2 samples and 3 colours"),
        (&[(277, 3)], "3 samples and 1 colours"),
        (&[(258, 12)], "samples have 12 bits"),
        (&[(258, 32), (339, 3)], "samples have 32 bits"),
        (&[(259, 5), (317, 3)], "predictor 3"),
        (&[(259, 8), (258, 4), (317, 2)], "predictor 2"),
        (&[(262, 5), (277, 5), (338, 1)], "inks are multiplied"),
        (&[(259, 4)], "4 samples of 8 bits a row are coded by CCITT group 4"),
    ];
    for (tags, why) in refused {
        let file = tiff(&strip, tags);
        refusal(decoder(&file, ImageMode::Auto, None), ErrorKind::Sample, &[why, "is not read: "]);
    }
    let broken: [(&[(u16, u32)], &str); 6] = [
        (&[(322, 1 << 20), (323, 1 << 20), (324, 8), (325, 64)], "its strips or tiles decode to more than"),
        (&[(322, 0), (323, 16), (324, 8), (325, 64)], "tiles have no pixels"),
        (&[(278, 1)], "names too few strips or tiles"),
        (&[(273, 1 << 30)], "a strip or tile begins after the file"),
        (&[(259, 8), (279, 1 << 30)], "a strip or tile ends after the file"),
        (&[(259, 5)], "a strip or tile is too short or malformed"),
    ];
    for (tags, why) in broken {
        let file = tiff(&strip, tags);
        refusal(decoder(&file, ImageMode::Auto, None), ErrorKind::Sample, &[why, "corrupt or truncated"]);
    }
}

/// What libtiff wrote before 1991, and what writers may leave out.
#[test]
fn tiffs_of_odd_writers_are_read() {
    let pixels: Vec<u8> = (0..8).collect();
    let of = |file: &[u8]| decode(&decoder(file, ImageMode::Auto, None).unwrap(), file).unwrap();
    let old = weezl::encode::Encoder::new(weezl::BitOrder::Lsb, 8).encode(&pixels).unwrap();
    assert_eq!(of(&tiff(&old, &[(259, 5)])), pixels);
    for tag in [(278, u32::MAX), (278, 0), (279, 0), (317, 2), (274, 0), (284, 2)] {
        assert_eq!(of(&tiff(&pixels, &[tag])), pixels, "{tag:?}");
    }
}

#[test]
fn formats_are_told_by_content_and_files_by_their_endings() {
    let folder: std::path::PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "..", "..", "tests", "golden", "images"].iter().collect();
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if !is_ending(ending) {
            continue;
        }
        seen += 1;
        let found = ending_of(&std::fs::read(&path).unwrap());
        let family = if ["pgm", "pbm"].contains(&ending) { "ppm" } else { ending };
        assert_eq!(found, Some(family), "{}", path.display());
    }
    assert!(seen > 45, "{seen} images");
    assert!(["JPEG", "Tiff", "wEbP"].into_iter().all(is_ending));
    assert!(!["", "jp", "svg", "npy", "cls"].into_iter().any(is_ending));
    assert_eq!(ending_of(b""), None);
    assert_eq!(ending_of(b"BM, a text that begins so"), None);
    assert_eq!(endings().collect::<Vec<_>>(), ["jpg", "png", "webp", "tif", "bmp", "gif", "ppm"]);
    assert!(endings_said().starts_with(".jpg, .jpeg, .png,") && endings_said().ends_with(".pgm or .pbm"));
    refusal(
        decoder(b"GIF88a", ImageMode::Auto, None),
        ErrorKind::Sample,
        &[
            "these 6 bytes are not an image in a supported format",
            "JPEG, PNG, WebP, TIFF, BMP, GIF and PNM",
            "47 49 46",
        ],
    );
}
