//! What a sampler looks at, as it was at one moment, copied while the run goes on.
//!
//! A table of millions of beliefs takes too long to copy under a lock. So it is copied [`PIECE`](super::PIECE)
//! samples at a time, with the lock free between the pieces, and whatever changes meanwhile is saved as it was
//! before. Put back at the end, from the newest change to the oldest, this gives the state of the moment at which the
//! copy began.

use std::ops::Range;
use std::sync::Arc;

use super::{Control, PIECE, Shared};
use crate::error::Result;
use crate::index::ScoreTable;
use crate::sampler::batches::share;
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
    /// Set for ranks that draw one order of all samples; `None`: each rank draws from its own.
    pub together: Option<Together>,
}

/// The way in which ranks divide what they draw together. `owned` is then every sample, on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Together {
    /// Samples a batch and rank.
    pub batch_size: usize,
    /// Consecutive samples of a buffer sampler's stream that go to one rank: a block, so that it is read with one
    /// request.
    pub granule: u32,
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
    /// The next `count` samples of this rank's stream from `position` on: pass after pass over the owned samples, each
    /// shuffled in its blocks. Ranks that draw together have one stream, and take pieces of it in turn.
    pub fn draw_stream(&self, position: u64, count: usize) -> Order {
        let pass_len = self.owned.len().max(1) as u64;
        let mut drawn: Option<(u64, Order)> = None;
        let mut stream = Order::default();
        while stream.ids.len() < count && !self.owned.is_empty() {
            let (at, piece) = self.in_stream(position.saturating_add(stream.ids.len() as u64));
            let (pass, first) = (at / pass_len, (at % pass_len) as usize);
            let (_, order) = match drawn.take() {
                Some(drawn) if drawn.0 == pass => drawn,
                _ => {
                    let nothing = ScoreTable::new(0, 0.0);
                    (pass, pass_in_blocks(&self.outlook(pass, &nothing, &|_| false), self.blocks.of(pass)))
                }
            };
            let most = (count - stream.ids.len()).min(usize::try_from(piece).unwrap_or(usize::MAX));
            let until = order.ids.len().min(first.saturating_add(most));
            stream.ids.extend_from_slice(&order.ids[first..until]);
            stream.weights.extend_from_slice(&order.weights[first..until]);
            drawn = Some((pass, order));
        }
        stream
    }
    /// The position in the stream of this rank's place `place`, and how many of its places follow each other there.
    fn in_stream(&self, place: u64) -> (u64, u64) {
        let Some(together) = self.together else { return (place, u64::MAX) };
        let (granule, ranks) = (u64::from(together.granule.max(1)), u64::from(self.world_size));
        let (number, within) = (place / granule, place % granule);
        let before = number.saturating_mul(ranks).saturating_add(self.rank.into()).saturating_mul(granule);
        (before.saturating_add(within), granule - within)
    }
    /// The pass in which this rank's place `place` is.
    pub(super) fn pass_of(&self, place: u64) -> u64 {
        self.in_stream(place).0 / self.owned.len().max(1) as u64
    }
    /// This rank's first place of the stream that is in `pass` or a later one.
    pub(super) fn first_of(&self, pass: u64) -> u64 {
        let start = pass.saturating_mul(self.owned.len().max(1) as u64);
        let Some(together) = self.together else { return start };
        let granule = u64::from(together.granule.max(1));
        let turn = granule.saturating_mul(self.world_size.into());
        let own = u64::from(self.rank).saturating_mul(granule);
        let within = (start % turn).saturating_sub(own).min(granule);
        (start / turn).saturating_mul(granule).saturating_add(within)
    }
    /// The first pass of the stream of which this rank has taken nothing at `position`.
    pub fn pass_to_come(&self, position: u64) -> u64 {
        position.checked_sub(1).map_or(0, |last| self.pass_of(last) + 1)
    }
    /// Draws of an epoch that are this rank's, or as many places of its stream.
    pub fn share(&self) -> usize {
        match self.together {
            Some(_) => share(self.owned.len(), self.rank, self.world_size),
            None => self.owned.len(),
        }
    }
    /// Whether orders depend on more than the seed now.
    pub fn adaptive(&self) -> bool {
        !self.awaits_weights && self.sampler.adaptive()
    }
    /// Draws `epoch` by the seed alone, for drawings that are not adaptive.
    pub fn draw_blind(&self, epoch: u64) -> Result<Order> {
        self.draw(epoch, &ScoreTable::new(0, 0.0), &|_| false)
    }
    /// This rank's part of `epoch` in a run whose ranks draw together: every rank draws the whole epoch from what all
    /// of them believe and have, and takes each so many-th draw of it.
    ///
    /// # Errors
    /// As the sampler's.
    pub fn draw_shared(&self, epoch: u64, shared: &Shared) -> Result<Order> {
        let batch_size = self.together.map_or(0, |together| together.batch_size);
        let order = self.draw_of_all(epoch, (self.world_size, batch_size), Some(shared))?;
        let ranks = self.world_size as usize;
        if ranks == 1 {
            return Ok(order);
        }
        // Short epochs are trimmed, so that ranks step alike.
        let draws = order.ids.len();
        let draws = if self.sampler.is_short() { draws - draws % ranks } else { draws };
        let part = || (self.rank as usize..draws).step_by(ranks);
        let (ids, weights) = (part().map(|at| order.ids[at]), part().map(|at| order.weights[at]));
        Ok(Order { ids: ids.collect(), weights: weights.collect() })
    }
    /// The draws of `epoch` of some ranks with some batch size, in the order in which they take them in turn, by the
    /// seed alone; of ranks that draw together, by what they share. For drawings that need nothing else.
    ///
    /// # Errors
    /// As the sampler's.
    pub fn draw_of_all(&self, epoch: u64, (ranks, batch_size): (u32, usize), shared: Option<&Shared>) -> Result<Order> {
        if let Some(shared) = shared {
            let mut order = self.draw(epoch, &shared.table, &|id| shared.held.any(id))?;
            shared.held.deal(&mut order, ranks, batch_size);
            return Ok(order);
        }
        let of = |rank, world_size, owned| Self { rank, world_size, owned, ..self.clone() };
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
        let &Self { ref owned, samples, seed, .. } = self;
        // What ranks draw together is what one rank alone would draw.
        let (rank, world_size) = if self.together.is_some() { (0, 1) } else { (self.rank, self.world_size) };
        Outlook { owned, samples, epoch, seed, rank, world_size, scores, resident }
    }
}
