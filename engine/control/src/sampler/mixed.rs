//! Draws of unequal weight, mixed evenly over an epoch.
//!
//! In a shuffled order a batch has more heavy draws, or fewer, by luck, and its gradient is too long or too short for
//! it; and a sample that is drawn four times may come twice within a few batches. Here
//! - the draws of one sample are as far apart as they can be, from a start that is drawn;
//! - draws are divided into classes of like weight, and each class is spread evenly over the epoch (proportional
//!   stratification, Cochran 1977, chapter 5), so that every stretch has nearly the same share of each;
//! - where the epoch begins in that circle is drawn too.
//!
//! So a draw's place is uniform, as in a shuffled order, and each batch by itself is as fair; only the variance of its
//! weighted mean is less.

use super::{Order, Outlook};
use crate::random::{Purpose, below, generator, shuffle};
use crate::types::SampleId;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// Classes of as many draws each, where weights differ enough.
const CLASSES: usize = 128;

/// Draws whose places are not told apart: they stay in the order in which they came.
const TOGETHER: usize = 8;

/// Weights with the same leading bits are one class: sign, exponent and nine bits of the fraction, so 0.2 % apart.
const DROPPED_BITS: u32 = 14;

/// No more parts of the time than this, so that the ends of all of them stay in a core's cache.
const MOST_BITS: u32 = 11;

/// The draws in the order in which they come. Those of one sample must lie side by side. Takes as much memory again
/// while it works.
pub(super) fn evenly(outlook: &Outlook<'_>, draws: Vec<(SampleId, f32)>) -> Order {
    if draws.is_empty() {
        return Order::default();
    }
    let rng = &mut generator(outlook.seed, outlook.epoch, outlook.rank, Purpose::Order);
    let start = below(rng, draws.len() as u32) as usize;
    by_weight(&over_time(draws, rng), start)
}

/// The draws by a time within the epoch that is drawn for each sample, and at even distances from there on if it comes
/// more than once. Times that agree to a few draws are one, and their draws are shuffled.
fn over_time(draws: Vec<(SampleId, f32)>, rng: &mut ChaCha8Rng) -> Vec<(SampleId, f32)> {
    let bits = (draws.len() / TOGETHER).checked_ilog2().unwrap_or(0).min(MOST_BITS);
    let mut counts = vec![0usize; 1 << bits];
    each_time(&draws, bits, &mut rng.clone(), |part, _| counts[part] += 1);
    let mut ends = firsts(&counts);
    let mut thrown = vec![(0, 0.0); draws.len()];
    each_time(&draws, bits, rng, |part, draw| {
        thrown[ends[part]] = draw;
        ends[part] += 1;
    });
    drop(draws);
    let mut rest = thrown.as_mut_slice();
    for count in counts {
        let (part, others) = rest.split_at_mut(count);
        shuffle(part, rng);
        rest = others;
    }
    thrown
}

/// Tells which of 2^`bits` parts of the epoch each draw falls into.
fn each_time(draws: &[(SampleId, f32)], bits: u32, rng: &mut ChaCha8Rng, mut tell: impl FnMut(usize, (SampleId, f32))) {
    for of_one in draws.chunk_by(|a, b| a.0 == b.0) {
        let first = u64::from(rng.next_u32());
        for (k, &draw) in of_one.iter().enumerate() {
            let time = (first + ((k as u64) << 32)) / of_one.len() as u64;
            tell((time >> (32 - bits)) as usize, draw);
        }
    }
}

/// Where each of some parts begins, if they have so many each.
fn firsts(counts: &[usize]) -> Vec<usize> {
    counts.iter().scan(0, |sum, &count| Some(std::mem::replace(sum, *sum + count))).collect()
}

/// Each class of weights spread evenly, in the order that the draws have, on a circle; the epoch begins at `start`.
fn by_weight(draws: &[(SampleId, f32)], start: usize) -> Order {
    let classes = Classes::of(draws);
    let mut counts = vec![0; draws.len().div_ceil(TOGETHER)];
    let parts = counts.len();
    classes.walk(draws, parts, |part, _| counts[part] += 1);
    let mut ends = firsts(&counts);
    let mut mixed = Order { ids: vec![0; draws.len()], weights: vec![0.0; draws.len()] };
    classes.walk(draws, parts, |part, (id, weight)| {
        let to = (ends[part] + start) % draws.len();
        ends[part] += 1;
        (mixed.ids[to], mixed.weights[to]) = (id, weight);
    });
    mixed
}

/// Which class a weight is of, and how many draws each has.
struct Classes {
    of: Vec<u8>,
    sizes: [usize; CLASSES],
}

fn key(weight: f32) -> usize {
    (weight.to_bits() >> DROPPED_BITS) as usize
}

impl Classes {
    fn of(draws: &[(SampleId, f32)]) -> Self {
        let keys = key(f32::INFINITY) + 1;
        let mut counts = vec![0usize; keys];
        draws.iter().for_each(|&(_, weight)| counts[key(weight).min(keys - 1)] += 1);
        let (mut of, mut sizes, mut sum) = (vec![0; keys], [0; CLASSES], 0);
        for (of, &count) in of.iter_mut().zip(&counts).filter(|&(_, &count)| count > 0) {
            let class = sum * CLASSES / draws.len();
            (*of, sum) = (class as u8, sum + count);
            sizes[class] += count;
        }
        Self { of, sizes }
    }

    /// Tells the part of the circle that each draw falls into.
    fn walk(&self, draws: &[(SampleId, f32)], parts: usize, mut tell: impl FnMut(usize, (SampleId, f32))) {
        // Like classes begin far from each other: multiples of the golden ratio are spread evenly, however many.
        let begin = |class: usize| (class as f64 * 0.618_033_988_749_895).fract();
        let mut next: [f64; CLASSES] = std::array::from_fn(begin);
        for &draw in draws {
            let class = usize::from(self.of[key(draw.1).min(self.of.len() - 1)]);
            let place = next[class] / self.sizes[class] as f64;
            next[class] += 1.0;
            tell(((place * parts as f64) as usize).min(parts - 1), draw);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tilt::random_belief;
    use super::*;
    use crate::index::ScoreTable;
    use proptest::prelude::*;

    type Draws = Vec<(SampleId, f32)>;

    fn mixed(seed: u64, draws: Draws) -> Order {
        let scores = ScoreTable::new(0, 0.0);
        let outlook = Outlook {
            owned: &[],
            samples: 0,
            epoch: 3,
            seed,
            rank: 0,
            world_size: 1,
            scores: &scores,
            resident: &|_| false,
        };
        evenly(&outlook, draws)
    }

    /// Weights as `cost-aware` gives them: above 0, of any skew.
    fn skewed(count: u32) -> Draws {
        let weight = |id| if id % 5 == 0 { 0.2 } else { 1.6 } / (0.2 + random_belief(1, id));
        (0..count).map(|id| (id, weight(id))).collect()
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_weights_stay_with_their_samples(
            of in prop::collection::vec((prop_oneof![Just(1.0f32), 0f32..10.0, any::<f32>()], 1..9usize), 0..600), seed: u64,
        ) {
            let draws: Draws =
                of.iter().enumerate().flat_map(|(id, &(weight, times))| vec![(id as u32, weight); times]).collect();
            let order = mixed(seed, draws.clone());
            let sorted = |mut draws: Vec<(u32, u32)>| {
                draws.sort_unstable();
                draws
            };
            let after = order.ids.iter().zip(&order.weights).map(|(&id, weight)| (id, weight.to_bits())).collect();
            prop_assert_eq!(sorted(after), sorted(draws.iter().map(|&(id, weight)| (id, weight.to_bits())).collect()));
        }

        /// However a stretch is cut, and whatever weight is asked for: the share that is at least as heavy is the
        /// epoch's. Shuffled, it would be off by several times as much.
        #[test]
        fn every_stretch_has_its_share_of_each_weight(
            seed: u64, count in 500..9000usize, from in 0.0..1.0f64, to in 0.0..1.0f64, rank in 0.0..1.0f64,
        ) {
            let order = mixed(seed, skewed(count as u32));
            let cut = |part: f64| (part * count as f64) as usize;
            let stretch = cut(from.min(to))..cut(from.max(to));
            let mut sorted = order.weights.clone();
            sorted.sort_unstable_by(f32::total_cmp);
            let bound = sorted[cut(rank)];
            let heavy = |weights: &[f32]| weights.iter().filter(|&&weight| weight >= bound).count() as f64;
            let expected = heavy(&order.weights) * stretch.len() as f64 / count as f64;
            let off = heavy(&order.weights[stretch]) - expected;
            prop_assert!(off.abs() < 12.0, "{off} more than {expected}");
        }

        /// A sample that comes five times comes once in about every fifth of the epoch.
        #[test]
        fn draws_of_one_sample_are_far_apart(seed: u64, others in 4000..20_000u32) {
            let often = 200..240u32;
            let draws: Draws = skewed(others)
                .into_iter()
                .flat_map(|draw| if often.contains(&draw.0) { vec![(draw.0, 0.05); 5] } else { vec![draw] })
                .collect();
            let order = mixed(seed, draws);
            let fifth = order.ids.len() as f64 / 5.0;
            for id in often {
                let places: Vec<usize> = (0..order.ids.len()).filter(|&place| order.ids[place] == id).collect();
                for two in places.windows(2) {
                    let apart = (two[1] - two[0]) as f64 / fifth;
                    prop_assert!((0.6..1.4).contains(&apart), "sample {id} comes at {places:?}");
                }
            }
        }
    }

    /// What it is for: the weights of a batch add up to nearly the same in every batch.
    #[test]
    fn batches_weigh_alike() {
        let spread = |weights: &[f32]| {
            let sums: Vec<f64> =
                weights.chunks_exact(128).map(|batch| batch.iter().map(|&w| f64::from(w)).sum()).collect();
            let mean = sums.iter().sum::<f64>() / sums.len() as f64;
            sums.iter().map(|sum| (sum / mean - 1.0).powi(2)).sum::<f64>() / sums.len() as f64
        };
        for seed in 0..5 {
            let mut shuffled = skewed(50_048);
            shuffle(&mut shuffled, &mut generator(seed, 0, 0, Purpose::Order));
            let before = spread(&shuffled.iter().map(|draw| draw.1).collect::<Vec<_>>());
            let after = spread(&mixed(seed, skewed(50_048)).weights);
            assert!(after < before / 10.0, "variance {before} before, {after} after");
        }
    }

    /// A draw is as likely in one part of the epoch as in another, whatever it weighs and however often its sample
    /// comes: χ² with 7 degrees of freedom is above 33 once in 30,000 times.
    #[test]
    fn a_draw_comes_anywhere() {
        let draws: Draws =
            skewed(60).into_iter().flat_map(|draw| vec![draw; if draw.0 == 20 { 5 } else { 1 }]).collect();
        for (asked, times_each) in [(0, 1), (1, 1), (7, 1), (20, 5)] {
            let mut times = [0u32; 8];
            for seed in 0..8000 {
                let order = mixed(seed, draws.clone());
                let places = (0..64).filter(|&place| order.ids[place] == asked);
                places.for_each(|place| times[place / 8] += 1);
            }
            let mean = 1000.0 * f64::from(times_each);
            let off: f64 = times.iter().map(|&n| (f64::from(n) - mean).powi(2) / mean).sum();
            assert!(off < 33.0, "sample {asked}: {off} {times:?}");
        }
    }
}
