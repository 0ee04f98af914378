//! The cache as a buffer that turns over: who is in it, and who of them is used again.
//!
//! Arrivals and departures are told by the books, which the policy `fifo` keeps: the oldest leaves first, whatever
//! its score. A batch's replays are drawn from those that were in the buffer before the batch's own arrivals enter
//! it.

mod deck;
mod spread;
mod words;

use std::sync::Arc;

use crate::index::Fenwick;
use crate::random::{Purpose, generator};
use crate::sampler::BufferOptions;
use crate::types::SampleId;
use deck::Deck;
use spread::Spread;
pub(super) use words::{Reader, Words};

/// An importance of 1. Beliefs become whole numbers of 2⁻²⁴, at most 128.
const ONE: f64 = (1 << 24) as f64;
/// The most that a resident weighs, in average residents of the moment at which it is believed.
const MAX_GAIN: u64 = 16;
/// Not in the buffer.
const OUT: u32 = u32::MAX;

/// What never changes in a run.
#[derive(Debug, Clone, PartialEq)]
pub struct BufferSetup {
    /// How the sampler runs.
    pub options: BufferOptions,
    /// The most residents there can be.
    pub residents_max: usize,
    /// The run's seed.
    pub seed: u64,
    /// This rank.
    pub rank: u32,
    /// The weight of a sample of this rank's share: 1 where shares are equal.
    pub share_weight: f32,
    /// The ids of this rank, ascending: one pass of the stream.
    pub owned: Arc<[SampleId]>,
    /// Residents are used again in passes, whatever their score, until [`Control::use_weights`] is called.
    ///
    /// [`Control::use_weights`]: super::Control::use_weights
    pub awaits_weights: bool,
}

/// Residents by place, a ring in the order of their arrival.
pub(super) struct Buffer {
    pub(super) setup: BufferSetup,
    ring: Vec<SampleId>,
    /// Arrivals so far, and those of them that have left.
    tail: u64,
    head: u64,
    place_of: Vec<u32>,
    /// Passes over the residents decide who is used again, as long as there are any; else the scores do. A run that
    /// awaits weights has both.
    passes: Option<Deck>,
    by_score: Option<Fenwick>,
    spread: Spread,
    /// Whether anybody has left, or the stream has begun anew: until then every row of a batch is new.
    pub(super) full: bool,
}

impl Buffer {
    pub(super) fn new(setup: BufferSetup, samples: usize) -> Self {
        let places = setup.residents_max.min(samples).max(1);
        let by_score = setup.options.by_score.then(|| Fenwick::new(places));
        let passes = (by_score.is_none() || setup.awaits_weights).then(|| Deck::new(places));
        let spread = Spread::new(if by_score.is_some() { places } else { 0 }, setup.seed, setup.rank);
        let (ring, place_of) = (vec![0; places], vec![OUT; samples]);
        Self { setup, ring, tail: 0, head: 0, place_of, passes, by_score, spread, full: false }
    }
    /// From now on scores decide who is used again, if they are asked for at all.
    pub(super) fn use_weights(&mut self) {
        if self.by_score.is_some() {
            self.passes = None;
        }
    }
    /// How many rows of a batch of `rows` come from the stream.
    pub(super) fn fresh(&self, rows: usize) -> usize {
        if !self.full {
            return rows;
        }
        let fresh = ((self.setup.options.fresh * rows as f64).round() as usize).clamp(1, rows.max(1));
        rows - (rows - fresh.min(rows)).min(self.eligible())
    }
    fn eligible(&self) -> usize {
        let by_score = self.by_score.as_ref().map_or(0, Fenwick::count);
        self.passes.as_ref().map_or(by_score, Deck::len)
    }
    fn place(&self, id: SampleId) -> Option<u32> {
        self.place_of.get(id as usize).copied().filter(|&place| place != OUT)
    }
    pub(super) fn enter(&mut self, id: SampleId, belief: Option<f32>) {
        if self.tail - self.head == self.ring.len() as u64 || self.place(id).is_some() {
            return;
        }
        let place = (self.tail % self.ring.len() as u64) as u32;
        self.tail += 1;
        self.ring[place as usize] = id;
        self.place_of[id as usize] = place;
        if let Some(deck) = &mut self.passes {
            deck.enter(place);
        }
        if let Some(tree) = &mut self.by_score {
            let weight = weight_of(tree, belief);
            tree.set(place as usize, Some(weight));
        }
    }
    pub(super) fn leave(&mut self, id: SampleId) {
        self.full = true;
        self.drop_out(id);
        self.place_of[id as usize] = OUT;
        let size = self.ring.len() as u64;
        // Its place is free once all before it have left too.
        while self.head < self.tail
            && self
                .place(self.ring[(self.head % size) as usize])
                .is_none_or(|place| u64::from(place) != self.head % size)
        {
            self.head += 1;
        }
    }
    /// `id` stays where it is, but is not used again: it could not be read.
    pub(super) fn drop_out(&mut self, id: SampleId) {
        let Some(place) = self.place(id) else { return };
        if let Some(deck) = &mut self.passes {
            deck.leave(place);
        }
        if let Some(tree) = &mut self.by_score {
            tree.set(place as usize, None);
        }
    }
    pub(super) fn rescore(&mut self, id: SampleId, belief: f32) {
        let Some(place) = self.place(id) else { return };
        if let Some(tree) = &mut self.by_score
            && tree.weight(place as usize).is_some()
        {
            let weight = weight_of(tree, Some(belief));
            tree.set(place as usize, Some(weight));
        }
    }
    /// Draws `count` residents for the batch of that serial number, with their weights.
    pub(super) fn draw(&mut self, count: usize, serial: u64) -> Vec<(SampleId, f32)> {
        let (ring, share) = (&self.ring, self.setup.share_weight);
        if let Some(deck) = &mut self.passes {
            let rng = &mut generator(self.setup.seed, serial, self.setup.rank, Purpose::Replay);
            let drawn = (0..count).filter_map(|_| deck.draw(rng));
            return drawn.filter_map(|place| ring.get(place as usize).map(|&id| (id, share))).collect();
        }
        let mut drawn = Vec::with_capacity(count);
        if let Some(tree) = &self.by_score {
            self.spread.draw(tree, count, |place, times| {
                let weight = (f64::from(share) * tree.fair(place)) as f32;
                drawn.extend(std::iter::repeat_n((ring[place], weight), times));
            });
        }
        drawn
    }
    pub(super) fn metadata_bytes(&self) -> usize {
        let passes = self.passes.as_ref().map_or(0, Deck::metadata_bytes);
        let by_score = self.by_score.as_ref().map_or(0, Fenwick::metadata_bytes);
        (self.ring.capacity() + self.place_of.capacity()) * 4 + passes + by_score + self.spread.metadata_bytes()
    }
}

/// A belief as a whole number; without one, the mean of those in the buffer.
fn weight_of(tree: &Fenwick, belief: Option<f32>) -> u32 {
    let mean = tree.total().checked_div(tree.count() as u64).filter(|&mean| mean > 0);
    let weight = match (belief, mean) {
        (Some(belief), mean) => {
            let most = mean.map_or(u64::from(u32::MAX >> 1), |mean| mean.saturating_mul(MAX_GAIN));
            ((f64::from(belief).max(0.0) * ONE) as u64).min(most)
        }
        (None, mean) => mean.unwrap_or(ONE as u64),
    };
    weight.min(u64::from(u32::MAX >> 1)) as u32
}

#[cfg(test)]
mod tests;
