//! The gradient of one row: one read of the logits, one write of the gradient, nothing between them.

use super::block::LANES;
use super::prefetch::prefetch;
use crate::element::{Element, Real};
use crate::objective::Factors;

/// Writes `factors.softmax · p − spread · w` with `p = exp((z − max) − log_sum)`, and takes the target's share off
/// where it is due. `logits` is `None` where `out` holds them: then the gradient takes their place. `next` is the row
/// to be asked for meanwhile, if any.
#[inline(always)]
pub(super) fn gradient_row<E: Element>(
    logits: Option<&[u8]>,
    y: usize,
    (max, log_sum): (E::Real, E::Real),
    factors: Factors<E::Real>,
    weight: Option<&[E::Real]>,
    next: &[u8],
    out: &mut [u8],
) {
    // exp(−log_sum) is the row's and goes into the factor: one subtraction and one exponential a class.
    let factors = Factors { softmax: factors.softmax * (E::Real::ZERO - log_sum).exp_lane().0, ..factors };
    let at = y * E::BYTES..(y + 1) * E::BYTES;
    let own = E::read(&logits.unwrap_or(out)[at.clone()]);
    match (logits, factors.spread != E::Real::ZERO) {
        (None, false) => in_place::<E>(out, |_, z| (z - max).exp_lane().0 * factors.softmax),
        (Some(z), false) => copied::<E>(z, next, out, |_, z| (z - max).exp_lane().0 * factors.softmax),
        (None, true) => in_place::<E>(out, |class, z| smoothed(class, z, max, factors, weight)),
        (Some(z), true) => copied::<E>(z, next, out, |class, z| smoothed(class, z, max, factors, weight)),
    }
    // From the logit itself: the value just written may have been rounded.
    E::write(smoothed(y, own, max, factors, weight) - factors.target, &mut out[at]);
}

/// The gradient at a class that is not the target.
#[inline(always)]
fn smoothed<R: Real>(class: usize, z: R, max: R, factors: Factors<R>, weight: Option<&[R]>) -> R {
    let w = weight.map_or(R::of_f64(1.0), |w| w[class]);
    (z - max).exp_lane().0 * factors.softmax - factors.spread * w
}

/// `out = f(class, z)`, in vectors, so that reads, arithmetic and writes each are one loop of known length.
#[inline(always)]
fn copied<E: Element>(logits: &[u8], next: &[u8], out: &mut [u8], f: impl Fn(usize, E::Real) -> E::Real) {
    let span = LANES * E::BYTES;
    let whole = logits.len() / span * span;
    let ((logits, logits_rest), (out, out_rest)) = (logits.split_at(whole), out.split_at_mut(whole));
    for (number, (raw, out)) in logits.chunks_exact(span).zip(out.chunks_exact_mut(span)).enumerate() {
        prefetch(next, number * span);
        vector::<E>(raw, number * LANES, &f).narrow::<E>(out);
    }
    vector::<E>(logits_rest, whole / E::BYTES, &f).narrow::<E>(out_rest);
}

#[inline(always)]
fn in_place<E: Element>(out: &mut [u8], f: impl Fn(usize, E::Real) -> E::Real) {
    let span = LANES * E::BYTES;
    let whole = out.len() / span * span;
    let (out, rest) = out.split_at_mut(whole);
    for (number, out) in out.chunks_exact_mut(span).enumerate() {
        vector::<E>(out, number * LANES, &f).narrow::<E>(out);
    }
    vector::<E>(rest, whole / E::BYTES, &f).narrow::<E>(rest);
}

/// Results for the classes of one vector, or for the few that are left.
struct Vector<R>([R; LANES]);

impl<R: Real> Vector<R> {
    #[inline(always)]
    fn narrow<E: Element<Real = R>>(&self, out: &mut [u8]) {
        for (&value, out) in self.0.iter().zip(out.chunks_exact_mut(E::BYTES)) {
            E::write(value, out);
        }
    }
}

#[inline(always)]
fn vector<E: Element>(raw: &[u8], class: usize, f: &impl Fn(usize, E::Real) -> E::Real) -> Vector<E::Real> {
    let mut lanes = [E::Real::ZERO; LANES];
    for (i, (lane, raw)) in lanes.iter_mut().zip(raw.chunks_exact(E::BYTES)).enumerate() {
        *lane = f(class + i, E::read(raw));
    }
    Vector(lanes)
}
