//! Chooses the widest vectors of the machine, at run time.
#![allow(unsafe_code)]

use super::row::{Scratch, score_row};
use crate::element::Element;
use crate::scores::RowScore;

/// The instruction sets the row loop is compiled for. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Whatever the build's target guarantees (SSE2 on x86-64, NEON on aarch64).
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2(Seen),
    #[cfg(target_arch = "x86_64")]
    Avx512(Seen),
}

/// Proof that the level's instructions were detected: only [`Level::of_this_machine`] makes one.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen(());

impl Level {
    /// What this machine can run, narrow first.
    fn all_of_this_machine() -> impl DoubleEndedIterator<Item = Level> {
        #[cfg(target_arch = "x86_64")]
        let wide = [
            is_x86_feature_detected!("avx2").then_some(Level::Avx2(Seen(()))),
            (is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw"))
                .then_some(Level::Avx512(Seen(()))),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let wide: [Option<Level>; 0] = [];
        std::iter::once(Level::Baseline).chain(wide.into_iter().flatten())
    }

    /// The widest.
    pub(super) fn of_this_machine() -> Level {
        Self::all_of_this_machine().next_back().unwrap_or(Level::Baseline)
    }
}

#[inline]
pub(super) fn row<E: Element>(
    level: Level,
    logits: &[u8],
    y: usize,
    scratch: &mut Scratch<E::Real>,
) -> RowScore<E::Real> {
    match level {
        Level::Baseline => score_row::<E>(logits, y, scratch),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the function asks for AVX2 and nothing else; this Seen exists only after the running CPU reported AVX2.
        Level::Avx2(_) => unsafe { row_avx2::<E>(logits, y, scratch) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the function asks for AVX-512 F and BW; this Seen exists only after the running CPU reported both.
        Level::Avx512(_) => unsafe { row_avx512::<E>(logits, y, scratch) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn row_avx2<E: Element>(logits: &[u8], y: usize, scratch: &mut Scratch<E::Real>) -> RowScore<E::Real> {
    score_row::<E>(logits, y, scratch)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn row_avx512<E: Element>(logits: &[u8], y: usize, scratch: &mut Scratch<E::Real>) -> RowScore<E::Real> {
    score_row::<E>(logits, y, scratch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_vectors_and_the_baseline_agree_bit_for_bit() {
        let mut state = 1u32;
        let mut scratch = Scratch::new();
        for classes in [1usize, 2, 15, 16, 17, 511, 512, 513, 3000] {
            let logits: Vec<u8> = (0..classes)
                .flat_map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (((state >> 8) as f32 / (1 << 20) as f32) - 8.0).to_ne_bytes()
                })
                .collect();
            let bits = |level, scratch: &mut Scratch<f32>| {
                let r = row::<f32>(level, &logits, classes / 2, scratch);
                ([r.loss, r.lse, r.grad_norm, r.entropy].map(f32::to_bits), r.correct)
            };
            let plain = bits(Level::Baseline, &mut scratch);
            for level in Level::all_of_this_machine() {
                assert_eq!(bits(level, &mut scratch), plain, "{level:?}, {classes} classes");
            }
        }
    }
}
