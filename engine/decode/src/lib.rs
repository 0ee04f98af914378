//! Encoded images to pixels: u8, height × width × channels, straight into the caller's buffer.
//!
//! A crate of its own, for what needs pixels and no dataset. Each format is one file or folder: `jpeg.rs`, `png.rs`,
//! `webp.rs`, `tiff/`, `bmp.rs`, `gif.rs`, `pnm.rs`. `formats.rs` lists them and tells them apart by content,
//! `pixels.rs` makes the channels that were asked for (decision 41).
//!
//! What is *not* done, as in Pillow and torchvision by default: EXIF orientation (but for TIFF's), colour profiles and
//! gamma are ignored; alpha is dropped, whatever lies behind it; 16-bit samples keep their high byte; of several frames
//! or pages the first is taken. Pixels equal Pillow's exactly, JPEG's too (decision 57). Lossy WebP comes from another
//! decoder than libwebp; `formats_tests.rs` says by how many levels it may differ.
//!
//! A JPEG without its end marker is truncated and refused, as Pillow does; so is one whose blocks end early *with* an
//! end marker, of which libjpeg would make up the rest. Sound JPEGs that are not read are refused by what they are.

mod bmp;
mod contain;
mod formats;
#[cfg(test)]
mod formats_tests;
mod gif;
mod jpeg;
mod mask;
mod npy;
mod pixels;
mod png;
mod pnm;
mod resample;
#[cfg(test)]
mod resample_tests;
#[cfg(test)]
mod tests;
mod tiff;
mod webp;

pub use formats::{ending_of, endings, endings_said, is_ending, is_image};
pub use mask::Mask;
pub use npy::Npy;
pub use resample::{Resize, resample};

use contain::contained;
use lossfeed_control::{error, types};
use lossfeed_kernels::image::{Region, ResizedCrop};
use lossfeed_resize::Resizer;

use error::{Error, Result};
use types::{Dtype, TensorSpec};

/// Pixels an image may declare. What a header declares is refused beyond it before anything is allocated: 64 Mi pixels
/// of RGB are 192 MiB for each decoding thread.
///
/// A fuzzing build allows 128 × 128: it looks for errors, not for what large images cost.
pub const MAX_PIXELS: usize = if cfg!(fuzzing) { 1 << 14 } else { 1 << 26 };

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
    #[doc(hidden)]
    pub decoded: Vec<u8>,
    /// A crop of it, likewise.
    #[doc(hidden)]
    pub cropped: Vec<u8>,
    /// What that is before it is cut and mirrored, likewise.
    #[doc(hidden)]
    pub uncut: Vec<u8>,
    /// An image as it was before an operation on it, likewise.
    #[doc(hidden)]
    pub before: Vec<u8>,
    /// Height and width of the encoded image that was decoded last, likewise.
    #[doc(hidden)]
    pub size: [usize; 2],
    pixels: Vec<u8>,
    spare: Vec<u8>,
    #[doc(hidden)]
    pub resizer: Resizer,
}

impl Scratch {
    /// Forgets what decoders use of it, after one of them was left in mid-work.
    fn renew(&mut self) {
        (self.pixels, self.spare, self.resizer) = Default::default();
    }
}

/// Turns a dataset's encoded images into tensors of one shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoder {
    spec: TensorSpec,
    size: [usize; 2],
    channels: usize,
    /// What becomes of images of another size; `None`: they are refused.
    fit: Option<Fit>,
    /// The mode was [`ImageMode::Auto`]: a colour image among gray ones is refused.
    auto: bool,
}

/// How an image of any size becomes one of the dataset's.
#[derive(Debug, Clone, PartialEq)]
enum Fit {
    /// All of it, whatever its aspect ratio.
    Stretch,
    /// A part of it.
    Crop(ResizedCrop),
}

impl Decoder {
    /// A decoder for images like `first`, whose shape is what `resize` makes or that of `first`.
    ///
    /// # Errors
    /// `Settings` for a resize of 0 or beyond [`MAX_PIXELS`]; `Sample` if `first` does not decode.
    pub fn for_image(first: &[u8], mode: ImageMode, resize: Option<Resize>) -> Result<Self> {
        let fit = resize.map(|resize| Ok((resize.size(), resize.fit()?))).transpose()?;
        let first = probe(first)?;
        let (size, fit) = fit.map_or((first.size(), None), |(size, fit)| (size, Some(fit)));
        let channels = match mode {
            ImageMode::Rgb => 3,
            ImageMode::Gray => 1,
            ImageMode::Auto => 1 + 2 * usize::from(first.color),
        };
        let spec = TensorSpec::new(Dtype::U8, [size[0], size[1], channels]);
        Ok(Self { spec, size, channels, fit, auto: mode == ImageMode::Auto })
    }

    /// Element type (u8) and shape (height, width, channels) of what [`decode`](Self::decode) writes.
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Height and width of that.
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// Whether images of any size are made one size.
    pub fn resizes(&self) -> bool {
        self.fit.is_some()
    }

    /// Decodes one image into `out`, which has exactly `spec().bytes()` bytes. On an error `out` holds no meaning.
    ///
    /// # Errors
    /// `Sample` when the bytes are of no format that is read, are corrupt or truncated, have another shape than the
    /// dataset (unless it is resized), declare more than [`MAX_PIXELS`], or make the decoder panic; `Usage` for a
    /// buffer of the wrong length.
    pub fn decode(&self, encoded: &[u8], out: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        let region = |size: [usize; 2]| match &self.fit {
            None if size == self.size => Ok(Region::whole(size)),
            None => Err(Error::sample(format!(
                "the image is {} × {} pixels (height × width), this dataset's are {} × {}: give the loader \
                transform=lf.ImageTransform(crop=224, scale=(0.08, 1.0)), with cache_form=\"encoded\" if it has a \
                cache of decoded images, or open it with resize=({}, {})",
                size[0], size[1], self.size[0], self.size[1], self.size[0], self.size[1]
            ))),
            Some(Fit::Stretch) => Ok(Region::whole(size)),
            // Nothing is drawn.
            Some(Fit::Crop(crop)) => Ok(crop.region(size, 0, 0)),
        };
        self.decode_region(encoded, &region, self.size, out, scratch)
    }

    /// Decodes one image of any size, whatever this dataset's is, into the crop of sample `id` in the batch of `key`:
    /// see [`ResizedCrop::region`]. `out` has height × width × channels bytes of the crop's size.
    ///
    /// # Errors
    /// As [`Self::decode`], but for the shape.
    pub fn decode_crop(
        &self,
        encoded: &[u8],
        crop: &ResizedCrop,
        (key, id): (u64, i64),
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let region = |size: [usize; 2]| match crop.fits(size) {
            true => Ok(crop.region(size, key, id)),
            false => Err(Error::sample(format!(
                "the image is {} × {} pixels (height × width), smaller than crop=({}, {}): resize images to cover \
                the crop (resize=), crop less, or remove it",
                size[0],
                size[1],
                crop.size()[0],
                crop.size()[1]
            ))),
        };
        self.decode_region(encoded, &region, crop.size(), out, scratch)
    }

    fn decode_region(
        &self,
        encoded: &[u8],
        region: &RegionOf<'_>,
        to: [usize; 2],
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let wanted = to[0] * to[1] * self.channels;
        if out.len() != wanted {
            return Err(Error::usage(format!(
                "an image of this dataset needs a buffer of {wanted} bytes, got {}",
                out.len()
            )));
        }
        let format = Format::of(encoded)?;
        contained(format.name, encoded.len(), scratch, |scratch| {
            (format.open)(encoded, self.channels, &mut |image| self.place(image, region, to, out, scratch))
        })
    }

    fn place(
        &self,
        image: &mut dyn Image,
        region: &RegionOf<'_>,
        to: [usize; 2],
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let head = image.head();
        if self.auto && self.channels == 1 && head.color {
            return Err(Error::sample(
                "the image is coloured while the dataset's first is gray: open it with mode=\"rgb\" or \"gray\", which all are then",
            ));
        }
        head.check_size()?;
        let size = head.size();
        scratch.size = size;
        let region = region(size)?;
        if size == to && region.is_whole(size) {
            return image.write(self.channels, out, &mut scratch.spare);
        }
        scratch.pixels.resize(size[0] * size[1] * self.channels, 0);
        image.write(self.channels, &mut scratch.pixels, &mut scratch.spare)?;
        resample(&mut scratch.resizer, &scratch.pixels, size, region, out, to, self.channels)
    }
}

/// Which region of an image of a height and width is wanted.
type RegionOf<'a> = dyn Fn([usize; 2]) -> Result<Region> + 'a;

/// What an image's header declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    height: usize,
    width: usize,
    color: bool,
}

impl Head {
    fn size(self) -> [usize; 2] {
        [self.height, self.width]
    }

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
    /// Writes `height × width × channels` bytes; `spare` is memory to use on the way. `channels` is 1 or 3. Nobody
    /// calls it before [`Head::check_size`] has passed, nor twice.
    fn write(&mut self, channels: usize, out: &mut [u8], spare: &mut Vec<u8>) -> Result<()>;
}

/// A format: how it is told, what its files are called, and who reads it.
struct Format {
    /// As messages say it.
    name: &'static str,
    /// Endings of its files, in lower case. The first is given to files that we write.
    endings: &'static [&'static str],
    /// Whether bytes that begin so are meant to be one.
    begins: fn(&[u8]) -> bool,
    /// Reads the header, taking no memory that grows with what it declares, and hands the image over. The number says
    /// how many channels will be asked for: a decoder may want to know before it begins.
    open: fn(&[u8], usize, Then<'_>) -> Result<()>,
}

/// What is done with an opened image. It is lent: decoders are large, and stay where they were made.
type Then<'a> = &'a mut dyn FnMut(&mut dyn Image) -> Result<()>;

/// Reads a header and decodes the image once, so that what follows from it is known to hold.
fn probe(encoded: &[u8]) -> Result<Head> {
    let format = Format::of(encoded)?;
    let mut found = None;
    contained(format.name, encoded.len(), &mut Scratch::default(), |_| {
        (format.open)(encoded, 3, &mut |image| {
            let head = image.head();
            head.check_size()?;
            found = Some(head);
            image.write(3, &mut vec![0; head.height * head.width * 3], &mut Vec::new())
        })
    })?;
    found.ok_or_else(|| Error::internal("an image that was opened and not handed over"))
}

/// Height and width that an image's header declares.
///
/// # Errors
/// `Sample` for bytes of no format that is read, and for a corrupt header.
pub fn size_of(encoded: &[u8]) -> Result<Option<[usize; 2]>> {
    let (format, mut found) = (Format::of(encoded)?, None);
    contained(format.name, encoded.len(), &mut Scratch::default(), |_| {
        (format.open)(encoded, 3, &mut |image| {
            found = Some(image.head().size());
            Ok(())
        })
    })?;
    Ok(found)
}

/// Bytes of a format that do not make an image.
fn broken(format: &str, encoded: &[u8]) -> Error {
    Error::sample(format!(
        "the {format} of {} bytes is corrupt or truncated: copy it again or remove it",
        encoded.len()
    ))
}

/// A sound image of a kind that no decoder here reads.
fn not_read(format: &str, encoded: &[u8], reason: &str) -> Error {
    Error::sample(format!(
        "the {format} of {} bytes is not read: {reason}: convert it, for example by Pillow's Image.open(…).save(\"….png\"), or remove it",
        encoded.len()
    ))
}
