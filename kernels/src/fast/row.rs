//! One row in one read: see the parent's list of departures.

use crate::element::{Element, Real, larger};
use crate::scores::RowScore;

/// Sums run in this many lanes on every machine: two AVX-512, four AVX2 or eight SSE2 registers of f32.
const LANES: usize = 16;
/// Logits widened and rescaled together; 2 KiB of f32.
const BLOCK: usize = 512;

/// The widened logits of one block.
pub(super) struct Scratch<R> {
    block: [R; BLOCK],
}

impl<R: Real> Scratch<R> {
    pub(super) fn new() -> Self {
        Scratch { block: [R::NEG_INFINITY; BLOCK] }
    }
}

/// Sums over the classes seen so far, the target left out, relative to their maximum.
struct Sums<R> {
    max: R,
    /// Σe, Σe², Σd·e with d = z − max and e = exp(d).
    e: [R; LANES],
    ee: [R; LANES],
    de: [R; LANES],
}

impl<R: Real> Sums<R> {
    #[inline(always)]
    fn new() -> Self {
        Sums { max: R::NEG_INFINITY, e: [R::ZERO; LANES], ee: [R::ZERO; LANES], de: [R::ZERO; LANES] }
    }

    #[inline(always)]
    fn add(&mut self, block: &[R]) {
        let (chunks, _) = block.as_chunks::<LANES>();
        let mut lane_max = [R::NEG_INFINITY; LANES];
        for chunk in chunks {
            for (top, &z) in lane_max.iter_mut().zip(chunk) {
                *top = larger(*top, z);
            }
        }
        let block_max = lane_max.into_iter().fold(R::NEG_INFINITY, larger);
        if block_max > self.max {
            self.rescale(block_max);
        }
        // Nothing but −∞ (or NaN) so far: any finite reference keeps −∞ − −∞ from making a NaN.
        let reference = if self.max == R::NEG_INFINITY { R::ZERO } else { self.max };
        for chunk in chunks {
            for (i, &z) in chunk.iter().enumerate() {
                let d = z - reference;
                let e = d.exp_lane();
                self.e[i] = self.e[i] + e;
                self.ee[i] = self.ee[i] + e * e;
                // A masked class has d = −∞ and e = 0: its share is 0, not NaN.
                self.de[i] = self.de[i] + e * larger(R::EXP_ZERO, d);
            }
        }
    }

    /// Refers the sums to a larger maximum: z − new = (z − old) + (old − new).
    #[inline(always)]
    fn rescale(&mut self, max: R) {
        let shift = self.max - max;
        let factor = shift.exp_lane();
        let shift = larger(R::EXP_ZERO, shift); // −∞ at first, when the sums are 0
        for i in 0..LANES {
            self.de[i] = factor * (self.de[i] + shift * self.e[i]);
            self.e[i] = factor * self.e[i];
            self.ee[i] = factor * factor * self.ee[i];
        }
        self.max = max;
    }
}

/// Lanes to one, as a tree of fixed shape.
#[inline(always)]
fn total<R: Real>(mut lanes: [R; LANES]) -> R {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = lanes[i] + lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Scores the row whose elements are `logits` (native bytes) and whose target is class `y`.
#[inline(always)]
pub(super) fn score_row<E: Element>(logits: &[u8], y: usize, scratch: &mut Scratch<E::Real>) -> RowScore<E::Real> {
    let mut sums = Sums::new();
    let mut start = 0;
    for raw in logits.chunks(BLOCK * E::BYTES) {
        let classes = raw.len() / E::BYTES;
        for (slot, raw) in scratch.block.iter_mut().zip(raw.chunks_exact(E::BYTES)) {
            *slot = E::read(raw);
        }
        let padded = classes.next_multiple_of(LANES);
        scratch.block[classes..padded].fill(E::Real::NEG_INFINITY);
        if (start..start + classes).contains(&y) {
            scratch.block[y - start] = E::Real::NEG_INFINITY;
        }
        sums.add(&scratch.block[..padded]);
        start += classes;
    }
    let target = E::read(&logits[y * E::BYTES..]);
    let first = || logits.chunks_exact(E::BYTES).position(|raw| E::read(raw) == target);
    let correct = target > sums.max || (target == sums.max && first() == Some(y));
    finish(&sums, target, correct)
}

/// Merges the target's own term into the others' sums.
#[inline(always)]
fn finish<R: Real>(sums: &Sums<R>, target: R, correct: bool) -> RowScore<R> {
    let max = larger(sums.max, target);
    if max == R::NEG_INFINITY {
        return RowScore::undefined(); // all −∞ or NaN
    }
    let shift = sums.max - max;
    let factor = shift.exp();
    let shift = larger(R::EXP_ZERO, shift);
    let (e, ee, de) = (total(sums.e), total(sums.ee), total(sums.de));
    let others = factor * e;
    let others_squared = factor * factor * ee;
    let own_d = target - max;
    let own = own_d.exp();
    let sum = others + own;
    if sum.is_nan() {
        return RowScore::undefined(); // a NaN, or +∞ − +∞
    }
    let sum_de = factor * (de + shift * e) + own * larger(R::EXP_ZERO, own_d);
    let ln_sum = if target == max { others.ln_1p() } else { sum.ln() };
    let miss = others / sum;
    RowScore {
        loss: (max - target) + ln_sum,
        lse: max + ln_sum,
        grad_norm: (miss * miss + others_squared / (sum * sum)).sqrt(),
        entropy: ln_sum - sum_de / sum,
        correct: u8::from(correct),
    }
}
