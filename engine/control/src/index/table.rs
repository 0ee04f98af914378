//! The score table: what we believe about every sample now, and since when.

use crate::error::{Error, Result};
use crate::types::SampleId;

/// Beliefs about all samples of a dataset: 8 bytes a sample.
///
/// A sample has no score until its first one; that is a state, not a small number (an unseen sample must never start
/// below a scored one). [`Standing`] tells the ways of having none apart: a sample that was delivered and got no score
/// is not unseen any more, or samplers would draw it first in every epoch to come. Because the table covers every id,
/// resident or not, it is also the *ghost*: what is remembered of samples that are not in the cache.
///
/// Beliefs are finite: a score that is not is refused, and merging two finite scores gives a finite one.
#[derive(Debug, Clone)]
pub struct ScoreTable {
    /// NaN = no score.
    importance: Vec<f32>,
    /// The step of the last score; without a score, which standing it is ([`UNSEEN`], [`TRIED`] or [`FAILED`]).
    stamp: Vec<u32>,
    /// Weight of the newest score: belief = (1 − smoothing) × score + smoothing × belief.
    smoothing: f32,
    seen: u32,
    failed: u32,
    /// Σ stamps over the scored samples, for the mean age.
    stamp_sum: u64,
    /// Kept in f64 and by difference: a mean over millions of beliefs must cost nothing per batch.
    sum: f64,
}

/// What is known of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Standing {
    /// Never delivered: it must be met soon, and its worth is found out by meeting it.
    Unseen,
    /// Delivered, but no score came: an ignored target, a loss that is not finite, a batch that nobody scored. Meeting
    /// it again teaches nothing, so it is worth what an average sample is.
    Tried,
    /// It could not be read the last time, and the run goes on without it (`on_error` is not `raise`).
    Failed,
    /// The belief about it.
    Scored(f32),
}

const UNSEEN: u32 = 0;
const TRIED: u32 = 1;
const FAILED: u32 = 2;

impl ScoreTable {
    /// A table of `samples` unseen samples. `smoothing` in [0, 1): 0 keeps the newest score, 0.5 halves its news.
    pub fn new(samples: usize, smoothing: f32) -> Self {
        Self {
            importance: vec![f32::NAN; samples],
            stamp: vec![UNSEEN; samples],
            smoothing,
            seen: 0,
            failed: 0,
            stamp_sum: 0,
            sum: 0.0,
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
    /// What is known of `id`.
    #[inline]
    pub fn standing(&self, id: SampleId) -> Standing {
        self.standing_of(id, self.importance[id as usize])
    }
    /// The same where its place in [`Self::as_slice`] has been looked at already.
    #[inline]
    pub(crate) fn standing_of(&self, id: SampleId, importance: f32) -> Standing {
        if !importance.is_nan() {
            return Standing::Scored(importance);
        }
        match self.stamp[id as usize] {
            TRIED => Standing::Tried,
            FAILED => Standing::Failed,
            _ => Standing::Unseen,
        }
    }
    /// The belief about `id`, or `None` without a score.
    #[inline]
    pub fn importance(&self, id: SampleId) -> Option<f32> {
        let value = self.importance[id as usize];
        (!value.is_nan()).then_some(value)
    }
    /// Steps since the last score of `id`, or `None` without one.
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
            self.failed -= u32::from(self.stamp[id as usize] == FAILED);
            self.sum += f64::from(score);
            score
        } else {
            self.stamp_sum -= u64::from(self.stamp[id as usize]);
            let mut new = score + self.smoothing * (old - score);
            if !new.is_finite() {
                // The difference of two large scores of opposite signs is none; what lies between them is.
                let (old, score, smoothing) = (f64::from(old), f64::from(score), f64::from(self.smoothing));
                new = (score + smoothing * (old - score)) as f32;
            }
            self.sum += f64::from(new) - f64::from(old);
            new
        };
        self.importance[id as usize] = new;
        self.stamp[id as usize] = step;
        self.stamp_sum += u64::from(step);
        Some(new)
    }
    /// `id` was delivered. True if it was unseen before; a score, or a standing that says more, is left alone.
    pub fn tried(&mut self, id: SampleId) -> bool {
        let unseen = self.standing(id) == Standing::Unseen;
        if unseen {
            self.stamp[id as usize] = TRIED;
        }
        unseen
    }
    /// `id` could not be read. Its belief is forgotten.
    pub fn fail(&mut self, id: SampleId) {
        match self.standing(id) {
            Standing::Failed => return,
            Standing::Scored(belief) => {
                self.seen -= 1;
                self.stamp_sum -= u64::from(self.stamp[id as usize]);
                // What rounding left of beliefs that are gone must not become a mean.
                self.sum = if self.seen == 0 { 0.0 } else { self.sum - f64::from(belief) };
            }
            Standing::Unseen | Standing::Tried => {}
        }
        self.importance[id as usize] = f32::NAN;
        self.stamp[id as usize] = FAILED;
        self.failed += 1;
    }
    /// `id` was read after all.
    pub fn recover(&mut self, id: SampleId) {
        if self.standing(id) == Standing::Failed {
            self.stamp[id as usize] = TRIED;
            self.failed -= 1;
        }
    }
    /// How many samples could not be read the last time.
    pub fn failed(&self) -> usize {
        self.failed as usize
    }
    /// How many samples have a score.
    pub fn seen(&self) -> usize {
        self.seen as usize
    }
    /// Mean belief over the scored samples, or `None` if there are none.
    pub fn mean(&self) -> Option<f64> {
        (self.seen > 0).then(|| self.sum / f64::from(self.seen))
    }
    /// Mean age in steps over the scored samples, or `None` if there are none.
    pub fn mean_age(&self, step: u32) -> Option<f64> {
        (self.seen > 0).then(|| f64::from(step) - self.stamp_sum as f64 / f64::from(self.seen))
    }
    /// All beliefs by id; NaN = no score.
    pub fn as_slice(&self) -> &[f32] {
        &self.importance
    }
    /// All stamps by id: the step of the last score, or which standing a sample without one has.
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
    /// Puts back what [`Self::as_slice`] and [`Self::stamps`] gave, for resuming a run.
    ///
    /// # Errors
    /// `Settings` for another number of samples, a belief that is infinite, or a stamp that no sample without a score
    /// has; the table is then as it was.
    pub fn restore(&mut self, importance: &[f32], stamps: &[u32]) -> Result<()> {
        let samples = self.len();
        if importance.len() != samples || stamps.len() != samples {
            return Err(Error::settings(format!(
                "{} beliefs and {} stamps do not fit a table of {samples} samples",
                importance.len(),
                stamps.len()
            )));
        }
        let wrong = |(&value, &stamp): (&f32, &u32)| value.is_infinite() || (value.is_nan() && stamp > FAILED);
        if let Some(id) = importance.iter().zip(stamps).position(wrong) {
            return Err(Error::settings(format!(
                "the state's importance of sample {id} is {} with stamp {}: it is damaged",
                importance[id], stamps[id]
            )));
        }
        self.importance.copy_from_slice(importance);
        self.stamp.copy_from_slice(stamps);
        (self.seen, self.failed, self.stamp_sum, self.sum) = (0, 0, 0, 0.0);
        for (&value, &stamp) in importance.iter().zip(stamps) {
            if value.is_nan() {
                self.failed += u32::from(stamp == FAILED);
                continue;
            }
            self.seen += 1;
            self.stamp_sum += u64::from(stamp);
            self.sum += f64::from(value);
        }
        Ok(())
    }
    /// Of two tables' (belief, stamp) of one sample, what is known better: a belief before none, the newer of two, and
    /// of two standings the one that says more.
    pub fn better(one: (f32, u32), other: (f32, u32)) -> (f32, u32) {
        let known = |(belief, stamp): (f32, u32)| (!belief.is_nan(), stamp);
        if known(other) > known(one) { other } else { one }
    }
    /// The head of a copy: what is kept of all samples together, and room for the samples.
    pub(crate) fn begin_copy(&self) -> Self {
        Self {
            importance: Vec::with_capacity(self.len()),
            stamp: Vec::with_capacity(self.len()),
            smoothing: self.smoothing,
            seen: self.seen,
            failed: self.failed,
            stamp_sum: self.stamp_sum,
            sum: self.sum,
        }
    }
    /// Appends the samples `piece` to a copy that has those before them.
    pub(crate) fn copy_piece(&self, to: &mut Self, piece: std::ops::Range<usize>) {
        to.importance.extend_from_slice(&self.importance[piece.clone()]);
        to.stamp.extend_from_slice(&self.stamp[piece]);
    }
    /// A sample of a copy as it was when the copy began. The head needs nothing: it is of that moment.
    pub(crate) fn put_back(&mut self, id: SampleId, importance: f32, stamp: u32) {
        self.importance[id as usize] = importance;
        self.stamp[id as usize] = stamp;
    }
    /// Forgets everything, for resuming a run that had no scores yet.
    pub fn clear(&mut self) {
        *self = Self::new(self.len(), self.smoothing);
    }
}
