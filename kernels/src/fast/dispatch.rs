//! Chooses the widest vectors of the machine, at run time.
#![allow(unsafe_code)]

use super::block::Block;
use super::gradient::gradient_row;
use super::row::score_row;
use crate::element::Element;
use crate::objective::Factors;
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
            (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Level::Avx2(Seen(()))),
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

/// Makes `$name`, which runs `$plain` in the widest vectors of `level`.
macro_rules! dispatched {
    ($(#[$doc:meta])* $name:ident = $plain:ident, $avx2:ident, $avx512:ident: ($($arg:ident: $type:ty),*) -> $out:ty) => {
        $(#[$doc])*
        #[inline]
        #[allow(clippy::too_many_arguments)]
        pub(super) fn $name<E: Element>(level: Level, $($arg: $type),*) -> $out {
            match level {
                Level::Baseline => $plain::<E>($($arg),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the function asks for AVX2 and FMA, no more; this Seen exists only after the running CPU
                // reported both.
                Level::Avx2(_) => unsafe { $avx2::<E>($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: likewise for AVX-512 F and BW, which imply AVX2 and FMA.
                Level::Avx512(_) => unsafe { $avx512::<E>($($arg),*) },
            }
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        #[allow(clippy::too_many_arguments)]
        fn $avx2<E: Element>($($arg: $type),*) -> $out {
            $plain::<E>($($arg),*)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw")]
        #[allow(clippy::too_many_arguments)]
        fn $avx512<E: Element>($($arg: $type),*) -> $out {
            $plain::<E>($($arg),*)
        }
    };
}

dispatched! {
    /// See [`score_row`].
    row = score_row, row_avx2, row_avx512: (
        logits: &[u8], y: usize, smoothing: Option<Option<&[E::Real]>>, next: &[u8], block: &mut Block<E::Real>
    ) -> (RowScore<E::Real>, E::Real)
}

dispatched! {
    /// See [`gradient_row`].
    gradient = gradient_row, gradient_avx2, gradient_avx512: (
        logits: Option<&[u8]>, y: usize, softmax: (E::Real, E::Real), factors: Factors<E::Real>, weight: Option<&[E::Real]>,
        next: &[u8], out: &mut [u8]
    ) -> ()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_vectors_and_the_baseline_agree_bit_for_bit() {
        let mut state = 1u32;
        let mut block = Block::new();
        for classes in [1usize, 2, 15, 16, 17, 511, 512, 513, 3000] {
            let logits: Vec<u8> = (0..classes)
                .flat_map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (((state >> 8) as f32 / (1 << 20) as f32) - 8.0).to_ne_bytes()
                })
                .collect();
            let y = classes / 2;
            let scores = |level, block: &mut Block<f32>| {
                let (r, distance) = row::<f32>(level, &logits, y, Some(None), &logits, block);
                ([r.loss, r.max, r.log_sum, r.grad_norm, r.entropy, distance].map(f32::to_bits), r.correct)
            };
            let slope = |level| {
                let factors = Factors { softmax: 0.7, spread: 0.01, target: 0.6 };
                let mut out = vec![0u8; 4 * classes];
                gradient::<f32>(level, Some(&logits), y, (7.9375, 1.0625), factors, None, &logits, &mut out);
                let mut in_place = logits.clone();
                gradient::<f32>(level, None, y, (7.9375, 1.0625), factors, None, &[], &mut in_place);
                assert_eq!(out, in_place);
                out
            };
            let plain = (scores(Level::Baseline, &mut block), slope(Level::Baseline));
            for level in Level::all_of_this_machine() {
                let wide = (scores(level, &mut block), slope(level));
                assert_eq!(wide, plain, "{level:?}, {classes} classes");
            }
        }
    }
}
