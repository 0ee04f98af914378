//! A piece of a row, widened, in the first-level cache.

use crate::element::{Element, Real};

/// Sums run in this many lanes on every machine: two AVX-512, four AVX2 or eight SSE2 registers of f32.
pub(super) const LANES: usize = 16;
/// Logits widened together; 2 KiB of f32.
pub(super) const BLOCK: usize = 512;

/// The widened logits.
pub(super) struct Block<R>(pub(super) [R; BLOCK]);

impl<R: Real> Block<R> {
    pub(super) fn new() -> Self {
        Block([R::NEG_INFINITY; BLOCK])
    }

    /// Takes the elements of `raw`, at most [`BLOCK`]; how many there are.
    #[inline(always)]
    pub(super) fn widen<E: Element<Real = R>>(&mut self, raw: &[u8]) -> usize {
        for (slot, raw) in self.0.iter_mut().zip(raw.chunks_exact(E::BYTES)) {
            *slot = E::read(raw);
        }
        raw.len() / E::BYTES
    }

    /// Gives its first elements to `raw`, rounded.
    #[inline(always)]
    pub(super) fn narrow<E: Element<Real = R>>(&self, raw: &mut [u8]) {
        for (&value, raw) in self.0.iter().zip(raw.chunks_exact_mut(E::BYTES)) {
            E::write(value, raw);
        }
    }
}

/// Lanes to one, as a tree of fixed shape.
#[inline(always)]
pub(super) fn total<R: Real>(mut lanes: [R; LANES]) -> R {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = lanes[i] + lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}
