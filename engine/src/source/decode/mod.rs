//! Encoded images to pixels: u8, height × width × channels, straight into the caller's buffer.
//!
//! What is *not* done, as in Pillow and torchvision by default: EXIF orientation, colour profiles and gamma are
//! ignored; alpha is dropped; 16-bit samples keep their high byte. PNG pixels equal Pillow's exactly. JPEG pixels come
//! from another inverse transform than libjpeg-turbo's and differ by a few levels (at most 7, on average 0.3: decision
//! 0012).
//!
//! A JPEG without its end marker is truncated and refused, as Pillow does. One whose blocks end early *with* an end
//! marker is shown as far as it goes and gray for the rest, as libjpeg does: nothing in the format tells it from a
//! picture.

mod contain;
mod jpeg;
mod png;
#[cfg(test)]
mod tests;

use contain::contained;
use lossfeed_resize::Resizer;

use super::{Form, Source};
use crate::error::{Error, Result};
use crate::types::{Dtype, SampleId, TensorSpec};
use std::ops::ControlFlow;

/// Pixels an image may declare. What a header declares is refused beyond it before anything is allocated: 64 Mi pixels
/// of RGB are 192 MiB for each decoding thread.
///
/// A fuzzing build allows 128 × 128: it looks for errors, not for what large images cost.
pub const MAX_PIXELS: usize = if cfg!(fuzzing) { 1 << 14 } else { 1 << 26 };

/// Samples looked at to learn the dataset's shape; the first that decodes decides.
const PROBES: usize = 16;

/// Channels of decoded images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageMode {
    /// What the first image is: 1 channel if it is gray, 3 otherwise. Later gray images are widened to 3; a later
    /// colour image among gray ones is an error, since reducing it would lose something nobody asked to lose.
    #[default]
    Auto,
    /// 3 channels; gray images are widened.
    Rgb,
    /// 1 channel; colour images are reduced with the weights of ITU-R BT.601.
    Gray,
}

impl ImageMode {
    /// `auto`, `rgb` or `gray`.
    ///
    /// # Errors
    /// `Settings` for any other name.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "rgb" => Ok(Self::Rgb),
            "gray" => Ok(Self::Gray),
            _ => Err(Error::settings(format!("image mode {name:?} is not known: use \"auto\", \"rgb\" or \"gray\""))),
        }
    }
}

/// A thread's reusable memory. It grows to the largest image seen.
#[derive(Default)]
pub struct Scratch {
    /// A decoded sample that is still to be made into a row. Not the decoder's.
    pub(crate) decoded: Vec<u8>,
    pixels: Vec<u8>,
    spare: Vec<u8>,
    resizer: Resizer,
}

impl Scratch {
    /// Forgets what decoders use of it, after one of them was left in mid-work.
    fn renew(&mut self) {
        *self = Self { decoded: std::mem::take(&mut self.decoded), ..Self::default() };
    }
}

/// Turns a dataset's encoded images into tensors of one shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoder {
    spec: TensorSpec,
    height: usize,
    width: usize,
    channels: usize,
    resize: bool,
    /// The mode was [`ImageMode::Auto`]: a colour image among gray ones is refused.
    auto: bool,
}

impl Decoder {
    /// A decoder for `source`, whose shape is `resize` (height, width) or that of the first image that decodes.
    ///
    /// # Errors
    /// `Usage` for a source of rows; `Settings` for a resize of 0 or beyond [`MAX_PIXELS`]; `Sample` when none of the
    /// first 16 samples decodes.
    pub fn for_source(source: &dyn Source, mode: ImageMode, resize: Option<(usize, usize)>) -> Result<Self> {
        if !matches!(source.form(), Form::Images) {
            return Err(Error::usage(format!(
                "{} holds rows, not images: there is nothing to decode",
                source.describe()
            )));
        }
        if let Some((height, width)) = resize
            && (height == 0 || width == 0 || height.saturating_mul(width) > MAX_PIXELS)
        {
            return Err(Error::settings(format!(
                "resize=({height}, {width}) is not possible: both must be at least 1 and their product at most {MAX_PIXELS}"
            )));
        }
        let mut failure = None;
        for id in 0..source.len().min(PROBES) as SampleId {
            let mut head = None;
            source.fetch(&[id], &mut |_, payload| {
                head = Some(payload.and_then(|p| probe(p.data)));
                ControlFlow::Continue(())
            });
            match head {
                Some(Ok(head)) => return Ok(Self::new(head, mode, resize)),
                Some(Err(e)) => failure = failure.or(Some((id, e))),
                None => return Err(Error::internal(format!("{} did not answer for sample {id}", source.describe()))),
            }
        }
        let (id, e) = failure.ok_or_else(|| Error::unreadable(format!("{} holds no samples", source.describe())))?;
        Err(Error::new(
            e.kind(),
            format!("none of the first {} samples could be decoded; {}", source.len().min(PROBES), source.name(id)),
        )
        .because(e))
    }

    fn new(first: Head, mode: ImageMode, resize: Option<(usize, usize)>) -> Self {
        let (height, width) = resize.unwrap_or((first.height, first.width));
        let channels = match mode {
            ImageMode::Rgb => 3,
            ImageMode::Gray => 1,
            ImageMode::Auto => 1 + 2 * usize::from(first.color),
        };
        Self {
            spec: TensorSpec::new(Dtype::U8, [height, width, channels]),
            height,
            width,
            channels,
            resize: resize.is_some(),
            auto: mode == ImageMode::Auto,
        }
    }

    /// Element type (u8) and shape (height, width, channels) of what [`decode`](Self::decode) writes.
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Decodes one image into `out`, which has exactly `spec().bytes()` bytes. On an error `out` holds no meaning.
    ///
    /// # Errors
    /// `Sample` when the bytes are neither JPEG nor PNG, are corrupt or truncated, have another shape than the dataset
    /// (unless it is resized), declare more than [`MAX_PIXELS`], or make the decoder panic; `Usage` for a buffer of the
    /// wrong length.
    pub fn decode(&self, encoded: &[u8], out: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        let wanted = self.height * self.width * self.channels;
        if out.len() != wanted {
            return Err(Error::usage(format!(
                "an image of this dataset needs a buffer of {wanted} bytes, got {}",
                out.len()
            )));
        }
        let format = Format::of(encoded)?;
        contained(format.name(), encoded.len(), scratch, |scratch| match format {
            Format::Jpeg => self.place(jpeg::Jpeg::open(encoded, self.channels)?, out, scratch),
            Format::Png => self.place(png::Png::open(encoded)?, out, scratch),
        })
    }

    fn place(&self, image: impl Image, out: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        let head = image.head();
        if self.auto && self.channels == 1 && head.color {
            return Err(Error::sample(
                "the image is coloured while the dataset's first is gray: choose image_mode=\"rgb\" or \"gray\" for all",
            ));
        }
        if (head.height, head.width) == (self.height, self.width) {
            return image.write(self.channels, out, &mut scratch.spare);
        }
        if !self.resize {
            return Err(Error::sample(format!(
                "the image is {} × {} pixels (height × width), this dataset's are {} × {}: pass resize=({}, {}) or another size",
                head.height, head.width, self.height, self.width, self.height, self.width
            )));
        }
        head.check_size()?;
        scratch.pixels.resize(head.height * head.width * self.channels, 0);
        image.write(self.channels, &mut scratch.pixels, &mut scratch.spare)?;
        let (from, to) = ((head.height, head.width), (self.height, self.width));
        scratch.resizer.resize(&scratch.pixels, from, out, to, self.channels).map_err(Error::internal)
    }
}

/// What an image's header declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    height: usize,
    width: usize,
    color: bool,
}

impl Head {
    fn check_size(self) -> Result<()> {
        match self.height.checked_mul(self.width) {
            Some(1..=MAX_PIXELS) => Ok(()),
            _ => Err(Error::sample(format!(
                "the header declares {} × {} pixels (height × width), at most {MAX_PIXELS} in all are decoded: shrink the image or remove it",
                self.height, self.width
            ))),
        }
    }
}

/// An opened image: its header is read, its pixels are not.
trait Image {
    fn head(&self) -> Head;
    /// Writes `height × width × channels` bytes; `spare` is memory to use on the way. `channels` is 1 or 3.
    fn write(self, channels: usize, out: &mut [u8], spare: &mut Vec<u8>) -> Result<()>;
}

enum Format {
    Jpeg,
    Png,
}

impl Format {
    fn name(&self) -> &'static str {
        match self {
            Format::Jpeg => "JPEG",
            Format::Png => "PNG",
        }
    }

    /// By content: names lie.
    fn of(encoded: &[u8]) -> Result<Self> {
        if encoded.starts_with(&[0xff, 0xd8, 0xff]) {
            Ok(Format::Jpeg)
        } else if encoded.starts_with(b"\x89PNG\r\n\x1a\n") {
            Ok(Format::Png)
        } else {
            let start: Vec<String> = encoded.iter().take(8).map(|b| format!("{b:02x}")).collect();
            Err(Error::sample(format!(
                "these {} bytes are neither JPEG nor PNG (they begin with {}): convert the file or remove it",
                encoded.len(),
                if start.is_empty() { "nothing".to_owned() } else { start.join(" ") }
            )))
        }
    }
}

/// Reads a header and decodes the image once, so that what follows from it is known to hold.
fn probe(encoded: &[u8]) -> Result<Head> {
    fn full(image: impl Image) -> Result<Head> {
        let head = image.head();
        head.check_size()?;
        image.write(3, &mut vec![0; head.height * head.width * 3], &mut Vec::new())?;
        Ok(head)
    }
    let format = Format::of(encoded)?;
    contained(format.name(), encoded.len(), &mut Scratch::default(), |_| match format {
        Format::Jpeg => full(jpeg::Jpeg::open(encoded, 3)?),
        Format::Png => full(png::Png::open(encoded)?),
    })
}

/// Luma of RGB pixels, with Pillow's integers: (19595 R + 38470 G + 7471 B + 32768) / 65536.
fn to_gray(rgb: &[u8], out: &mut [u8]) {
    for (pixel, gray) in rgb.as_chunks::<3>().0.iter().zip(out) {
        let [r, g, b] = pixel.map(u32::from);
        *gray = ((19595 * r + 38470 * g + 7471 * b + 0x8000) >> 16) as u8;
    }
}
