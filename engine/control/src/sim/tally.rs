//! A run's numbers, epoch by epoch.

use serde::Serialize;

use super::pipeline::{Costs, Pipeline, Time};
use crate::index::IdSet;
use crate::types::SampleId;

/// Epochs that are told apart. A trace may claim that every row is another epoch; those from here on are counted
/// together, as the last one.
pub const EPOCHS_MAX: usize = 10_000;

/// What came of one epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Epoch {
    /// Accesses that found their sample resident.
    pub hits: u64,
    /// Accesses that did not.
    pub misses: u64,
    /// Bytes of the misses; their number if samples have no sizes.
    pub fetched_bytes: u64,
    /// Distinct samples that were delivered: the coverage.
    pub distinct: u64,
    /// (Σ w)² / (n Σ w²) over the weights of the deliveries, if they have weights: 1 where all weigh the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective_samples: Option<f64>,
    /// How long it took, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// Counts a run.
#[derive(Debug)]
pub struct Tally {
    epochs: Vec<Epoch>,
    /// Who was delivered in this epoch. A bit a sample stays near the processor where a number would not.
    met: IdSet,
    pipeline: Option<Pipeline>,
    /// Σ w and Σ w² of the epoch.
    weights: Option<(f64, f64)>,
    /// Bytes of a batch's misses; kept for its allocation.
    fetched: Vec<u64>,
}

impl Tally {
    /// Of a run over ids `0..samples`, timed if `costs` says what things take.
    pub fn new(samples: usize, costs: Option<Costs>) -> Self {
        Self {
            epochs: Vec::new(),
            met: IdSet::new(samples),
            pipeline: costs.map(Pipeline::new),
            weights: None,
            fetched: Vec::new(),
        }
    }
    /// An epoch begins.
    pub fn begin_epoch(&mut self) {
        if self.epochs.len() < EPOCHS_MAX {
            self.end_epoch();
            self.met.clear();
            self.epochs.push(Epoch::default());
        }
    }
    fn end_epoch(&mut self) {
        let time = self.pipeline.as_mut().map(Pipeline::next_epoch);
        let weights = self.weights.take();
        if let Some(epoch) = self.epochs.last_mut() {
            let drawn = (epoch.hits + epoch.misses) as f64;
            epoch.time = time;
            epoch.effective_samples =
                weights.map(|(sum, squares)| if squares > 0.0 { sum * sum / (drawn * squares) } else { 0.0 });
        }
    }
    /// A batch of the epoch: which sample each row holds, and whether it was a hit.
    #[inline]
    pub fn batch(&mut self, rows: impl Iterator<Item = (SampleId, bool)>, bytes: impl Fn(SampleId) -> u64) {
        if self.epochs.is_empty() {
            self.begin_epoch();
        }
        let Some(epoch) = self.epochs.last_mut() else { return };
        self.fetched.clear();
        let mut all_bytes = 0;
        for (id, hit) in rows {
            if !self.met.contains(id) {
                self.met.insert(id);
                epoch.distinct += 1;
            }
            if self.pipeline.is_some() {
                all_bytes += bytes(id);
            }
            if hit {
                epoch.hits += 1;
                continue;
            }
            epoch.misses += 1;
            let missed = bytes(id);
            epoch.fetched_bytes += missed;
            if self.pipeline.is_some() {
                self.fetched.push(missed);
            }
        }
        if let Some(pipeline) = &mut self.pipeline {
            pipeline.batch(self.fetched.iter().copied(), all_bytes);
        }
    }
    /// The weights of the epoch's deliveries, or of some of them.
    pub fn weigh(&mut self, weights: impl Iterator<Item = f32>) {
        let (sum, squares) = self.weights.get_or_insert_default();
        for weight in weights.map(f64::from) {
            *sum += weight;
            *squares += weight * weight;
        }
    }
    /// By epoch.
    pub fn finish(mut self) -> Vec<Epoch> {
        self.end_epoch();
        self.epochs
    }
}

/// The epochs together.
pub(super) fn total_time(epochs: &[Epoch]) -> Option<Time> {
    let times = epochs.iter().map(|epoch| epoch.time);
    times.reduce(|all, one| {
        let (all, one) = (all?, one?);
        Some(Time { total_s: all.total_s + one.total_s, stall_s: all.stall_s + one.stall_s })
    })?
}
