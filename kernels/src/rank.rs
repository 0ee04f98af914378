//! In-batch ranks (SHADE Eq. 6): count_i = #{k : loss_k < loss_i}, score_i = ln(count_i + b0).
//!
//! Counts are integers and equal bit for bit on every device. The comparison is strict, so tied losses (−0 and +0 among
//! them) share a count; the authors' code breaks ties by argsort position instead. NaN and infinite losses take no part:
//! count −1, score NaN, and they are in nobody's count.

/// Counts in O(n log n): sort the finite losses, then find each loss's lower bound.
pub fn counts(losses: &[f32]) -> Vec<i32> {
    let mut sorted: Vec<f32> = losses.iter().copied().filter(|l| l.is_finite()).collect();
    sorted.sort_unstable_by(f32::total_cmp);
    let count = |&loss: &f32| {
        if loss.is_finite() {
            // total_cmp puts −0 before +0, but `<` tells them equal: the partition is still one.
            i32::try_from(sorted.partition_point(|&other| other < loss)).unwrap_or(i32::MAX)
        } else {
            -1
        }
    };
    losses.iter().map(count).collect()
}

/// Scores from counts. `b0` must be above 0 (10 in SHADE's code). Rounded once from f64, so that devices agree.
pub fn scores(counts: &[i32], b0: f32) -> Vec<f32> {
    let score = |&count: &i32| if count < 0 { f32::NAN } else { (f64::from(count) + f64::from(b0)).ln() as f32 };
    counts.iter().map(score).collect()
}

/// The definition, word for word.
pub mod naive {
    /// Counts in O(n²).
    pub fn counts(losses: &[f32]) -> Vec<i32> {
        let smaller = |loss: f32| losses.iter().filter(|l| l.is_finite() && **l < loss).count();
        losses.iter().map(|&l| if l.is_finite() { i32::try_from(smaller(l)).unwrap_or(i32::MAX) } else { -1 }).collect()
    }
}
