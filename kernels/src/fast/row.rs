//! One row in one read: see the parent's list of departures.

use super::block::{BLOCK, Block, LANES, highest, total, vectors};
use super::prefetch::prefetch;
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

/// Σ w_c (max − z_c) over the classes seen so far, the target left out: how far all of them are below the maximum,
/// which is what label smoothing adds to a loss. Relative to the maximum so far, as [`Sums`]: with Σ w_c z_c alone, an
/// offset of the logits would be multiplied by the number of classes and taken off again, and its rounding would stay.
struct Distance<R> {
    max: R,
    sum: [R; LANES],
    /// Σ w_c.
    weight: R,
}

impl<R: Real> Distance<R> {
    #[inline(always)]
    fn new() -> Self {
        Distance { max: R::NEG_INFINITY, sum: [R::ZERO; LANES], weight: R::ZERO }
    }

    /// Refers the sum to `max` if that is larger.
    #[inline(always)]
    fn refer(&mut self, max: R) {
        if max > self.max {
            if self.max > R::NEG_INFINITY {
                // At most the largest number, which times no weight at all is still nothing.
                let up = max - self.max;
                self.sum[0] = self.weight.mul_add(if up > R::MAX { R::MAX } else { up }, self.sum[0]);
            }
            self.max = max;
        }
    }

    /// Adds all of `z` but element `own`, whose largest (of these and all before) is `max`. In an order that depends on
    /// nothing but the classes' numbers.
    #[inline(always)]
    fn add<'a>(&mut self, z: &'a [R], own: Option<usize>, weights: Option<&'a [R]>, max: R) {
        self.refer(max);
        // Nothing but −∞ so far is infinitely far below anything.
        let reference = if self.max == R::NEG_INFINITY { R::ZERO } else { self.max };
        let mut heavy = [R::ZERO; LANES];
        let rest = |of: &'a [R], own: usize| of.get(own + 1..).unwrap_or_default();
        let end = own.unwrap_or(z.len());
        for (z, weights) in [(&z[..end], weights.map(|w| &w[..end])), (rest(z, end), weights.map(|w| rest(w, end)))] {
            let Some(weights) = weights else {
                for z in z.chunks(LANES) {
                    z.iter().zip(&mut self.sum).for_each(|(&z, sum)| *sum = (reference - z) + *sum);
                }
                self.weight = self.weight + R::of_f64(z.len() as f64);
                continue;
            };
            for (z, w) in z.chunks(LANES).zip(weights.chunks(LANES)) {
                for (((&z, &w), sum), heavy) in z.iter().zip(w).zip(&mut self.sum).zip(&mut heavy) {
                    *sum = (reference - z).mul_add(w, *sum);
                    *heavy = *heavy + w;
                }
            }
        }
        self.weight = self.weight + total(heavy);
    }
}

/// Scores the row whose elements are `logits` (native bytes) and whose target is class `y`. With `smoothing`, also Σ
/// w_c (max − z_c) of its weights (all 1 if they are `None`), else 0. `next` is the row to be asked for meanwhile, if
/// any.
#[inline(always)]
pub(super) fn score_row<E: Element>(
    logits: &[u8],
    y: usize,
    smoothing: Option<Option<&[E::Real]>>,
    next: &[u8],
    block: &mut Block<E::Real>,
) -> (RowScore<E::Real>, E::Real) {
    // Two loops and not one with a condition: the plain one then keeps all its sums in registers.
    let Some(weights) = smoothing else {
        return (read_row::<E>(logits, y, next, block, |_, _, _, _| ()).0, E::Real::ZERO);
    };
    let mut distance = Distance::new();
    let (score, target) = read_row::<E>(logits, y, next, block, |start, z, own, max| {
        distance.add(z, own, weights.map(|w| &w[start..start + z.len()]), max);
    });
    distance.refer(score.max);
    let own = score.max - target;
    (score, total(distance.sum) + weights.map_or(own, |w| w[y] * own))
}

/// The row's score and its target's logit. `also` is handed every block once it is in the sums: where it starts, its
/// elements, which of them is the target, and the largest of the others so far.
#[inline(always)]
fn read_row<E: Element>(
    logits: &[u8],
    y: usize,
    next: &[u8],
    block: &mut Block<E::Real>,
    mut also: impl FnMut(usize, &[E::Real], Option<usize>, E::Real),
) -> (RowScore<E::Real>, E::Real) {
    let mut sums = Sums::new();
    let mut start = 0;
    for raw in logits.chunks(BLOCK * E::BYTES) {
        let z = block.reals::<E>(raw);
        let ahead = next.get(start * E::BYTES..).unwrap_or_default();
        let own = y.checked_sub(start).filter(|&own| own < z.len());
        sums.add(z, own, ahead, LANES * E::BYTES);
        also(start, z, own, sums.max);
        start += z.len();
    }
    let target = E::read(&logits[y * E::BYTES..]);
    let first = || logits.chunks_exact(E::BYTES).position(|raw| E::read(raw) == target);
    let correct = target > sums.max || (target == sums.max && first() == Some(y));
    (finish(&sums, target, correct), target)
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
        max,
        log_sum: ln_sum,
        grad_norm: (miss * miss + others_squared / (sum * sum)).sqrt(),
        entropy: ln_sum - sum_de / sum,
        correct: u8::from(correct),
    }
}
