//! The cache as a buffer that turns over: who is in it, and who of them is used again.
//!
//! Arrivals and departures are told by the books, which the policy `fifo` keeps: the oldest leaves first, whatever
//! its score. A batch's replays are drawn from those that were in the buffer before the batch's own arrivals enter
//! it.

mod by_score;
mod deck;
mod spread;
mod words;

use std::ops::Range;
use std::sync::Arc;

use crate::random::{Purpose, generator};
use crate::sampler::BufferOptions;
use crate::types::SampleId;
use by_score::ByScore;
use deck::Deck;
pub(super) use words::{Reader, Words};

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
    by_score: Option<ByScore>,
    /// Whether anybody has left, or the stream has begun anew: until then every row of a batch is new.
    pub(super) full: bool,
}

impl Buffer {
    pub(super) fn new(setup: BufferSetup, samples: usize) -> Self {
        let places = setup.residents_max.min(samples).max(1);
        let by_score = setup.options.by_score.then(|| ByScore::new(places, setup.seed, setup.rank));
        let passes = (by_score.is_none() || setup.awaits_weights).then(|| Deck::new(places));
        let (ring, place_of) = (vec![0; places], vec![OUT; samples]);
        Self { setup, ring, tail: 0, head: 0, place_of, passes, by_score, full: false }
    }
    /// From now on scores decide who is used again, if they are asked for at all.
    pub(super) fn use_weights(&mut self) {
        if self.by_score.is_some() {
            self.passes = None;
        }
    }
    /// The run's seed, where it was left open until now. Draws begin as if it had been known from the start; those of a
    /// restored run go on.
    pub(super) fn reseed(&mut self, seed: u64) {
        self.setup.seed = seed;
        if let Some(by_score) = self.by_score.as_mut().filter(|_| self.tail == 0) {
            *by_score = ByScore::new(self.ring.len(), seed, self.setup.rank);
        }
    }
    /// How many rows come from the stream in batches of `rows`, of these serial numbers.
    ///
    /// The part of the rows that is asked for holds over batches, whatever their size: a batch takes what is due by its
    /// end, less what was due before it, and that may be nothing. All rows do until the buffer is full, and where the
    /// whole share is resident: what comes from the stream is fetched no more than what is used again.
    pub(super) fn fresh(&self, rows: usize, serials: Range<u64>) -> usize {
        let batches = serials.end.saturating_sub(serials.start) as usize;
        if !self.full || self.tail - self.head >= self.setup.owned.len() as u64 {
            return rows * batches;
        }
        // In 2³²ths of a row.
        let each = (self.setup.options.fresh * rows as f64 * (1u64 << 32) as f64).round() as u128;
        let due = |serial: u64| (u128::from(serial) * each + (1 << 31)) >> 32;
        let asked = (due(serials.end.max(serials.start)) - due(serials.start)) as usize;
        asked.clamp((rows - rows.min(self.eligible())) * batches, rows * batches)
    }
    fn eligible(&self) -> usize {
        let by_score = self.by_score.as_ref().map_or(0, ByScore::len);
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
        if let Some(by_score) = &mut self.by_score {
            by_score.enter(place as usize, belief);
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
        if let Some(by_score) = &mut self.by_score {
            by_score.leave(place as usize);
        }
    }
    pub(super) fn rescore(&mut self, id: SampleId, belief: f32) {
        let Some(place) = self.place(id) else { return };
        if let Some(by_score) = &mut self.by_score {
            by_score.rescore(place as usize, belief);
        }
    }
    /// The residents among up to `most` arrivals from the `first`-th on, oldest first, and the number of the next
    /// arrival, if there is one.
    pub(super) fn arrived(&self, first: u64, most: u64) -> (impl Iterator<Item = SampleId>, Option<u64>) {
        let size = self.ring.len() as u64;
        let from = first.max(self.head);
        let end = from.saturating_add(most).min(self.tail);
        let places = (from..end).map(move |arrival| (arrival % size) as u32);
        let ids = places.map(|place| (place, self.ring[place as usize]));
        let resident = ids.filter(|&(place, id)| self.place_of[id as usize] == place).map(|(_, id)| id);
        (resident, (end < self.tail).then_some(end))
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
        if let Some(by_score) = &mut self.by_score {
            by_score.draw(count, |place, fair, times| {
                drawn.extend(std::iter::repeat_n((ring[place], (f64::from(share) * fair) as f32), times));
            });
        }
        drawn
    }
    pub(super) fn metadata_bytes(&self) -> usize {
        let passes = self.passes.as_ref().map_or(0, Deck::metadata_bytes);
        let by_score = self.by_score.as_ref().map_or(0, ByScore::metadata_bytes);
        (self.ring.capacity() + self.place_of.capacity()) * 4 + passes + by_score
    }
}

#[cfg(test)]
mod tests;
