//! The contract in plain Rust: two passes over a row, one row at a time, nothing clever. The fast path and the CUDA kernels
//! are held to this.
//!
//! One departure from the textbook: the target's own term is kept out of the sums. ‖p − onehot(y)‖² is written
//! (Σ_{j≠y} p_j)² + Σ_{j≠y} p_j² instead of Σp² − 2p_y + 1, and the loss of a row whose target is its maximum is
//! ln(1 + Σ_{j≠y} e^(z_j − z_y)). Equal on paper, but nothing cancels: in f32 the textbook forms turn to rounding noise
//! below a loss of about 1e-3, which is where a trained network puts most of its samples, and ranks of noise are noise.

use crate::element::{BF16, Element, F16, Real, larger};
use crate::scores::{RowScore, check, columns};
use crate::{AnyScores, Dtype, Rows, ScoreError, Scores};

/// Scores `rows` against `targets` (class indices; `ignore_index` leaves a row out, whatever else it may mean).
///
/// `b0` is the rank score's offset, see [`crate::rank`]. Cost: two reads of every row and O(n²) for the ranks.
///
/// # Errors
/// [`ScoreError`] when targets and rows differ in number, a target names no class, or `b0` is not above 0.
pub fn score(rows: &Rows<'_>, targets: &[i64], ignore_index: i64, b0: f32) -> Result<AnyScores, ScoreError> {
    check(rows, targets, ignore_index, b0)?;
    Ok(match rows.dtype() {
        Dtype::F16 => AnyScores::F32(all::<F16>(rows, targets, ignore_index, b0)),
        Dtype::BF16 => AnyScores::F32(all::<BF16>(rows, targets, ignore_index, b0)),
        Dtype::F32 => AnyScores::F32(all::<f32>(rows, targets, ignore_index, b0)),
        Dtype::F64 => AnyScores::F64(all::<f64>(rows, targets, ignore_index, b0)),
    })
}

fn all<E: Element>(rows: &Rows<'_>, targets: &[i64], ignore_index: i64, b0: f32) -> Scores<E::Real> {
    let row = |(i, &target): (usize, &i64)| match usize::try_from(target) {
        Ok(y) if target != ignore_index => {
            let logits: Vec<E::Real> = rows.row(i).chunks_exact(E::BYTES).map(E::read).collect();
            score_row(&logits, y)
        }
        _ => RowScore::ignored(),
    };
    let scored: Vec<_> = targets.iter().enumerate().map(row).collect();
    columns(&scored, b0, crate::rank::naive::counts)
}

fn score_row<R: Real>(z: &[R], y: usize) -> RowScore<R> {
    let max = z.iter().copied().fold(R::NEG_INFINITY, larger);
    if max == R::NEG_INFINITY {
        return RowScore::undefined(); // all −∞ or NaN
    }
    let (mut others, mut others_squared, mut sum_de) = (R::ZERO, R::ZERO, R::ZERO);
    for (j, &logit) in z.iter().enumerate() {
        let d = logit - max;
        let e = d.exp();
        if j != y {
            others = others + e;
            others_squared = others_squared + e * e;
        }
        // A masked class has d = −∞ and e = 0: its share of the entropy is 0, not NaN.
        sum_de = sum_de + e * larger(R::EXP_ZERO, d);
    }
    let sum = others + (z[y] - max).exp();
    if sum.is_nan() {
        return RowScore::undefined(); // a NaN, or +∞ − +∞
    }
    let ln_sum = if z[y] == max { others.ln_1p() } else { sum.ln() };
    let miss = others / sum;
    RowScore {
        loss: (max - z[y]) + ln_sum,
        lse: max + ln_sum,
        grad_norm: (miss * miss + others_squared / (sum * sum)).sqrt(),
        entropy: ln_sum - sum_de / sum,
        correct: u8::from(z.iter().position(|&v| v == max) == Some(y)),
    }
}
