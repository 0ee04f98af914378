//! Who of the residents is used again, by score.
//!
//! What counts is a belief beside the mean of the beliefs there are, whatever their unit: a mean squared error of 10⁻⁴ as
//! a cross-entropy of 2. So beliefs become whole numbers by a power of two that follows their mean. A resident without
//! a belief counts as an average one, until it has one.

use super::spread::Spread;
use crate::index::{Fenwick, Weight};

/// Beliefs are whole numbers of 2 to the power of minus this, as long as their mean fits.
const EXPONENT: i32 = 24;
/// Bits of the mean between which it fits. A belief of a 4,096th of the mean is 1 at least, and one of
/// [`MAX_GAIN`] times it has 31 bits at most.
const BITS: std::ops::Range<i32> = 12..27;
/// Bits that it gets where it does not.
const BITS_ANEW: i32 = 20;
/// The most that a resident weighs, in average residents of the moment at which it is believed.
const MAX_GAIN: f64 = 16.0;

/// Places by weight, and how far their draws are behind.
pub(super) struct ByScore {
    pub(super) tree: Fenwick,
    /// A belief times 2 to the power of this is its weight.
    pub(super) exponent: i32,
    pub(super) spread: Spread,
}

impl ByScore {
    pub(super) fn new(places: usize, seed: u64, rank: u32) -> Self {
        Self { tree: Fenwick::new(places), exponent: EXPONENT, spread: Spread::new(places, seed, rank) }
    }
    /// Places of which one is drawn.
    pub(super) fn len(&self) -> usize {
        self.tree.count()
    }
    pub(super) fn enter(&mut self, place: usize, belief: Option<f32>) {
        self.tree.set(place, Some(Weight::Average));
        if let Some(belief) = belief {
            self.rescore(place, belief);
        }
    }
    pub(super) fn leave(&mut self, place: usize) {
        self.tree.set(place, None);
    }
    /// Another belief, for a place that is not empty.
    pub(super) fn rescore(&mut self, place: usize, belief: f32) {
        if self.tree.weight(place).is_none() {
            return;
        }
        let belief = f64::from(belief).clamp(0.0, f64::from(f32::MAX));
        let mean = self.tree.mean();
        if mean.is_none() {
            self.exponent = EXPONENT;
            self.fit(belief * 2f64.powi(EXPONENT));
        }
        let most = mean.map_or(f64::INFINITY, |mean| MAX_GAIN * mean);
        let weight = (belief * 2f64.powi(self.exponent)).min(most);
        self.tree.set(place, Some(Weight::Of(weight as u32)));
        if let Some(mean) = self.tree.mean() {
            self.fit(mean);
        }
    }
    /// Another power of two, if a mean weight has too few bits or too many.
    fn fit(&mut self, mean: f64) {
        let bits = bits(mean);
        if mean > 0.0 && !BITS.contains(&bits) {
            let by = BITS_ANEW - bits;
            self.exponent += by;
            self.tree.scale(by);
        }
    }
    /// Draws `count` places: `take(place, weight, times)`, where the weights make the draws a fair mean over the places.
    pub(super) fn draw(&mut self, count: usize, mut take: impl FnMut(usize, f64, usize)) {
        let tree = &self.tree;
        self.spread.draw(tree, count, |place, times| take(place, tree.fair(place), times));
    }
    pub(super) fn metadata_bytes(&self) -> usize {
        self.tree.metadata_bytes() + self.spread.metadata_bytes()
    }
}

/// The exponent of a number above 0: the same on every machine, as a logarithm need not be.
fn bits(number: f64) -> i32 {
    (number.to_bits() >> 52 & 0x7ff) as i32 - 1023
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chances(by_score: &ByScore, places: usize) -> Vec<f64> {
        let span = by_score.tree.span() as f64;
        (0..places).map(|place| by_score.tree.chance_of(place) as f64 / span).collect()
    }

    /// Beliefs of any unit give the same chances: each is 0.2 and 0.8 times its share of the mean.
    #[test]
    fn the_unit_of_a_score_does_not_matter() {
        let beliefs: Vec<f32> = (0..400u32).map(|place| 0.05 + (place * 37 % 101) as f32 / 40.0).collect();
        let mean = beliefs.iter().sum::<f32>() / 400.0;
        for unit in [1.0f32, 1e-3, 1e-9, 1e-30, 1e3, 1e12, 1e36] {
            let mut by_score = ByScore::new(500, 1, 0);
            (0..500).for_each(|place| by_score.enter(place, None));
            // Twice: the first beliefs are held to the mean of very few.
            for place in (0..400).chain(0..400) {
                by_score.rescore(place, beliefs[place] * unit);
            }
            for (place, chance) in chances(&by_score, 500).into_iter().enumerate() {
                let gain = beliefs.get(place).map_or(1.0, |belief| belief / mean);
                let expected = (0.2 + 0.8 * f64::from(gain)) / 500.0;
                assert!((chance / expected - 1.0).abs() < 2e-3, "{unit:e}, {place}: {chance} for {expected}");
            }
        }
    }

    /// However far beliefs fall while the run goes on, and whoever is never scored.
    #[test]
    fn who_has_no_score_stays_an_average_one() {
        let mut by_score = ByScore::new(100, 1, 0);
        (0..100).for_each(|place| by_score.enter(place, None));
        for round in 0..60 {
            let unit = 1e6f32 * 0.5f32.powi(round);
            (2..100).for_each(|place| by_score.rescore(place, unit * (1 + place % 3) as f32));
            let chances = chances(&by_score, 100);
            assert!(
                chances[..2].iter().all(|chance| (chance * 100.0 - 1.0).abs() < 1e-9),
                "{round}: {:?}",
                &chances[..2]
            );
            assert!((chances[2..].iter().sum::<f64>() - 0.98).abs() < 1e-9);
            // Beliefs of 2 and 1 where the mean is 2, but for the odd one.
            assert!((chances[4] / chances[3] * 0.6 - 1.0).abs() < 0.01, "{round}: {}", chances[4] / chances[3]);
        }
        let mut drawn = vec![0; 100];
        by_score.draw(100_000, |place, fair, times| {
            drawn[place] += times;
            assert!(place > 1 || (fair - 1.0).abs() < 1e-9);
        });
        assert!(drawn[..2].iter().all(|&times| (990..1010).contains(&times)), "{:?}", &drawn[..2]);
    }

    /// What is no number to go by harms nobody else.
    #[test]
    fn scores_at_the_ends_of_their_range() {
        let ends = [0.0, -1.0, f32::NAN, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-45, 1.0];
        for (first, second) in ends.iter().flat_map(|first| ends.iter().map(move |second| (*first, *second))) {
            let mut by_score = ByScore::new(5, 1, 0);
            by_score.enter(0, Some(first));
            by_score.enter(1, Some(second));
            by_score.enter(2, None);
            by_score.rescore(4, 1.0); // of an empty place
            let all: f64 = chances(&by_score, 5).iter().sum();
            assert!((all - 1.0).abs() < 1e-9 && by_score.len() == 3, "{first}, {second}: {all}");
            let mut drawn = 0;
            by_score.draw(1000, |_, fair, times| {
                assert!(fair.is_finite() && fair > 0.0 && fair <= 5.0 + 1e-9, "{first}, {second}: {fair}");
                drawn += times;
            });
            assert_eq!(drawn, 1000);
        }
    }

    #[test]
    fn a_scaled_tree_is_the_tree_of_scaled_weights() {
        for by in [0, 3, -2, 40, -40] {
            let (mut tree, mut other) = (Fenwick::new(21), Fenwick::new(21));
            for place in 0..20usize {
                let weight = (place as u32 * 12_345) % 77_777;
                let scaled = (f64::from(weight) * 2f64.powi(by)).min(f64::from(u32::MAX >> 1)) as u32;
                let of =
                    |weight| [Some(Weight::Of(weight)), Some(Weight::Average), None][place % 7 / 5 + place % 11 / 10];
                tree.set(place, of(weight));
                other.set(place, of(scaled));
            }
            tree.scale(by);
            assert_eq!(tree, other, "{by}");
        }
    }
}
