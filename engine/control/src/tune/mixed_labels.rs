//! Labels of neighbouring samples: as mixed as chance mixes them, or alike.
//!
//! Runs of neighbours that enter a stream together save requests, and make batches of few classes where a dataset is
//! sorted by class. So the pairs of samples with one label are counted within blocks of the longest run, and compared
//! with what chance would make of the same labels.

use super::block::MOST;
use std::collections::HashMap;

/// The most blocks that are looked at, at even distances: a quarter of a million labels.
const BLOCKS_MAX: usize = 4096;
/// Neighbours in a sample's block may have its label so much more often than by chance: one or two of 63 ...
const EXCESS_MAX: f64 = 0.02;
/// ... and as many more as chance makes once in thirty thousand shuffled datasets.
const DEVIATIONS: f64 = 4.0;

/// Labels of neighbouring samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Neighbours {
    /// Labels are not known, or say nothing: of one class, or of as many classes as samples.
    #[default]
    Unknown,
    /// Nearly those of a shuffled dataset.
    Mixed,
    /// More often alike than that.
    Alike,
}

impl Neighbours {
    /// Judges samples in the order of their ids. Looks at a quarter of a million labels at most.
    pub fn of(labels: &[i64]) -> Self {
        let block = MOST as usize;
        let step = labels.len().div_ceil(block).div_ceil(BLOCKS_MAX).max(1);
        let mut numbers = HashMap::new();
        let mut number = |&label: &i64| {
            let next = numbers.len();
            *numbers.entry(label).or_insert(next)
        };
        let mut seen: Vec<usize> = labels.chunks(block).step_by(step).flatten().map(&mut number).collect();
        let pairs = Pairs::of(&seen, numbers.len());
        // If sorted labels look mixed too, these say nothing.
        seen.sort_unstable();
        match (pairs.mixed(), Pairs::of(&seen, numbers.len()).mixed()) {
            (_, true) => Self::Unknown,
            (true, false) => Self::Mixed,
            (false, false) => Self::Alike,
        }
    }
}

/// Pairs of samples in one block.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Pairs {
    all: f64,
    /// Those with one label.
    alike: f64,
    /// Pairs that chance would make alike.
    expected: f64,
    /// The variance of that.
    variance: f64,
}

impl Pairs {
    /// Labels are numbers below `classes`.
    fn of(labels: &[usize], classes: usize) -> Self {
        let (mut all, mut sharing, mut alike) = (0.0, 0.0, 0u64);
        let (mut inside, mut counts) = (vec![0u64; classes], vec![0u64; classes]);
        for block in labels.chunks(MOST as usize) {
            let len = block.len() as f64;
            all += len * (len - 1.0) / 2.0;
            sharing += len * (len - 1.0) * (len - 2.0) / 2.0;
            for &label in block {
                if let (Some(inside), Some(count)) = (inside.get_mut(label), counts.get_mut(label)) {
                    alike += *inside;
                    *inside += 1;
                    *count += 1;
                }
            }
            block.iter().for_each(|&label| inside.get_mut(label).into_iter().for_each(|inside| *inside = 0));
        }
        let samples = labels.len() as f64;
        let shares = || counts.iter().map(|&count| count as f64 / samples.max(1.0));
        let cubes: f64 = shares().map(|share| share.powi(3)).sum();
        let squares: f64 = shares().map(|share| share.powi(2)).sum();
        let two = |n: f64| n * (n - 1.0);
        let chance = counts.iter().map(|&count| two(count as f64)).sum::<f64>() / two(samples).max(1.0);
        // Two pairs with one sample in common are alike together more often than two others, if classes differ in size.
        let variance = all * squares * (1.0 - squares) + 2.0 * sharing * (cubes - squares * squares).max(0.0);
        Self { all, alike: alike as f64, expected: all * chance, variance }
    }

    fn mixed(self) -> bool {
        self.alike - self.expected <= EXCESS_MAX * self.all + DEVIATIONS * self.variance.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, generator, shuffle};
    use proptest::prelude::*;

    fn shuffled(mut labels: Vec<i64>, seed: u64) -> Vec<i64> {
        shuffle(&mut labels, &mut generator(seed, 0, 0, Purpose::Order));
        labels
    }

    /// `samples` of `classes`, sorted; if `tailed` the k-th has 100^(−k/(classes−1)) of the first one's samples.
    fn sorted(samples: usize, classes: usize, tailed: bool) -> Vec<i64> {
        let part = |k: usize| if tailed { 0.01f64.powf(k as f64 / (classes - 1).max(1) as f64) } else { 1.0 };
        let all: f64 = (0..classes).map(part).sum();
        let of_class = |k: usize| std::iter::repeat_n(k as i64, (samples as f64 * part(k) / all) as usize);
        (0..classes).flat_map(of_class).collect()
    }

    #[test]
    fn shuffled_datasets_are_mixed_and_sorted_ones_are_not() {
        for (samples, classes, tailed) in
            [(50_000, 10, false), (50_000, 10, true), (1000, 2, false), (2000, 100, true), (400_000, 1000, false)]
        {
            let labels = sorted(samples, classes, tailed);
            assert_eq!(Neighbours::of(&labels), Neighbours::Alike, "{samples} of {classes}");
            for seed in 0..20 {
                let labels = shuffled(labels.clone(), seed);
                assert_eq!(Neighbours::of(&labels), Neighbours::Mixed, "{samples} of {classes}, seed {seed}");
            }
            // Shards of one class each, mixed within a buffer as streams are, or sorted runs of eight.
            let buffered: Vec<i64> =
                labels.chunks(500).zip(0..).flat_map(|(piece, seed)| shuffled(piece.to_vec(), seed)).collect();
            assert_eq!(Neighbours::of(&buffered), Neighbours::Alike, "{samples} of {classes}");
            let mut runs: Vec<&[i64]> = labels.chunks(16).collect();
            shuffle(&mut runs, &mut generator(7, 0, 0, Purpose::Order));
            assert_eq!(Neighbours::of(&runs.concat()), Neighbours::Alike, "{samples} of {classes} in runs of 16");
        }
        let round_robin: Vec<i64> = (0..50_000).map(|n| n % 10).collect();
        assert_eq!(Neighbours::of(&round_robin), Neighbours::Mixed);
    }

    #[test]
    fn labels_that_say_nothing_are_unknown() {
        let numbers: Vec<i64> = (0..100_000).collect();
        let couples: Vec<i64> = (0..100_000).map(|n| n / 2).collect();
        for labels in [&[][..], &[3], &[3, 4], &[i64::MAX, i64::MIN], &[5; 1000], &numbers, &couples] {
            assert_eq!(Neighbours::of(labels), Neighbours::Unknown, "{} labels", labels.len());
        }
    }

    proptest! {
        #[test]
        fn pairs_are_what_their_definition_says(labels in prop::collection::vec(0usize..6, 0..300)) {
            let pairs = |within: &dyn Fn(usize, usize) -> bool| {
                let ids = || 0..labels.len();
                ids().flat_map(|a| (0..a).map(move |b| (a, b))).filter(|&(a, b)| within(a, b)).count() as f64
            };
            let counted = Pairs::of(&labels, 6);
            prop_assert_eq!(counted.all, pairs(&|a, b| a / 64 == b / 64));
            prop_assert_eq!(counted.alike, pairs(&|a, b| a / 64 == b / 64 && labels[a] == labels[b]));
            let chance = pairs(&|a, b| labels[a] == labels[b]) / pairs(&|_, _| true).max(1.0);
            prop_assert!((counted.expected - chance * counted.all).abs() < 1e-6);
        }

        /// Shuffled labels deviate by no more than the variance says, whatever their classes.
        #[test]
        fn the_variance_is_that_of_shuffled_labels(sizes in prop::collection::vec(20usize..400, 2..6), seed: u64) {
            let labels: Vec<i64> = sizes.iter().zip(0..).flat_map(|(&n, k)| std::iter::repeat_n(k, n)).collect();
            let of = |seed: u64| {
                let labels: Vec<usize> = shuffled(labels.clone(), seed).into_iter().map(|k| k as usize).collect();
                Pairs::of(&labels, sizes.len())
            };
            let runs: Vec<Pairs> = (0..60).map(|n| of(seed.wrapping_add(n))).collect();
            let squares: f64 = runs.iter().map(|pairs| (pairs.alike - pairs.expected).powi(2)).sum();
            let ratio = squares / runs.len() as f64 / runs[0].variance;
            prop_assert!(ratio < 2.5, "{ratio}");
        }
    }
}
