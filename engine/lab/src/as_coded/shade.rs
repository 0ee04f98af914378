//! What SHADE's public code does, whatever its paper says and whatever the losses are.
//!
//! The sampler is ours, with the code's rules ([`Pads::as_coded`]). The cache is rebuilt here with the code's quirks,
//! because they move the number: occupancy is read once a batch and used a batch late, less 50 keys of slack, so that
//! it over- and underfills in turn; a known sample enters a full cache only on a strictly greater (score, frequency); a
//! newcomer can be evicted only once it was scored; and ranks are written to the positions of the draw, not to the
//! samples that were in the batch.

use std::collections::{BTreeSet, HashMap, HashSet};

use lossfeed_control::index::ScoreTable;
use lossfeed_control::random::{Purpose, generator, shuffle};
use lossfeed_control::sampler::{Outlook, Pads, Sampler};
use lossfeed_control::sim::{B0, DIFFICULTY, planted_normal};
use lossfeed_control::{Result, SampleId};
use lossfeed_kernels::rank;

/// The code's slack, in keys.
const SLACK: usize = 50;

/// A run of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShadeAsCoded {
    /// Samples in the dataset.
    pub samples: u32,
    /// Samples that the cache is said to hold.
    pub capacity: usize,
    /// Samples in a batch.
    pub batch: usize,
    /// Epochs.
    pub epochs: u64,
    /// The code's `rep`.
    pub repeats: f64,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct ShadeRun {
    /// By epoch.
    pub hits: Vec<usize>,
    /// The last epoch's samples, in order.
    pub last_epoch: Vec<SampleId>,
    /// The weights drawn by; unseen samples have 1.
    pub weights: Vec<f32>,
}

impl ShadeRun {
    /// Of all epochs but the first, `samples` requests each.
    pub fn hit_ratio(&self, samples: u32) -> f64 {
        let later = &self.hits[1..];
        later.iter().sum::<usize>() as f64 / (later.len() as f64 * f64::from(samples))
    }
    /// The part of `samples` that the last epoch met.
    pub fn distinct(&self, samples: u32) -> f64 {
        self.last_epoch.iter().collect::<HashSet<_>>().len() as f64 / f64::from(samples)
    }
}

impl ShadeAsCoded {
    /// Runs it over the losses that `losses(batch, epoch)` answers.
    ///
    /// # Errors
    /// `Settings` if the sampler refuses `repeats`.
    pub fn run(&self, losses: &dyn Fn(&[SampleId], u64) -> Vec<f32>) -> Result<ShadeRun> {
        let mut scores = ScoreTable::new(self.samples as usize, 0.0);
        let mut cache = CodedCache { capacity: self.capacity, ..Default::default() };
        let (mut hits, mut delivered) = (vec![], vec![]);
        for epoch in 0..self.epochs {
            // The first epoch is the draw, reshuffled; the cache plays no part in it.
            let drawn = self.draw(1.0, &scores, epoch, &|_| false)?;
            delivered = self.draw(self.repeats, &scores, epoch, &|id| epoch > 0 && cache.cached.contains(&id))?;
            if epoch == 0 {
                shuffle(&mut delivered, &mut generator(3, 0, 0, Purpose::Order));
            }
            let mut epoch_hits = 0;
            for (batch, positions) in delivered.chunks(self.batch).zip(drawn.chunks(self.batch)) {
                epoch_hits += cache.access(batch);
                let counts = rank::counts(&losses(batch, epoch));
                for ((&id, &count), score) in positions.iter().zip(&counts).zip(rank::scores(&counts, B0)) {
                    scores.record(id, score, 0);
                    cache.rank(id, count);
                }
            }
            hits.push(epoch_hits);
        }
        let weights = (0..self.samples).map(|id| scores.importance(id).unwrap_or(1.0)).collect();
        Ok(ShadeRun { hits, last_epoch: delivered, weights })
    }

    fn draw(
        &self,
        repeats: f64,
        scores: &ScoreTable,
        epoch: u64,
        resident: &dyn Fn(SampleId) -> bool,
    ) -> Result<Vec<SampleId>> {
        let (samples, owned) = (self.samples, (0..self.samples).collect::<Vec<_>>());
        let outlook = Outlook { owned: &owned, samples, epoch, seed: 2, rank: 0, world_size: 1, scores, resident };
        Ok(Pads::as_coded(repeats).draw(&outlook)?.ids)
    }
}

/// Losses exp(difficulty + noise), the noise half as strong and new in every epoch; without `difficulty` they say
/// nothing of the samples.
pub fn planted_losses(batch: &[SampleId], epoch: u64, difficulty: bool) -> Vec<f32> {
    let planted = |id| if difficulty { planted_normal(id, DIFFICULTY) } else { 0.0 };
    batch.iter().map(|&id| (planted(id) + 0.5 * planted_normal(id, epoch)).exp() as f32).collect()
}

/// (rank of the score, how often it was ranked): scores are ln(rank + 10), so ranks order like them.
type Value = (i32, u32);

#[derive(Default)]
struct CodedCache {
    capacity: usize,
    cached: HashSet<SampleId>,
    queue: BTreeSet<(Value, SampleId)>,
    ghost: HashMap<SampleId, Value>,
    occupancy_before: usize,
}

impl CodedCache {
    /// Hits of one batch.
    fn access(&mut self, batch: &[SampleId]) -> usize {
        let occupancy = self.occupancy_before + SLACK;
        self.occupancy_before = self.cached.len();
        let mut hits = 0;
        for &id in batch {
            if self.cached.contains(&id) {
                hits += 1;
                continue;
            }
            let mut occupancy = occupancy;
            if occupancy >= self.capacity
                && let (Some(&value), Some(&(least, victim))) = (self.ghost.get(&id), self.queue.first())
                && value > least
            {
                self.queue.pop_first();
                self.cached.remove(&victim);
                occupancy -= 1;
            }
            if occupancy < self.capacity {
                self.cached.insert(id);
            }
        }
        hits
    }
    fn rank(&mut self, id: SampleId, count: i32) {
        let before = self.ghost.get(&id).copied();
        let value = (count, before.map_or(1, |b| b.1 + 1));
        self.ghost.insert(id, value);
        if let Some(before) = before {
            self.queue.remove(&(before, id));
        }
        if self.cached.contains(&id) {
            self.queue.insert((value, id));
        }
    }
}
