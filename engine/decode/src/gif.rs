//! GIF: the first frame of an animation.
//!
//! What the frame does not cover has its transparent colour, or the first one, as in Pillow. An image is gray if all of
//! its colours are.

use ::gif::{ColorOutput, DecodeOptions, Decoder, DecodingError, Frame, MemoryLimit};
use std::num::NonZeroU64;

use super::pixels::Palette;
use super::{Format, Head, Image, MAX_PIXELS, broken};
use crate::error::{Error, Result};

pub(super) const FORMAT: Format = Format {
    name: "GIF",
    endings: &["gif"],
    begins: |bytes| bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a"),
    open: |encoded, _, then| then(&mut Gif::open(encoded)?),
};

struct Gif<'a> {
    encoded: &'a [u8],
    decoder: Decoder<&'a [u8]>,
    palette: Palette,
    /// Of what the frame does not cover.
    background: u8,
    /// Left, top, width and height of the frame.
    frame: [usize; 4],
    /// Its rows are stored in four passes.
    interlaced: bool,
    head: Head,
}

impl<'a> Gif<'a> {
    fn open(encoded: &'a [u8]) -> Result<Self> {
        let mut options = DecodeOptions::new();
        options.set_color_output(ColorOutput::Indexed);
        options.set_memory_limit(NonZeroU64::new(MAX_PIXELS as u64).map_or(MemoryLimit::Unlimited, MemoryLimit::Bytes));
        let mut decoder = options.read_info(encoded).map_err(|e| failed(encoded, e))?;
        let shape = |frame: &Frame<'_>| {
            let sides = [frame.left, frame.top, frame.width, frame.height].map(usize::from);
            (sides, frame.transparent.unwrap_or_default(), frame.interlaced)
        };
        let first = match decoder.next_frame_info() {
            Ok(first) => first.map(shape),
            Err(e) => {
                // A frame without a table of colours is refused once its header was read; its pixels come all the same.
                let first = decoder.current_frame_info().filter(|first| first.width > 0 && decoder.palette().is_err());
                Some(shape(first.ok_or_else(|| failed(encoded, e))?))
            }
        };
        let (frame, background, interlaced) = first.unwrap_or_default();
        let [left, top, width, height] = frame;
        if width == 0 || height == 0 {
            return Err(Error::sample(format!(
                "the GIF of {} bytes has no pixels in its first frame: copy it again or remove it",
                encoded.len()
            )));
        }
        // Without a table of colours numbers are grays, as in Pillow.
        let colors = decoder.palette().unwrap_or_default();
        let palette = Palette::new(colors.as_chunks::<3>().0.iter().copied());
        // A frame that is larger than the screen makes it larger, as in Pillow.
        let head = Head {
            height: usize::from(decoder.height()).max(top + height),
            width: usize::from(decoder.width()).max(left + width),
            color: palette.color(),
        };
        Ok(Self { encoded, decoder, palette, background, frame, interlaced, head })
    }
}

impl Image for Gif<'_> {
    fn head(&self) -> Head {
        self.head
    }

    fn write(&mut self, channels: usize, out: &mut [u8], spare: &mut Vec<u8>) -> Result<()> {
        let [left, top, width, height] = self.frame;
        spare.resize(width * height, 0);
        // In one go and as it is stored: row by row the decoder takes some rows for the end.
        if !self.decoder.fill_buffer(spare).map_err(|e| failed(self.encoded, e))? {
            return Err(broken(FORMAT.name, self.encoded).because("it has too few pixels"));
        }
        if [width, height] == [self.head.width, self.head.height] && !self.interlaced {
            self.palette.put(spare.iter().copied(), channels, out);
            return Ok(());
        }
        self.palette.put(std::iter::repeat(self.background), channels, out);
        let passes: &[(usize, usize)] = if self.interlaced { &[(0, 8), (4, 8), (2, 4), (1, 2)] } else { &[(0, 1)] };
        let rows = passes.iter().flat_map(|&(first, step)| (first..height).step_by(step));
        for (indices, row) in spare.chunks_exact(width).zip(rows) {
            let covered = out.get_mut(((top + row) * self.head.width + left) * channels..).unwrap_or_default();
            self.palette.put(indices.iter().copied(), channels, covered);
        }
        Ok(())
    }
}

fn failed(encoded: &[u8], e: DecodingError) -> Error {
    broken(FORMAT.name, encoded).because(e)
}
