//! Passes without replacement over a set that changes: every draw, arrival and departure costs O(1).

use rand_chacha::ChaCha8Rng;

use crate::random::below;

/// Not in the deck.
const OUT: u32 = u32::MAX;

/// Places, those that this pass has not drawn yet before those that it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Deck {
    order: Vec<u32>,
    /// Where in `order` a place is.
    at: Vec<u32>,
    undrawn: usize,
}

impl Deck {
    pub(super) fn new(places: usize) -> Self {
        Self { order: Vec::new(), at: vec![OUT; places], undrawn: 0 }
    }
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }
    /// A place that was just used some other way: the next pass draws it.
    pub(super) fn enter(&mut self, place: u32) {
        self.at[place as usize] = self.order.len() as u32;
        self.order.push(place);
    }
    pub(super) fn leave(&mut self, place: u32) {
        let mut at = self.at[place as usize];
        if at == OUT {
            return;
        }
        if (at as usize) < self.undrawn {
            self.undrawn -= 1;
            self.swap(at as usize, self.undrawn);
            at = self.undrawn as u32;
        }
        self.swap(at as usize, self.order.len() - 1);
        self.order.pop();
        self.at[place as usize] = OUT;
    }
    /// The next place of the pass, or of a new one; `None` if the deck is empty.
    pub(super) fn draw(&mut self, rng: &mut ChaCha8Rng) -> Option<u32> {
        if self.undrawn == 0 {
            self.undrawn = self.order.len();
        }
        let bound = self.undrawn as u32;
        if bound == 0 {
            return None;
        }
        let drawn = below(rng, bound) as usize;
        self.undrawn -= 1;
        self.swap(drawn, self.undrawn);
        self.order.get(self.undrawn).copied()
    }
    fn swap(&mut self, a: usize, b: usize) {
        self.order.swap(a, b);
        self.at[self.order[a] as usize] = a as u32;
        self.at[self.order[b] as usize] = b as u32;
    }
    /// The places in order, and how many of them are undrawn.
    pub(super) fn parts(&self) -> (&[u32], usize) {
        (&self.order, self.undrawn)
    }
    /// Puts [`Deck::parts`] back; false if a place comes twice, or is none, or if more are undrawn than there are.
    pub(super) fn restore(&mut self, order: Vec<u32>, undrawn: usize) -> bool {
        self.at.fill(OUT);
        for (at, &place) in order.iter().enumerate() {
            match self.at.get_mut(place as usize) {
                Some(slot) if *slot == OUT => *slot = at as u32,
                _ => return false,
            }
        }
        self.undrawn = undrawn;
        let fits = undrawn <= order.len();
        self.order = order;
        fits
    }
    pub(super) fn metadata_bytes(&self) -> usize {
        (self.order.capacity() + self.at.capacity()) * 4
    }
}
