//! The gradient of one row: one read of the logits, one write of the gradient, nothing between them.

use super::block::{BLOCK, Block};
use crate::element::{Element, Real};
use crate::objective::Factors;

/// Writes `softmax · exp(z − lse) − spread · w` and takes the target's share off. `logits` is `None` where `out` holds them: then
/// the gradient takes their place.
#[inline(always)]
pub(super) fn gradient_row<E: Element>(
    logits: Option<&[u8]>,
    y: usize,
    lse: E::Real,
    factors: Factors<E::Real>,
    weight: Option<&[E::Real]>,
    block: &mut Block<E::Real>,
    out: &mut [u8],
) {
    let span = BLOCK * E::BYTES;
    let smooth = factors.spread != E::Real::ZERO;
    for (number, out) in out.chunks_mut(span).enumerate() {
        let raw = logits.map_or(&*out, |logits| &logits[number * span..number * span + out.len()]);
        let classes = block.widen::<E>(raw);
        let start = number * BLOCK;
        // Whole lanes, whatever stands behind the last class: it is not written.
        for z in &mut block.0[..classes.next_multiple_of(super::block::LANES)] {
            *z = (*z - lse).exp_lane().0 * factors.softmax;
        }
        if smooth {
            match weight {
                Some(w) => {
                    for (g, &w) in block.0[..classes].iter_mut().zip(&w[start..start + classes]) {
                        *g = *g - factors.spread * w;
                    }
                }
                None => block.0[..classes].iter_mut().for_each(|g| *g = *g - factors.spread),
            }
        }
        if let Some(g) = y.checked_sub(start).and_then(|at| block.0[..classes].get_mut(at)) {
            *g = *g - factors.target;
        }
        block.narrow::<E>(out);
    }
}
