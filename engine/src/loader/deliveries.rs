//! What an epoch has delivered: a hit ratio means nothing without it.
//!
//! Lock: taken once a batch; a report holds it while it looks at every sample.

use crate::control::Snapshot;
use crate::types::SampleId;
use serde::Serialize;

/// How often a sample came, at most this often, beside the pass in which that was.
const TIMES_MAX: u32 = 255;
/// Labels from this one on are not counted one by one.
const CLASSES_MAX: usize = 1 << 16;
/// How many samples a report names.
const NAMED: usize = 100;

/// How often every sample came in this epoch and whether it ever did, and what the rows weighed.
#[derive(Debug)]
pub struct Deliveries {
    /// By sample: the pass in which it came last (upper 24 bits, 0 for never), and how often it came in it.
    last: Vec<u32>,
    pass: u32,
    epoch: u64,
    distinct_ever: u64,
    now: Tally,
}

/// Of the rows of one epoch.
#[derive(Debug, Default)]
struct Tally {
    rows: u64,
    distinct: u64,
    weight: f64,
    squares: f64,
    heaviest: f32,
    /// By label: rows, and their weight.
    classes: Vec<(u64, f64)>,
    /// Rows whose label was none of those, or was not looked at.
    unclassed: u64,
}

/// An epoch's deliveries so far; ratios are 0 to 1. As JSON for those who print or plot it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EpochReport {
    /// The epoch under way, or the last one.
    pub epoch: u64,
    /// Rows delivered.
    pub delivered: u64,
    /// Different samples among them.
    pub distinct: u64,
    /// Mean of the weights: 1 but for chance, where they are right.
    pub weight_mean: f64,
    /// The largest weight.
    pub weight_max: f32,
    /// Effective sample size, (Σw)²/(n Σw²): 1 if all weights are equal, small if few rows carry the gradient.
    pub ess_fraction: f64,
    /// Samples by how often they came: (at least, at most, samples). What was not delivered is in none of them.
    pub uses: Vec<(u32, u32, u64)>,
    /// The samples that came most often: (sample, times); times of 255 may be more.
    pub most_used: Vec<(SampleId, u32)>,
    /// Samples by how long ago they were scored, in epochs: (at least, below, samples); the last has no upper end.
    pub score_ages: Vec<(u32, Option<u32>, u64)>,
    /// Samples without a score.
    pub unscored: u64,
    /// For class labels, by label: the share of the rows, and of their weight. The second estimates the dataset's share
    /// where weights are unbiased.
    pub classes: Vec<(usize, f64, f64)>,
}

impl Deliveries {
    /// For a dataset of `samples` samples.
    pub fn new(samples: usize) -> Self {
        Self { last: vec![0; samples], pass: 0, epoch: 0, distinct_ever: 0, now: Tally::default() }
    }
    /// A pass over `epoch` begins with batch `first`. The rest of an epoch goes on where it ended.
    pub fn begin(&mut self, epoch: u64, first: usize) {
        if self.pass > 0 && first > 0 && epoch == self.epoch {
            return;
        }
        // After 16 million passes a sample may be taken for one that came in an old pass of the same number.
        self.pass = if self.pass == u32::MAX >> 8 { 1 } else { self.pass + 1 };
        (self.epoch, self.now) = (epoch, Tally::default());
    }
    /// Counts a batch, row by row; `labels` where samples have classes, and the host has them.
    pub fn deliver(&mut self, ids: &[SampleId], weights: &[f32], labels: Option<impl Iterator<Item = i64>>) {
        let now = &mut self.now;
        for &id in ids {
            let last = &mut self.last[id as usize];
            self.distinct_ever += u64::from(*last == 0);
            if *last >> 8 == self.pass {
                *last += u32::from(*last & TIMES_MAX < TIMES_MAX);
            } else {
                *last = self.pass << 8 | 1;
                now.distinct += 1;
            }
        }
        now.rows += ids.len() as u64;
        for &weight in weights {
            now.weight += f64::from(weight);
            now.squares += f64::from(weight) * f64::from(weight);
            now.heaviest = now.heaviest.max(weight);
        }
        match labels {
            Some(labels) => labels.zip(weights).for_each(|(label, &weight)| now.classify(label, weight)),
            None => now.unclassed += ids.len() as u64,
        }
    }
    /// Different samples: (this epoch, ever).
    pub fn distinct(&self) -> (u64, u64) {
        (self.now.distinct, self.distinct_ever)
    }
    /// Effective sample size as a share of the rows; `None` before the first.
    pub fn ess(&self) -> Option<f64> {
        let Tally { rows, weight, squares, .. } = self.now;
        (rows > 0 && squares > 0.0).then(|| weight * weight / (squares * rows as f64))
    }
    /// All of it, beside the beliefs of `beliefs`, in which an epoch has `steps` steps.
    pub fn report(&self, beliefs: &Snapshot, steps: usize) -> EpochReport {
        let now = &self.now;
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let classes = now.classes.iter().enumerate().filter(|(_, class)| class.0 > 0 && now.unclassed == 0);
        let (score_ages, unscored) = score_ages(beliefs, steps);
        EpochReport {
            epoch: self.epoch,
            delivered: now.rows,
            distinct: now.distinct,
            weight_mean: share(now.weight, now.rows as f64),
            weight_max: now.heaviest,
            ess_fraction: self.ess().unwrap_or(0.0),
            uses: self.uses(),
            most_used: self.most_used(),
            score_ages,
            unscored,
            classes: classes
                .map(|(label, &(rows, weight))| (label, share(rows as f64, now.rows as f64), share(weight, now.weight)))
                .collect(),
        }
    }
    /// How often `id` came in this epoch.
    fn times(&self, last: u32) -> u32 {
        if self.pass > 0 && last >> 8 == self.pass { last & TIMES_MAX } else { 0 }
    }
    /// 1, 2, 3 to 4, 5 to 8, … times.
    fn uses(&self) -> Vec<(u32, u32, u64)> {
        let mut uses: Vec<(u32, u32, u64)> = [(1, 1, 0), (2, 2, 0)].into();
        uses.extend((1..8).map(|k| ((1 << k) + 1, 1 << (k + 1), 0)));
        for times in self.last.iter().map(|&last| self.times(last)).filter(|&times| times > 0) {
            let bucket = uses.partition_point(|&(_, most, _)| most < times);
            uses[bucket].2 += 1;
        }
        uses.retain(|&(_, _, samples)| samples > 0);
        uses
    }
    fn most_used(&self) -> Vec<(SampleId, u32)> {
        let mut most: Vec<(SampleId, u32)> = Vec::with_capacity(2 * NAMED);
        let by_times = |a: &(SampleId, u32), b: &(SampleId, u32)| b.1.cmp(&a.1).then(a.0.cmp(&b.0));
        let mut least = 1;
        for (id, &last) in self.last.iter().enumerate() {
            let times = self.times(last);
            if times < least {
                continue;
            }
            most.push((id as SampleId, times));
            if most.len() == 2 * NAMED {
                most.sort_unstable_by(by_times);
                most.truncate(NAMED);
                least = most.last().map_or(1, |&(_, times)| times);
            }
        }
        most.sort_unstable_by(by_times);
        most.truncate(NAMED);
        most
    }
}

impl Tally {
    fn classify(&mut self, label: i64, weight: f32) {
        let Some(label) = usize::try_from(label).ok().filter(|&label| label < CLASSES_MAX) else {
            self.unclassed += 1;
            return;
        };
        if self.classes.len() <= label {
            self.classes.resize(label + 1, (0, 0.0));
        }
        let class = &mut self.classes[label];
        *class = (class.0 + 1, class.1 + f64::from(weight));
    }
}

/// Less than an epoch, 1 to 2, 2 to 4, 4 to 8, 8 to 16 and more epochs; and how many samples have no score.
fn score_ages(beliefs: &Snapshot, steps: usize) -> (Vec<(u32, Option<u32>, u64)>, u64) {
    let mut ages = vec![(0, Some(1), 0), (1, Some(2), 0), (2, Some(4), 0), (4, Some(8), 0), (8, Some(16), 0)];
    ages.push((16, None, 0));
    let (scores, mut unscored) = (beliefs.scores(), 0);
    for (&belief, &stamp) in scores.as_slice().iter().zip(scores.stamps()) {
        if belief.is_nan() {
            unscored += 1;
            continue;
        }
        let epochs = beliefs.step().wrapping_sub(stamp) / steps.max(1) as u32;
        let bucket = ages.partition_point(|&(_, below, _)| below.is_some_and(|below| below <= epochs));
        ages[bucket].2 += 1u64;
    }
    (ages, unscored)
}

#[cfg(test)]
#[path = "deliveries_tests.rs"]
mod tests;
