//! JPEG, baseline and progressive, gray, YCbCr, RGB, CMYK and YCCK.

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::pixels::{Layout, convert};
use super::{Format, Head, Image, Then};
use crate::error::{Error, Result};

pub(super) const FORMAT: Format =
    Format { name: "JPEG", endings: &["jpg", "jpeg"], begins: |bytes| bytes.starts_with(&[0xff, 0xd8, 0xff]), open };

/// The format's own limit on either side.
const SIDE_MAX: usize = 65_535;

/// What is shown where a file has no blocks. The decoder writes it itself where it sees that they are missing, and
/// writes nothing, though it reports success, where another scan or table begins within a scan (zune-jpeg 0.5.15).
/// Whatever lay in the memory before, another sample's pixels as a rule, must not be shown as this one's.
const MISSING: u8 = 128;

struct Jpeg<'a, 'b> {
    encoded: &'a [u8],
    /// Behind a reference: its tables are 28 KB, and moving them took a twentieth of a small image's time.
    decoder: &'b mut Decoder<'a>,
    head: Head,
}

type Decoder<'a> = JpegDecoder<ZCursor<&'a [u8]>>;

/// Reads the header. `channels` says what will be asked for: the decoder wants to know before it begins.
fn open(encoded: &[u8], channels: usize, then: Then<'_>) -> Result<()> {
    let mut decoder = decoder(encoded, if channels == 1 { ColorSpace::Luma } else { ColorSpace::RGB });
    decoder.decode_headers().map_err(|e| corrupt(encoded, e))?;
    let (width, height) = decoder.dimensions().ok_or_else(|| Error::internal("a JPEG header without dimensions"))?;
    let color = decoder.input_colorspace() != Some(ColorSpace::Luma);
    then(&mut Jpeg { encoded, decoder: &mut decoder, head: Head { height, width, color } })
}

impl Image for Jpeg<'_, '_> {
    fn head(&self) -> Head {
        self.head
    }

    fn write(&mut self, channels: usize, out: &mut [u8], spare: &mut Vec<u8>) -> Result<()> {
        whole(self.encoded)?;
        let direct = matches!(self.decoder.input_colorspace(), Some(ColorSpace::YCbCr | ColorSpace::Luma));
        // Gray alone widens no component.
        if channels == 3 || !direct {
            readable(self.encoded)?;
        }
        if channels == 3 || direct {
            out.fill(MISSING);
            return self.decoder.decode_into(out).map_err(|e| corrupt(self.encoded, e));
        }
        // Gray from anything but YCbCr, whose first component it is, goes through RGB.
        spare.clear();
        spare.resize(self.head.height * self.head.width * 3, MISSING);
        decoder(self.encoded, ColorSpace::RGB).decode_into(spare).map_err(|e| corrupt(self.encoded, e))?;
        convert(Layout::Rgb, spare, 1, out);
        Ok(())
    }
}

fn decoder(encoded: &[u8], to: ColorSpace) -> Decoder<'_> {
    // Strict: the lenient mode paints what is missing gray and calls it success.
    let options = DecoderOptions::default()
        .jpeg_set_out_colorspace(to)
        .set_strict_mode(true)
        .set_max_width(SIDE_MAX)
        .set_max_height(SIDE_MAX);
    JpegDecoder::new_with_options(ZCursor::new(encoded), options)
}

/// Refuses a file without an end marker in its last bytes. The decoder accepts some of them: it pads missing bits with
/// zeros and looks only at the end of each row of blocks. Writers may pad the file after the marker, so all of it is
/// searched, from the end: one step on whole files.
fn whole(encoded: &[u8]) -> Result<()> {
    if encoded.windows(2).rev().any(|w| w == [0xff, 0xd9]) {
        return Ok(());
    }
    Err(Error::sample(format!(
        "the JPEG of {} bytes is truncated (it has no end marker): copy it again or remove it",
        encoded.len()
    )))
}

/// Refuses the sampling that makes the decoder panic (zune-jpeg 0.5.15). Where an image comes in several scans, it
/// makes room for a row of the *first* component, and a component with half of all columns and half of all rows needs
/// a row of the widest. Nearly all files store the first component, luminance, in full.
fn readable(encoded: &[u8]) -> Result<()> {
    let Some((components, one_scan)) = sampling(encoded) else { return Ok(()) };
    let factors = || components.iter().map(|factor| (factor[1] >> 4, factor[1] & 15));
    let widest = factors().map(|(across, _)| across).max().unwrap_or(0);
    let tallest = factors().map(|(_, down)| down).max().unwrap_or(0);
    let halved = |(across, down): (u8, u8)| 2 * across == widest && down > 0 && tallest / down == 2;
    if one_scan || factors().next().is_none_or(|(across, _)| across == widest) || !factors().any(halved) {
        return Ok(());
    }
    Err(Error::sample(format!(
        "the JPEG of {} bytes stores its first colour component with fewer columns than another, which this decoder cannot read: save it anew with another program or remove it",
        encoded.len()
    )))
}

/// The components as the frame header has them (identifier, sampling factors, quantization table), and whether one
/// sequential scan brings them all. `None` where the headers are not well-formed: the decoder says why.
fn sampling(encoded: &[u8]) -> Option<(&[[u8; 3]], bool)> {
    // After the start marker.
    let mut rest = encoded.get(2..)?;
    let mut frame = None;
    loop {
        // As the decoder does: stray bytes before a marker are passed over, and filling ones within it.
        let start = rest.iter().position(|&byte| byte == 0xff)?;
        let filled = rest.get(start..)?;
        let length = filled.iter().position(|&byte| byte != 0xff && byte != 0)?;
        let (&marker, after) = filled.get(length..)?.split_first()?;
        let segment = after.get(..usize::from(u16::from_be_bytes(*after.first_chunk()?)))?;
        match marker {
            0xc0..=0xc2 => {
                let count = usize::from(*segment.get(7)?);
                frame = Some((segment.get(8..8 + 3 * count)?.as_chunks().0, marker));
            }
            0xda => {
                let (components, kind) = frame?;
                return Some((components, kind != 0xc2 && usize::from(*segment.get(2)?) == components.len()));
            }
            _ => {}
        }
        rest = after.get(segment.len()..)?;
    }
}

fn corrupt(encoded: &[u8], e: zune_jpeg::errors::DecodeErrors) -> Error {
    Error::sample(format!("the JPEG of {} bytes is corrupt: copy it again or remove it", encoded.len())).because(e)
}
