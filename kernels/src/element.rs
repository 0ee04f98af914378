//! Element types and the precision they are scored in.

use std::fmt::Debug;
use std::ops::{Add, Div, Mul, Sub};

/// The precision scores are computed in: f32 or f64.
pub(crate) trait Real:
    Copy
    + Debug
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    const ZERO: Self;
    const NAN: Self;
    const NEG_INFINITY: Self;
    /// The largest finite number.
    const MAX: Self;
    /// exp() of anything at or below this is zero or a rounding error of zero.
    const EXP_ZERO: Self;
    fn of_f64(value: f64) -> Self;
    fn exp(self) -> Self;
    /// self · a + b, rounded once (everywhere: see [`crate::fast`]).
    fn mul_add(self, a: Self, b: Self) -> Self;
    fn ln(self) -> Self;
    fn ln_1p(self) -> Self;
    fn sqrt(self) -> Self;
    fn is_nan(self) -> bool;
    /// The value ranks are taken on; rounds an f64.
    fn to_f32(self) -> f32;
    /// `exp` for arguments that are negative, NaN, or at most a rounding error above zero, written so that a loop of it
    /// vectorises; and the argument, raised to where the result is 0 (so that −∞ times 0 is 0).
    fn exp_lane(self) -> (Self, Self);
}

macro_rules! real {
    ($t:ty, $exp_zero:expr, $exp_lane:path) => {
        impl Real for $t {
            const ZERO: Self = 0.0;
            const NAN: Self = <$t>::NAN;
            const NEG_INFINITY: Self = <$t>::NEG_INFINITY;
            const MAX: Self = <$t>::MAX;
            const EXP_ZERO: Self = $exp_zero;
            #[inline(always)]
            fn of_f64(value: f64) -> Self {
                value as $t
            }
            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self {
                <$t>::mul_add(self, a, b)
            }
            #[inline(always)]
            fn exp(self) -> Self {
                <$t>::exp(self)
            }
            #[inline(always)]
            fn ln(self) -> Self {
                <$t>::ln(self)
            }
            #[inline(always)]
            fn ln_1p(self) -> Self {
                <$t>::ln_1p(self)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                <$t>::sqrt(self)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                <$t>::is_nan(self)
            }
            #[inline(always)]
            fn to_f32(self) -> f32 {
                self as f32
            }
            #[inline(always)]
            fn exp_lane(self) -> (Self, Self) {
                $exp_lane(self)
            }
        }
    };
}

real!(f32, -104.0, crate::fast::exp::exp_f32);
real!(f64, -746.0, crate::fast::exp::exp_f64);

/// The larger one; a NaN loses, so that it cannot hide in a running maximum (it shows up in the sums instead).
#[inline(always)]
pub(crate) fn larger<R: Real>(a: R, b: R) -> R {
    if b > a { b } else { a }
}

/// A logit as it lies in memory.
pub(crate) trait Element: Copy + Sync {
    type Real: Real;
    const BYTES: usize;
    /// The first element of `bytes`, widened exactly. The caller hands in at least `BYTES` bytes, at any address.
    fn read(bytes: &[u8]) -> Self::Real;
    /// The elements of `bytes` as they lie there, if they are reals and aligned as such.
    fn reals(bytes: &[u8]) -> Option<&[Self::Real]>;
    /// `value`, rounded to nearest even, into the first element of `bytes`.
    fn write(value: Self::Real, bytes: &mut [u8]);
}

/// IEEE half, by name only.
#[derive(Clone, Copy)]
pub(crate) struct F16;
/// Brain float, by name only.
#[derive(Clone, Copy)]
pub(crate) struct BF16;

/// f16 to f32 in six integer and float operations without a branch or a table, so that loops of it vectorise on every
/// target (the F16C instructions are not in the x86-64 baseline). Moving the exponent field up by 13 leaves it 112
/// short; multiplying by 2^112 repairs normals and renormalises subnormals, exactly. Infinity and NaN keep their
/// mantissa.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let finite = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
    let special = magnitude | 0x7f80_0000;
    let chosen = if bits & 0x7c00 == 0x7c00 { special } else { finite };
    f32::from_bits(chosen | (u32::from(bits & 0x8000) << 16))
}

/// f32 to f16, to nearest even, without a branch: normals are rebiased and rounded as integers, subnormals are rounded
/// by adding 0.5 (whose last place is theirs), from 2^16 on it is infinity or NaN.
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    const HALF: u32 = 126 << 23;
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(HALF)).to_bits().wrapping_sub(HALF);
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let finite = if magnitude < 113 << 23 { subnormal } else { normal };
    let chosen = if magnitude >= 143 << 23 { special } else { finite };
    (chosen | ((bits >> 16) & 0x8000)) as u16
}

/// f32 to bf16, to nearest even, without a branch.
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded }) as u16
}

impl Element for F16 {
    type Real = f32;
    const BYTES: usize = 2;
    #[inline(always)]
    fn read(bytes: &[u8]) -> f32 {
        f16_to_f32(u16::from_ne_bytes([bytes[0], bytes[1]]))
    }
    #[inline(always)]
    fn reals(_: &[u8]) -> Option<&[f32]> {
        None
    }
    #[inline(always)]
    fn write(value: f32, bytes: &mut [u8]) {
        bytes[..2].copy_from_slice(&f32_to_f16(value).to_ne_bytes());
    }
}

impl Element for BF16 {
    type Real = f32;
    const BYTES: usize = 2;
    #[inline(always)]
    fn read(bytes: &[u8]) -> f32 {
        f32::from_bits(u32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) << 16)
    }
    #[inline(always)]
    fn reals(_: &[u8]) -> Option<&[f32]> {
        None
    }
    #[inline(always)]
    fn write(value: f32, bytes: &mut [u8]) {
        bytes[..2].copy_from_slice(&f32_to_bf16(value).to_ne_bytes());
    }
}

impl Element for f32 {
    type Real = f32;
    const BYTES: usize = 4;
    #[inline(always)]
    fn read(b: &[u8]) -> f32 {
        f32::from_ne_bytes([b[0], b[1], b[2], b[3]])
    }
    #[inline(always)]
    fn reals(bytes: &[u8]) -> Option<&[f32]> {
        bytemuck::try_cast_slice(bytes).ok()
    }
    #[inline(always)]
    fn write(value: f32, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&value.to_ne_bytes());
    }
}

impl Element for f64 {
    type Real = f64;
    const BYTES: usize = 8;
    #[inline(always)]
    fn read(b: &[u8]) -> f64 {
        f64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
    }
    #[inline(always)]
    fn reals(bytes: &[u8]) -> Option<&[f64]> {
        bytemuck::try_cast_slice(bytes).ok()
    }
    #[inline(always)]
    fn write(value: f64, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(&value.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::{f16_to_f32, f32_to_bf16, f32_to_f16};
    use half::{bf16, f16};

    #[test]
    fn every_half_widens_exactly() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits).to_f32();
            let actual = f16_to_f32(bits);
            if expected.is_nan() {
                assert!(actual.is_nan(), "{bits:#06x}");
            } else {
                assert_eq!(actual.to_bits(), expected.to_bits(), "{bits:#06x}");
            }
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even_everywhere() {
        // Every half and what lies just around it, their midpoints included; then the whole range in steps.
        let halves = (0..=u16::MAX).flat_map(|h| {
            let wide = f16::from_bits(h).to_f32().to_bits();
            [0u32, 1, 0xfff, 0x1000, 0x1001, 0x1fff, u32::MAX].map(|d| wide.wrapping_add(d))
        });
        for bits in halves.chain((0..=u32::MAX / 997).map(|k| k * 997)) {
            let value = f32::from_bits(bits);
            if value.is_nan() {
                assert!(f16::from_bits(f32_to_f16(value)).is_nan() && bf16::from_bits(f32_to_bf16(value)).is_nan());
            } else {
                assert_eq!(f32_to_f16(value), f16::from_f32(value).to_bits(), "{value:e} {bits:#x}");
                assert_eq!(f32_to_bf16(value), bf16::from_f32(value).to_bits(), "{value:e} {bits:#x}");
            }
        }
    }
}
