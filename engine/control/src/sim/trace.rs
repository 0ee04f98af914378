//! A recorded run: who was delivered when, and at what loss.

use std::collections::HashMap;
use std::ops::Range;

use lossfeed_kernels::rank;

use super::population::{Ages, Population};
use crate::error::{Error, Result};
use crate::types::SampleId;

/// The offset of SHADE Eq. 6 in its authors' code; the paper leaves it open.
pub const B0: f32 = 10.0;

/// A recorded run in memory: 12 bytes a row, 4 a batch, and 4 a distinct sample where it has sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    pub(super) ids: Vec<SampleId>,
    /// By row; NaN where the row has none.
    pub(super) losses: Vec<f32>,
    /// What the losses make of their samples, by row; NaN where a loss has no rank. Empty if no row has one. Ranked
    /// once, for every replay.
    pub(super) scores: Vec<f32>,
    /// The first row of each batch.
    starts: Vec<u32>,
    /// The first batch of each epoch.
    epochs: Vec<u32>,
    samples: usize,
    /// Samples of the dataset that no row names.
    unnamed: usize,
    /// By dense id; `None` without a bytes column.
    bytes: Option<Vec<u32>>,
}

/// What a trace is made of.
#[derive(Debug, Default)]
pub struct Rows {
    /// By row: each id below `samples`, and all of these ([`dense`]).
    pub ids: Vec<SampleId>,
    /// By row; NaN where the row has none.
    pub losses: Vec<f32>,
    /// The first row of each batch.
    pub starts: Vec<u32>,
    /// The first batch of each epoch.
    pub epochs: Vec<u32>,
    /// Distinct ids.
    pub samples: usize,
    /// By id; `None` without sizes.
    pub bytes: Option<Vec<u32>>,
}

/// A batch of a recorded run.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedBatch {
    /// Of the run. Where it is another one than the batch's before, an epoch begins.
    pub epoch: u64,
    /// Who was delivered, at what loss; NaN where there is none.
    pub rows: Vec<(SampleId, f32)>,
}

/// `ids` numbered densely and in their own order, because ties are broken by id; and the distinct ones, ascending.
pub fn dense<T: Copy + Ord>(ids: &[T]) -> (Vec<SampleId>, Vec<T>) {
    let mut distinct = ids.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    (ids.iter().map(|id| distinct.partition_point(|d| d < id) as u32).collect(), distinct)
}

impl Trace {
    /// Ranks the losses, batch by batch.
    pub fn of(rows: Rows) -> Self {
        let Rows { ids, losses, starts, epochs, samples, bytes } = rows;
        let mut scores = Vec::new();
        if losses.iter().any(|loss| loss.is_finite()) {
            scores.reserve_exact(losses.len());
            for (batch, &start) in starts.iter().enumerate() {
                let end = starts.get(batch + 1).map_or(losses.len(), |&end| end as usize);
                scores.extend(rank::scores(&rank::counts(&losses[start as usize..end]), B0));
            }
        }
        Self { ids, losses, scores, starts, epochs, samples, unnamed: 0, bytes }
    }
    /// A run of these batches, in their order, and of samples of these sizes.
    ///
    /// # Errors
    /// `Settings` if there are no rows or more than 2³² − 2, a sample has no size, or one of 0 or 2³² and more.
    pub fn of_batches(batches: &[RecordedBatch], sizes: Option<&HashMap<SampleId, u64>>) -> Result<Self> {
        let rows: usize = batches.iter().map(|batch| batch.rows.len()).sum();
        if rows == 0 || rows > u32::MAX as usize - 1 {
            return Err(Error::settings(format!("the run has {rows} rows: 1 to {} can be replayed", u32::MAX - 1)));
        }
        let (mut starts, mut epochs, mut at, mut before) = (vec![], vec![], 0, None);
        for batch in batches.iter().filter(|batch| !batch.rows.is_empty()) {
            if before.replace(batch.epoch) != Some(batch.epoch) {
                epochs.push(starts.len() as u32);
            }
            starts.push(at);
            at += batch.rows.len() as u32;
        }
        let (named, losses): (Vec<_>, Vec<_>) = batches.iter().flat_map(|batch| batch.rows.iter().copied()).unzip();
        let (ids, distinct) = dense(&named);
        let size = |sizes: &HashMap<SampleId, u64>, id: &SampleId| {
            let bytes = sizes.get(id).copied().unwrap_or(0);
            u32::try_from(bytes).ok().filter(|&bytes| bytes > 0).ok_or_else(|| {
                Error::settings(format!("sample {id} takes {bytes} bytes: 1 to {} can be replayed", u32::MAX))
            })
        };
        let bytes = sizes.map(|sizes| distinct.iter().map(|id| size(sizes, id)).collect::<Result<_>>()).transpose()?;
        Ok(Self::of(Rows { ids, losses, starts, epochs, samples: distinct.len(), bytes }))
    }
    /// Accesses, all epochs together.
    pub fn requests(&self) -> usize {
        self.ids.len()
    }
    /// Distinct samples.
    pub fn samples(&self) -> usize {
        self.samples
    }
    /// Batches, all epochs together.
    pub fn batches(&self) -> usize {
        self.starts.len()
    }
    /// Epochs.
    pub fn epoch_count(&self) -> usize {
        self.epochs.len()
    }
    /// The same recorded run, of a dataset of `samples`: those that no row names were not delivered, but are parts of
    /// it.
    ///
    /// # Errors
    /// `Settings` if the trace names more.
    pub fn of_dataset(self, samples: usize) -> Result<Self> {
        match samples.checked_sub(self.samples) {
            Some(unnamed) => Ok(Self { unnamed, ..self }),
            None => Err(Error::settings(format!(
                "the dataset is said to have {samples} samples, and the trace names {}: give at least as many",
                self.samples
            ))),
        }
    }
    /// Samples of the dataset that no row names.
    pub fn unnamed(&self) -> usize {
        self.unnamed
    }
    /// Whether the trace has sizes.
    pub fn has_sizes(&self) -> bool {
        self.bytes.is_some()
    }
    /// Bytes of the dataset, or its samples if the trace has no sizes: every sample then counts as 1. A sample that no
    /// row names is taken to have the mean size of those that are named.
    pub fn total_bytes(&self) -> u64 {
        let Some(bytes) = &self.bytes else { return (self.samples + self.unnamed) as u64 };
        let named: u64 = bytes.iter().map(|&b| u64::from(b)).sum();
        named + (named as f64 / self.samples as f64 * self.unnamed as f64).round() as u64
    }
    /// ⌊fraction × [`Trace::total_bytes`]⌋.
    ///
    /// # Errors
    /// `Settings` if the fraction is not between 0 and 1.
    pub fn capacity(&self, fraction: f64) -> Result<u64> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::settings(format!(
                "the capacity fraction is {fraction}: give a part of the dataset from 0 to 1"
            )));
        }
        Ok((fraction * self.total_bytes() as f64).floor() as u64)
    }
    /// The samples as the trace leaves them: their last scores, and how long ago they were delivered.
    pub fn population(&self) -> Population {
        let mut last = vec![f32::NAN; self.samples];
        for (&id, &score) in self.ids.iter().zip(&self.scores).filter(|(_, score)| score.is_finite()) {
            last[id as usize] = score;
        }
        let mut ages = Ages::new(self.samples);
        self.ids.iter().for_each(|&id| ages.meet(id));
        Population::new(&last, &ages)
    }
    #[inline]
    pub(super) fn bytes(&self, id: SampleId) -> u64 {
        self.bytes.as_ref().map_or(1, |b| u64::from(b[id as usize]))
    }
    /// The rows of each batch, epoch by epoch.
    pub(super) fn epochs(&self) -> impl Iterator<Item = Vec<Range<usize>>> + '_ {
        let edge = |starts: &[u32], k: usize, end: usize| starts.get(k).map_or(end, |&s| s as usize);
        (0..self.epochs.len()).map(move |epoch| {
            (self.epochs[epoch] as usize..edge(&self.epochs, epoch + 1, self.starts.len()))
                .map(|batch| self.starts[batch] as usize..edge(&self.starts, batch + 1, self.ids.len()))
                .collect()
        })
    }
}
