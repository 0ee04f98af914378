//! Draws by weight from a set that changes a little with every batch.
//!
//! A Fenwick tree keeps sums of prefixes, so that changing a weight, adding or removing a place and finding a mark
//! cost O(log places). All numbers are whole: sums of floating-point numbers depend on the order in which they were
//! added, and a tree that is built anew from the same weights would differ from the one that was updated.

/// How many times the average a place may weigh more than its own weight says: the chance of a place is one part in
/// five that of any place, and four parts in five its weight's share of all weights.
const EVEN: u128 = 1;
const BY_WEIGHT: u128 = 4;

/// Places with weights below 2³¹, or empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fenwick {
    /// By place; `EMPTY` without a weight.
    weights: Vec<u32>,
    /// Over the places that end at each position, counted from 1.
    sums: Vec<u64>,
    counts: Vec<u32>,
    total: u64,
    count: u32,
}

const EMPTY: u32 = u32::MAX;

impl Fenwick {
    /// That many empty places.
    pub fn new(places: usize) -> Self {
        Self {
            weights: vec![EMPTY; places],
            sums: vec![0; places + 1],
            counts: vec![0; places + 1],
            total: 0,
            count: 0,
        }
    }
    /// Places that have a weight.
    pub fn count(&self) -> usize {
        self.count as usize
    }
    /// The sum of all weights.
    pub fn total(&self) -> u64 {
        self.total
    }
    /// The weight of a place.
    pub fn weight(&self, place: usize) -> Option<u32> {
        Some(self.weights[place]).filter(|&weight| weight != EMPTY)
    }
    /// Gives a place another weight, or none.
    pub fn set(&mut self, place: usize, weight: Option<u32>) {
        let (before, after) = (self.weight(place), weight.map(|weight| weight.min(EMPTY >> 1)));
        self.weights[place] = after.unwrap_or(EMPTY);
        // Unsigned numbers wrap: a difference below 0 comes out right.
        let sum = u64::from(after.unwrap_or(0)).wrapping_sub(u64::from(before.unwrap_or(0)));
        let count = u32::from(after.is_some()).wrapping_sub(u32::from(before.is_some()));
        self.total = self.total.wrapping_add(sum);
        self.count = self.count.wrapping_add(count);
        let mut position = place + 1;
        while position < self.sums.len() {
            self.sums[position] = self.sums[position].wrapping_add(sum);
            self.counts[position] = self.counts[position].wrapping_add(count);
            position += position & position.wrapping_neg();
        }
    }
    /// What the chances add up to. A place of weight w has `1·Σw + 4·n·w` of it, or 1 of n if all weights are 0.
    pub fn span(&self) -> u128 {
        match (u128::from(self.total), u128::from(self.count)) {
            (0, count) => count,
            (total, count) => (EVEN + BY_WEIGHT) * total * count,
        }
    }
    fn chance(&self, count: u32, sum: u64) -> u128 {
        if self.total == 0 {
            return u128::from(count);
        }
        EVEN * u128::from(self.total) * u128::from(count) + BY_WEIGHT * u128::from(self.count) * u128::from(sum)
    }
    /// The chance of a place of this weight, in parts of [`Fenwick::span`].
    pub fn chance_of(&self, weight: u32) -> u128 {
        self.chance(1, u64::from(weight))
    }
    /// The largest power of two that is not above the number of places: where a walk from the root begins.
    pub fn first_step(&self) -> usize {
        self.weights.len().checked_ilog2().map_or(0, |bits| 1usize << bits)
    }
    /// The chance of all places that end at a node, counted from 1: as many as the node's lowest bit says. `None` if
    /// there is no such node.
    pub fn chance_of_node(&self, node: usize) -> Option<u128> {
        Some(self.chance(*self.counts.get(node)?, *self.sums.get(node)?))
    }
    /// The place in which `mark` lies when the chances are laid end to end. `mark` must be below [`Fenwick::span`].
    pub fn find(&self, mark: u128) -> usize {
        let (mut place, mut rest) = (0, mark);
        let mut step = self.first_step();
        while step > 0 {
            if let Some(chance) = self.chance_of_node(place + step).filter(|&chance| chance <= rest) {
                rest -= chance;
                place += step;
            }
            step /= 2;
        }
        place
    }
    /// 1 over (places × the chance of this one): what makes draws from here a fair mean over the places. 0 for an
    /// empty one.
    pub fn fair(&self, place: usize) -> f64 {
        let Some(weight) = self.weight(place) else { return 0.0 };
        self.span() as f64 / (f64::from(self.count) * self.chance_of(weight) as f64)
    }
    /// Heap bytes held.
    pub fn metadata_bytes(&self) -> usize {
        self.weights.capacity() * 4 + self.sums.capacity() * 8 + self.counts.capacity() * 4
    }
}
