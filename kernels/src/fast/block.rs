//! A piece of a row in the first-level cache, and how it is walked: in vectors of [`LANES`].

use crate::element::{Element, Real, larger};

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
    let at = own.map_or(whole.len(), |own| own / LANES).min(whole.len());
    whole[..at].iter().for_each(&mut f);
    if let (Some(vector), Some(own)) = (whole.get(at), own) {
        f(&without(vector, own % LANES));
        whole[at + 1..].iter().for_each(&mut f);
    }
    if !rest.is_empty() {
        // Where there is a vector before it, the rest is the end of a vector that begins inside of that one: no copying
        // by length.
        let vector = match z.last_chunk::<LANES>() {
            Some(last) => ending(last, rest.len()),
            None => {
                let mut vector = [R::NEG_INFINITY; LANES];
                vector[LANES - rest.len()..].copy_from_slice(rest);
                vector
            }
        };
        f(&match own.and_then(|own| own.checked_sub(whole.len() * LANES)) {
            Some(own) => without(&vector, LANES - rest.len() + own),
            None => vector,
        });
    }
}

/// `vector` with −∞ at `own`, chosen lane by lane: writing one lane and reading all of them back would wait for the
/// store.
#[inline(always)]
fn without<R: Real>(vector: &[R; LANES], own: usize) -> [R; LANES] {
    std::array::from_fn(|i| if i as u32 == own as u32 { R::NEG_INFINITY } else { vector[i] })
}

/// The last `count` elements of `vector`, −∞ before them.
#[inline(always)]
fn ending<R: Real>(vector: &[R; LANES], count: usize) -> [R; LANES] {
    std::array::from_fn(|i| if (i as u32) < (LANES - count) as u32 { R::NEG_INFINITY } else { vector[i] })
}

/// The largest element of `z` but element `own`, −∞ if there is none. NaN is never it, but may hide its neighbours:
/// sums over them are NaN whatever they refer to.
#[inline(always)]
pub(super) fn highest<R: Real>(z: &[R], own: Option<usize>) -> R {
    let mut top = [R::NEG_INFINITY; LANES];
    let (before, after) = z.split_at(own.unwrap_or(z.len()));
    for part in [before, after.get(1..).unwrap_or_default()] {
        let Some(last) = part.last_chunk::<LANES>() else {
            top[0] = part.iter().fold(top[0], |top, &z| larger(top, z));
            continue;
        };
        // Four vectors at a time: the running maximum waits for itself once for them all.
        let (fours, rest) = part.as_chunks::<LANES>().0.as_chunks::<4>();
        for [a, b, c, d] in fours {
            for i in 0..LANES {
                top[i] = larger(top[i], larger(larger(a[i], b[i]), larger(c[i], d[i])));
            }
        }
        // The last vector overlaps the others: nothing is lost by a second look.
        for vector in rest.iter().chain([last]) {
            for i in 0..LANES {
                top[i] = larger(top[i], vector[i]);
            }
        }
    }
    top.into_iter().fold(R::NEG_INFINITY, larger)
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
