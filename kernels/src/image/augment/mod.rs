//! Automatic augmentation: a few operations on an image's bytes, drawn anew in every delivery.
//!
//! *Rand* is RandAugment (Cubuk et al., 2020): some operations, one after the other, all of one strength. *Trivial* is
//! TrivialAugment Wide (Müller and Hutter, ICCV 2021): one operation of a random strength, from wider ranges. Both are
//! torchvision's (`v2.RandAugment`, `v2.TrivialAugmentWide`): its 14 operations, its ranges, its formulas for uint8
//! images, its nearest pixel. Strengths are exact here; there they are float32 numbers, which depend on the processor's
//! instructions in their last bit.

mod geometry;
mod operation;
#[cfg(test)]
mod tests;
mod turn;

pub use operation::Operation;

use super::crop::Words;
use super::{Change, ImageError, SIDE_MAX, mix};

/// Most operations that are drawn for one image.
const OPS_MAX: usize = 100;
/// Strengths there may be.
const BINS: std::ops::RangeInclusive<usize> = 2..=1 << 16;

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AugmentKind {
    /// RandAugment.
    Rand {
        /// How many operations follow each other.
        ops: usize,
        /// Their strength, below `bins`.
        magnitude: usize,
    },
    /// TrivialAugment Wide.
    Trivial,
}

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AugmentOptions<'a> {
    /// What is drawn.
    pub kind: AugmentKind,
    /// Strengths from none to the strongest, evenly spaced.
    pub bins: usize,
    /// Levels of pixels from beyond the image: none (0), one, or one a channel.
    pub fill: &'a [u8],
}

/// Checked [`AugmentOptions`] for images of one shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Augment {
    pub(crate) kind: AugmentKind,
    pub(crate) bins: usize,
    pub(crate) fill: [u8; 3],
    /// Height, width, channels.
    pub(crate) shape: [usize; 3],
}

/// The strongest of each operation.
struct Ranges {
    /// Pixels across for each pixel down, or down for each across.
    shear: f64,
    /// Degrees.
    rotation: f64,
    /// What factors differ from 1 by.
    factor: f64,
    /// Bits of a level that posterising drops.
    bits: usize,
}

const RAND: Ranges = Ranges { shear: 0.3, rotation: 30.0, factor: 0.9, bits: 4 };
const WIDE: Ranges = Ranges { shear: 0.99, rotation: 135.0, factor: 0.99, bits: 6 };
/// The farthest translations: RandAugment's as a share of the side, TrivialAugment's in pixels.
const TRANSLATION: [usize; 2] = [150, 331];
const WIDE_TRANSLATION: usize = 32;

impl Augment {
    /// For images of `shape` (height, width, channels), of 1 or 3 channels.
    ///
    /// # Errors
    /// Whatever does not fit, with its numbers.
    pub fn new(shape: [usize; 3], options: &AugmentOptions<'_>) -> Result<Self, ImageError> {
        let &AugmentOptions { kind, bins, fill } = options;
        let [height, width, channels] = shape;
        let within = |name, value, least, most| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(ImageError::Augment(name, value, least, most)),
        };
        if ![1, 3].contains(&channels) {
            return Err(ImageError::Channels(channels));
        }
        if ![height, width].iter().all(|side| (1..=SIDE_MAX).contains(side)) {
            return Err(ImageError::Source(height, width, channels));
        }
        within("bins", bins, *BINS.start(), *BINS.end())?;
        if let AugmentKind::Rand { ops, magnitude } = kind {
            within("ops", ops, 1, OPS_MAX)?;
            within("magnitude", magnitude, 0, bins - 1)?;
        }
        let fill = match *fill {
            [] => [0; 3],
            [all] => [all; 3],
            [red, green, blue] if channels == 3 => [red, green, blue],
            _ => return Err(ImageError::Count("fill", fill.len(), channels)),
        };
        Ok(Self { kind, bins, fill, shape })
    }

    /// The words' key in the batch of `key`.
    pub(crate) fn key(key: u64) -> u64 {
        mix(key ^ 0x61_7567_6d65_6e74)
    }

    /// What chance decides for sample `id` in the batch of `key`, in its order.
    pub fn draw(&self, key: u64, id: i64) -> impl Iterator<Item = Operation> + '_ {
        // Words of its own: crops, colours and erasing have others.
        let mut words = Words::new(Self::key(key), id);
        let ops = if let AugmentKind::Rand { ops, .. } = self.kind { ops } else { 1 };
        (0..ops).map(move |_| {
            let (number, bin, negative) =
                (words.below(Operation::COUNT), words.below(self.bins), words.next() >> 63 > 0);
            self.operation(number, bin, negative)
        })
    }

    /// Changes the pixels of sample `id`. `before` is memory to work in.
    pub fn apply(&self, key: u64, id: i64, pixels: &mut [u8], before: &mut Vec<u8>) {
        for operation in self.draw(key, id) {
            operation.apply(self.shape, self.fill, pixels, before);
        }
    }

    /// Operation `number` of the 14, of the strength that was asked for, or the one of `bin`.
    fn operation(&self, number: usize, bin: usize, negative: bool) -> Operation {
        let (ranges, bin) = match self.kind {
            AugmentKind::Rand { magnitude, .. } => (&RAND, magnitude),
            AugmentKind::Trivial => (&WIDE, bin),
        };
        let last = self.bins - 1;
        let share = |most: f64| most * bin as f64 / last as f64;
        let signed = |most: f64| if negative { -share(most) } else { share(most) };
        let factor = (1.0 + signed(ranges.factor)) as f32;
        // Whole pixels, rounded towards none.
        let translation = |side: usize| {
            let pixels = match self.kind {
                AugmentKind::Rand { .. } => TRANSLATION[0] * side * bin / (TRANSLATION[1] * last),
                AugmentKind::Trivial => WIDE_TRANSLATION * bin / last,
            } as isize;
            if negative { -pixels } else { pixels }
        };
        match number {
            0 => Operation::Identity,
            1 => Operation::ShearX(signed(ranges.shear)),
            2 => Operation::ShearY(signed(ranges.shear)),
            3 => Operation::TranslateX(translation(self.shape[1])),
            4 => Operation::TranslateY(translation(self.shape[0])),
            5 => Operation::Rotate(signed(ranges.rotation)),
            6 => Operation::Color(Change::Brightness(factor)),
            7 => Operation::Color(Change::Saturation(factor)),
            8 => Operation::Color(Change::Contrast(factor)),
            9 => Operation::Sharpness(factor),
            10 => Operation::Posterize((8.0 - share(ranges.bits as f64)).round_ties_even() as u32),
            // The lowest level of at least that share of 255.
            11 => Operation::Solarize((255 * (last - bin)).div_ceil(last) as u8),
            12 => Operation::AutoContrast,
            _ => Operation::Equalize,
        }
    }
}
