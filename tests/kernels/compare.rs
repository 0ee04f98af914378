//! When two sets of scores are the same.

use lossfeed_kernels::{AnyScores, NOT_SCORED, Scores, rank};

/// How far two roundings of the same formula may be apart.
pub(crate) struct Tolerance {
    /// Relative, of terms that are all of one sign.
    relative: f64,
    /// Absolute: what underflow leaves of a square root.
    absolute: f64,
}

/// For f32 arithmetic over a few thousand classes, with sums in any order.
pub(crate) const SINGLE: Tolerance = Tolerance { relative: 3e-5, absolute: 1e-18 };
/// For f64 arithmetic, likewise.
pub(crate) const DOUBLE: Tolerance = Tolerance { relative: 1e-12, absolute: 1e-150 };

impl Tolerance {
    /// `scale` is the size of the terms the value was summed from, where they may cancel.
    fn close(&self, a: f64, b: f64, scale: f64) -> bool {
        if a.is_nan() || b.is_nan() || a.is_infinite() || b.is_infinite() {
            return a.is_nan() == b.is_nan() && (a.is_nan() || a == b);
        }
        (a - b).abs() <= self.absolute + self.relative * a.abs().max(b.abs()).max(scale)
    }
}

fn column<R: Copy + Into<f64>>(name: &str, a: &[R], b: &[R], scale: f64, tolerance: &Tolerance) -> Result<(), String> {
    if a.len() != b.len() {
        return Err(format!("{name}: {} and {} rows", a.len(), b.len()));
    }
    for (row, (&a, &b)) in a.iter().zip(b).enumerate() {
        let (a, b) = (a.into(), b.into());
        if !tolerance.close(a, b, scale) {
            return Err(format!("{name} of row {row}: expected {a:e}, got {b:e}"));
        }
    }
    Ok(())
}

fn scores<R: Copy + Into<f64>>(
    expected: &Scores<R>,
    actual: &Scores<R>,
    b0: f32,
    tolerance: &Tolerance,
) -> Result<(), String> {
    column("loss", &expected.loss, &actual.loss, 0.0, tolerance)?;
    column("max", &expected.max, &actual.max, 0.0, &Tolerance { relative: 0.0, absolute: 0.0 })?;
    // ln(1 + what the maximum leaves), where the target is not the maximum: good to one rounding of 1.
    column("log_sum", &expected.log_sum, &actual.log_sum, 1.0, tolerance)?;
    column("grad_norm", &expected.grad_norm, &actual.grad_norm, 0.0, tolerance)?;
    // ln(1 + what the maximum leaves) is good to one rounding of 1.
    column("entropy", &expected.entropy, &actual.entropy, 1.0, tolerance)?;
    if expected.correct != actual.correct {
        return Err(format!("correct: expected {:?}, got {:?}", expected.correct, actual.correct));
    }
    // Counts are exact, given the losses they were taken on.
    let key = |(l, &c): (&R, &u8)| if c == NOT_SCORED { f32::NAN } else { (*l).into() as f32 };
    let keys: Vec<f32> = actual.loss.iter().zip(&actual.correct).map(key).collect();
    let counts = rank::naive::counts(&keys);
    if counts != actual.count {
        return Err(format!("count: expected {counts:?}, got {:?}", actual.count));
    }
    column(
        "rank_score",
        &rank::scores(&counts, b0),
        &actual.rank_score,
        0.0,
        &Tolerance { relative: 1e-7, absolute: 0.0 },
    )
}

/// Describes the first difference, if there is one.
pub(crate) fn same(expected: &AnyScores, actual: &AnyScores, b0: f32) -> Result<(), String> {
    match (expected, actual) {
        (AnyScores::F32(e), AnyScores::F32(a)) => scores(e, a, b0, &SINGLE),
        (AnyScores::F64(e), AnyScores::F64(a)) => scores(e, a, b0, &DOUBLE),
        _ => Err("precisions differ".to_owned()),
    }
}

/// What a score call left behind.
pub(crate) struct Answer {
    pub(crate) scores: AnyScores,
    pub(crate) error: u32,
    /// Whether the tickets are ready for the next call.
    pub(crate) tickets_back: bool,
}

impl Answer {
    /// The scores are `expected`, no target was bad, the tickets are back.
    pub(crate) fn check(&self, expected: &AnyScores, b0: f32) -> Result<(), String> {
        same(expected, &self.scores, b0)?;
        match (self.error, self.tickets_back) {
            (u32::MAX, true) => Ok(()),
            words => Err(format!("(error, tickets back) are {words:?}")),
        }
    }
}
