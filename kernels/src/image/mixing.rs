//! Mixup (Zhang et al., ICLR 2018) and CutMix (Yun et al., ICCV 2019): the images of a finished batch, mixed in pairs.
//!
//! Of n rows, row k and row n − 1 − k are partners. Both are mixed, each with the other, so a pair is read and written
//! in place, once. The row in the middle of an odd batch is its own partner and stays as it is.
//!
//! ```text
//! mixup:   row = narrow(lam · own + (1 − lam) · partner)     in f32; u8: the sum and a half, cut off
//! CutMix:  row = own, and the partner within a box (or outside of it), lam = the share of own pixels
//! ```
//!
//! One lam a batch, drawn from Beta(alpha, alpha), as timm and torchvision have it, with their box: sides of
//! √(1 − lam) of the image's around a centre drawn anywhere in it, cut off at the edges.
//!
//! **Own is what makes up more.** Lam is at least ½ here: a smaller one is 1 − lam, and of CutMix what lies outside of
//! the box comes from the partner. A pair is mixed both ways, so the batch holds the same images with the same shares
//! as with the smaller lam; only which of the two rows is called whose changes. What is then measured of a row tells
//! about the sample that is seen in it most.

use super::crop::Words;
use super::{ImageDtype, ImageError, ImageTransform, checked_chance, mix};
use crate::element::{BF16, Element, F16, f16_to_f32, f32_to_bf16, f32_to_f16};

/// Largest alpha: lam is within 0.02 of ½ there.
const ALPHA_MAX: f64 = 1000.0;

/// What of mixing is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MixOptions {
    /// Alpha of mixup; 0: there is none.
    pub mixup: f64,
    /// Alpha of CutMix, likewise.
    pub cutmix: f64,
    /// Chance that a batch is mixed.
    pub chance: f64,
    /// Chance that it is CutMix where both are asked for.
    pub switch: f64,
}

/// Checked [`MixOptions`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixing {
    mixup: f64,
    cutmix: f64,
    /// Mixed are draws below this, of 2^53.
    below: u64,
    /// CutMix are draws below this.
    switch_below: u64,
}

/// What chance decided for a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixed {
    /// Share of the own image, from ½ to below 1.
    pub lam: f32,
    /// Where the partner's pixels are; `None`: mixup, everywhere.
    pub part: Option<MixedPart>,
}

/// A box of a CutMix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct MixedPart {
    pub top: usize,
    pub left: usize,
    pub height: usize,
    pub width: usize,
    /// The partner is seen around the box and not in it.
    pub outside: bool,
}

impl Mixing {
    /// Checks the options; `None` where they mix nothing.
    ///
    /// # Errors
    /// For an alpha that is none, and a number that is no chance.
    pub fn new(options: &MixOptions) -> Result<Option<Self>, ImageError> {
        let &MixOptions { mixup, cutmix, chance, switch } = options;
        for (name, alpha) in [("mixup", mixup), ("cutmix", cutmix)] {
            if !(0.0..=ALPHA_MAX).contains(&alpha) {
                return Err(ImageError::Alpha(name, alpha));
            }
        }
        checked_chance("mix_chance", chance)?;
        checked_chance("switch", switch)?;
        let of_2_53 = |chance: f64| (chance * (1u64 << 53) as f64) as u64;
        let switch = if mixup == 0.0 {
            1.0
        } else if cutmix == 0.0 {
            0.0
        } else {
            switch
        };
        let mixes = chance > 0.0 && (mixup > 0.0 || cutmix > 0.0);
        Ok(mixes.then(|| Self { mixup, cutmix, below: of_2_53(chance), switch_below: of_2_53(switch) }))
    }

    /// What chance decides for the batch of `key`, whose images are `height` × `width`, on a rank; `None`: it stays as
    /// it is. Ranks draw apart, as their batches of one number have one key.
    pub fn draw(&self, [height, width]: [usize; 2], key: u64, rank: u32) -> Option<Mixed> {
        // Words of its own: crops have drawn from the key's.
        let mut words = Words::new(mix(key ^ 0x006d_6978_696e_6721), i64::from(rank));
        let happens = words.next() >> 11 < self.below;
        let cut = words.next() >> 11 < self.switch_below;
        let alpha = if cut { self.cutmix } else { self.mixup };
        let lam = symmetric_beta(alpha, words.between([0.0, 1.0]), words.between([0.0, 1.0]));
        let centre = [words.below(height), words.below(width)];
        if !happens {
            return None;
        }
        let mixed = if cut {
            cut_out([height, width], lam, centre)?
        } else {
            Mixed { lam: lam.max(1.0 - lam) as f32, part: None }
        };
        (mixed.lam < 1.0).then_some(mixed)
    }
}

/// A draw from Beta(alpha, alpha) by two even ones: (1 + t / √(2 alpha + t²)) / 2 for Student's t of 2 alpha degrees of
/// freedom, which is Bailey's polar method (Mathematics of Computation 62, 1994), simplified. Exact for every alpha
/// above 0, and never rejects.
fn symmetric_beta(alpha: f64, u: f64, v: f64) -> f64 {
    let log = u.ln() / alpha;
    let (power, rest) = (log.exp(), -log.exp_m1());
    let cosine = (std::f64::consts::TAU * v).cos();
    let length = (cosine * cosine * rest + power).sqrt();
    if length > 0.0 { 0.5 * (1.0 + cosine * rest.sqrt() / length) } else { 0.5 }
}

/// The box of a share of 1 − `lam` around a centre.
fn cut_out(sides: [usize; 2], lam: f64, centre: [usize; 2]) -> Option<Mixed> {
    let half = 0.5 * (1.0 - lam).sqrt();
    let [down, across] = [0, 1].map(|i| {
        let reach = (half * sides[i] as f64) as usize;
        (centre[i].saturating_sub(reach), (centre[i] + reach).min(sides[i]))
    });
    let (height, width) = (down.1 - down.0, across.1 - across.0);
    let share = (height * width) as f64 / (sides[0] * sides[1]) as f64;
    let part = MixedPart { top: down.0, left: across.0, height, width, outside: share > 0.5 };
    (share > 0.0).then(|| Mixed { lam: share.max(1.0 - share) as f32, part: Some(part) })
}

/// Mixes a batch as the module's head says, element by element: the definition. `data` has the transform's `out_bytes`
/// a row, at any address.
pub fn mix_plain(transform: &ImageTransform, mixed: &Mixed, data: &mut [u8]) {
    let [height, width] = transform.out;
    let (channels, size) = (transform.source[2], transform.dtype().bytes());
    let before = data.to_vec();
    let rows = before.len() / transform.out_bytes();
    for row in (0..rows).filter(|row| 2 * row + 1 != rows) {
        for element in 0..transform.elements() {
            let (y, x) = match transform.channels_first {
                true => (element / width % height, element % width),
                false => (element / channels / width, element / channels % width),
            };
            let at = |row: usize| row * transform.out_bytes() + element * size;
            let (own, partner) = (&before[at(row)..][..size], &before[at(rows - 1 - row)..][..size]);
            let place = &mut data[at(row)..][..size];
            if let Some(part) = mixed.part {
                let inside =
                    (part.top..part.top + part.height).contains(&y) && (part.left..part.left + part.width).contains(&x);
                place.copy_from_slice(if inside != part.outside { partner } else { own });
                continue;
            }
            let blend = |own: f32, partner: f32| own * mixed.lam + partner * (1.0 - mixed.lam);
            match transform.dtype() {
                ImageDtype::U8 => place[0] = (blend(own[0].into(), partner[0].into()) + 0.5) as u8,
                ImageDtype::F16 => F16::write(blend(F16::read(own), F16::read(partner)), place),
                ImageDtype::BF16 => BF16::write(blend(BF16::read(own), BF16::read(partner)), place),
                ImageDtype::F32 => f32::write(blend(f32::read(own), f32::read(partner)), place),
            }
        }
    }
}

/// The same, pair by pair and in place. `data` is aligned to its elements. Panics for other lengths, as slices do.
pub fn mix_rows(transform: &ImageTransform, mixed: &Mixed, data: &mut [u8]) {
    let row = transform.out_bytes();
    let rows = data.len() / row;
    let (first, second) = data.split_at_mut(rows.div_ceil(2) * row);
    let pairs = first.chunks_exact_mut(row).zip(second.rchunks_exact_mut(row));
    let lam = mixed.lam;
    match (mixed.part, transform.dtype()) {
        (Some(part), _) => pairs.for_each(|(a, b)| swap_part(transform, part, a, b)),
        (None, ImageDtype::U8) => pairs.for_each(|(a, b)| {
            blend(lam, a, b, f32::from, |v| (v + 0.5) as u8);
        }),
        (None, ImageDtype::F16) => pairs.for_each(|(a, b)| {
            blend(lam, bytemuck::cast_slice_mut(a), bytemuck::cast_slice_mut(b), f16_to_f32, f32_to_f16);
        }),
        (None, ImageDtype::BF16) => pairs.for_each(|(a, b)| {
            let widen = |half: u16| f32::from_bits(u32::from(half) << 16);
            blend(lam, bytemuck::cast_slice_mut(a), bytemuck::cast_slice_mut(b), widen, f32_to_bf16);
        }),
        (None, ImageDtype::F32) => pairs.for_each(|(a, b)| {
            blend(lam, bytemuck::cast_slice_mut(a), bytemuck::cast_slice_mut(b), |v: f32| v, |v| v);
        }),
    }
}

/// Without fused multiply-adds, which baseline processors do not have: the GPU's kernel is told not to fuse.
#[inline(always)]
fn blend<T: Copy>(lam: f32, a: &mut [T], b: &mut [T], widen: impl Fn(T) -> f32, narrow: impl Fn(f32) -> T) {
    let rest = 1.0 - lam;
    for (a, b) in a.iter_mut().zip(b) {
        let (x, y) = (widen(*a), widen(*b));
        (*a, *b) = (narrow(x * lam + y * rest), narrow(y * lam + x * rest));
    }
}

/// Swaps what the partners show of each other, line by line.
fn swap_part(transform: &ImageTransform, part: MixedPart, a: &mut [u8], b: &mut [u8]) {
    let [height, width] = transform.out;
    let size = transform.dtype().bytes();
    let pixel = if transform.channels_first { size } else { size * transform.source[2] };
    let lines = a.chunks_exact_mut(width * pixel).zip(b.chunks_exact_mut(width * pixel));
    let (left, right) = (part.left * pixel, (part.left + part.width) * pixel);
    for (number, (a, b)) in lines.enumerate() {
        let inside = (part.top..part.top + part.height).contains(&(number % height));
        match (inside, part.outside) {
            (true, false) => a[left..right].swap_with_slice(&mut b[left..right]),
            (true, true) => {
                a[..left].swap_with_slice(&mut b[..left]);
                a[right..].swap_with_slice(&mut b[right..]);
            }
            (false, false) => {}
            (false, true) => a.swap_with_slice(b),
        }
    }
}

#[cfg(test)]
mod tests;
