//! In-batch ranks (SHADE Eq. 6): count_i = #{k : loss_k < loss_i}, score_i = ln(count_i + b0).
//!
//! Counts are integers and equal bit for bit on every device. The comparison is strict, so tied losses (−0 and +0 among
//! them) share a count; the authors' code breaks ties by argsort position instead. NaN and infinite losses take no
//! part: count −1, score NaN, and they are in nobody's count.

/// Counts in O(n log n): losses and rows are sorted together, and each run of equal losses counts what is in front of
/// it.
pub fn counts(losses: &[f32]) -> Vec<i32> {
    let ranked = losses.iter().zip(0u32..).filter(|(loss, _)| loss.is_finite());
    let mut sorted = Vec::with_capacity(losses.len());
    sorted.extend(ranked.map(|(&loss, row)| u64::from(ordered(loss)) << 32 | u64::from(row)));
    sorted.sort_unstable();
    let mut counts = vec![-1; losses.len()];
    let mut below = 0;
    for (position, &entry) in (0i32..).zip(&sorted) {
        if position > 0 && entry >> 32 != sorted[position as usize - 1] >> 32 {
            below = position;
        }
        counts[entry as u32 as usize] = below;
    }
    counts
}

/// Integers in the order of the floats they stand for; both zeros are one.
fn ordered(loss: f32) -> u32 {
    let bits = (loss + 0.0).to_bits(); // −0 + 0 is +0
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
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
