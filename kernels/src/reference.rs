//! The contract in plain Rust: two passes over a row, one row at a time, nothing clever. The fast path and the CUDA
//! kernels are held to this.
//!
//! One departure from the textbook: the target's own term is kept out of the sums. ‖p − onehot(y)‖² is written
//! (Σ_{j≠y} p_j)² + Σ_{j≠y} p_j² instead of Σp² − 2p_y + 1, and the loss of a row whose target is its maximum is
//! ln(1 + Σ_{j≠y} e^(z_j − z_y)). Equal on paper, but nothing cancels: in f32 the textbook forms turn to rounding noise
//! below a loss of about 1e-3, which is where a trained network puts most of its samples, and ranks of noise are noise.

use crate::element::{BF16, Element, F16, Real, larger};
use crate::scores::{Columns, RowScore, check};
use crate::{AnyScores, Dtype, Objective, Reals, Rows, ScoreError, Scores, Upstream};

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
    let mut columns = Columns::ignored(targets.len());
    for (i, (mut row, &target)) in columns.pieces(1).zip(targets).enumerate() {
        if let (true, Ok(y)) = (target != ignore_index, usize::try_from(target)) {
            let logits: Vec<E::Real> = rows.row(i).chunks_exact(E::BYTES).map(E::read).collect();
            row.set(0, score_row(&logits, y));
        }
    }
    columns.ranked(b0, crate::rank::naive::counts)
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
        max,
        log_sum: ln_sum,
        grad_norm: (miss * miss + others_squared / (sum * sum)).sqrt(),
        entropy: ln_sum - sum_de / sum,
        correct: u8::from(z.iter().position(|&v| v == max) == Some(y)),
    }
}

/// Terms and shares in f64, from the definition (see [`crate::Objective`]).
pub fn terms(rows: &Rows<'_>, targets: &[i64], objective: &Objective<'_>) -> (Vec<f64>, Vec<f64>) {
    let (weights, s) = (weights(objective, rows.classes()), objective.label_smoothing);
    let row = |(i, &target): (usize, &i64)| {
        if target == objective.ignore_index {
            return (0.0, 0.0);
        }
        let (z, own) = (wide(rows, i), weights[target as usize]);
        let (max, log_sum) = softmax(&z);
        let minus_log_p = |z: f64| (max - z) + log_sum;
        let spread: f64 = z.iter().zip(&weights).map(|(&z, w)| w * minus_log_p(z)).sum();
        let smooth = if s > 0.0 { s / z.len() as f64 * spread } else { 0.0 };
        ((1.0 - s) * own * minus_log_p(z[target as usize]) + smooth, own)
    };
    targets.iter().enumerate().map(row).unzip()
}

/// The gradient of Σ upstream.term · term + Σ upstream.lse · lse at the logits, in f64, row by row.
pub fn gradient(rows: &Rows<'_>, targets: &[i64], objective: &Objective<'_>, upstream: &Upstream<'_>) -> Vec<f64> {
    let (weights, s, classes) = (weights(objective, rows.classes()), objective.label_smoothing, rows.classes());
    let of = |reals: Reals<'_>, row: usize| {
        let values = widen(reals);
        values[if values.len() == 1 { 0 } else { row }]
    };
    let sum: f64 = weights.iter().sum();
    let mut gradient = Vec::with_capacity(rows.rows() * classes);
    for (i, &target) in targets.iter().enumerate() {
        if target == objective.ignore_index {
            gradient.resize(gradient.len() + classes, 0.0);
            continue;
        }
        let (z, own) = (wide(rows, i), (1.0 - s) * weights[target as usize]);
        let (g, h) = (of(upstream.term, i), upstream.lse.map_or(0.0, |up| of(up, i)));
        let ((max, log_sum), spread) = (softmax(&z), s / classes as f64);
        gradient.extend(z.iter().zip(&weights).enumerate().map(|(j, (z, w))| {
            let hit = if j as i64 == target { own } else { 0.0 };
            (g * (own + spread * sum) + h) * ((z - max) - log_sum).exp() - g * (spread * w + hit)
        }));
    }
    gradient
}

fn widen(reals: Reals<'_>) -> Vec<f64> {
    match reals {
        Reals::F32(values) => values.iter().map(|&v| f64::from(v)).collect(),
        Reals::F64(values) => values.to_vec(),
    }
}

fn weights(objective: &Objective<'_>, classes: usize) -> Vec<f64> {
    objective.class_weight.map_or_else(|| vec![1.0; classes], widen)
}

fn wide(rows: &Rows<'_>, row: usize) -> Vec<f64> {
    let elements = rows.row(row).chunks_exact(rows.dtype().bytes());
    match rows.dtype() {
        Dtype::F16 => elements.map(|b| f64::from(F16::read(b))).collect(),
        Dtype::BF16 => elements.map(|b| f64::from(BF16::read(b))).collect(),
        Dtype::F32 => elements.map(|b| f64::from(<f32 as Element>::read(b))).collect(),
        Dtype::F64 => elements.map(<f64 as Element>::read).collect(),
    }
}

/// The maximum and ln Σ exp(z − max), which is NaN for a row without a softmax. Never their sum: even a double rounds
/// ln 10 away beside a logit of 3e38.
fn softmax(z: &[f64]) -> (f64, f64) {
    let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (max, z.iter().map(|z| (z - max).exp()).sum::<f64>().ln())
}
