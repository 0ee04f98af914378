//! Draws by weight from a set that changes a little with every batch.
//!
//! A Fenwick tree keeps sums of prefixes, so that changing a weight, adding or removing a place and finding a mark
//! cost O(log places). All numbers are whole: sums of floating-point numbers depend on the order in which they were
//! added, and a tree that is built anew from the same weights would differ from the one that was updated.

/// How many times the average a place may weigh more than its own weight says: the chance of a place is one part in
/// five that of any place, and four parts in five its weight's share of all weights.
const EVEN: u128 = 1;
const BY_WEIGHT: u128 = 4;

/// What a place weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// So much, below 2³¹.
    Of(u32),
    /// As much as those that have a weight do on average, whatever becomes of them.
    Average,
}

/// Places with weights, or empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fenwick {
    /// By place; `EMPTY` and `AVERAGE` are no weights.
    weights: Vec<u32>,
    /// Over the places that end at each position, counted from 1.
    nodes: Vec<Node>,
    all: Node,
}

/// Sums over places.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Node {
    sum: u64,
    /// Places that are not empty, and those of them that weigh the average.
    count: u32,
    average: u32,
}

const EMPTY: u32 = u32::MAX;
const AVERAGE: u32 = u32::MAX - 1;
const MOST: u32 = u32::MAX >> 1;

impl Node {
    fn of(stored: u32) -> Self {
        match stored {
            EMPTY => Self::default(),
            AVERAGE => Self { sum: 0, count: 1, average: 1 },
            weight => Self { sum: u64::from(weight), count: 1, average: 0 },
        }
    }
    /// `self` with one part for another. Unsigned numbers wrap: a difference below 0 comes out right.
    fn change(&mut self, before: Self, after: Self) {
        self.sum = self.sum.wrapping_add(after.sum).wrapping_sub(before.sum);
        self.count = self.count.wrapping_add(after.count).wrapping_sub(before.count);
        self.average = self.average.wrapping_add(after.average).wrapping_sub(before.average);
    }
}

impl Fenwick {
    /// That many empty places.
    pub fn new(places: usize) -> Self {
        Self { weights: vec![EMPTY; places], nodes: vec![Node::default(); places + 1], all: Node::default() }
    }
    /// Places that are not empty.
    pub fn count(&self) -> usize {
        self.all.count as usize
    }
    /// The mean of the weights there are; `None` without one above 0.
    pub fn mean(&self) -> Option<f64> {
        let weighed = self.all.count - self.all.average;
        (self.all.sum > 0).then(|| self.all.sum as f64 / f64::from(weighed))
    }
    /// The weight of a place, if it is not empty.
    pub fn weight(&self, place: usize) -> Option<Weight> {
        match self.weights[place] {
            EMPTY => None,
            AVERAGE => Some(Weight::Average),
            weight => Some(Weight::Of(weight)),
        }
    }
    /// Gives a place another weight, or empties it.
    pub fn set(&mut self, place: usize, weight: Option<Weight>) {
        let stored = match weight {
            None => EMPTY,
            Some(Weight::Average) => AVERAGE,
            Some(Weight::Of(weight)) => weight.min(MOST),
        };
        let before = std::mem::replace(&mut self.weights[place], stored);
        let (before, after) = (Node::of(before), Node::of(stored));
        self.all.change(before, after);
        let mut position = place + 1;
        while let Some(node) = self.nodes.get_mut(position) {
            node.change(before, after);
            position += position & position.wrapping_neg();
        }
    }
    /// Multiplies all weights by 2 to the power of `by`. O(places).
    pub fn scale(&mut self, by: i32) {
        let scaled = |weight: u32| match by {
            0.. => (u64::from(weight).checked_shl(by as u32).unwrap_or(u64::MAX)).min(u64::from(MOST)) as u32,
            _ => weight.checked_shr(by.unsigned_abs()).unwrap_or(0),
        };
        self.weights.iter_mut().filter(|weight| **weight <= MOST).for_each(|weight| *weight = scaled(*weight));
        // Each node has its own place, and passes what it has on to the node that holds it.
        self.nodes[1..].iter_mut().zip(&self.weights).for_each(|(node, &weight)| *node = Node::of(weight));
        self.all = self.weights.iter().fold(Node::default(), |mut all, &weight| {
            all.change(Node::default(), Node::of(weight));
            all
        });
        for position in 1..self.nodes.len() {
            let node = self.nodes[position];
            if let Some(above) = self.nodes.get_mut(position + (position & position.wrapping_neg())) {
                above.change(Node::default(), node);
            }
        }
    }
    /// What the chances add up to. With Σ over the m places that have a weight, and n places in all, a place of weight w
    /// has `Σ + 4·m·w` of `5·n·Σ`, and one of average weight `5·Σ`. If there is no weight above 0 each has 1 of n.
    pub fn span(&self) -> u128 {
        match (u128::from(self.all.sum), u128::from(self.all.count)) {
            (0, count) => count,
            (sum, count) => (EVEN + BY_WEIGHT) * sum * count,
        }
    }
    fn chance(&self, node: Node) -> u128 {
        let (all, count) = (u128::from(self.all.sum), u128::from(node.count));
        if all == 0 {
            return count;
        }
        let weighed = u128::from(self.all.count - self.all.average);
        EVEN * all * count + BY_WEIGHT * (weighed * u128::from(node.sum) + u128::from(node.average) * all)
    }
    /// The chance of a place, in parts of [`Fenwick::span`]; 0 for an empty one.
    pub fn chance_of(&self, place: usize) -> u128 {
        self.chance(Node::of(self.weights[place]))
    }
    /// The largest power of two that is not above the number of places: where a walk from the root begins.
    pub fn first_step(&self) -> usize {
        self.weights.len().checked_ilog2().map_or(0, |bits| 1usize << bits)
    }
    /// The chance of all places that end at a node, counted from 1: as many as the node's lowest bit says. `None` if
    /// there is no such node.
    pub fn chance_of_node(&self, node: usize) -> Option<u128> {
        Some(self.chance(*self.nodes.get(node)?))
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
        match self.chance_of(place) {
            0 => 0.0,
            chance => self.span() as f64 / (f64::from(self.all.count) * chance as f64),
        }
    }
    /// Heap bytes held.
    pub fn metadata_bytes(&self) -> usize {
        self.weights.capacity() * 4 + self.nodes.capacity() * size_of::<Node>()
    }
}
