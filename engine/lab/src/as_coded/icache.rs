//! What iCACHE's public code does, whatever its paper says: rebuilt from its rules, to say where the printed hits come
//! from.
//!
//! Quirks that move the numbers, or show what they do not depend on:
//! 1. a percentile is a whole number of percent, rounded up, and 0 for the hardest hundredth, which is then never kept;
//! 2. the first `HISTORY` samples of a selective epoch are all kept, because the history begins empty in each;
//! 3. a request is said to be important by the importance of its *position*, not of its sample: seven in ten are,
//!    whoever they ask for; in full epochs all are;
//! 4. a request that is not important is answered from a queue of samples read ahead, in an order of its own, whatever
//!    was asked for, and counted as a hit. Each of those hits is a read;
//! 5. importance is the loss at the visit before the last, and the cache learns it at the end of an epoch.

use std::collections::{BTreeSet, VecDeque};

use lossfeed_control::SampleId;
use lossfeed_control::random::{Purpose, generator, shuffle, unit};

/// Losses that a loss is compared with.
const HISTORY: usize = 1024;
/// Samples after which percentiles are made anew.
const BATCH: usize = 256;
/// The part of a selective epoch's requests that is important.
const IMPORTANT: f64 = 0.7;
/// The part of the cache that holds important samples.
const H_PART: f64 = 0.9;
const WARM_UP: u64 = 5;
const REUSE: u64 = 3;

/// A run of it. β is 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IcacheAsCoded {
    /// Samples in the dataset.
    pub samples: u32,
    /// Samples that the cache is said to hold.
    pub capacity: usize,
    /// Epochs.
    pub epochs: u64,
    /// Answer what is not important from the queue. Without it every request goes to the cache of important samples,
    /// which then has the whole of the memory.
    pub substitutes: bool,
}

/// What came of it, by epoch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IcacheRun {
    /// Samples asked for.
    pub requests: Vec<usize>,
    /// Requests that found their sample among the important ones.
    pub hits: Vec<usize>,
    /// Requests answered from the queue, which the code counts as hits.
    pub popped: Vec<usize>,
}

impl IcacheRun {
    /// The mean over epochs of the ratio that the code prints.
    pub fn printed_ratio(&self) -> f64 {
        let ratios = self.hits.iter().zip(&self.popped).zip(&self.requests);
        ratios.map(|((h, p), r)| (h + p) as f64 / *r as f64).sum::<f64>() / self.requests.len() as f64
    }
    /// The part of all requests that was answered without a read.
    pub fn saved(&self) -> f64 {
        self.hits.iter().sum::<usize>() as f64 / self.requests.iter().sum::<usize>() as f64
    }
    /// The part of `samples` requests an epoch that was not asked for.
    pub fn left_out(&self, samples: u32) -> f64 {
        let full = f64::from(samples) * self.requests.len() as f64;
        1.0 - self.requests.iter().sum::<usize>() as f64 / full
    }
}

/// Is this epoch a pass over everything?
fn is_full(epoch: u64) -> bool {
    epoch < WARM_UP || epoch.is_multiple_of(REUSE)
}

impl IcacheAsCoded {
    /// Runs it over the losses that `losses(batch, epoch)` answers.
    pub fn run(&self, losses: &dyn Fn(&[SampleId], u64) -> Vec<f32>) -> IcacheRun {
        let mut run = IcacheRun::default();
        let mut cache = Important {
            room: if self.substitutes { (H_PART * self.capacity as f64) as usize } else { self.capacity },
            worth: vec![0.0; self.samples as usize],
            ..Default::default()
        };
        let (mut stored, mut sent) = (vec![0.0f32; self.samples as usize], vec![0.0f32; self.samples as usize]);
        for epoch in 0..self.epochs {
            let full = is_full(epoch);
            let list = self.list(epoch, &stored);
            let important = if full { vec![true; list.len()] } else { flags(&stored[..list.len()]) };
            let (mut hits, mut popped) = (0, 0);
            for (batch, important) in list.chunks(BATCH).zip(important.chunks(BATCH)) {
                for (&id, &important) in batch.iter().zip(important) {
                    if self.substitutes && !important {
                        popped += 1;
                    } else {
                        hits += usize::from(cache.access(id, full));
                    }
                }
                for (&id, loss) in batch.iter().zip(losses(batch, epoch)) {
                    sent[id as usize] = std::mem::replace(&mut stored[id as usize], loss);
                }
            }
            cache.learn(&sent);
            run.requests.push(list.len());
            run.hits.push(hits);
            run.popped.push(popped);
        }
        run
    }

    /// Who an epoch asks for.
    fn list(&self, epoch: u64, stored: &[f32]) -> Vec<SampleId> {
        let mut ids: Vec<SampleId> = (0..self.samples).collect();
        shuffle(&mut ids, &mut generator(4, epoch, 0, Purpose::Order));
        if is_full(epoch) {
            return ids;
        }
        let chance = &mut generator(4, epoch, 0, Purpose::Draw);
        let mut history: VecDeque<f32> = VecDeque::new();
        let mut kept = Vec::with_capacity(ids.len());
        for block in ids.chunks(BATCH) {
            let mut sorted: Vec<f32> = history.iter().copied().collect();
            sorted.sort_unstable_by(f32::total_cmp);
            for &id in block {
                let loss = stored[id as usize];
                let below = sorted.partition_point(|&other| other < loss) as f64 / HISTORY as f64;
                let percent = (100.0 * below).ceil();
                if sorted.len() < HISTORY || (percent < 100.0 && unit(chance) < percent / 100.0) {
                    kept.push(id);
                }
            }
            history.extend(block.iter().map(|&id| stored[id as usize]));
            history.drain(..history.len().saturating_sub(HISTORY));
        }
        kept
    }
}

/// The positions whose number, taken for a sample, is among the most important.
fn flags(stored: &[f32]) -> Vec<bool> {
    let mut positions: Vec<usize> = (0..stored.len()).collect();
    positions.sort_by(|&a, &b| stored[b].total_cmp(&stored[a]));
    let mut flags = vec![false; stored.len()];
    positions[..(IMPORTANT * stored.len() as f64) as usize].iter().for_each(|&position| flags[position] = true);
    flags
}

/// The cache of important samples.
#[derive(Default)]
struct Important {
    room: usize,
    /// By id, as of the last epoch's end.
    worth: Vec<f32>,
    /// Losses are not negative: their bits are in their order.
    queue: BTreeSet<(u32, SampleId)>,
}

impl Important {
    fn access(&mut self, id: SampleId, full_epoch: bool) -> bool {
        let key = (self.worth[id as usize].to_bits(), id);
        if self.queue.contains(&key) {
            return true;
        }
        if self.queue.len() < self.room {
            self.queue.insert(key);
        } else if !full_epoch && self.queue.first().is_some_and(|least| key.0 > least.0) {
            self.queue.pop_first();
            self.queue.insert(key);
        }
        false
    }
    fn learn(&mut self, sent: &[f32]) {
        self.worth.copy_from_slice(sent);
        self.queue = self.queue.iter().map(|&(_, id)| (sent[id as usize].to_bits(), id)).collect();
    }
}
