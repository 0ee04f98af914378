//! Draws of unequal weight, mixed evenly over an epoch.
//!
//! In a shuffled order a batch has more heavy draws, or fewer, by luck, and its gradient is too long or too short for it.
//! Here draws are divided into classes of like weight, and each class is spread evenly over the epoch, in shuffled order
//! (proportional stratification, Cochran 1977, chapter 5). Every stretch of the order then has nearly the same share of
//! each class. Where in that circle the epoch begins is drawn, so a draw's place is uniform as before, and each batch by
//! itself is as fair as a shuffled one; only the variance of its weighted mean is less.

use super::{Order, Outlook};
use crate::random::{Purpose, below, generator};

/// Classes of as many draws each, where weights differ enough.
const CLASSES: usize = 128;

/// Draws whose places are not told apart: they stay in the order in which they came.
const TOGETHER: usize = 8;

/// Weights with the same leading bits are one class: sign, exponent and nine bits of the fraction, so 0.2 % apart.
const DROPPED_BITS: u32 = 14;

/// The order with each class of its weights spread evenly. `order` must be shuffled.
pub(super) fn evenly(outlook: &Outlook<'_>, order: Order) -> Order {
    let draws = order.ids.len();
    if draws == 0 {
        return order;
    }
    let start = below(&mut generator(outlook.seed, outlook.epoch, outlook.rank, Purpose::Mix), draws as u32) as usize;
    let classes = Classes::of(&order.weights);
    let parts = draws.div_ceil(TOGETHER);
    let mut sizes = vec![0u32; parts];
    classes.walk(&order.weights, parts, |part, _| sizes[part] += 1);
    let (mut firsts, mut sum) = (sizes, 0);
    for first in &mut firsts {
        (*first, sum) = (sum, sum + *first);
    }
    let mut mixed = Order { ids: vec![0; draws], weights: vec![0.0; draws] };
    classes.walk(&order.weights, parts, |part, from| {
        let to = (firsts[part] as usize + start) % draws;
        firsts[part] += 1;
        (mixed.ids[to], mixed.weights[to]) = (order.ids[from], order.weights[from]);
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
    fn of(weights: &[f32]) -> Self {
        let keys = key(f32::INFINITY) + 1;
        let mut counts = vec![0usize; keys];
        weights.iter().for_each(|&weight| counts[key(weight).min(keys - 1)] += 1);
        let (mut of, mut sizes, mut below) = (vec![0; keys], [0; CLASSES], 0);
        for (of, &count) in of.iter_mut().zip(&counts).filter(|&(_, &count)| count > 0) {
            let class = below * CLASSES / weights.len();
            (*of, below) = (class as u8, below + count);
            sizes[class] += count;
        }
        Self { of, sizes }
    }

    /// Tells the part that each draw falls into, in the order in which they came.
    fn walk(&self, weights: &[f32], parts: usize, mut tell: impl FnMut(usize, usize)) {
        // Like classes begin far from each other: multiples of the golden ratio are spread evenly, however many.
        let begin = |class: usize| (class as f64 * 0.618_033_988_749_895).fract();
        let mut next: [f64; CLASSES] = std::array::from_fn(begin);
        for (from, &weight) in weights.iter().enumerate() {
            let class = usize::from(self.of[key(weight).min(self.of.len() - 1)]);
            let place = next[class] / self.sizes[class] as f64;
            next[class] += 1.0;
            tell(((place * parts as f64) as usize).min(parts - 1), from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tilt::random_belief;
    use super::*;
    use crate::index::ScoreTable;
    use crate::random::shuffle;
    use proptest::prelude::*;

    fn mixed(seed: u64, order: Order) -> Order {
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
        evenly(&outlook, order)
    }

    /// Weights as `cost-aware` gives them: above 0, of any skew.
    fn skewed(count: u32, seed: u64) -> Order {
        let weight = |id| if id % 5 == 0 { 0.2 } else { 1.6 } / (0.2 + random_belief(1, id));
        let mut ids: Vec<u32> = (0..count).collect();
        shuffle(&mut ids, &mut generator(seed, 0, 0, Purpose::Order));
        Order { weights: ids.iter().map(|&id| weight(id)).collect(), ids }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_weights_stay_with_their_samples(
            weights in prop::collection::vec(prop_oneof![Just(1.0f32), 0f32..10.0, any::<f32>()], 0..600), seed: u64,
        ) {
            let order = Order { ids: (0..weights.len() as u32).collect(), weights };
            let of = mixed(seed, order.clone());
            let sorted = |order: &Order| {
                let mut both: Vec<_> = order.ids.iter().zip(&order.weights).map(|(&id, w)| (id, w.to_bits())).collect();
                both.sort_unstable();
                both
            };
            prop_assert_eq!(sorted(&of), sorted(&order));
        }

        /// However a stretch is cut, and whatever weight is asked for: the share that is at least as heavy is the
        /// epoch's. Shuffled, it would be off by several times as much.
        #[test]
        fn every_stretch_has_its_share_of_each_weight(
            seed: u64, count in 500..9000usize, from in 0.0..1.0f64, to in 0.0..1.0f64, rank in 0.0..1.0f64,
        ) {
            let order = mixed(seed, skewed(count as u32, seed));
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
    }

    /// What it is for: the weights of a batch add up to nearly the same in every batch.
    #[test]
    fn batches_weigh_alike() {
        let spread = |order: &Order| {
            let sums: Vec<f64> =
                order.weights.chunks_exact(128).map(|batch| batch.iter().map(|&w| f64::from(w)).sum()).collect();
            let mean = sums.iter().sum::<f64>() / sums.len() as f64;
            sums.iter().map(|sum| (sum / mean - 1.0).powi(2)).sum::<f64>() / sums.len() as f64
        };
        for seed in 0..5 {
            let shuffled = skewed(50_048, seed);
            let (before, after) = (spread(&shuffled), spread(&mixed(seed, shuffled)));
            assert!(after < before / 10.0, "variance {before} before, {after} after");
        }
    }

    /// A draw is as likely in one part of the epoch as in another, whatever it weighs: χ² with 7 degrees of freedom is
    /// above 33 once in 30,000 times.
    #[test]
    fn a_draw_comes_anywhere() {
        for asked in [0, 1, 7, 63] {
            let mut times = [0u32; 8];
            for seed in 0..8000 {
                let order = mixed(seed, skewed(64, seed));
                let place = order.ids.iter().position(|&id| id == asked).unwrap();
                times[place / 8] += 1;
            }
            let off: f64 = times.iter().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
            assert!(off < 33.0, "sample {asked}: {off} {times:?}");
        }
    }
}
