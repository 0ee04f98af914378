//! WebP, lossy and lossless; of animations the first frame.
//!
//! A WebP is always in colour: the format has no gray.

use std::io::Cursor;

use image_webp::{DecodingError, WebPDecoder};

use super::pixels::{Layout, convert};
use super::{Format, Head, Image, MAX_PIXELS, broken, not_read};
use crate::error::{Error, Result};

pub(super) const FORMAT: Format = Format {
    name: "WebP",
    endings: &["webp"],
    begins: |bytes| bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP".as_slice()),
    open: |encoded, _, then| then(&mut WebP::open(encoded)?),
};

struct WebP<'a> {
    encoded: &'a [u8],
    decoder: WebPDecoder<Cursor<&'a [u8]>>,
    head: Head,
}

impl<'a> WebP<'a> {
    fn open(encoded: &'a [u8]) -> Result<Self> {
        whole(encoded)?;
        let mut decoder = WebPDecoder::new(Cursor::new(encoded)).map_err(|e| failed(encoded, e))?;
        // On what it reads whole, which is the ancillary chunks.
        decoder.set_memory_limit(MAX_PIXELS);
        let (width, height) = decoder.dimensions();
        readable(encoded, [width, height])?;
        let head = Head { height: height as usize, width: width as usize, color: true };
        Ok(Self { encoded, decoder, head })
    }
}

impl Image for WebP<'_> {
    fn head(&self) -> Head {
        self.head
    }

    fn write(&mut self, channels: usize, out: &mut [u8], spare: &mut Vec<u8>) -> Result<()> {
        let layout = if self.decoder.has_alpha() { Layout::Rgba } else { Layout::Rgb };
        if (layout, channels) == (Layout::Rgb, 3) {
            return self.decoder.read_image(out).map_err(|e| failed(self.encoded, e));
        }
        spare.resize(self.head.height * self.head.width * layout.samples(), 0);
        self.decoder.read_image(spare).map_err(|e| failed(self.encoded, e))?;
        convert(layout, spare, channels, out);
        Ok(())
    }
}

/// Refuses a file that is shorter than it says: parts that are missing are not always missed by the decoder.
fn whole(encoded: &[u8]) -> Result<()> {
    let declared = encoded.get(4..).and_then(<[u8]>::first_chunk).map_or(0, |size| u32::from_le_bytes(*size));
    let wanted = u64::from(declared) + 8;
    if wanted <= encoded.len() as u64 {
        return Ok(());
    }
    Err(Error::sample(format!(
        "the WebP of {} bytes is truncated (it says that it has {wanted}): copy it again or remove it",
        encoded.len()
    )))
}

/// Refuses lossy frames of another size than is declared around them. The decoder makes room for such a frame before it
/// compares, a gigabyte for a file of a hundred bytes, and leaves out the comparison where an animation's frame has an
/// alpha channel of its own, and panics (image-webp 0.2.4).
fn readable(encoded: &[u8], canvas: [u32; 2]) -> Result<()> {
    for (kind, chunk) in chunks(encoded.get(12..).unwrap_or_default()) {
        match &kind {
            b"VP8 " => same_size(encoded, chunk, canvas)?,
            b"ANMF" => {
                let side = |at: usize| {
                    let bytes: &[u8; 3] = chunk.get(at..)?.first_chunk()?;
                    Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]) + 1)
                };
                let (Some(width), Some(height)) = (side(6), side(9)) else { continue };
                for (kind, chunk) in chunks(chunk.get(16..).unwrap_or_default()) {
                    if &kind == b"VP8 " {
                        same_size(encoded, chunk, [width, height])?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn same_size(encoded: &[u8], frame: &[u8], [width, height]: [u32; 2]) -> Result<()> {
    let side = |at: usize| {
        let bytes: &[u8; 2] = frame.get(at..)?.first_chunk()?;
        Some(u32::from(u16::from_le_bytes(*bytes) & 0x3fff))
    };
    // A frame that is cut before its size is the decoder's to refuse.
    let (Some(w), Some(h)) = (side(6), side(8)) else { return Ok(()) };
    if [w, h] == [width, height] {
        return Ok(());
    }
    Err(Error::sample(format!(
        "the WebP of {} bytes is corrupt (it declares {height} × {width} pixels for a frame of {h} × {w}): copy it again or remove it",
        encoded.len()
    )))
}

/// The chunks of a RIFF file: what each is, and its bytes as far as they are there.
fn chunks(mut rest: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let (kind, after) = rest.split_first_chunk::<4>()?;
        let (size, after) = after.split_first_chunk::<4>()?;
        let size = u32::from_le_bytes(*size) as usize;
        let chunk = after.get(..size).unwrap_or(after);
        // Chunks begin at even places.
        rest = after.get(size + size % 2..).unwrap_or_default();
        Some((*kind, chunk))
    })
}

fn failed(encoded: &[u8], e: DecodingError) -> Error {
    match e {
        DecodingError::UnsupportedFeature(_) => not_read(FORMAT.name, encoded, &e.to_string()),
        _ => broken(FORMAT.name, encoded).because(e),
    }
}
