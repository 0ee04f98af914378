//! PNG of any colour type and depth.

use std::io::Cursor;

use ::png::{ColorType, Decoder, DecodingError, Limits, Reader, Transformations};

use super::{Head, Image, MAX_PIXELS, to_gray};
use crate::error::{Error, Result};

/// Colours a palette can have.
const COLORS_MAX: usize = 256;

pub(super) struct Png<'a> {
    encoded: &'a [u8],
    reader: Reader<Cursor<&'a [u8]>>,
    head: Head,
}

impl<'a> Png<'a> {
    /// Reads everything before the pixels.
    pub(super) fn open(encoded: &'a [u8]) -> Result<Self> {
        // The limit is on the decoder's own allocations: one row, the window, ancillary chunks.
        let mut decoder = Decoder::new_with_limits(Cursor::new(encoded), Limits { bytes: MAX_PIXELS });
        decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        let reader = decoder.read_info().map_err(|e| corrupt(encoded, e))?;
        let info = reader.info();
        // The decoder checks neither and panics when it expands such a palette (png 0.18.1).
        let palette = info.palette.as_deref().unwrap_or_default();
        if palette.len() % 3 != 0 || palette.len() > 3 * COLORS_MAX {
            return Err(Error::sample(format!(
                "the PNG of {} bytes has a palette of {} bytes, which must be a multiple of 3 and at most {}: copy it again or remove it",
                encoded.len(),
                palette.len(),
                3 * COLORS_MAX
            )));
        }
        let color = !matches!(info.color_type, ColorType::Grayscale | ColorType::GrayscaleAlpha);
        let head = Head { height: info.height as usize, width: info.width as usize, color };
        Ok(Self { encoded, reader, head })
    }
}

impl Image for Png<'_> {
    fn head(&self) -> Head {
        self.head
    }

    fn write(mut self, channels: usize, out: &mut [u8], spare: &mut Vec<u8>) -> Result<()> {
        let (from, _) = self.reader.output_color_type();
        if (from, channels) == (ColorType::Rgb, 3) || (from, channels) == (ColorType::Grayscale, 1) {
            self.reader.next_frame(out).map_err(|e| corrupt(self.encoded, e))?;
            return Ok(());
        }
        let pixels = self.head.height * self.head.width;
        spare.resize(pixels * from.samples(), 0);
        self.reader.next_frame(spare).map_err(|e| corrupt(self.encoded, e))?;
        match (from, channels) {
            (ColorType::Grayscale, _) => widen(spare.iter().copied(), out),
            (ColorType::GrayscaleAlpha, 1) => spare.as_chunks::<2>().0.iter().zip(out).for_each(|(p, o)| *o = p[0]),
            (ColorType::GrayscaleAlpha, _) => widen(spare.as_chunks::<2>().0.iter().map(|p| p[0]), out),
            (ColorType::Rgb, _) => to_gray(spare, out),
            (ColorType::Rgba, 3) => drop_alpha(spare.as_chunks::<4>().0.iter(), out.as_chunks_mut::<3>().0),
            (ColorType::Rgba, _) => {
                // In place: pixel i moves from 4 i to 3 i, never forwards.
                for i in 0..pixels {
                    spare.copy_within(4 * i..4 * i + 3, 3 * i);
                }
                to_gray(spare.get(..3 * pixels).unwrap_or_default(), out);
            }
            (ColorType::Indexed, _) => return Err(Error::internal("a PNG palette that was not expanded")),
        }
        Ok(())
    }
}

fn widen(gray: impl Iterator<Item = u8>, out: &mut [u8]) {
    for (value, pixel) in gray.zip(out.as_chunks_mut::<3>().0) {
        *pixel = [value; 3];
    }
}

fn drop_alpha<'p>(rgba: impl Iterator<Item = &'p [u8; 4]>, out: &mut [[u8; 3]]) {
    for (&[r, g, b, _], pixel) in rgba.zip(out) {
        *pixel = [r, g, b];
    }
}

fn corrupt(encoded: &[u8], e: DecodingError) -> Error {
    Error::sample(format!("the PNG of {} bytes is corrupt or truncated: copy it again or remove it", encoded.len()))
        .because(e)
}
