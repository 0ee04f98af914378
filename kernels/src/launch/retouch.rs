//! Images retouched as bytes: colours, a cut, automatic augmentation.

use super::arguments::{Arguments, RetouchArguments};
use super::image::BLOCKS_MAX;
use super::{Launch, Step};
use crate::image::{Augment, AugmentKind, ColorJitter, Retouch};

/// What the threads of a block share: `RETOUCH_SHARED_BYTES` of `cuda/color.cu`.
pub(super) const SHARED_BYTES: u32 = 15_264;
/// Threads of an image: each takes four pixels at a time.
const THREADS: std::ops::RangeInclusive<usize> = 64..=256;

/// A batch. Addresses on the device.
#[derive(Clone, Copy, Debug)]
pub struct Retouching {
    /// Samples.
    pub rows: usize,
    /// What [`crate::image::batch_key`] gave for the batch.
    pub key: u64,
    /// int64, one a row.
    pub ids: u64,
    /// u8, rows x the source, with the room behind it that [`Retouch::room`] says. They change.
    pub pixels: u64,
}

impl Retouching {
    /// Where the retouched images lie when the launch has ended.
    pub fn made(&self, retouch: &Retouch) -> u64 {
        self.pixels + retouch.room(self.rows).out as u64
    }
}

/// The launch; `None` for no rows.
///
/// # Errors
/// As [`super::images`].
pub fn retouch(retouch: &Retouch, batch: &Retouching) -> Result<Option<Step>, u64> {
    let [height, width, channels] = retouch.source;
    let elements = retouch.source_bytes().max(retouch.out_bytes());
    if batch.rows as u64 > BLOCKS_MAX || elements > i32::MAX as usize {
        return Err(batch.rows as u64);
    }
    if batch.rows == 0 {
        return Ok(None);
    }
    let mut arguments = RetouchArguments {
        pixels: batch.pixels,
        ids: batch.ids,
        key: batch.key,
        rows: batch.rows as i32,
        height: height as u32,
        width: width as u32,
        out_height: height as u32,
        out_width: width as u32,
        ..RetouchArguments::default()
    };
    if let Some(jitter) = &retouch.jitter {
        color(&mut arguments, jitter, batch.key);
    }
    if let Some(augment) = &retouch.augment {
        let room = retouch.room(batch.rows);
        arguments.out = batch.pixels + room.out as u64;
        arguments.spare = batch.pixels + room.spare as u64;
        arguments.spare_bytes = room.spare_row as u64;
        operations(&mut arguments, augment, batch.key);
    }
    if let Some(cut) = &retouch.cut {
        let [tops, lefts] = cut.places();
        arguments.cuts = 1;
        [arguments.out_height, arguments.out_width] = cut.out.map(|side| side as u32);
        arguments.padding = cut.padding as i32;
        arguments.flip_below = cut.flip_below;
        (arguments.tops, arguments.lefts) = (tops as u32, lefts as u32);
        arguments.random_crop = u32::from(cut.random_crop);
    }
    let kernel = if channels == 1 { "lossfeed_retouch_c1" } else { "lossfeed_retouch_c3" };
    let wanted = (elements / channels).div_ceil(4).next_power_of_two();
    let threads = wanted.clamp(*THREADS.start(), *THREADS.end()) as u32;
    let launch = Launch { kernel, grid: batch.rows as u32, block: (threads, 1), shared_bytes: SHARED_BYTES };
    Ok(Some(Step { launch, arguments: Arguments::Retouch(Box::new(arguments)) }))
}

fn color(arguments: &mut RetouchArguments, jitter: &ColorJitter, key: u64) {
    arguments.colors = 1;
    arguments.color_key = ColorJitter::key(key);
    (arguments.change_below, arguments.grey_below) = (jitter.below, jitter.grey_below);
    for (n, range) in jitter.ranges.iter().enumerate() {
        if let (Some([low, high]), Some(at), Some(span)) = (range, arguments.low.get_mut(n), arguments.span.get_mut(n))
        {
            (*at, *span) = (*low, high - low);
            arguments.factors |= 1 << n;
        }
    }
}

fn operations(arguments: &mut RetouchArguments, augment: &Augment, key: u64) {
    arguments.augment_key = Augment::key(key);
    arguments.bins = augment.bins as u32;
    (arguments.augments, arguments.magnitude, arguments.wide) = match augment.kind {
        AugmentKind::Rand { ops, magnitude } => (ops as u32, magnitude as u32, 0),
        AugmentKind::Trivial => (1, 0, 1),
    };
    let [red, green, blue] = augment.fill.map(u32::from);
    arguments.fill = red | green << 8 | blue << 16;
}
