//! The state machine that decides. The live engine drives it behind one lock, the simulator drives it without any.
//!
//! [`Control`] is beliefs, books, sampler, the epoch's plan and the clock in one value. Its verbs, in the order of a
//! run:
//!
//! 1. [`Control::copy_begin`] and [`Control::copy_more`] make a [`Snapshot`], from which an epoch is drawn;
//! 2. [`Control::lend`] hands out the books, so that the policy can be told the plan, and [`Control::take_back`] ends
//!    that;
//! 3. [`Control::begin`] starts a pass, [`Control::decide`] decides its next batch, and [`Control::ahead`] tells what
//!    later ones will want, those of the next pass too once [`Control::foresee`] was told its order;
//! 4. [`Control::cancel`], [`Control::read`] and [`Control::learn`] tell what became of a batch, [`Control::met`]
//!    what an epoch has delivered;
//! 5. [`Control::news`] and [`Control::share_merged`] exchange that with other ranks, in runs that do.
//!
//! Whoever holds a lock around it needs short verbs: none looks at more than a batch and [`PIECE`] samples. What
//! costs more (drawing, planning, a whole table of beliefs) works on a snapshot or on lent books, outside the lock.

mod ahead;
mod buffer;
mod buffered;
mod decision;
mod exchange;
mod held;
mod learning;
mod plan;
mod snapshot;
#[cfg(test)]
mod stream_tests;

pub use ahead::{Ahead, Foreseen, Room, Want};
pub use buffer::BufferSetup;
pub use buffered::{EMPTY_BUFFER, STAND_INS};
pub use decision::{Decision, Evicted, Row, Turn, Verdict};
pub use exchange::{News, Shared, What, merge};
pub use held::Held;
pub use plan::{Cut, Plan};
pub use snapshot::{Drawing, Snapshot, Together};

use crate::index::ScoreTable;
use crate::ledger::{Counts, Ledger};
use crate::policy::Needs;
use crate::types::SampleId;
use buffer::Buffer;
use buffered::Buffered;
use exchange::Exchange;
use snapshot::{Saved, Was};

/// The most samples that a verb looks at beside those of its batch.
pub const PIECE: usize = 2048;

/// The most accesses that a policy is told of, unless two epochs have more: each takes 12 bytes.
const PLANNED_MAX: u64 = 1 << 25;

/// See the module's head.
pub struct Control {
    scores: ScoreTable,
    books: Books,
    drawing: Option<Drawing>,
    pass: Option<Pass>,
    /// The pass behind that one.
    foreseen: Option<Foreseen>,
    /// Passes begun: a worker of an earlier one is told that it is over.
    passes: u64,
    /// Batches scored so far: the clock of score ages.
    step: u32,
    /// While a snapshot is being made.
    saved: Option<Saved>,
    /// Of a sampler that trains on the cache as a buffer.
    buffered: Option<Box<Buffered>>,
    /// Of a rank that shares what it learns.
    exchange: Option<Box<Exchange>>,
    snapshots: u64,
    /// Victims of the access at hand; kept for its allocation.
    victims: Vec<SampleId>,
    touched: u64,
}

enum Books {
    Here(Box<Ledger>),
    /// What the policy has to be told when they are back.
    Lent(Vec<(SampleId, f32)>),
}

/// A walk over a plan.
#[derive(Debug)]
pub struct Pass {
    plan: Plan,
    /// The next batch to decide.
    next: usize,
    /// Places of the order that hold another sample than the one drawn.
    substituted: Vec<(u32, SampleId)>,
}

impl Control {
    /// Nothing planned. `ledger` must have been made for as many samples as `scores`.
    pub fn new(scores: ScoreTable, ledger: Ledger) -> Self {
        Self {
            scores,
            books: Books::Here(Box::new(ledger)),
            drawing: None,
            pass: None,
            foreseen: None,
            passes: 0,
            step: 0,
            saved: None,
            buffered: None,
            exchange: None,
            snapshots: 0,
            victims: Vec::new(),
            touched: 0,
        }
    }

    /// The same with a sampler that draws its epochs.
    pub fn with_drawing(self, drawing: Drawing) -> Self {
        Self { drawing: Some(drawing), ..self }
    }

    /// The same with a sampler that trains on the cache as a buffer. The books' policy must be `fifo`: the oldest
    /// leaves first.
    pub fn with_buffer(self, setup: BufferSetup) -> Self {
        let buffer = Buffer::new(setup, self.scores.len());
        Self { buffered: Some(Box::new(Buffered::new(buffer))), ..self }
    }

    /// Whether samples are drawn by score and weighted from the next pass on, in a run that awaits weights
    /// ([`Drawing::awaits_weights`], [`BufferSetup::awaits_weights`]): the training loop was seen to read them, or a
    /// restored run's was. Between passes only. A buffer that has begun to use them does not stop.
    pub fn use_weights(&mut self, used: bool) {
        self.forget_next_epoch();
        if let Some(drawing) = &mut self.drawing {
            drawing.awaits_weights = !used;
        }
        if let Some(buffered) = self.buffered.as_mut().filter(|_| used) {
            buffered.buffer.use_weights();
        }
    }

    /// The seed of all draws from now on, where a run that began without one gets one. Between passes, and only with one
    /// rank: shares of several were cut by the seed.
    pub fn reseed(&mut self, seed: u64) {
        self.forget_next_epoch();
        if let Some(drawing) = &mut self.drawing {
            drawing.seed = seed;
        }
        if let Some(buffered) = &mut self.buffered {
            buffered.buffer.reseed(seed);
        }
    }

    /// Starts a pass over `plan` with batch `first`. The policy has been told of the plan, and the pass before it has
    /// ended ([`Control::end`]): its plan is freed here otherwise. Returns the pass's number.
    pub fn begin(&mut self, plan: Plan, first: usize) -> u64 {
        self.passes += 1;
        if let Some(buffered) = &mut self.buffered {
            buffered.begin(plan.epoch, first);
        }
        if let Books::Here(ledger) = &mut self.books {
            ledger.begin(plan.order.ids.len() - plan.to_come(first));
        }
        self.foreseen = self.behind(&plan);
        self.pass = Some(Pass { plan, next: first, substituted: Vec::new() });
        self.passes
    }

    /// The epochs behind `epoch` whose orders the policy has to know before that one begins: none, for most.
    ///
    /// As many as there are ranks, as far as [`PLANNED_MAX`] allows: a rank that shares a shuffled dataset with others
    /// meets a sample again after as many epochs, in the mean (decision 40).
    pub fn planned_behind(&self, epoch: u64) -> std::ops::Range<u64> {
        let foresees = self.ledger().is_some_and(|ledger| ledger.needs().contains(Needs::NEXT_EPOCH));
        let Some(drawing) = self.drawing.as_ref().filter(|_| foresees) else { return epoch..epoch };
        let ranks = u64::from(drawing.world_size.max(1));
        let share = (u64::from(drawing.samples) / ranks).max(1);
        let epochs = ranks.min((PLANNED_MAX / share).saturating_sub(1)).max(1);
        epoch.saturating_add(1)..epoch.saturating_add(1).saturating_add(epochs)
    }

    /// Ends pass `pass`: no batch of it is decided any more. It comes back, because it is better freed outside a lock: at
    /// 14 M samples the list of those that were substituted took 3 ms, and the plan is as long.
    pub fn end(&mut self, pass: u64) -> Option<Pass> {
        self.pass.take_if(|_| self.passes == pass)
    }

    /// Tells the policy what is to come of `plan` from batch `first` on, and begins. For drivers without a lock.
    pub fn plan_and_begin(&mut self, plan: Plan, first: usize) -> u64 {
        if let Books::Here(ledger) = &mut self.books {
            ledger.plan(&plan.told(first));
        }
        self.begin(plan, first)
    }

    /// Hands out the books, for work that is too long for a lock. Until [`Control::take_back`] nothing is decided,
    /// nothing is cancelled, and the policy is not told of new beliefs. `None` if they are lent already.
    pub fn lend(&mut self) -> Option<Box<Ledger>> {
        match std::mem::replace(&mut self.books, Books::Lent(Vec::new())) {
            Books::Here(ledger) => Some(ledger),
            lent => {
                self.books = lent;
                None
            }
        }
    }

    /// Takes the books back. The policy is told of the newest [`PIECE`] beliefs at most that came meanwhile; `Err`
    /// gives the books back out if there were more.
    pub fn take_back(&mut self, ledger: Box<Ledger>) -> Result<(), Box<Ledger>> {
        let Books::Lent(news) = &mut self.books else { return Ok(()) };
        let mut ledger = ledger;
        let rest = news.len().min(PIECE);
        for (id, belief) in news.drain(..rest) {
            ledger.rescore(id, belief);
        }
        self.touched += rest as u64;
        if !news.is_empty() {
            return Err(ledger);
        }
        self.books = Books::Here(ledger);
        Ok(())
    }

    /// The next batch of pass `pass`. `bytes(id)` is what a sample takes in the cache, always the same.
    pub fn decide(&mut self, pass: u64, bytes: &dyn Fn(SampleId) -> u64) -> Turn {
        let number = match &mut self.pass {
            Some(current) if self.passes == pass && current.next < current.plan.len() => current.next,
            _ => return Turn::Over,
        };
        let turn = self.decide_batch(number, bytes);
        if let (Turn::Decided(_), Some(current)) = (&turn, &mut self.pass) {
            current.next = number + 1;
        }
        turn
    }

    /// Batch `number` of pass `pass` once more, out of order: it stands in for one in which nothing was good.
    /// Of a buffer sampler's those that were decided last do, as they were decided.
    pub fn decide_again(&mut self, pass: u64, number: usize, bytes: &dyn Fn(SampleId) -> u64) -> Turn {
        match &self.pass {
            _ if self.buffered.is_some() => self.bound_again(pass, number),
            Some(current) if self.passes == pass && number < current.plan.len() => self.decide_batch(number, bytes),
            _ => Turn::Over,
        }
    }

    fn decide_batch(&mut self, number: usize, bytes: &dyn Fn(SampleId) -> u64) -> Turn {
        if self.buffered.is_some() {
            return self.decide_buffered(number, bytes);
        }
        let (Books::Here(ledger), Some(pass)) = (&mut self.books, &mut self.pass) else { return Turn::Lent };
        let range = pass.plan.range(number);
        let ids = &pass.plan.order.ids[range.clone()];
        let weights = &pass.plan.order.weights[range.clone()];
        ledger.prefetch(ids, &self.scores);
        let mut rows = Vec::with_capacity(ids.len());
        let mut evicted = Vec::new();
        for (&drawn, &weight) in ids.iter().zip(weights) {
            let instead = ledger.instead(drawn, &self.scores);
            if let Some(id) = instead {
                pass.substituted.push(((range.start + rows.len()) as u32, id));
            }
            let delivered = instead.unwrap_or(drawn);
            let verdict = ledger.access(delivered, bytes, &self.scores, &mut self.victims).into();
            let row = rows.len() as u32;
            if !self.victims.is_empty() {
                // At once for the whole batch, if at all: where one is evicted others are.
                evicted.reserve(if evicted.is_empty() { ids.len() - rows.len() } else { 0 });
                evicted.extend(self.victims.drain(..).map(|id| Evicted { row, id }));
            }
            rows.push(Row { drawn, delivered, weight, verdict });
        }
        self.displace(&mut rows, &evicted);
        self.touched += (rows.len() + evicted.len()) as u64;
        Turn::Decided(Decision { number, serial: 0, reach: range.end, rows, evicted })
    }

    /// A batch that was decided before, in a recorded run: its accesses once more, whatever the plan says. By row
    /// whether it is a hit, kept or passed. Nothing while the books are lent.
    pub fn follow(&mut self, ids: impl Iterator<Item = SampleId>, bytes: &dyn Fn(SampleId) -> u64) -> Vec<Verdict> {
        let Books::Here(ledger) = &mut self.books else { return Vec::new() };
        let access = |id| ledger.access(id, bytes, &self.scores, &mut self.victims).into();
        let verdicts: Vec<Verdict> = ids.map(access).collect();
        self.touched += (verdicts.len() + self.victims.len()) as u64;
        self.victims.clear();
        verdicts
    }

    /// What the end of a batch makes of its rows, and what a snapshot has to know of them.
    fn displace(&mut self, rows: &mut [Row], evicted: &[Evicted]) {
        let Books::Here(ledger) = &self.books else { return };
        // Admitted and evicted again within this batch: keeping it would take the memory promised to its successor.
        let gone = |row: &&mut Row| row.verdict == Verdict::Keep && !ledger.contains(row.delivered);
        if !evicted.is_empty() {
            rows.iter_mut().filter(gone).for_each(|row| row.verdict = Verdict::Displaced);
        }
        if let Some(saved) = &mut self.saved {
            let mut left = evicted.iter().peekable();
            for (number, row) in rows.iter().enumerate() {
                while let Some(Evicted { id, .. }) = left.next_if(|evicted| evicted.row == number as u32) {
                    saved.push(Was::Resident(*id, true));
                }
                if matches!(row.verdict, Verdict::Keep | Verdict::Displaced) {
                    saved.push(Was::Resident(row.delivered, false));
                }
            }
        }
    }

    /// An admitted sample's bytes never came, or could not be kept. Returns whether it was resident until now. A
    /// buffer sampler's residents stay in the books without their bytes, which are fetched when they are used next:
    /// who is drawn must not depend on how full memory was.
    pub fn cancel(&mut self, id: SampleId) -> bool {
        if self.buffered.is_some() {
            return false;
        }
        let Books::Here(ledger) = &mut self.books else { return false };
        let resident = ledger.contains(id);
        if resident {
            ledger.cancel(id);
            if let Some(saved) = &mut self.saved {
                saved.push(Was::Resident(id, true));
            }
        }
        self.touched += 1;
        resident
    }

    /// Where another sample was delivered than the one planned, in the pass under way: (place in the order, sample)
    /// from the `first`-th such place on, at most [`PIECE`] of them.
    pub fn substituted(&self, first: usize) -> &[(u32, SampleId)] {
        let all = self.pass.as_ref().map_or(&[][..], |pass| &pass.substituted);
        let rest = all.get(first..).unwrap_or(&[]);
        &rest[..rest.len().min(PIECE)]
    }

    /// Replaces all beliefs and the clock, as when a run is resumed. The policy has been told ([`Ledger::rekey`], on
    /// lent books). Returns the old beliefs, whose memory is better freed outside a lock.
    pub fn replace_beliefs(&mut self, scores: ScoreTable, step: u32) -> ScoreTable {
        self.step = step;
        // A snapshot under way is of beliefs that are gone.
        self.saved = None;
        if let Books::Lent(news) = &mut self.books {
            news.clear();
        }
        std::mem::replace(&mut self.scores, scores)
    }

    /// The epoch of the pass under way.
    pub fn epoch(&self) -> Option<u64> {
        self.pass.as_ref().map(|pass| pass.plan.epoch)
    }
    /// The batch of it that is decided next; 0 without a pass.
    pub fn next_batch(&self) -> usize {
        self.pass.as_ref().map_or(0, |pass| pass.next)
    }
    /// Whether no pass has begun yet.
    pub fn is_new(&self) -> bool {
        self.passes == 0
    }
    /// How epochs are drawn, if there is a sampler.
    pub fn drawing(&self) -> Option<&Drawing> {
        self.drawing.as_ref()
    }
    /// Sets the limit of the cache. Answers who has to leave for it, at most [`PIECE`]: repeat the call until nobody
    /// does. Nobody leaves while the books are lent.
    pub fn resize(&mut self, capacity_bytes: u64) -> Vec<SampleId> {
        let Books::Here(ledger) = &mut self.books else { return Vec::new() };
        let left = ledger.resize(capacity_bytes, &self.scores);
        if let Some(buffered) = &mut self.buffered {
            left.iter().for_each(|&id| buffered.buffer.leave(id));
        }
        if let Some(saved) = &mut self.saved {
            left.iter().for_each(|&id| saved.push(Was::Resident(id, true)));
        }
        self.touched += left.len() as u64;
        left
    }

    /// Who makes the mean over an epoch biased on purpose, by name: the sampler, or a policy that substitutes.
    pub fn biased(&self) -> Option<&'static str> {
        let sampler = self.drawing.as_ref().map(|drawing| &drawing.sampler).filter(|sampler| sampler.biased());
        let policy = self.ledger().filter(|ledger| ledger.needs().contains(Needs::SUBSTITUTES));
        sampler.map(|sampler| sampler.name()).or(policy.map(Ledger::policy_name))
    }

    /// Beliefs.
    pub fn scores(&self) -> &ScoreTable {
        &self.scores
    }
    /// Batches scored so far.
    pub fn step(&self) -> u32 {
        self.step
    }
    /// The books; `None` while they are lent.
    pub fn ledger(&self) -> Option<&Ledger> {
        match &self.books {
            Books::Here(ledger) => Some(ledger),
            Books::Lent(_) => None,
        }
    }
    /// Totals of the books; zeros while they are lent.
    pub fn counts(&self) -> Counts {
        self.ledger().map_or_else(Counts::default, Ledger::counts)
    }
    /// Whether `id` is resident; `false` while the books are lent.
    #[inline]
    pub fn contains(&self, id: SampleId) -> bool {
        self.ledger().is_some_and(|ledger| ledger.contains(id))
    }
    /// Heap bytes held, the lent books not counted.
    pub fn metadata_bytes(&self) -> usize {
        let buffer = self.buffered.as_ref().map_or(0, |buffered| buffered.buffer.metadata_bytes());
        let exchange = self.exchange.as_ref().map_or(0, |exchange| exchange.metadata_bytes());
        self.scores.metadata_bytes() + self.ledger().map_or(0, Ledger::metadata_bytes) + buffer + exchange
    }
    /// Samples that verbs have looked at since the start.
    pub fn touched(&self) -> u64 {
        self.touched
    }
}

#[inline]
fn tell(books: &mut Books, id: SampleId, belief: f32) {
    match books {
        Books::Here(ledger) => ledger.rescore(id, belief),
        Books::Lent(news) => news.push((id, belief)),
    }
}
