//! Draws by weights that the caller gives.

use crate::error::{Error, Result};
use crate::random::{Purpose, generator, unit};
use crate::types::SampleId;

/// `draws` ids with replacement, each drawn in proportion to its weight: what torch's `WeightedRandomSampler` does, by
/// bisection in the sums of the weights. An id of weight 0 never comes.
///
/// Pure: one (seed, epoch, rank) is one order.
///
/// # Errors
/// `Settings` for a weight that is negative, infinite or no number, with its id, and if all are 0.
pub fn weighted(weights: &[f64], draws: usize, seed: u64, epoch: u64, rank: u32) -> Result<Vec<SampleId>> {
    let mut total = 0.0;
    let mut sums = Vec::with_capacity(weights.len());
    for (id, &weight) in weights.iter().enumerate() {
        if !(weight.is_finite() && weight >= 0.0) {
            return Err(Error::settings(format!(
                "weights: id {id} has weight {weight}: give finite ones of at least 0"
            )));
        }
        total += weight;
        sums.push(total);
    }
    if !(total.is_finite() && total > 0.0) {
        return Err(Error::settings(format!(
            "weights: the sum of all {} is {total}: give at least one above 0, and sums that a float64 can hold",
            weights.len()
        )));
    }
    let rng = &mut generator(seed, epoch, rank, Purpose::Draw);
    // The sum's rounding may reach the sum itself: that draw is the last one's that can come.
    let last = sums.partition_point(|&sum| sum < total);
    let draw = |_| {
        let mark = unit(rng) * total;
        sums.partition_point(|&sum| sum <= mark).min(last) as SampleId
    };
    Ok((0..draws).map(draw).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Walks from the front until the mark is used up.
    fn naive(weights: &[f64], draws: usize, seed: u64) -> Vec<SampleId> {
        let total: f64 = weights.iter().sum();
        let rng = &mut generator(seed, 3, 1, Purpose::Draw);
        let walk = |_| {
            let (mark, mut sum) = (unit(rng) * total, 0.0);
            let reaches = |weight: &f64| {
                sum += weight;
                sum > mark
            };
            let last = weights.iter().rposition(|&w| w > 0.0).unwrap();
            weights.iter().position(reaches).unwrap_or(last) as SampleId
        };
        (0..draws).map(walk).collect()
    }

    proptest! {
        #[test]
        fn it_is_the_walk_from_the_front(
            weights in prop::collection::vec(prop_oneof![Just(0.0), 0.0..1.0, 1e-300..1e-290, 1e280..1e290], 1..40),
            seed: u64,
        ) {
            prop_assume!(weights.iter().any(|&w| w > 0.0));
            let drawn = weighted(&weights, 50, seed, 3, 1).unwrap();
            prop_assert!(drawn.iter().all(|&id| weights[id as usize] > 0.0));
            prop_assert_eq!(drawn, naive(&weights, 50, seed));
        }
    }

    #[test]
    fn ids_come_in_proportion() {
        let (weights, draws) = ([1.0, 0.0, 2.0, 5.0], 80_000);
        let drawn = weighted(&weights, draws, 1, 0, 0).unwrap();
        for (id, weight) in weights.iter().enumerate() {
            let (count, chance) = (drawn.iter().filter(|&&d| d as usize == id).count() as f64, weight / 8.0);
            let (mean, deviation) = (draws as f64 * chance, (draws as f64 * chance * (1.0 - chance)).sqrt());
            assert!((count - mean).abs() <= 5.0 * deviation, "{id}: {count} of {mean}");
        }
        assert_ne!(drawn, weighted(&weights, draws, 1, 1, 0).unwrap());
        assert_ne!(drawn, weighted(&weights, draws, 1, 0, 1).unwrap());
    }

    #[test]
    fn weights_that_are_none_are_named() {
        for (weights, says) in [
            (vec![1.0, -1.0], "id 1 has weight -1"),
            (vec![f64::NAN], "id 0 has weight NaN"),
            (vec![1.0, 2.0, f64::INFINITY], "id 2 has weight inf"),
            (vec![0.0; 3], "the sum of all 3 is 0"),
            (vec![f64::MAX; 2], "the sum of all 2 is inf"),
            (vec![], "the sum of all 0 is 0"),
        ] {
            let refused = weighted(&weights, 4, 0, 0, 0).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
    }
}
