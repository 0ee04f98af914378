//! Pixels to what a model reads: crop, flip, normalise, in the wanted element type and layout.
//!
//! For a sample's u8 pixels S (height × width × channels) and its [`Draw`], output pixel (y, x), channel c is
//!
//! ```text
//! x' = flip ? w − 1 − x : x
//! v  = S'[y + top][x' + left][c]            S' is S with `padding` pixels of 0 on every side
//! u8: v        floats: narrow(fma(v, scale_c, shift_c)),   scale_c = 1 / (255 std_c), shift_c = −mean_c / std_c
//! ```
//!
//! computed in f32 and rounded to nearest even. That is torchvision's `RandomCrop(size, padding)`,
//! `RandomHorizontalFlip(p)`, `ToTensor()` and `Normalize(mean, std)` in one pass, up to f32 rounding.
//! [`reference`](make_plain) is the contract in plain Rust, [`ImageMaker`] the CPU's path and `cuda/image.cu` the
//! GPU's: all three give the same bits.
//!
//! Before that, an image of any size may become one of a fixed size, [`ResizedCrop`] says which part of it does, and
//! its colours may change: [`ColorJitter`]. Automatic augmentation, [`Augment`], lies between a transform that crops
//! and flips and one that normalises; loader threads do it, or a GPU's kernel: [`Retouch`]. After all of it, a rectangle may be erased: [`Erase`]. When a batch is complete,
//! its images may be mixed in pairs: [`Mixing`].
//!
//! # Chance
//!
//! A draw is a function of ([`batch_key`] of seed, epoch and batch number; id): the same whatever thread or device
//! makes the batch and however many there are, and after a resume; another one for a sample that comes twice in an
//! epoch. What is mixed is drawn by the key and the rank.

mod augment;
mod crop;
mod erase;
mod fast;
mod geometry;
mod jitter;
mod mixing;
mod plain;
mod retouch;

pub use augment::{Augment, AugmentKind, AugmentOptions, Operation};
pub use crop::{CropKind, Placed, Region, ResizedCrop};
pub use erase::{Erase, Erased};
pub use fast::ImageMaker;
pub use geometry::Geometry;
pub use jitter::{Change, ColorJitter, JitterOptions, Jittered};
pub use mixing::{MixOptions, Mixed, MixedPart, Mixing, mix_plain, mix_rows};
pub use plain::make_plain;
pub use retouch::{Retouch, RetouchRoom};

use thiserror::Error;

/// Most channels: their factors travel inside a launch's arguments.
pub const CHANNELS_MAX: usize = 16;
/// Largest side and padding, in pixels.
const SIDE_MAX: usize = 1 << 16;

/// Element types an image can become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ImageDtype {
    U8,
    F16,
    BF16,
    F32,
}

impl ImageDtype {
    /// Size of one element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            ImageDtype::U8 => 1,
            ImageDtype::F16 | ImageDtype::BF16 => 2,
            ImageDtype::F32 => 4,
        }
    }
}

/// What is wanted. `mean` and `std` are in units of the largest pixel value (0 to 1): none, one for all channels, or
/// one each.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageOptions<'a> {
    /// Element type of the result; u8 leaves the values as they are and takes no mean and no std.
    pub dtype: ImageDtype,
    /// (channels, height, width) in memory instead of (height, width, channels).
    pub channels_first: bool,
    /// Height and width of the result; `None`: as the source.
    pub crop: Option<[usize; 2]>,
    /// Pixels of 0 added on every side before the crop.
    pub padding: usize,
    /// The crop's place is drawn; else it is the centre (rounded towards the top left).
    pub random_crop: bool,
    /// Chance of being mirrored left to right.
    pub flip: f64,
    /// Means of the channels, subtracted.
    pub mean: &'a [f64],
    /// Standard deviations of the channels, divided by.
    pub std: &'a [f64],
}

/// Why an image cannot become what is wanted.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ImageError {
    /// Shape of the source.
    #[error(
        "samples of {0} x {1} pixels with {2} channels: need 1 to {SIDE_MAX} pixels a side and 1 to {CHANNELS_MAX} channels"
    )]
    Source(usize, usize, usize),
    /// Crop.
    #[error(
        "crop=({0}, {1}) does not fit {2} x {3} pixels (padding included): make it smaller, raise padding, or resize when opening"
    )]
    Crop(usize, usize, usize, usize),
    /// Sides of a crop of images of any size.
    #[error("{0}=({1}, {2}): need 1 to {SIDE_MAX} pixels a side")]
    Size(&'static str, usize, usize),
    /// A crop beyond what it is taken of.
    #[error(
        "crop=({0}, {1}) is larger than resize=({2}, {3}), the size that the image is scaled to cover: make it smaller, or resize larger"
    )]
    Larger(usize, usize, usize, usize),
    /// Shares of an image.
    #[error("scale=({0}, {1}): need the least and the largest share of the image's area, above 0 and at most 1")]
    Scale(f64, f64),
    /// Aspect ratios.
    #[error("ratio=({0}, {1}): need the least and the largest width over height, 0.001 to 1000")]
    Ratio(f64, f64),
    /// Padding.
    #[error("padding={0} is beyond {SIDE_MAX} pixels")]
    Padding(usize),
    /// Ends of what colours are changed by.
    #[error(
        "{0}=({1}, {2}): need factors of at least 0, the least first; of hue, shares of the circle from -0.5 to 0.5"
    )]
    Jitter(&'static str, f64, f64),
    /// A number of automatic augmentation.
    #[error("augment: {0}={1}: need {2} to {3}")]
    Augment(&'static str, usize, usize, usize),
    /// Channels of images that are not augmented.
    #[error("images of {0} channels cannot be augmented, only those of 1 or 3: leave augment out")]
    Channels(usize),
    /// A chance, by its name.
    #[error("{0}={1} is not a probability: need 0 to 1")]
    Chance(&'static str, f64),
    /// Alpha of mixing.
    #[error("{0}={1} is not an alpha of Beta(alpha, alpha): need 0 (off) to 1000")]
    Alpha(&'static str, f64),
    /// How many there are of mean or std.
    #[error("{0} has {1} values for {2} channels: give one, or one a channel")]
    Count(&'static str, usize, usize),
    /// A mean or std without sense.
    #[error(
        "{0} holds {1}: need finite means, and stds that are finite and above 0, in units of 0 to 1 (a mean of 127.5 is written 0.5)"
    )]
    Value(&'static str, f64),
    /// Bytes cannot be normalised.
    #[error(
        "dtype uint8 with mean or std: normalised values do not fit bytes; use float32, float16 or bfloat16, or \
         leave them out"
    )]
    Bytes,
}

/// A checked transform of images of one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageTransform {
    dtype: ImageDtype,
    pub(crate) channels_first: bool,
    /// Height, width, channels.
    pub(crate) source: [usize; 3],
    /// Height, width.
    pub(crate) out: [usize; 2],
    pub(crate) padding: usize,
    pub(crate) random_crop: bool,
    /// Flipped are draws below this, of 2^32.
    pub(crate) flip_below: u64,
    pub(crate) scale: [f32; CHANNELS_MAX],
    pub(crate) shift: [f32; CHANNELS_MAX],
}

/// What chance decided for one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// First line of the crop in the padded image.
    pub top: usize,
    /// First column.
    pub left: usize,
    /// Mirrored.
    pub flip: bool,
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Stafford's variant 13 of MurmurHash3's finaliser (the one of SplitMix64).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What the draws of one batch have in common.
pub fn batch_key(seed: u64, epoch: u64, number: u64) -> u64 {
    [epoch, number].into_iter().fold(mix(seed ^ 0x0069_6d61_6765_7321), |key, word| {
        mix(key.wrapping_add(GOLDEN) ^ mix(word.wrapping_add(GOLDEN)))
    })
}

impl ImageTransform {
    /// A transform of samples of `source` (height, width, channels).
    ///
    /// # Errors
    /// Whatever does not fit, with its numbers.
    pub fn new(source: [usize; 3], options: &ImageOptions<'_>) -> Result<Self, ImageError> {
        let [height, width, channels] = source;
        let sides = 1..=SIDE_MAX;
        if !sides.contains(&height) || !sides.contains(&width) || !(1..=CHANNELS_MAX).contains(&channels) {
            return Err(ImageError::Source(height, width, channels));
        }
        let padding = options.padding;
        if padding > SIDE_MAX {
            return Err(ImageError::Padding(padding));
        }
        let out = options.crop.unwrap_or([height, width]);
        let padded = [height + 2 * padding, width + 2 * padding];
        if out[0] == 0 || out[1] == 0 || out[0] > padded[0] || out[1] > padded[1] {
            return Err(ImageError::Crop(out[0], out[1], padded[0], padded[1]));
        }
        checked_chance("flip", options.flip)?;
        if options.dtype == ImageDtype::U8 && !(options.mean.is_empty() && options.std.is_empty()) {
            return Err(ImageError::Bytes);
        }
        let mean = spread("mean", options.mean, 0.0, channels)?;
        let std = spread("std", options.std, 1.0, channels)?;
        let (mut scale, mut shift) = ([0.0; CHANNELS_MAX], [0.0; CHANNELS_MAX]);
        for c in 0..channels {
            (scale[c], shift[c]) = ((1.0 / (255.0 * std[c])) as f32, (-mean[c] / std[c]) as f32);
            if !scale[c].is_finite() || std[c] <= 0.0 {
                return Err(ImageError::Value("std", std[c]));
            }
            if !shift[c].is_finite() {
                return Err(ImageError::Value("mean", mean[c]));
            }
        }
        Ok(Self {
            dtype: options.dtype,
            channels_first: options.channels_first,
            source,
            out,
            padding,
            random_crop: options.random_crop,
            flip_below: (options.flip * 4_294_967_296.0) as u64,
            scale,
            shift,
        })
    }

    /// Element type of the result.
    pub fn dtype(&self) -> ImageDtype {
        self.dtype
    }
    /// Shape of a result in memory.
    pub fn shape(&self) -> [usize; 3] {
        let ([height, width], channels) = (self.out, self.source[2]);
        if self.channels_first { [channels, height, width] } else { [height, width, channels] }
    }
    /// Height and width of a result.
    pub fn out_sides(&self) -> [usize; 2] {
        self.out
    }
    /// Bytes of a source sample.
    pub fn source_bytes(&self) -> usize {
        self.source.iter().product()
    }
    /// Elements of a result.
    pub fn elements(&self) -> usize {
        self.out[0] * self.out[1] * self.source[2]
    }
    /// Bytes of a result.
    pub fn out_bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }
    /// Whether chance decides anything: deliveries of one sample then differ.
    pub fn is_random(&self) -> bool {
        let flipped = 0 < self.flip_below && self.flip_below < 1 << 32;
        flipped || (self.random_crop && self.places() != [1, 1])
    }
    /// How many places the crop can have, down and across.
    pub(crate) fn places(&self) -> [usize; 2] {
        [0, 1].map(|i| self.source[i] + 2 * self.padding - self.out[i] + 1)
    }

    /// What chance decides for sample `id` in the batch of `key`.
    pub fn draw(&self, key: u64, id: i64) -> Draw {
        let (first, [top, left]) = places_drawn(self.random_crop, self.places(), key, id);
        Draw { top, left, flip: (first >> 32) < self.flip_below }
    }
}

/// The first word of a sample's draws, and a place of so many down and across: drawn by the second, else the middle.
fn places_drawn(random: bool, [down, across]: [usize; 2], key: u64, id: i64) -> (u64, [usize; 2]) {
    let first = mix(key ^ mix((id as u64).wrapping_add(GOLDEN)));
    let second = mix(first.wrapping_add(GOLDEN));
    let below = |word: u64, n: usize| ((word * n as u64) >> 32) as usize;
    let place = match random {
        true => [below(second & 0xffff_ffff, down), below(second >> 32, across)],
        false => [(down - 1) / 2, (across - 1) / 2],
    };
    (first, place)
}

fn checked_chance(name: &'static str, chance: f64) -> Result<(), ImageError> {
    if (0.0..=1.0).contains(&chance) { Ok(()) } else { Err(ImageError::Chance(name, chance)) }
}

/// One value for each channel.
fn spread(name: &'static str, values: &[f64], none: f64, channels: usize) -> Result<Vec<f64>, ImageError> {
    if let Some(&bad) = values.iter().find(|v| !v.is_finite()) {
        return Err(ImageError::Value(name, bad));
    }
    match values {
        [] => Ok(vec![none; channels]),
        [all] => Ok(vec![*all; channels]),
        each if each.len() == channels => Ok(each.to_vec()),
        other => Err(ImageError::Count(name, other.len(), channels)),
    }
}

#[cfg(test)]
mod tests;
