//! Draws by weight that are spread evenly over time.
//!
//! Drawn batch by batch, each by itself, a resident of chance q comes up 5 times in one stay and 9 times in another by
//! luck alone, like anything that is drawn with replacement. Here luck decides only the beginning: every node of the
//! tree over the places keeps the fraction of a draw by which its left half is behind, and passes it on to the next
//! batch (error diffusion, Floyd and Steinberg 1976, along time instead of along a picture). A node is never a whole
//! draw off, so while chances stay a place has come up as often as they add up to, within one draw a level of the tree
//! (the worst seen: 3.1 in a tree of ten levels).
//!
//! Fractions begin uniform. One that is uniform stays so when a number is added and the whole part taken off, so each
//! batch by itself is as fair as if it were drawn alone.

use crate::index::Fenwick;
use crate::random::{Purpose, generator};
use rand::Rng;

/// The fractions by node, in parts of 2³²; nodes are numbered as the tree's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spread {
    behind: Vec<u32>,
}

impl Spread {
    pub(super) fn new(places: usize, seed: u64, rank: u32) -> Self {
        let rng = &mut generator(seed, 0, rank, Purpose::Replay);
        Self { behind: (0..=places).map(|_| rng.next_u32()).collect() }
    }
    /// Draws `count` places, in their order: `take(place, times)`. Nothing if the tree is empty.
    pub(super) fn draw(&mut self, tree: &Fenwick, count: usize, mut take: impl FnMut(usize, usize)) {
        let span = tree.span();
        if span > 0 {
            let mut draw = Draw { tree, behind: &mut self.behind, take: &mut take };
            draw.below(0, tree.first_step(), span, count as u128);
        }
    }
    pub(super) fn parts(&self) -> &[u32] {
        &self.behind
    }
    /// Puts [`Spread::parts`] back; false if they are not as many.
    pub(super) fn restore(&mut self, behind: Vec<u32>) -> bool {
        let fits = behind.len() == self.behind.len();
        if fits {
            self.behind = behind;
        }
        fits
    }
    pub(super) fn metadata_bytes(&self) -> usize {
        self.behind.capacity() * 4
    }
}

struct Draw<'a, F> {
    tree: &'a Fenwick,
    behind: &'a mut [u32],
    take: &'a mut F,
}

impl<F: FnMut(usize, usize)> Draw<'_, F> {
    /// `count` draws from the `2·step` places after `place`, whose chances add up to `chance`.
    fn below(&mut self, place: usize, step: usize, chance: u128, count: u128) {
        if count == 0 {
            return;
        }
        if step == 0 {
            (self.take)(place, count as usize);
            return;
        }
        let Some(left) = self.tree.chance_of_node(place + step) else {
            return self.below(place, step / 2, chance, count);
        };
        let behind = &mut self.behind[place + step];
        // Of both as many leading bits as leave room for a count and a fraction.
        let too_long = (u128::BITS - chance.leading_zeros()).saturating_sub(62);
        let (part, whole) = (left >> too_long, chance >> too_long);
        let due = ((count * part) << 32) + u128::from(*behind) * whole;
        *behind = (due % (whole << 32) / whole) as u32;
        let to_the_left = (due / (whole << 32)).min(count);
        self.below(place, step / 2, left, to_the_left);
        self.below(place + step, step / 2, chance - left, count - to_the_left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Weight;
    use crate::random::below;

    fn tree(weights: &[Option<u32>]) -> Fenwick {
        let mut tree = Fenwick::new(weights.len());
        weights.iter().enumerate().for_each(|(place, &weight)| tree.set(place, weight.map(Weight::Of)));
        tree
    }

    fn times(spread: &mut Spread, tree: &Fenwick, count: usize, places: usize) -> Vec<usize> {
        let mut times = vec![0; places];
        spread.draw(tree, count, |place, more| times[place] += more);
        times
    }

    const CASES: [&[Option<u32>]; 6] = [
        &[Some(0), Some(0), Some(0)],
        &[Some(7)],
        &[None, Some(1), Some(5), None, Some(0), Some(2), None],
        &[Some(3), Some(3), Some(3), Some(30), None],
        &[Some(u32::MAX >> 1), Some(0), Some(1)],
        &[Some(1), Some(2), Some(3), Some(4), Some(5), Some(6), Some(7), Some(8), Some(9)],
    ];

    /// Chances of any skew over a thousand places, ten levels deep.
    fn skewed(shape: impl Fn(u64) -> u32) -> Vec<Option<u32>> {
        (0..1000).map(|place| (place % 13 != 12).then(|| shape(place))).collect()
    }

    /// Over batches of any sizes nobody is a draw a level away from what the chances add up to; every batch is full.
    #[test]
    fn a_place_comes_as_often_as_its_chances_add_up_to() {
        let rng = &mut generator(5, 0, 0, Purpose::Replay);
        let deep = [
            skewed(|_| 1),
            skewed(|place| if place < 8 { 100_000_000 >> place } else { 1 }),
            skewed(|place| 1 << (place.leading_zeros() - 54)),
            skewed(|place| if place.is_power_of_two() { 1 << 20 } else { 3 }),
            (0..1000).map(|_| Some(1 << below(rng, 24))).collect(),
        ];
        for weights in CASES.iter().copied().chain(deep.iter().map(Vec::as_slice)) {
            let (tree, places) = (tree(weights), weights.len());
            let mut spread = Spread::new(places, 3, 0);
            let (mut had, mut all, levels) = (vec![0; places], 0, places.ilog2() + 1);
            for batch in 0..500 {
                let count = [1, 3, 96, 7][batch % 4];
                let now = times(&mut spread, &tree, count, places);
                assert_eq!(now.iter().sum::<usize>(), count);
                all += count;
                for place in 0..places {
                    had[place] += now[place];
                    let due = all as f64 * tree.chance_of(place) as f64 / tree.span() as f64;
                    let off = (had[place] as f64 - due).abs();
                    assert!(off < f64::from(levels), "{places} places, {place}: {} of {due}", had[place]);
                }
            }
        }
    }

    /// Over many beginnings every batch by itself, the tenth as the first, gives each place its chance: also while
    /// weights change from batch to batch.
    #[test]
    fn every_batch_is_fair_over_the_beginnings() {
        let beginnings = 20_000;
        for weights in CASES {
            let places = weights.len();
            let mut had = vec![[0usize; 2]; places];
            let mut chances = [vec![0.0; places], vec![0.0; places]];
            for seed in 0..beginnings {
                let mut spread = Spread::new(places, seed, 1);
                let mut tree = tree(weights);
                for batch in 0..10u32 {
                    let now = times(&mut spread, &tree, 2, places);
                    if let Some(which) = [0, 9].iter().position(|&of| of == batch) {
                        for place in 0..places {
                            had[place][which] += now[place];
                            chances[which][place] = 2.0 * tree.chance_of(place) as f64 / tree.span() as f64;
                        }
                    }
                    let place = batch as usize % places;
                    if let Some(Weight::Of(weight)) = tree.weight(place) {
                        tree.set(place, Some(Weight::Of(weight / 2 + batch * 3)));
                    }
                }
            }
            for (place, had) in had.iter().enumerate() {
                for (which, &had) in had.iter().enumerate() {
                    let (mean, chance) = (had as f64 / beginnings as f64, chances[which][place]);
                    // Of two draws a count is 0, 1 or 2, so its deviation is one at most: five standard errors.
                    assert!((mean - chance).abs() < 5.0 / (beginnings as f64).sqrt(), "{weights:?}: {mean}, {chance}");
                }
            }
        }
    }

    /// Counts of a place over a stay vary a tenth as much as those of draws that are made by themselves.
    #[test]
    fn stays_are_alike() {
        let places = 100;
        let weights: Vec<Option<u32>> = (0..places).map(|place| Some(place % 7)).collect();
        let tree = tree(&weights);
        let mut spread = Spread::new(places as usize, 9, 0);
        let mut squares = 0.0;
        for _ in 0..200 {
            let mut had = vec![0usize; places as usize];
            for _ in 0..30 {
                spread.draw(&tree, 20, |place, times| had[place] += times);
            }
            for (place, &had) in had.iter().enumerate() {
                let mean = 600.0 * tree.chance_of(place) as f64 / tree.span() as f64;
                squares += (had as f64 - mean).powi(2) / mean;
            }
        }
        // Drawn by themselves: 1.
        assert!(squares / (200.0 * f64::from(places)) < 0.1, "{squares}");
    }

    #[test]
    fn what_was_put_back_goes_on_alike() {
        let rng = &mut generator(1, 0, 0, Purpose::Replay);
        let mut changing = tree(&vec![Some(1); 37]);
        let (mut one, mut other) = (Spread::new(37, 5, 0), Spread::new(37, 6, 0));
        for round in 0..100 {
            changing.set(below(rng, 37) as usize, (round % 5 != 0).then_some(Weight::Of(round)));
            times(&mut one, &changing, 4, 37);
        }
        assert_ne!(one, other);
        assert!(!other.restore(vec![0; 3]) && other.restore(one.parts().to_vec()));
        assert_eq!(times(&mut one, &changing, 9, 37), times(&mut other, &changing, 9, 37));
        // Nothing is drawn of nobody.
        assert_eq!(times(&mut one, &Fenwick::new(37), 9, 37), vec![0; 37]);
    }
}
