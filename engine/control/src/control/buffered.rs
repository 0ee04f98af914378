//! Deciding batches of a buffer sampler: new samples from the stream, and residents that are used again.
//!
//! A batch is decided with what came of the batches a fixed number before it (the sampler's `lag`), in their order,
//! and with nothing newer. So the order depends on the seed and the scores alone, as long as scores come within the
//! lag: not on how many threads prepare batches, nor on when a sample failed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::buffer::{Buffer, Reader, Words};
use super::{Books, Control, Decision, Evicted, PIECE, Row, Turn, Verdict};
use crate::error::{Error, Result};
use crate::index::ScoreTable;
use crate::ledger::Access;
use crate::sampler::{Blocks, BufferOptions, Sampler};
use crate::types::SampleId;

/// A buffer's state that has nobody in it, of a run that other ranks go on with.
pub const EMPTY_BUFFER: u32 = u32::MAX;

/// How many batches are tried in place of one in which nothing is good, where the number of steps must stay. As many that were delivered are in a buffer
/// sampler's state, so that a resumed run tries the same.
pub const STAND_INS: usize = 8;

/// What a buffer sampler's run knows beside beliefs, books and the plan.
pub(super) struct Buffered {
    pub(super) buffer: Buffer,
    /// The run's batches are numbered through: the serial number of the epoch's first one.
    pub(super) base: u64,
    /// Where in the stream the epoch begins, and how much of it was taken since.
    stream: u64,
    taken: usize,
    /// Decided in this epoch.
    decided: usize,
    /// By serial number: what has come of batches that does not count yet.
    pending: BTreeMap<u64, Outcome>,
    /// The last batches decided; one that was not delivered is part of the run's state.
    bound: VecDeque<Bound>,
    /// From this batch of the epoch on none is forgotten.
    kept_from: usize,
    /// Of a restored run: its epoch, until a pass begins; and what was decided and is to be delivered again.
    restored: Option<u64>,
    again: VecDeque<Bound>,
    /// Samples whose scores came too late to count at their batch's turn.
    pub(super) late: u64,
}

#[derive(Default)]
pub(super) struct Outcome {
    pub(super) scores: Vec<(SampleId, f32)>,
    /// Whether each sample failed.
    pub(super) read: Vec<(SampleId, bool)>,
}

#[derive(Clone)]
struct Bound {
    number: usize,
    rows: Vec<(SampleId, f32)>,
}

impl Buffered {
    pub(super) fn new(buffer: Buffer) -> Self {
        Self {
            buffer,
            base: 0,
            stream: 0,
            taken: 0,
            decided: 0,
            pending: BTreeMap::new(),
            bound: VecDeque::new(),
            kept_from: usize::MAX,
            restored: None,
            again: VecDeque::new(),
            late: 0,
        }
    }
    /// Where the stream of `epoch` begins.
    pub(super) fn stream(&self, epoch: u64) -> u64 {
        if self.restored == Some(epoch) { self.stream } else { self.stream + self.taken as u64 }
    }
    /// Where the stream of the epoch under way begins.
    pub(super) fn position(&self) -> u64 {
        self.stream
    }
    /// How much of the epoch's stream was taken.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }
    /// The first batch of the epoch that takes from it still.
    pub(super) fn decided(&self) -> usize {
        self.decided
    }
    /// A pass over `epoch` begins with batch `first`.
    pub(super) fn begin(&mut self, epoch: u64, first: usize) {
        if self.restored.take() == Some(epoch) {
            // Those that were delivered before stand in for others.
            let delivered = self.again.partition_point(|batch| batch.number < first);
            self.bound.extend(self.again.drain(..delivered));
            return;
        }
        self.stream += self.taken as u64;
        self.base += self.decided as u64;
        (self.taken, self.decided) = (0, first);
        self.base = self.base.saturating_sub(first as u64);
        self.bound.clear();
        self.again.clear();
    }
    /// What came of batch `serial`, to count later.
    pub(super) fn outcome(&mut self, serial: u64) -> &mut Outcome {
        self.pending.entry(serial).or_default()
    }
    /// Whether batch `serial` should have counted already.
    pub(super) fn is_late(&self, serial: u64) -> bool {
        serial + self.buffer.setup.options.lag < self.base + self.decided as u64
    }

    /// Stream position, rows bound but not delivered, the buffer, and what does not count yet. Of the pass over
    /// `live`, from batch `live.1` on; `None` between passes.
    fn write(&self, live: Option<(u64, usize)>) -> Result<Vec<u32>> {
        let mut words = Words::default();
        let (epoch, first) = live.unwrap_or((u64::MAX, 0));
        let within = live.is_some();
        words.long(epoch);
        words.long(if within { self.base } else { self.base + self.decided as u64 });
        words.long(if within { self.stream } else { self.stream + self.taken as u64 });
        words.put(if within { self.taken as u32 } else { 0 });
        words.put(if within { self.decided as u32 } else { 0 });
        let wanted = |b: &&Bound| within && b.number + STAND_INS >= first;
        let mut bound: Vec<&Bound> = self.bound.iter().chain(&self.again).filter(wanted).collect();
        bound.dedup_by_key(|b| b.number);
        let undelivered = bound.iter().filter(|b| b.number >= first).count();
        if within && undelivered != self.decided.max(first) - first {
            return Err(Error::internal(format!(
                "{undelivered} of the batches {first} to {} of epoch {epoch} are remembered",
                self.decided
            )));
        }
        words.put(bound.len() as u32);
        for batch in bound {
            words.put(batch.number as u32);
            words.put(batch.rows.len() as u32);
            batch.rows.iter().for_each(|&(id, weight)| words.0.extend([id, weight.to_bits()]));
        }
        self.buffer.write(&mut words);
        words.put(self.pending.len() as u32);
        for (&serial, outcome) in &self.pending {
            words.long(serial);
            words.put(outcome.scores.len() as u32);
            outcome.scores.iter().for_each(|&(id, score)| words.0.extend([id, score.to_bits()]));
            words.put(outcome.read.len() as u32);
            outcome.read.iter().for_each(|&(id, failed)| words.0.extend([id, u32::from(failed)]));
        }
        Ok(words.0)
    }

    /// Puts back what [`Buffered::write`] wrote. Answers the residents, in the order of their arrival.
    fn read(&mut self, words: &[u32], samples: usize) -> Result<Vec<SampleId>> {
        let words = &mut Reader::new(words);
        let epoch = words.long()?;
        (self.base, self.stream) = (words.long()?, words.long()?);
        (self.taken, self.decided) = (words.get()? as usize, words.get()? as usize);
        let pairs = |words: &mut Reader<'_>| -> Result<Vec<(SampleId, u32)>> {
            (0..words.count()?).map(|_| Ok((words.id(samples)?, words.get()?))).collect()
        };
        let mut again = VecDeque::new();
        for _ in 0..words.count()? {
            let number = words.get()? as usize;
            let rows = pairs(words)?.into_iter().map(|(id, bits)| (id, f32::from_bits(bits))).collect();
            again.push_back(Bound { number, rows });
        }
        (self.restored, self.again) = (Some(epoch).filter(|&epoch| epoch != u64::MAX), again);
        let residents = self.buffer.read(words)?;
        self.pending.clear();
        for _ in 0..words.count()? {
            let serial = words.long()?;
            let scores = pairs(words)?.into_iter().map(|(id, bits)| (id, f32::from_bits(bits))).collect();
            let read = pairs(words)?.into_iter().map(|(id, failed)| (id, failed != 0)).collect();
            self.pending.insert(serial, Outcome { scores, read });
        }
        std::mem::replace(words, Reader::new(&[])).end()?;
        self.bound.clear();
        Ok(residents)
    }
}

impl Control {
    /// Where in the stream of a buffer sampler `epoch` begins; `None` for other samplers.
    pub fn stream(&self, epoch: u64) -> Option<u64> {
        self.buffered.as_ref().map(|buffered| buffered.stream(epoch))
    }

    /// What a buffer sampler's run has to remember beside its beliefs, as numbers: see [`Control::restore_buffer`].
    /// Of the pass over epoch `live.0`, of which `live.1` batches were delivered; `None` between passes. Nothing for
    /// other samplers.
    ///
    /// # Errors
    /// `Internal` if batches that were not delivered are forgotten.
    pub fn buffer_state(&self, live: Option<(u64, usize)>) -> Result<Vec<u32>> {
        self.buffered.as_ref().map_or(Ok(Vec::new()), |buffered| buffered.write(live))
    }

    /// The consumer of pass `pass` has seen batch `number` last: [`Control::buffer_state`] can be had from it on, and from
    /// the [`STAND_INS`] before it, also where more batches than the lag were decided behind it. Before the first call
    /// it can be had of the last batches of the lag.
    pub fn remember_from(&mut self, pass: u64, number: usize) {
        if let Some(buffered) = self.buffered.as_mut().filter(|_| self.passes == pass) {
            buffered.kept_from = number.saturating_sub(STAND_INS);
        }
    }

    /// Forgets a buffer sampler's residents and where its stream stood, before the first pass.
    pub fn clear_buffer(&mut self) {
        let Some(buffered) = &mut self.buffered else { return };
        **buffered = Buffered::new(Buffer::new(buffered.buffer.setup.clone(), self.scores.len()));
        if let Books::Here(ledger) = &mut self.books {
            let residents: Vec<SampleId> = ledger.residents_iter().collect();
            residents.into_iter().for_each(|id| ledger.cancel(id));
        }
    }

    /// Puts back a buffer: the books must be at home and new. `bytes` as in [`Control::decide`].
    /// [`EMPTY_BUFFER`] alone puts back nothing.
    ///
    /// # Errors
    /// `Settings` if the numbers are no buffer of this run.
    pub fn restore_buffer(&mut self, words: &[u32], bytes: &dyn Fn(SampleId) -> u64) -> Result<()> {
        let samples = self.scores.len();
        let (Books::Here(ledger), Some(buffered)) = (&mut self.books, &mut self.buffered) else {
            return Err(Error::internal("the state holds a buffer, but this sampler has none"));
        };
        if *words == [EMPTY_BUFFER] {
            return Ok(());
        }
        for id in buffered.read(words, samples)? {
            let kept = ledger.access(id, bytes, &self.scores, &mut self.victims);
            if kept != Access::Admitted || !self.victims.is_empty() {
                self.victims.clear();
                return Err(Error::settings("the state's buffer does not fit this cache: give it the same size"));
            }
        }
        Ok(())
    }

    /// Draws with other options of the same sampler, and a stream in such blocks, from the next pass on. Between passes
    /// only.
    pub fn retune(&mut self, sampler: Arc<dyn Sampler>, options: Option<BufferOptions>, blocks: Blocks) {
        self.forget_next_epoch();
        if let Some(drawing) = &mut self.drawing {
            (drawing.sampler, drawing.blocks) = (sampler, blocks);
        }
        if let (Some(buffered), Some(options)) = (&mut self.buffered, options) {
            buffered.buffer.setup.options = options;
        }
    }

    /// Samples of a buffer sampler's run whose scores came later than its lag allows. They count when they come, and
    /// then one seed may give another order.
    pub fn late(&self) -> u64 {
        self.buffered.as_ref().map_or(0, |buffered| buffered.late)
    }

    /// Beliefs were replaced that were `before` ([`Control::replace_beliefs`]): a buffer sampler's residents of which
    /// another is believed now are drawn by that. Looks at [`PIECE`] arrivals from the `first`-th on; answers the next.
    pub fn rescore_buffer(&mut self, before: &ScoreTable, first: u64) -> Option<u64> {
        let buffer = &mut self.buffered.as_mut()?.buffer;
        let (residents, next) = buffer.arrived(first, PIECE as u64);
        let scores = &self.scores;
        let news = residents.filter_map(|id| {
            let now = scores.importance(id)?;
            (before.importance(id).map(f32::to_bits) != Some(now.to_bits())).then_some((id, now))
        });
        let news: Vec<(SampleId, f32)> = news.collect();
        self.touched += PIECE as u64;
        news.into_iter().for_each(|(id, belief)| buffer.rescore(id, belief));
        next
    }

    pub(super) fn decide_buffered(&mut self, number: usize, bytes: &dyn Fn(SampleId) -> u64) -> Turn {
        if self.ledger().is_none() {
            return Turn::Lent;
        }
        let again = self.buffered.as_mut().and_then(|buffered| {
            let again = &mut buffered.again;
            if again.front()?.number == number { again.pop_front() } else { None }
        });
        if let Some(batch) = again {
            return self.decide_as_bound(batch);
        }
        self.count_outcomes();
        let (Books::Here(ledger), Some(pass), Some(buffered)) = (&mut self.books, &mut self.pass, &mut self.buffered)
        else {
            return Turn::Lent;
        };
        let buffer = &mut buffered.buffer;
        let size = pass.plan.range(number).len();
        let taken = buffered.stream + buffered.taken as u64;
        buffer.full |= taken >= self.drawing.as_ref().map_or(buffer.setup.owned.len() as u64, |of| of.first_of(1));
        let serial = buffered.base + number as u64;
        let fresh = buffer.fresh(size, serial..serial + 1);
        let replays = buffer.draw(size - fresh, serial);
        let mut rows = Vec::with_capacity(size);
        let mut evicted = Vec::new();
        for &(id, weight) in &replays {
            ledger.access(id, bytes, &self.scores, &mut self.victims);
            rows.push(Row { drawn: id, delivered: id, weight, verdict: Verdict::Hit });
        }
        let order = &pass.plan.order;
        let fresh = buffered.taken..(buffered.taken + size - replays.len()).min(order.ids.len());
        buffered.taken = fresh.end;
        for place in fresh {
            let (id, weight) = (order.ids[place], order.weights[place]);
            let access = ledger.access(id, bytes, &self.scores, &mut self.victims);
            let row = rows.len() as u32;
            for id in self.victims.drain(..) {
                buffer.leave(id);
                evicted.push(Evicted { row, id });
            }
            let verdict = match access {
                Access::Hit => Verdict::Hit,
                Access::Bypassed => Verdict::Pass,
                Access::Admitted => {
                    buffer.enter(id, self.scores.importance(id));
                    Verdict::Keep
                }
            };
            rows.push(Row { drawn: id, delivered: id, weight, verdict });
        }
        self.remember(number, serial, rows, evicted)
    }

    /// A batch that was decided lately, once more; or what the stream will bring, as if batch `number` had nothing else.
    /// Neither the buffer nor the books change.
    pub(super) fn bound_again(&self, pass: u64, number: usize) -> Turn {
        let (Some(buffered), Some(current)) = (&self.buffered, &self.pass) else { return Turn::Over };
        let plan = &current.plan;
        if self.passes != pass || number >= plan.len() {
            return Turn::Over;
        }
        let rows = match buffered.bound.iter().find(|batch| batch.number == number) {
            Some(batch) => self.rows_as_bound(&batch.rows),
            None => {
                let size = plan.range(number).len();
                let Some(behind) = number.checked_sub(buffered.decided) else { return Turn::Over };
                let places = (buffered.taken + behind * size..plan.order.ids.len()).take(size);
                let of: Vec<_> = places.map(|place| (plan.order.ids[place], plan.order.weights[place])).collect();
                self.rows_as_bound(&of)
            }
        };
        if rows.is_empty() {
            return Turn::Over;
        }
        let serial = buffered.base + number as u64;
        Turn::Decided(Decision { number, serial, reach: buffered.taken, rows, evicted: Vec::new() })
    }

    fn rows_as_bound(&self, rows: &[(SampleId, f32)]) -> Vec<Row> {
        let row = |&(id, weight): &(SampleId, f32)| {
            let verdict = if self.contains(id) { Verdict::Hit } else { Verdict::Pass };
            Row { drawn: id, delivered: id, weight, verdict }
        };
        rows.iter().map(row).collect()
    }

    /// A batch of a restored run, as it was decided before: the buffer and the books are those after it.
    fn decide_as_bound(&mut self, batch: Bound) -> Turn {
        let rows = self.rows_as_bound(&batch.rows);
        let serial = self.buffered.as_ref().map_or(0, |buffered| buffered.base) + batch.number as u64;
        self.remember(batch.number, serial, rows, Vec::new())
    }

    fn remember(&mut self, number: usize, serial: u64, mut rows: Vec<Row>, evicted: Vec<Evicted>) -> Turn {
        self.displace(&mut rows, &evicted);
        if let Some(buffered) = &mut self.buffered {
            buffered.decided = buffered.decided.max(number + 1);
            let rows = rows.iter().map(|row| (row.delivered, row.weight)).collect();
            buffered.bound.push_back(Bound { number, rows });
            let BufferOptions { lag, .. } = buffered.buffer.setup.options;
            let old = |bound: &Bound| bound.number < buffered.kept_from && bound.number as u64 + lag <= number as u64;
            let old = buffered.bound.iter().take_while(|bound| old(bound)).count();
            buffered.bound.drain(..old);
        }
        self.touched += (rows.len() + evicted.len()) as u64;
        let reach = self.buffered.as_ref().map_or(0, |buffered| buffered.taken);
        Turn::Decided(Decision { number, serial, reach, rows, evicted })
    }

    /// Outcomes of the batches that count for the one that is decided next, in the order of the batches.
    fn count_outcomes(&mut self) {
        while let Some(buffered) = &mut self.buffered {
            let next = buffered.base + buffered.decided as u64;
            let lag = buffered.buffer.setup.options.lag;
            let Some(first) = buffered.pending.first_entry().filter(|first| first.key() + lag <= next) else { return };
            let Outcome { scores, read } = first.remove();
            let ids: Vec<SampleId> = read.iter().map(|&(id, _)| id).collect();
            self.read_now(&ids, &|row| read[row].1);
            self.learn_now(scores.into_iter());
        }
    }
}
