//! What a sampler looks at, as it was at one moment, copied while the run goes on.
//!
//! A table of millions of beliefs takes too long to copy under a lock. So it is copied [`PIECE`](super::PIECE)
//! samples at a time, with the lock free between the pieces, and whatever changes meanwhile is saved as it was
//! before. Put back at the end, from the newest change to the oldest, this gives the state of the moment at which the
//! copy began.

use std::ops::Range;
use std::sync::Arc;

use super::{Control, PIECE};
use crate::error::Result;
use crate::index::ScoreTable;
use crate::sampler::{Blocks, Order, Outlook, Sampler, first_pass, in_turn, owned_ids, pass_in_blocks};
use crate::types::SampleId;

/// How a run's epochs are drawn. Cheap to clone.
#[derive(Clone)]
pub struct Drawing {
    /// Who draws.
    pub sampler: Arc<dyn Sampler>,
    /// Samples in the whole dataset.
    pub samples: u32,
    /// The ids this rank may draw, ascending.
    pub owned: Arc<[SampleId]>,
    /// The run's seed.
    pub seed: u64,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// The blocks of a buffer sampler's stream.
    pub blocks: Blocks,
    /// Epochs are shuffled passes over the owned samples until [`Control::use_weights`] is called.
    pub awaits_weights: bool,
}

/// Something as it was before it changed.
pub(super) enum Was {
    Belief(SampleId, f32, u32),
    Resident(SampleId, bool),
}

/// What has changed since a copy began.
pub(super) struct Saved {
    number: u64,
    /// Samples copied so far: changes of these do not reach the copy any more.
    copied: usize,
    log: Vec<Was>,
}

impl Saved {
    #[inline]
    pub(super) fn push(&mut self, was: Was) {
        let (Was::Belief(id, ..) | Was::Resident(id, _)) = was;
        if id as usize >= self.copied {
            self.log.push(was);
        }
    }
}

/// Beliefs and residents of one moment.
pub struct Snapshot {
    number: u64,
    drawing: Option<Drawing>,
    scores: ScoreTable,
    residents: Vec<u64>,
    step: u32,
    samples: usize,
    log: Vec<Was>,
}

impl Control {
    /// Begins a snapshot of this moment; [`Control::copy_more`] fills it. One at a time: an unfinished older one is
    /// given up.
    pub fn copy_begin(&mut self) -> Snapshot {
        self.snapshots += 1;
        let number = self.snapshots;
        self.saved = Some(Saved { number, copied: 0, log: Vec::new() });
        Snapshot {
            number,
            drawing: self.drawing.clone(),
            scores: self.scores.begin_copy(),
            residents: Vec::new(),
            step: self.step,
            samples: self.scores.len(),
            log: Vec::new(),
        }
    }

    /// Copies the next [`PIECE`] samples. True when the snapshot is whole, or was given up for a newer one or because
    /// the run was resumed meanwhile. `None` while the books are lent: ask again when they are back.
    pub fn copy_more(&mut self, to: &mut Snapshot) -> Option<bool> {
        let ledger = match &self.books {
            super::Books::Here(ledger) => ledger,
            super::Books::Lent(_) => return None,
        };
        let Some(saved) = self.saved.as_mut().filter(|saved| saved.number == to.number) else { return Some(true) };
        // Whole words of residents.
        let piece: Range<usize> = saved.copied..(saved.copied + PIECE).min(to.samples);
        self.scores.copy_piece(&mut to.scores, piece.clone());
        to.residents.extend_from_slice(ledger.resident_set().words(piece.start / 64..piece.end.div_ceil(64)));
        saved.copied = piece.end;
        self.touched += piece.len() as u64;
        let whole = piece.end == to.samples;
        if whole {
            to.log = self.saved.take().map(|saved| saved.log).unwrap_or_default();
        }
        Some(whole)
    }

    /// A whole snapshot at once, for drivers without a lock. `None` while the books are lent.
    pub fn snapshot(&mut self) -> Option<Snapshot> {
        let mut copy = self.copy_begin();
        while !self.copy_more(&mut copy)? {}
        copy.settle();
        Some(copy)
    }
}

impl Snapshot {
    /// Puts back what changed while the copy was made. Call it once, when the copy is whole, outside any lock.
    pub fn settle(&mut self) {
        for was in std::mem::take(&mut self.log).into_iter().rev() {
            match was {
                Was::Belief(id, importance, stamp) => self.scores.put_back(id, importance, stamp),
                Was::Resident(id, true) => self.residents[id as usize / 64] |= 1 << (id % 64),
                Was::Resident(id, false) => self.residents[id as usize / 64] &= !(1 << (id % 64)),
            }
        }
    }
    /// Whether it has every sample. One that was given up has not.
    pub fn is_whole(&self) -> bool {
        self.scores.as_slice().len() == self.samples
    }
    /// Beliefs of that moment.
    pub fn scores(&self) -> &ScoreTable {
        &self.scores
    }
    /// The clock of that moment.
    pub fn step(&self) -> u32 {
        self.step
    }
    /// Whether `id` was resident.
    #[inline]
    pub fn contains(&self, id: SampleId) -> bool {
        self.residents[id as usize / 64] >> (id % 64) & 1 == 1
    }
    /// Draws `epoch`.
    pub fn draw(&self, epoch: u64) -> Result<Order> {
        match &self.drawing {
            Some(drawing) => drawing.draw(epoch, &self.scores, &|id| self.contains(id)),
            None => Ok(Order::default()),
        }
    }
}

impl Drawing {
    /// The next `count` samples of the stream from `position` on: pass after pass over the owned samples, each shuffled
    /// in its blocks.
    pub fn draw_stream(&self, position: u64, count: usize) -> Order {
        let pass_len = self.owned.len().max(1) as u64;
        let (mut pass, mut skipped) = (position / pass_len, (position % pass_len) as usize);
        let mut stream = Order::default();
        while stream.ids.len() < count && !self.owned.is_empty() {
            let drawn = pass_in_blocks(&self.outlook(pass, &ScoreTable::new(0, 0.0), &|_| false), self.blocks.of(pass));
            let until = drawn.ids.len().min(skipped + count - stream.ids.len());
            stream.ids.extend_from_slice(&drawn.ids[skipped..until]);
            stream.weights.extend_from_slice(&drawn.weights[skipped..until]);
            (pass, skipped) = (pass + 1, 0);
        }
        stream
    }
    /// The first pass of the stream that has not begun at `position`.
    pub fn pass_to_come(&self, position: u64) -> u64 {
        position.div_ceil(self.owned.len().max(1) as u64)
    }
    /// Whether orders depend on more than the seed now.
    pub fn adaptive(&self) -> bool {
        !self.awaits_weights && self.sampler.adaptive()
    }
    /// Draws `epoch` by the seed alone, for drawings that are not adaptive.
    pub fn draw_blind(&self, epoch: u64) -> Result<Order> {
        self.draw(epoch, &ScoreTable::new(0, 0.0), &|_| false)
    }
    /// This rank's part of `epoch` in a run that shares beliefs: every rank draws the whole epoch from what all of them
    /// believe, and takes each so many-th draw of it. `owned` must be all samples.
    ///
    /// # Errors
    /// As the sampler's.
    pub fn draw_shared(&self, epoch: u64, scores: &ScoreTable) -> Result<Order> {
        let &Self { samples, seed, rank, world_size, .. } = self;
        let owned = &self.owned;
        let resident = &|_| false; // the cache is a rank's own
        let all = Outlook { owned, samples, epoch, seed, rank: 0, world_size: 1, scores, resident };
        let order = self.sampler.draw(&all)?;
        if world_size == 1 {
            return Ok(order);
        }
        // Short epochs are trimmed, so that ranks step alike.
        let (draws, ranks) = (order.ids.len(), world_size as usize);
        let draws = if self.sampler.is_short() { draws - draws % ranks } else { draws };
        let part = || (rank as usize..draws).step_by(ranks);
        let (ids, weights) = (part().map(|at| order.ids[at]), part().map(|at| order.weights[at]));
        Ok(Order { ids: ids.collect(), weights: weights.collect() })
    }
    /// The draws of `epoch` of `ranks` ranks, in the order in which they take them in turn, by the seed alone; of ranks
    /// that share beliefs (`shared`), by those. For drawings that need nothing else.
    ///
    /// # Errors
    /// As the sampler's.
    pub fn draw_of_all(&self, epoch: u64, ranks: u32, shared: Option<&ScoreTable>) -> Result<Order> {
        let of = |rank, world_size, owned| Self { rank, world_size, owned, ..self.clone() };
        if let Some(scores) = shared {
            return of(0, 1, Arc::clone(&self.owned)).draw_shared(epoch, scores);
        }
        let owned = |rank, ranks| owned_ids(self.samples as usize, self.seed, rank, ranks, 1).into();
        if !self.awaits_weights && self.sampler.shares_one_list() {
            return of(0, 1, owned(0, 1)).draw_blind(epoch);
        }
        let each = (0..ranks).map(|rank| of(rank, ranks, owned(rank, ranks)).draw_blind(epoch));
        let each: Vec<Order> = each.collect::<Result<_>>()?;
        Ok(Order {
            ids: in_turn(&each.iter().map(|order| &order.ids[..]).collect::<Vec<_>>()),
            weights: in_turn(&each.iter().map(|order| &order.weights[..]).collect::<Vec<_>>()),
        })
    }
    /// Draws `epoch`.
    fn draw(&self, epoch: u64, scores: &ScoreTable, resident: &dyn Fn(SampleId) -> bool) -> Result<Order> {
        let outlook = self.outlook(epoch, scores, resident);
        if self.awaits_weights { Ok(first_pass(&outlook)) } else { self.sampler.draw(&outlook) }
    }
    fn outlook<'a>(
        &'a self,
        epoch: u64,
        scores: &'a ScoreTable,
        resident: &'a dyn Fn(SampleId) -> bool,
    ) -> Outlook<'a> {
        let &Self { ref owned, samples, seed, rank, world_size, .. } = self;
        Outlook { owned, samples, epoch, seed, rank, world_size, scores, resident }
    }
}
