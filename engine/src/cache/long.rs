//! Work on the whole dataset, done outside the lock: on a copy of the beliefs, or on books that are lent meanwhile.

use super::{Cache, State};
use crate::control::{self, Control, Held, News, PIECE, Plan, Shared, Snapshot};
use crate::error::{Error, Result};
use crate::index::{ScoreTable, Standing};
use crate::ledger::Ledger;
use crate::policy::Needs;
use crate::sampler::{Blocks, Order, SamplerSettings};
use crate::types::SampleId;
use lossfeed_sync::MutexGuard;
use std::ops::Range;
use std::sync::Arc;

/// A pass that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// Its number.
    pub pass: u64,
    /// Which of the places that [`Cache::ahead`] told of for the pass before it are its own, if it was foreseen there.
    pub foreseen: Option<Range<usize>>,
}

/// Books on loan. They go back when this is dropped, also if what was done with them panicked.
struct Loan<'a> {
    cache: &'a Cache,
    ledger: Option<Box<Ledger>>,
}

impl<'a> Loan<'a> {
    /// Waits for whoever has them. `told` is handed the state at the moment at which they are lent.
    fn new(cache: &'a Cache, told: impl FnOnce(&State)) -> Self {
        let mut state = cache.whole();
        told(&state);
        let ledger = state.control.lend();
        drop(state);
        Self { cache, ledger }
    }

    fn ledger(&mut self) -> Option<&mut Ledger> {
        self.ledger.as_deref_mut()
    }

    /// Gives them back, and the lock with which that was done: nobody has decided anything in between.
    fn back(mut self) -> MutexGuard<'a, State> {
        self.give_back()
    }

    fn give_back(&mut self) -> MutexGuard<'a, State> {
        let mut state = self.cache.state.lock();
        while let Some(ledger) = self.ledger.take() {
            self.ledger = state.control.take_back(ledger).err();
            if self.ledger.is_some() {
                // More scores came meanwhile than one hold of the lock may look at.
                MutexGuard::bump(&mut state);
            }
        }
        self.cache.gauge(&state);
        self.cache.returned.notify_all();
        state
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        if self.ledger.is_some() {
            drop(self.give_back());
        }
    }
}

impl Cache {
    /// Tells the policy what is to come of `plan` from batch `first` on, and begins a pass over it.
    pub fn begin(&self, plan: Plan, first: usize) -> Begun {
        // In the journal before the scores that come meanwhile: the policy hears of those after the plan.
        let mut loan = Loan::new(self, |state| state.journal.begin(&plan, first));
        if let Some(ledger) = loan.ledger() {
            ledger.plan(&plan.told(first));
        }
        let mut state = loan.back();
        let foreseen = state.control.goes_on(&plan, first);
        let before = state.control.take_foreseen();
        let pass = state.control.begin(plan, first);
        drop(state);
        drop(before); // after the lock
        Begun { pass, foreseen }
    }

    /// Draws the epoch behind pass `pass`, if its order can be known already and was not drawn yet: [`Self::ahead`]
    /// goes on with it, and [`Self::draw`] finds it.
    pub fn foresee(&self, pass: u64) {
        let Some((drawing, epoch)) = self.state.lock().control.to_foresee(pass) else { return };
        let drawn =
            drawing.draw_blind(epoch).inspect_err(|e| tracing::debug!(error = %e, epoch, "nothing is foreseen"));
        let useless = self.state.lock().control.foresee(pass, drawn.ok().map(Arc::new));
        drop(useless); // after the lock
    }

    /// See [`crate::control::Control::foresees`].
    pub fn foresees(&self, whole: bool) -> bool {
        self.state.lock().control.foresees(whole)
    }

    /// The order of `epoch`: the one that was foreseen, or drawn now, by a snapshot of beliefs and residents where the
    /// sampler looks at them.
    pub fn draw(&self, epoch: u64) -> Result<Arc<Order>> {
        let foreseen = self.state.lock().control.foreseen(epoch);
        foreseen.map_or_else(|| self.draw_now(epoch).map(Arc::new), Ok)
    }

    /// The orders of the epochs behind `epoch` that the policy has to know: none, for most.
    ///
    /// # Errors
    /// As the sampler's.
    pub fn draw_behind(&self, epoch: u64) -> Result<Vec<Arc<Order>>> {
        let (drawing, known) = {
            let state = self.whole();
            let known = |epoch| (epoch, state.control.foreseen(epoch));
            (state.control.drawing().cloned(), state.control.planned_behind(epoch).map(known).collect::<Vec<_>>())
        };
        let Some(drawing) = drawing else { return Ok(Vec::new()) };
        let drawn =
            |(epoch, known): (u64, Option<_>)| known.map_or_else(|| drawing.draw_blind(epoch).map(Arc::new), Ok);
        known.into_iter().map(drawn).collect()
    }

    fn draw_now(&self, epoch: u64) -> Result<Order> {
        let (drawing, stream, shared) = {
            let state = self.state.lock();
            (state.control.drawing().cloned(), state.control.stream(epoch), state.control.shared())
        };
        let drawing = drawing.ok_or_else(|| Error::internal("an epoch is drawn without a sampler"))?;
        if let Some(position) = stream {
            return Ok(drawing.draw_stream(position, drawing.share()));
        }
        if let Some(shared) = shared {
            return drawing.draw_shared(epoch, &shared);
        }
        if drawing.adaptive() { self.snapshot().draw(epoch) } else { drawing.draw_blind(epoch) }
    }

    /// The draws of `epoch` of some ranks with some batch size together: see [`crate::control::Drawing::draw_of_all`].
    ///
    /// # Errors
    /// As there.
    pub fn draw_of_all(&self, epoch: u64, ranks: (u32, usize)) -> Result<Order> {
        let (drawing, shared) = {
            let state = self.state.lock();
            (state.control.drawing().cloned(), state.control.shared())
        };
        let drawing = drawing.ok_or_else(|| Error::internal("an epoch is drawn without a sampler"))?;
        drawing.draw_of_all(epoch, ranks, shared.as_ref())
    }

    /// Whether orders depend on more than the seed.
    pub fn adaptive(&self) -> bool {
        self.state.lock().control.drawing().is_some_and(|drawing| drawing.adaptive())
    }

    /// See [`crate::control::Control::use_weights`].
    pub fn use_weights(&self, used: bool) {
        let mut state = self.whole();
        state.journal.weights(used);
        state.control.use_weights(used);
    }

    /// See [`crate::control::Control::reseed`].
    pub fn reseed(&self, seed: u64) {
        self.whole().control.reseed(seed);
    }

    /// See [`crate::control::Control::retune`].
    ///
    /// # Errors
    /// `Settings` for options out of range.
    pub fn retune(&self, sampler: SamplerSettings, blocks: Blocks) -> Result<()> {
        let made = sampler.build()?;
        let mut state = self.whole();
        state.journal.sampler(&sampler);
        state.control.retune(made.into(), sampler.buffer(), blocks);
        Ok(())
    }

    /// The first pass of a buffer sampler's stream that has not begun when `epoch` is to be drawn; `None` for other
    /// samplers.
    pub fn pass_to_come(&self, epoch: u64) -> Option<u64> {
        let state = self.state.lock();
        Some(state.control.drawing()?.pass_to_come(state.control.stream(epoch)?))
    }

    /// See [`crate::control::Control::biased`].
    pub fn biased(&self) -> Option<&'static str> {
        self.whole().control.biased()
    }

    /// Beliefs and residents as they are now. The run goes on while they are copied.
    pub fn snapshot(&self) -> Snapshot {
        loop {
            let mut copy = self.whole().control.copy_begin();
            while self.whole().control.copy_more(&mut copy) != Some(true) {}
            if copy.is_whole() {
                copy.settle();
                return copy;
            }
            // Another copy was begun meanwhile, or the run was resumed: this one is given up.
        }
    }

    /// A snapshot, and what a buffer sampler has to remember beside it, both of one moment (see
    /// [`crate::control::Control::buffer_state`]).
    ///
    /// # Errors
    /// As there.
    pub fn state(&self, live: Option<(u64, usize)>) -> Result<(Snapshot, Vec<u32>)> {
        loop {
            let (mut copy, words) = {
                let mut state = self.whole();
                (state.control.copy_begin(), state.control.buffer_state(live)?)
            };
            while self.whole().control.copy_more(&mut copy) != Some(true) {}
            if copy.is_whole() {
                copy.settle();
                return Ok((copy, words));
            }
        }
    }

    /// Forgets a buffer sampler's residents, before a state's are put in their place. Nothing for other samplers. Before
    /// the first pass only.
    pub fn clear_buffer(&self) {
        let mut state = self.whole();
        state.control.clear_buffer();
        self.gauge(&state);
    }

    /// Puts back a buffer sampler's memory in a cache that has kept nothing yet.
    ///
    /// # Errors
    /// `Settings` if it is not this run's. Then the cache is of no use any more.
    pub fn restore_buffer(&self, words: &[u32], record_bytes: &dyn Fn(SampleId) -> u64) -> Result<()> {
        let mut state = self.whole();
        state.control.restore_buffer(words, &super::footprint(record_bytes))?;
        self.gauge(&state);
        Ok(())
    }

    /// The order of the pass under way, of which `from` places were delivered: with who is owed in place of who came
    /// early, if the policy substitutes.
    pub fn settled(&self, plan: &Plan, from: usize) -> Option<Order> {
        let substitutes =
            |state: &State| state.control.ledger().is_some_and(|l| l.needs().contains(Needs::SUBSTITUTES));
        if !substitutes(&self.whole()) {
            return None;
        }
        let mut all = Vec::new();
        loop {
            // Each piece in a hold of its own: more come at the end meanwhile, of places that were not delivered yet.
            let state = self.state.lock();
            let more = state.control.substituted(all.len());
            if more.is_empty() {
                break;
            }
            all.extend_from_slice(more);
        }
        Some(plan.settled(from, &all))
    }

    /// Whether no pass has begun yet.
    pub fn is_new(&self) -> bool {
        self.state.lock().control.is_new()
    }

    /// Replaces all beliefs and the clock, and orders the residents by the new ones.
    pub fn replace_beliefs(&self, scores: ScoreTable, step: u32) {
        self.replace_beliefs_and(scores, step, |_| ());
    }

    /// The same, and `then` before anybody else has the lock.
    fn replace_beliefs_and(&self, scores: ScoreTable, step: u32, then: impl FnOnce(&mut Control)) {
        let mut loan = Loan::new(self, |_| ());
        if let Some(ledger) = loan.ledger() {
            ledger.rekey(&scores);
        }
        let mut state = self.state.lock();
        if state.journal.is_on() {
            let (beliefs, tried, failed) = standings(&scores);
            state.journal.believe(beliefs, tried, failed);
        }
        let old = state.control.replace_beliefs(scores, step);
        then(&mut state.control);
        self.gauge_age(&state.control);
        drop(state);
        drop(loan.back());
        let mut next = Some(0);
        while let Some(first) = next {
            next = self.state.lock().control.rescore_buffer(&old, first);
        }
        drop(old);
    }

    /// Appends what is known of the samples from `first` on, [`PIECE`] of them at most, as (sample, belief, stamp).
    /// Answers whether there are more. The run goes on between two pieces.
    pub fn known(&self, first: usize, into: &mut Vec<(SampleId, f32, u32)>) -> bool {
        let state = self.state.lock();
        let scores = state.control.scores();
        let end = scores.len().min(first.saturating_add(PIECE));
        for id in first.min(end)..end {
            let id = id as SampleId;
            if scores.standing(id) != Standing::Unseen {
                into.push((id, scores.as_slice()[id as usize], scores.stamps()[id as usize]));
            }
        }
        end < scores.len()
    }

    /// Whether anything was learned is told by this: batches scored so far, samples with a score, samples that failed.
    pub fn learned(&self) -> (u32, usize, usize) {
        let state = self.state.lock();
        let scores = state.control.scores();
        (state.control.step(), scores.seen(), scores.failed())
    }

    /// The samples that this rank may draw, ascending.
    pub fn owned(&self) -> Arc<[SampleId]> {
        self.state.lock().control.drawing().map_or_else(|| Arc::from([]), |drawing| Arc::clone(&drawing.owned))
    }

    /// What all ranks agreed on at the last exchange, what this one has learned since, and its clock, of one moment.
    ///
    /// # Errors
    /// `Internal` in a run that shares nothing.
    pub fn shared(&self) -> Result<(Shared, Arc<Vec<News>>, u32)> {
        let mut state = self.state.lock();
        let shared = state.control.shared().ok_or_else(|| Error::internal("this run shares nothing"))?;
        Ok((shared, state.control.news(), state.control.step()))
    }

    /// The same, and what a buffer sampler has to remember beside it ([`crate::control::Control::buffer_state`]).
    ///
    /// # Errors
    /// The same, and those of [`Self::shared`].
    pub fn shared_state(&self, live: Option<(u64, usize)>) -> Result<(Shared, Arc<Vec<News>>, u32, Vec<u32>)> {
        let mut state = self.whole();
        let shared = state.control.shared().ok_or_else(|| Error::internal("this run shares nothing"))?;
        Ok((shared, state.control.news(), state.control.step(), state.control.buffer_state(live)?))
    }

    /// A bit for each sample, from the lowest of the first number on: set for residents. Samples that come or go
    /// meanwhile may be in it or not.
    pub fn residents(&self) -> Vec<u32> {
        let samples = self.state.lock().control.scores().len();
        let mut bits = Vec::with_capacity(samples.div_ceil(32) + 1);
        for first in (0..samples).step_by(PIECE) {
            let state = self.whole();
            bits.extend(state.control.residents(first).iter().flat_map(|&word| [word as u32, (word >> 32) as u32]));
        }
        bits.truncate(samples.div_ceil(32));
        bits
    }

    /// The end of an exchange: what all ranks have learned, by rank, becomes what all of them believe, and what each
    /// has in its cache is known to all.
    ///
    /// # Errors
    /// As [`Self::shared`].
    pub fn merge(&self, ranks: &[Vec<News>], held: Held, step: u32) -> Result<()> {
        // Held until the end, so that its memory is freed after the lock.
        let (before, ..) = self.shared()?;
        let mut table = ScoreTable::clone(&before.table);
        control::merge(&mut table, ranks);
        let shared = Shared { table: Arc::new(table.clone()), held: Arc::new(held) };
        self.replace_beliefs_and(table, step, |control| control.share_merged(shared));
        Ok(())
    }

    /// As a run is resumed: what was shared, and what this rank had not given yet.
    pub fn restore_shared(&self, table: ScoreTable, held: Held, given: Vec<News>, step: u32) {
        let mut own = table.clone();
        control::merge(&mut own, std::slice::from_ref(&given));
        let (shared, given) = (Shared { table: Arc::new(table), held: Arc::new(held) }, Arc::new(given));
        self.replace_beliefs_and(own, step, |control| control.share_restored(shared, given));
    }

    /// Ends pass `pass`, of which the rows at `places` of the order were delivered: see
    /// [`crate::control::Control::met`].
    pub fn end(&self, pass: u64, places: Range<usize>) {
        for start in places.clone().step_by(PIECE) {
            let mut state = self.state.lock();
            let tried = state.control.met(pass, start..places.end.min(start + PIECE));
            state.journal.tried(tried);
        }
        let ended = self.state.lock().control.end(pass);
        drop(ended); // after the lock
    }
}

/// Who has which belief, who was delivered without getting one, and who could not be read.
fn standings(scores: &ScoreTable) -> (Vec<(SampleId, f32)>, Vec<SampleId>, Vec<SampleId>) {
    let (mut beliefs, mut tried, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for id in 0..scores.len() as SampleId {
        match scores.standing(id) {
            Standing::Scored(belief) => beliefs.push((id, belief)),
            Standing::Tried => tried.push(id),
            Standing::Failed => failed.push(id),
            Standing::Unseen => {}
        }
    }
    (beliefs, tried, failed)
}
