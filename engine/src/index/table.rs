//! The score table: what we believe about every sample now, and since when.

use crate::types::SampleId;

/// Beliefs about all samples of a dataset: 8 bytes a sample.
///
/// A sample is *unseen* until its first score; being unseen is a state, not a small number (an unseen sample must never
/// start below a seen one). Because the table covers every id, resident or not, it is also the *ghost*: what is
/// remembered of samples that are not in the cache.
#[derive(Debug, Clone)]
pub struct ScoreTable {
    /// NaN = unseen.
    importance: Vec<f32>,
    /// The step of the last score; meaningless while unseen.
    stamp: Vec<u32>,
    /// Weight of the newest score: belief = (1 − smoothing) × score + smoothing × belief.
    smoothing: f32,
    seen: u32,
    /// Σ stamps over the seen samples, for the mean age.
    stamp_sum: u64,
    /// Kept in f64 and by difference: a mean over millions of beliefs must cost nothing per batch.
    sum: f64,
    max: f32,
}

impl ScoreTable {
    /// A table of `samples` unseen samples. `smoothing` in [0, 1): 0 keeps the newest score, 0.5 halves its news.
    pub fn new(samples: usize, smoothing: f32) -> Self {
        Self {
            importance: vec![f32::NAN; samples],
            stamp: vec![0; samples],
            smoothing,
            seen: 0,
            stamp_sum: 0,
            sum: 0.0,
            max: 0.0,
        }
    }
    /// Number of samples.
    pub fn len(&self) -> usize {
        self.importance.len()
    }
    /// Whether there are no samples at all.
    pub fn is_empty(&self) -> bool {
        self.importance.is_empty()
    }
    /// The belief about `id`, or `None` while it is unseen.
    #[inline]
    pub fn importance(&self, id: SampleId) -> Option<f32> {
        let value = self.importance[id as usize];
        (!value.is_nan()).then_some(value)
    }
    /// Steps since the last score of `id`, or `None` while it is unseen.
    pub fn age(&self, id: SampleId, step: u32) -> Option<u32> {
        self.importance(id).map(|_| step.saturating_sub(self.stamp[id as usize]))
    }
    /// Merges a new score into the belief and returns the new belief. A score that is not finite is no score:
    /// it leaves the table alone and returns `None`.
    #[inline]
    pub fn record(&mut self, id: SampleId, score: f32, step: u32) -> Option<f32> {
        if !score.is_finite() {
            return None;
        }
        let old = self.importance[id as usize];
        let new = if old.is_nan() {
            self.seen += 1;
            self.sum += f64::from(score);
            score
        } else {
            self.stamp_sum -= u64::from(self.stamp[id as usize]);
            let new = score + self.smoothing * (old - score);
            self.sum += f64::from(new) - f64::from(old);
            new
        };
        self.max = self.max.max(new);
        self.importance[id as usize] = new;
        self.stamp[id as usize] = step;
        self.stamp_sum += u64::from(step);
        Some(new)
    }
    /// How many samples have been scored at least once.
    pub fn seen(&self) -> usize {
        self.seen as usize
    }
    /// Mean belief over the seen samples, or `None` if nothing was seen.
    pub fn mean(&self) -> Option<f64> {
        (self.seen > 0).then(|| self.sum / f64::from(self.seen))
    }
    /// Mean age in steps over the seen samples, or `None` if nothing was seen.
    pub fn mean_age(&self, step: u32) -> Option<f64> {
        (self.seen > 0).then(|| f64::from(step) - self.stamp_sum as f64 / f64::from(self.seen))
    }
    /// The largest belief ever held (a bound on all beliefs), 0 if nothing was seen.
    pub fn ceiling(&self) -> f32 {
        self.max
    }
    /// All beliefs by id; NaN = unseen.
    pub fn as_slice(&self) -> &[f32] {
        &self.importance
    }
    /// All stamps by id; meaningless where unseen.
    pub fn stamps(&self) -> &[u32] {
        &self.stamp
    }
    /// See [`Ledger::prefetch`](crate::ledger::Ledger::prefetch).
    pub fn prefetch(&self, ids: &[SampleId]) {
        std::hint::black_box(ids.iter().fold(0, |all, &id| all ^ self.importance[id as usize].to_bits()));
    }
    /// Heap bytes held.
    pub fn metadata_bytes(&self) -> usize {
        (self.importance.capacity() + self.stamp.capacity()) * 4
    }
    /// Puts back what [`Self::as_slice`] and [`Self::stamps`] gave, for resuming a run. Both must have `len()` items.
    pub fn restore(&mut self, importance: &[f32], stamps: &[u32]) {
        self.importance.copy_from_slice(importance);
        self.stamp.copy_from_slice(stamps);
        (self.seen, self.stamp_sum, self.sum, self.max) = (0, 0, 0.0, 0.0);
        for (&value, &stamp) in importance.iter().zip(stamps).filter(|(v, _)| !v.is_nan()) {
            self.seen += 1;
            self.stamp_sum += u64::from(stamp);
            self.sum += f64::from(value);
            self.max = self.max.max(value);
        }
    }
}
