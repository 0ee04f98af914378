//! PNG of any colour type and depth.

use std::io::Cursor;

use ::png::{ColorType, Decoder, DecodingError, Limits, Reader, Transformations};

use super::pixels::{Layout, convert};
use super::{Format, Head, Image, MAX_PIXELS, broken};
use crate::error::{Error, Result};

pub(super) const FORMAT: Format = Format {
    name: "PNG",
    endings: &["png"],
    begins: |bytes| bytes.starts_with(b"\x89PNG\r\n\x1a\n"),
    open: |encoded, _, then| then(&mut Png::open(encoded)?),
};

/// Colours a palette can have.
const COLORS_MAX: usize = 256;

struct Png<'a> {
    encoded: &'a [u8],
    reader: Reader<Cursor<&'a [u8]>>,
    head: Head,
}

impl<'a> Png<'a> {
    /// Reads everything before the pixels.
    fn open(encoded: &'a [u8]) -> Result<Self> {
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

    fn write(&mut self, channels: usize, out: &mut [u8], spare: &mut Vec<u8>) -> Result<()> {
        let layout = match self.reader.output_color_type().0 {
            ColorType::Grayscale => Layout::Gray,
            ColorType::GrayscaleAlpha => Layout::GrayAlpha,
            ColorType::Rgb => Layout::Rgb,
            ColorType::Rgba => Layout::Rgba,
            ColorType::Indexed => return Err(Error::internal("a PNG palette that was not expanded")),
        };
        if layout.samples() == channels {
            self.reader.next_frame(out).map_err(|e| corrupt(self.encoded, e))?;
            return Ok(());
        }
        spare.resize(self.head.height * self.head.width * layout.samples(), 0);
        self.reader.next_frame(spare).map_err(|e| corrupt(self.encoded, e))?;
        convert(layout, spare, channels, out);
        Ok(())
    }
}

fn corrupt(encoded: &[u8], e: DecodingError) -> Error {
    broken(FORMAT.name, encoded).because(e)
}
