//! TIFF: the first page; gray, RGB and CMYK of whole numbers of up to 16 bits, in strips or tiles, uncompressed or
//! coded by PackBits, LZW, Deflate or as fax; gray and RGB with alpha too.
//!
//! What is refused with its reason: palettes, numbers of 32 bits or with a fraction, JPEG inside TIFF, colour spaces
//! such as Lab.

use std::io::Cursor;
use std::mem;

use ::tiff::decoder::{BufferLayoutPreference, Decoder, DecodingResult, Limits};
use ::tiff::tags::Tag;
use ::tiff::{ColorType, TiffError};

use super::pixels::{Layout, convert, put_colors, unpacked};
use super::{Format, Head, Image, MAX_PIXELS, broken, not_read};
use crate::error::{Error, Result};

pub(super) const FORMAT: Format = Format {
    name: "TIFF",
    endings: &["tif", "tiff"],
    begins: |bytes| [b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"].iter().any(|magic| bytes.starts_with(*magic)),
    open: |encoded, _, then| then(&mut Tiff::open(encoded)?),
};

/// Unsigned whole numbers, as the tag of sample formats has them.
const WHOLE: u16 = 1;

/// Room for strips and tiles, which may be larger than a small image.
const TILE_BYTES: usize = 4 << 20;

/// Of a pixel: four samples of 16 bits.
const PIXEL_BYTES_MAX: usize = 8;

/// What a pixel's samples are.
#[derive(Clone, Copy)]
enum Samples {
    Plain(Layout),
    Cmyk,
}

struct Tiff<'a> {
    encoded: &'a [u8],
    decoder: Decoder<Cursor<&'a [u8]>>,
    samples: Samples,
    /// Of a sample.
    bits: usize,
    head: Head,
}

impl<'a> Tiff<'a> {
    fn open(encoded: &'a [u8]) -> Result<Self> {
        let failed = |e| failed(encoded, e);
        let mut decoder = Decoder::new(Cursor::new(encoded)).map_err(failed)?;
        let (width, height) = decoder.dimensions().map_err(failed)?;
        let kind = decoder.colortype().map_err(failed)?;
        let (samples, bits) = match kind {
            ColorType::Gray(bits @ (1 | 2 | 4 | 8 | 16)) => (Samples::Plain(Layout::Gray), bits),
            // Gray, and one more that nobody says the meaning of or that is alpha.
            ColorType::Multiband { bit_depth: bits @ (8 | 16), num_samples: 2 } => {
                (Samples::Plain(Layout::GrayAlpha), bits)
            }
            ColorType::RGB(bits @ (8 | 16)) => (Samples::Plain(Layout::Rgb), bits),
            ColorType::RGBA(bits @ (8 | 16)) => (Samples::Plain(Layout::Rgba), bits),
            ColorType::CMYK(bits @ (8 | 16)) => (Samples::Cmyk, bits),
            other => return Err(not_read(FORMAT.name, encoded).because(format!("its pixels are {other:?}"))),
        };
        let formats = decoder.find_tag_unsigned_vec::<u16>(Tag::SampleFormat).map_err(failed)?;
        if let Some(other) = formats.unwrap_or_default().into_iter().find(|&format| format != WHOLE) {
            return Err(not_read(FORMAT.name, encoded)
                .because(format!("its samples are no unsigned whole numbers (sample format {other})")));
        }
        let color = match samples {
            Samples::Plain(layout) => layout.color(),
            Samples::Cmyk => true,
        };
        let head = Head { height: height as usize, width: width as usize, color };
        let mut limits = Limits::default();
        limits.decoding_buffer_size = MAX_PIXELS * PIXEL_BYTES_MAX;
        limits.intermediate_buffer_size =
            TILE_BYTES + 2 * head.height.saturating_mul(head.width).min(MAX_PIXELS) * PIXEL_BYTES_MAX;
        let decoder = decoder.with_limits(limits);
        Ok(Self { encoded, decoder, samples, bits: bits.into(), head })
    }

    fn pixel_samples(&self) -> usize {
        match self.samples {
            Samples::Plain(layout) => layout.samples(),
            Samples::Cmyk => 4,
        }
    }

    /// Makes bytes of samples, pixel by pixel and without gaps.
    fn samples_of(&self, stored: Vec<u8>, layout: &BufferLayoutPreference) -> Vec<u8> {
        let stored = if self.bits < 8 {
            let row = (self.head.width * self.bits).div_ceil(8);
            let most = (1u8 << self.bits) - 1;
            let rows = stored.chunks_exact(row);
            rows.flat_map(|row| unpacked(row, self.bits).take(self.head.width).map(move |value| value * (255 / most)))
                .collect()
        } else {
            stored
        };
        if layout.planes <= 1 {
            return stored;
        }
        // Sample by sample: all of the first, then all of the second.
        let plane = self.head.height * self.head.width;
        let samples = self.pixel_samples();
        let sample = |at: usize| stored.get(at % samples * plane + at / samples).copied().unwrap_or_default();
        (0..plane * samples).map(sample).collect()
    }
}

impl Image for Tiff<'_> {
    fn head(&self) -> Head {
        self.head
    }

    fn write(&mut self, channels: usize, out: &mut [u8], spare: &mut Vec<u8>) -> Result<()> {
        let pixels = self.head.height * self.head.width;
        let encoded = self.encoded;
        let mut read = DecodingResult::U8(mem::take(spare));
        let layout = self.decoder.read_image_to_buffer(&mut read).map_err(|e| failed(encoded, e))?;
        let stored = match read {
            DecodingResult::U8(bytes) => bytes,
            // The high byte.
            DecodingResult::U16(values) => values.into_iter().map(|value| (value >> 8) as u8).collect(),
            _ => {
                return Err(not_read(FORMAT.name, encoded).because("its samples are no whole numbers of up to 16 bits"));
            }
        };
        let stored = self.samples_of(stored, &layout);
        if stored.len() != pixels * self.pixel_samples() {
            return Err(broken(FORMAT.name, encoded).because(format!("{} samples of {pixels} pixels", stored.len())));
        }
        match self.samples {
            Samples::Plain(layout) => convert(layout, &stored, channels, out),
            Samples::Cmyk => put_colors(stored.as_chunks::<4>().0.iter().map(rgb_of), channels, out),
        }
        *spare = stored;
        Ok(())
    }
}

/// Ink to light without a colour profile, with Pillow's integers.
fn rgb_of(&[c, m, y, k]: &[u8; 4]) -> [u8; 3] {
    let left = 255 - u32::from(k);
    [c, m, y].map(|ink| {
        let taken = u32::from(ink) * left + 128;
        left.saturating_sub(((taken >> 8) + taken) >> 8) as u8
    })
}

fn failed(encoded: &[u8], e: TiffError) -> Error {
    match e {
        TiffError::UnsupportedError(_) => not_read(FORMAT.name, encoded).because(e),
        _ => broken(FORMAT.name, encoded).because(e),
    }
}
