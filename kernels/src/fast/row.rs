//! One row in one read: see the parent's list of departures.

use super::block::{BLOCK, Block, LANES, highest, total, vectors};
use super::dispatch::prefetch;
use crate::element::{Element, Real, larger};
use crate::scores::RowScore;

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

    /// Adds all of `z` but element `own`; asks for the lines of `next` meanwhile, `span` bytes a vector.
    #[inline(always)]
    fn add(&mut self, z: &[R], own: Option<usize>, next: &[u8], span: usize) {
        let block_max = highest(z, own);
        if block_max > self.max {
            self.rescale(block_max);
        }
        // Nothing but −∞ (or NaN) so far: any finite reference keeps −∞ − −∞ from making a NaN.
        let reference = if self.max == R::NEG_INFINITY { R::ZERO } else { self.max };
        let (mut sum_e, mut sum_ee, mut sum_de) = (self.e, self.ee, self.de);
        let mut at = 0;
        vectors(z, own, |vector| {
            prefetch(next, at);
            at += span;
            for (i, &z) in vector.iter().enumerate() {
                let (e, d) = (z - reference).exp_lane();
                sum_e[i] = sum_e[i] + e;
                sum_ee[i] = e.mul_add(e, sum_ee[i]);
                sum_de[i] = e.mul_add(d, sum_de[i]);
            }
        });
        (self.e, self.ee, self.de) = (sum_e, sum_ee, sum_de);
    }

    /// Refers the sums to a larger maximum: z − new = (z − old) + (old − new).
    #[inline(always)]
    fn rescale(&mut self, max: R) {
        if self.max == R::NEG_INFINITY {
            // Nothing but zeros to refer to it.
            self.max = max;
            return;
        }
        let (factor, shift) = (self.max - max).exp_lane();
        for i in 0..LANES {
            self.de[i] = factor * shift.mul_add(self.e[i], self.de[i]);
            self.e[i] = factor * self.e[i];
            self.ee[i] = factor * factor * self.ee[i];
        }
        self.max = max;
    }
}

/// Scores the row whose elements are `logits` (native bytes) and whose target is class `y`. With `linear`, also Σ w_c z_c of its
/// weights (all 1 if they are `None`), else 0. `next` is the row to be asked for meanwhile, if any.
#[inline(always)]
pub(super) fn score_row<E: Element>(
    logits: &[u8],
    y: usize,
    linear: Option<Option<&[E::Real]>>,
    next: &[u8],
    block: &mut Block<E::Real>,
) -> (RowScore<E::Real>, E::Real) {
    let mut sums = Sums::new();
    let mut weighted = [E::Real::ZERO; LANES];
    let mut start = 0;
    for raw in logits.chunks(BLOCK * E::BYTES) {
        let z = block.reals::<E>(raw);
        if let Some(weights) = linear {
            dot(&mut weighted, z, weights.map(|w| &w[start..start + z.len()]));
        }
        let ahead = next.get(start * E::BYTES..).unwrap_or_default();
        sums.add(z, y.checked_sub(start).filter(|&own| own < z.len()), ahead, LANES * E::BYTES);
        start += z.len();
    }
    let target = E::read(&logits[y * E::BYTES..]);
    let first = || logits.chunks_exact(E::BYTES).position(|raw| E::read(raw) == target);
    let correct = target > sums.max || (target == sums.max && first() == Some(y));
    (finish(&sums, target, correct), total(weighted))
}

/// Adds w · z (z where there are no weights) to the lanes, in an order that depends on nothing but the classes' numbers.
#[inline(always)]
fn dot<R: Real>(lanes: &mut [R; LANES], z: &[R], weights: Option<&[R]>) {
    let add = |lanes: &mut [R; LANES], z: &[R], w: Option<&[R]>| {
        for (i, &z) in z.iter().enumerate() {
            lanes[i] = w.map_or(z + lanes[i], |w| z.mul_add(w[i], lanes[i]));
        }
    };
    for (number, z) in z.chunks(LANES).enumerate() {
        add(lanes, z, weights.map(|w| &w[number * LANES..number * LANES + z.len()]));
    }
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
