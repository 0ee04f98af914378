//! Sines and cosines by steps of our own. A library's last bit is its own, and a pixel that lies between two others may
//! hang on it: so it would be another one on another machine, and on a GPU.

/// Taylor's series of the sine behind its first term, in powers of the square.
const SINES: [f64; 8] = [
    -1.0 / 6.0,
    1.0 / 120.0,
    -1.0 / 5040.0,
    1.0 / 362_880.0,
    -1.0 / 39_916_800.0,
    1.0 / 6_227_020_800.0,
    -1.0 / 1_307_674_368_000.0,
    1.0 / 355_687_428_096_000.0,
];
/// The cosine's behind its first.
const COSINES: [f64; 8] = [
    -1.0 / 2.0,
    1.0 / 24.0,
    -1.0 / 720.0,
    1.0 / 40_320.0,
    -1.0 / 3_628_800.0,
    1.0 / 479_001_600.0,
    -1.0 / 87_178_291_200.0,
    1.0 / 20_922_789_888_000.0,
];

/// Sine and cosine of an angle of a few turns at most, each within 2^-52. `cuda/retouch.cu` takes the same steps.
pub(super) fn turned(degrees: f64) -> (f64, f64) {
    // At most an eighth of a turn from the nearest quarter; the difference is exact.
    let quarters = (degrees / 90.0).round_ties_even();
    let x = (degrees - quarters * 90.0) * (std::f64::consts::PI / 180.0);
    let square = x * x;
    // Not fused: multiplications and additions are rounded one by one.
    let series = |terms: [f64; 8]| terms.into_iter().rev().fold(0.0, |sum, term| sum * square + term);
    let sin = x + x * square * series(SINES);
    let cos = 1.0 + square * series(COSINES);
    match quarters as i64 & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_those_of_the_library_up_to_its_last_bits() {
        for tenth in -9000..=9000 {
            let degrees = f64::from(tenth) / 10.0;
            let (sin, cos) = turned(degrees);
            let (exact_sin, exact_cos) = degrees.to_radians().sin_cos();
            // The library's angle is rounded to radians first.
            let slack = 1e-15 + degrees.abs() * 5e-18;
            assert!((sin - exact_sin).abs() < slack && (cos - exact_cos).abs() < slack, "{degrees}: {sin} {cos}");
        }
    }

    #[test]
    fn quarters_are_exact_and_the_other_way_round_is_the_mirrored_one() {
        let quarters = [0.0, 90.0, 180.0, 270.0, 360.0, -90.0].map(turned);
        assert_eq!(quarters, [(0.0, 1.0), (1.0, 0.0), (0.0, -1.0), (-1.0, 0.0), (0.0, 1.0), (-1.0, 0.0)]);
        for degrees in [0.1, 4.5, 44.9, 45.0, 45.1, 90.0, 117.0, 135.0] {
            let ((sin, cos), (back_sin, back_cos)) = (turned(degrees), turned(-degrees));
            assert_eq!((sin, cos), (-back_sin, back_cos), "{degrees}");
        }
    }
}
