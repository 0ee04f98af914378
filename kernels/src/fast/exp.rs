//! exp() of zero and negative numbers as straight-line code that a compiler turns into SIMD.
//!
//! Each function also returns its argument raised to the smallest one it computes: e · d is then 0 and not NaN where d
//! is −∞.
//!
//! exp(x) = 2^n · exp(r), n = round(x·log2 e), r = x − n·ln 2 in two pieces (Cody and Waite), |r| ≤ ln 2 / 2; exp(r) by
//! its Taylor polynomial, whose remainder at that radius is below the rounding of the last step. Rounding to an integer
//! is done by adding and subtracting 1.5·2^(mantissa bits): SSE2 has no rounding instruction, and this keeps the loop
//! branch-free and the same bit for bit on every instruction set. Multiply-adds are fused for that reason too: a fused
//! one is rounded once by definition, in hardware or (before AVX2, slowly) in a library.

/// Below this the result would be subnormal; it is 0 instead.
const MIN_F32: f32 = -87.336_54;
const MIN_F64: f64 = -708.396_418_532_264_1;

/// exp(x) for x ≤ 1 or NaN. Relative error at most 2 units in the last place; 0 below −87.33; NaN stays NaN.
#[inline(always)]
pub(crate) fn exp_f32(x: f32) -> (f32, f32) {
    const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23
    const LN2_HI: f32 = 355.0 / 512.0; // 9 bits, so that n · LN2_HI is exact
    const LN2_LO: f32 = -2.121_944_4e-4;
    let c = if x < MIN_F32 { MIN_F32 } else { x };
    let shifted = c.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LO, n.mul_add(-LN2_HI, c));
    let mut p: f32 = 1.0 / 5040.0;
    for k in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p.mul_add(r, k);
    }
    // The low mantissa bits of `shifted` hold n; move them into the exponent field.
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    let e = p * scale;
    (if x < MIN_F32 { 0.0 } else { e }, c)
}

/// exp(x) for x ≤ 1 or NaN. Relative error at most 2 units in the last place; 0 below −708.39; NaN stays NaN.
#[inline(always)]
pub(crate) fn exp_f64(x: f64) -> (f64, f64) {
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 · 2^52
    const LN2_HI: f64 = 6.931_471_803_691_238e-1; // 33 bits, so that n · LN2_HI is exact
    const LN2_LO: f64 = 1.908_214_929_270_587_7e-10;
    let c = if x < MIN_F64 { MIN_F64 } else { x };
    let shifted = c.mul_add(std::f64::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LO, n.mul_add(-LN2_HI, c));
    let mut p: f64 = 1.0 / 6_227_020_800.0; // 13!
    for k in [
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        p = p.mul_add(r, k);
    }
    let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52));
    let e = p * scale;
    (if x < MIN_F64 { 0.0 } else { e }, c)
}

#[cfg(test)]
mod tests {
    use super::{exp_f32, exp_f64};

    #[test]
    fn exp_of_every_fortieth_f32_down_to_underflow_is_within_two_ulp() {
        let mut worst = 0.0f64;
        let mut bits = 0x3000_0000u32; // from 2^-31 up, negated
        while f32::from_bits(bits) <= 87.33 {
            let x = -f32::from_bits(bits);
            let exact = f64::from(x).exp();
            let ulp = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
            worst = worst.max((f64::from(exp_f32(x).0) - exact).abs() / ulp);
            bits += 40;
        }
        assert!(worst <= 2.0, "worst error {worst} ulp");
    }

    #[test]
    fn exp_of_f64_is_within_two_ulp_of_the_library() {
        for i in 0..2_000_000 {
            let x = -708.3 * (f64::from(i) / 2e6).powi(3);
            let expected = x.exp();
            let ulp = expected.next_up() - expected;
            // The library's own error is below one ulp.
            assert!((exp_f64(x).0 - expected).abs() <= 2.0 * ulp, "exp({x})");
        }
    }

    #[test]
    fn exp_at_the_edges() {
        assert_eq!(exp_f32(0.0).0, 1.0);
        assert_eq!(exp_f32(-0.0).0, 1.0);
        assert_eq!(exp_f32(f32::NEG_INFINITY).0, 0.0);
        assert_eq!(exp_f32(f32::MIN).0, 0.0);
        assert!(exp_f32(f32::NAN).0.is_nan());
        assert_eq!(exp_f64(0.0).0, 1.0);
        assert_eq!(exp_f64(f64::NEG_INFINITY).0, 0.0);
        assert_eq!(exp_f64(f64::MIN).0, 0.0);
        assert!(exp_f64(f64::NAN).0.is_nan());
    }
}
