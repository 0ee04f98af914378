//! JPEG: sequential and progressive, Huffman and arithmetic coding, gray, YCbCr, RGB, CMYK and YCCK, with the pixels of
//! libjpeg-turbo (decision 57). What the decoder cannot read as libjpeg-turbo does is found in the headers and refused
//! by name, or made from its planes (`planes.rs`).

mod headers;
mod planes;

use libjpeg_turbo_rs::{ColorSpace, DecodeLimits, Decoder, JpegError, PixelFormat};

use super::pixels::{Layout, convert};
use super::{Format, Head, Image, Then, not_read};
use crate::error::{Error, Result};
use headers::Headers;

pub(super) const FORMAT: Format =
    Format { name: "JPEG", endings: &["jpg", "jpeg"], begins: |bytes| bytes.starts_with(&[0xff, 0xd8, 0xff]), open };

/// Scans of one image. Each costs a pass over all pixels; encoders write a dozen.
const SCANS_MAX: usize = 500;

struct Jpeg<'a> {
    encoded: &'a [u8],
    headers: Headers<'a>,
    /// Taken by [`Image::write`].
    decoder: Option<Decoder<'a>>,
    head: Head,
}

fn open(encoded: &[u8], _channels: usize, then: Then<'_>) -> Result<()> {
    let headers = Headers::read(encoded).map_err(|reason| not_read(FORMAT.name, encoded, &reason))?;
    let Some(headers) = headers else {
        return Err(Error::sample(format!(
            "the JPEG of {} bytes is truncated (its headers end before its first scan): copy it again or remove it",
            encoded.len()
        )));
    };
    let shortened = headers.without_standard_tables(encoded);
    let limits = DecodeLimits { max_scans: SCANS_MAX, ..DecodeLimits::default() };
    let decoder = Decoder::new_with_limits(shortened.as_deref().unwrap_or(encoded), limits);
    let decoder = decoder.map_err(|e| failed(encoded, e))?;
    let frame = decoder.header();
    let head = Head { height: frame.height.into(), width: frame.width.into(), color: headers.components.len() > 1 };
    then(&mut Jpeg { encoded, headers, decoder: Some(decoder), head })
}

impl Image for Jpeg<'_> {
    fn head(&self) -> Head {
        self.head
    }

    fn write(&mut self, channels: usize, out: &mut [u8], spare: &mut Vec<u8>) -> Result<()> {
        let encoded = self.encoded;
        if !self.headers.ended(encoded) {
            return Err(Error::sample(format!(
                "the JPEG of {} bytes is truncated (it has no end marker): copy it again or remove it",
                encoded.len()
            )));
        }
        self.headers.check_scans(encoded).map_err(|reason| not_read(FORMAT.name, encoded, &reason))?;
        let mut decoder = self.decoder.take().ok_or_else(|| Error::internal("a JPEG decoded twice"))?;
        let color = decoder.jpeg_color_space();
        if self.headers.needs_planes() {
            let raw = decoder.decode_raw().map_err(|e| failed(encoded, e))?;
            return planes::write(&raw, self.headers.components, color, channels, out);
        }
        // Where a progressive file ends before its last bits: as libjpeg-turbo does by default.
        decoder.set_block_smoothing(true);
        // Gray from RGB goes by Pillow's weights; the other kinds have a component for it.
        if channels == 1 && color == ColorSpace::Rgb {
            decoder.set_output_format(PixelFormat::Rgb);
            spare.resize(self.head.height * self.head.width * 3, 0);
            decoder.decode_image_into(spare).map_err(|e| failed(encoded, e))?;
            convert(Layout::Rgb, spare, 1, out);
            return Ok(());
        }
        decoder.set_output_format(if channels == 1 { PixelFormat::Grayscale } else { PixelFormat::Rgb });
        decoder.decode_image_into(out).map(|_| ()).map_err(|e| failed(encoded, e))
    }
}

fn failed(encoded: &[u8], e: JpegError) -> Error {
    let bytes = encoded.len();
    let damaged = || Error::sample(format!("the JPEG of {bytes} bytes is damaged: copy it again or remove it"));
    match e {
        JpegError::UnexpectedEof => Error::sample(format!(
            "the JPEG of {bytes} bytes is truncated (its data ends before its last row): copy it again or remove it"
        )),
        JpegError::Unsupported(reason) => not_read(FORMAT.name, encoded, &reason),
        JpegError::LimitExceeded { .. } => not_read(FORMAT.name, encoded, &e.to_string()),
        JpegError::CorruptData(reason) => damaged().because(reason),
        e => damaged().because(e),
    }
}
