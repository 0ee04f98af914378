//! A piece of a row in the first-level cache, and how it is walked: in vectors of [`LANES`].

use crate::element::{Element, Real};

/// Sums run in this many lanes on every machine: two AVX-512, four AVX2 or eight SSE2 registers of f32.
pub(super) const LANES: usize = 16;
/// Logits whose sums refer to one maximum; 16 KiB of f32, so that the second look at them is in the first-level cache.
pub(super) const BLOCK: usize = 4096;

/// Room for widened logits, taken when it is first needed.
pub(super) struct Block<R>(Vec<R>);

impl<R: Real> Block<R> {
    pub(super) fn new() -> Self {
        Block(Vec::new())
    }

    /// The elements of `raw`, at most [`BLOCK`], widened; where they lie if nothing has to be done to them.
    #[inline(always)]
    pub(super) fn reals<'a, E: Element<Real = R>>(&'a mut self, raw: &'a [u8]) -> &'a [R] {
        if let Some(reals) = E::reals(raw) {
            return reals;
        }
        self.0.resize(BLOCK, R::ZERO);
        for (slot, raw) in self.0.iter_mut().zip(raw.chunks_exact(E::BYTES)) {
            *slot = E::read(raw);
        }
        &self.0[..raw.len() / E::BYTES]
    }
}

/// Calls `f` with all of `z` but element `own`, in vectors filled up with −∞, always in the same order.
#[inline(always)]
pub(super) fn vectors<R: Real>(z: &[R], own: Option<usize>, mut f: impl FnMut(&[R; LANES])) {
    let (whole, rest) = z.as_chunks::<LANES>();
    let without = |mut vector: [R; LANES], own: usize| {
        vector[own % LANES] = R::NEG_INFINITY;
        vector
    };
    let at = own.map_or(whole.len(), |own| own / LANES).min(whole.len());
    whole[..at].iter().for_each(&mut f);
    if let (Some(vector), Some(own)) = (whole.get(at), own) {
        f(&without(*vector, own));
        whole[at + 1..].iter().for_each(&mut f);
    }
    if !rest.is_empty() {
        let mut vector = [R::NEG_INFINITY; LANES];
        vector[..rest.len()].copy_from_slice(rest);
        f(&match own {
            Some(own) if own / LANES == whole.len() => without(vector, own),
            _ => vector,
        });
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
