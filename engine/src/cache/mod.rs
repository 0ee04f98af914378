//! The cache: what is resident, in which memory, and who is fetching what.
//!
//! The state machine that decides ([`Control`]) and the memory it decides about are one state under one lock, which
//! nobody outside this room sees. A batch takes it twice: once to *decide* all its samples, once to *publish* what it
//! fetched. Its scores take it once more. The lock is never held across I/O, a decode, a copy, a draw or a plan.
//!
//! Lock: guards `Control`, shelf and flights; taken three times a batch (decide, publish, learn). No hold looks at more
//! than a batch and 2,048 samples.

mod flight;
mod journal;
mod long;
mod resize;

pub use flight::{Flight, Landing};
pub use long::Begun;

use crate::arena::{Arena, Pins, Shelf, Slot};
use crate::control::{self, Ahead, Control, Room, Turn, Verdict};
use crate::error::{Error, Result};
use crate::journal::{Scored, Summary, Writer};
use crate::stats::Counters;
use crate::tune::decided::Decided;
use crate::types::SampleId;
use journal::Journal;
use lossfeed_sync::{Condvar, Mutex, MutexGuard};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Where a requested sample is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// In memory: the next of [`Decision::residents`].
    Resident,
    /// In the source's memory, and not to be kept: the caller reads it there and tells nobody.
    Passing,
    /// Somebody is fetching it: the next of [`Decision::joined`].
    Joined,
    /// The caller must fetch it: this one of [`Decision::owned`].
    Owned(u32),
}

/// A sample that the caller must fetch, for the cache and for whoever joins the flight.
pub struct Owned {
    /// Who.
    pub id: SampleId,
    /// Whether the record is to be kept.
    pub admitted: bool,
    /// What it was said to take when that was decided.
    pub bytes: u64,
    pub(crate) flight: Arc<Flight>,
    /// What became of the fetch; `None` until it is known.
    pub(crate) outcome: Cell<Option<Fetched>>,
}

/// What was decided about a batch.
pub struct Decision {
    /// The batch's position in its epoch.
    pub number: usize,
    /// What comes of it is told by this, see [`control::Decision::serial`].
    pub serial: u64,
    /// Where it ends in the epoch's order, see [`control::Decision::reach`].
    pub reach: usize,
    /// The samples to deliver, one a row.
    pub ids: Vec<SampleId>,
    /// The weights of the draws, one a row.
    pub weights: Vec<f32>,
    /// Whether each was resident by the books, one a row.
    pub hits: Vec<bool>,
    /// Where each sample is, one a row.
    pub lookups: Vec<Lookup>,
    /// To be given to [`Cache::publish`] with their outcomes, whatever they are.
    pub owned: Vec<Owned>,
    /// What others are fetching, in the order of the rows.
    pub joined: Vec<Arc<Flight>>,
    /// The residents among them, in order: in memory until this is dropped.
    pub residents: Pins,
}

/// Which batch scores are of.
#[derive(Debug, Clone, Copy)]
pub struct Scorable {
    /// [`control::Decision::serial`].
    pub serial: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Its number in the epoch.
    pub number: usize,
}

/// What the owner of a flight brings home.
pub enum Fetched {
    /// The record, in arena memory.
    Kept(Slot),
    /// The record was delivered but is not kept. A copy for joiners, or `None` if the flight closed without any
    /// ([`Flight::close_if_alone`]).
    Passed(Option<Arc<[u8]>>),
    /// It failed.
    Failed(Arc<Error>),
}

/// The state machine and the memory it decides about.
struct State {
    control: Control,
    shelf: Shelf,
    flights: HashMap<SampleId, Arc<Flight>>,
    journal: Journal,
}

/// One lock around [`Control`] and its memory; every method is one verb.
pub struct Cache {
    state: Mutex<State>,
    /// Lent books are back.
    returned: Condvar,
    arena: Arc<Arena>,
    counters: Arc<Counters>,
    /// Whether two who want a sample at a time fetch it once.
    coalesces: bool,
    /// Held while the cache becomes smaller or larger.
    resizing: Mutex<()>,
}

impl Cache {
    /// A cache over `arena`; the books of `control` must have been made with the arena's limit.
    pub fn new(control: Control, arena: Arc<Arena>, counters: Arc<Counters>) -> Self {
        counters.cache_capacity_bytes.store(arena.limit_bytes(), Relaxed);
        let shelf = Shelf::new(Arc::clone(&arena), control.scores().len());
        let state = State { control, shelf, flights: HashMap::new(), journal: Journal::default() };
        Self {
            state: Mutex::new(state),
            returned: Condvar::new(),
            arena,
            counters,
            coalesces: true,
            resizing: Mutex::new(()),
        }
    }

    /// The same over a source whose samples lie in memory: those that are not to be kept need no flight.
    pub fn over_memory(self) -> Self {
        Self { coalesces: false, ..self }
    }

    /// The same, recorded: what is decided and learned goes to `writer` in the order in which it happens.
    pub fn recorded(mut self, writer: Writer) -> Self {
        self.state.get_mut().journal = Journal::new(writer);
        self
    }

    /// Whether a journal is being written.
    pub fn is_recorded(&self) -> bool {
        self.state.lock().journal.is_on()
    }

    /// Reading goes otherwise from here on, batch `at` (epoch and number) being the next to be delivered.
    pub fn note(&self, decided: &Decided, at: (u64, usize)) {
        self.state.lock().journal.io(decided, at);
    }

    /// Ends the journal, and waits for the disk. What is decided or learned from now on is in none. `None` if there is
    /// no journal, or it has ended.
    ///
    /// # Errors
    /// `Source` if not everything could be written.
    pub fn end_journal(&self) -> Result<Option<Summary>> {
        let writer = self.state.lock().journal.take();
        journal::close(writer)
    }

    /// The state, locked, with its books at home.
    fn whole(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        while state.control.ledger().is_none() {
            self.returned.wait(&mut state);
        }
        state
    }

    /// The arena behind the cache.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Decides the next batch of pass `pass`; `None` when it has none left or another pass has begun. `last_seen`: the
    /// last batch that its consumer has seen. `record_bytes(id)` is what the sample takes in memory, always the same.
    pub fn decide(&self, pass: u64, last_seen: usize, record_bytes: &dyn Fn(SampleId) -> u64) -> Option<Decision> {
        let verb = |control: &mut Control, bytes: &dyn Fn(SampleId) -> u64| {
            control.remember_from(pass, last_seen);
            control.decide(pass, bytes)
        };
        self.decide_by(verb, record_bytes)
    }

    /// Decides batch `number` of pass `pass` once more, to stand in for one in which nothing was good.
    pub fn decide_again(&self, pass: u64, number: usize, record_bytes: &dyn Fn(SampleId) -> u64) -> Option<Decision> {
        self.decide_by(|control, bytes| control.decide_again(pass, number, bytes), record_bytes)
    }

    /// What batches of pass `pass` that are not decided yet will want, and those behind it, see [`Control::ahead`]; not
    /// what somebody is fetching now. Waits while the books are lent.
    pub fn ahead(&self, pass: u64, from: usize, room: Room, bytes: &dyn Fn(SampleId) -> u64) -> Option<Ahead> {
        let state = self.whole();
        let mut ahead = state.control.ahead(pass, from, room, bytes)?;
        let (busy, free) =
            std::mem::take(&mut ahead.wants).into_iter().partition(|w| state.flights.contains_key(&w.id));
        (ahead.busy, ahead.wants) = (busy, free);
        // Of this pass's somebody takes care.
        ahead.busy.retain(|want| ahead.beyond.is_some_and(|beyond| want.place >= beyond));
        Some(ahead)
    }

    fn decide_by(
        &self,
        verb: impl Fn(&mut Control, &dyn Fn(SampleId) -> u64) -> Turn,
        record_bytes: &dyn Fn(SampleId) -> u64,
    ) -> Option<Decision> {
        let footprint = footprint(record_bytes);
        let mut guard = self.whole();
        let State { control, shelf, flights, journal } = &mut *guard;
        let before = control.counts();
        let Turn::Decided(control::Decision { number, serial, reach, rows, evicted }) = verb(control, &footprint)
        else {
            return None;
        };
        if journal.is_on() {
            journal.decide(control.epoch().unwrap_or(0), number, &rows, record_bytes);
            self.counters.journal_lost_total.store(journal.lost(), Relaxed);
        }
        let ids: Vec<SampleId> = rows.iter().map(|row| row.delivered).collect();
        shelf.begin(&ids);
        let mut evicted = evicted.into_iter().peekable();
        let mut coalesced = 0;
        let (mut owned, mut joined) = (Vec::new(), Vec::new());
        let lookups: Vec<Lookup> = rows
            .iter()
            .enumerate()
            .map(|(number, row)| {
                let id = row.delivered;
                // Memory moves in the order in which the books did: a record that was asked for before it left is
                // still pinned.
                while let Some(gone) = evicted.next_if(|gone| gone.row as usize == number) {
                    shelf.evict(gone.id);
                }
                if row.verdict == Verdict::Hit && shelf.pin(id) {
                    return Lookup::Resident;
                }
                if row.verdict == Verdict::Pass && !self.coalesces {
                    return Lookup::Passing;
                }
                if let Some(flight) = flights.get(&id)
                    && flight.try_join()
                {
                    coalesced += u64::from(row.verdict != Verdict::Hit);
                    joined.push(Arc::clone(flight));
                    return Lookup::Joined;
                }
                let flight = Arc::new(Flight::default());
                flights.insert(id, Arc::clone(&flight));
                let admitted = matches!(row.verdict, Verdict::Hit | Verdict::Keep) && control.contains(id);
                owned.push(Owned { id, admitted, bytes: record_bytes(id), flight, outcome: Cell::new(None) });
                Lookup::Owned(owned.len() as u32 - 1)
            })
            .collect();
        let after = control.counts();
        let c = &self.counters;
        c.requests_total.fetch_add(ids.len() as u64, Relaxed);
        c.hits_total.fetch_add(after.hits - before.hits, Relaxed);
        c.misses_total.fetch_add(after.misses - before.misses, Relaxed);
        c.admitted_total.fetch_add(after.admitted - before.admitted, Relaxed);
        c.bypassed_total.fetch_add(after.bypassed - before.bypassed, Relaxed);
        c.evicted_total.fetch_add(after.evicted - before.evicted, Relaxed);
        c.coalesced_total.fetch_add(coalesced, Relaxed);
        let (residents, retired) = shelf.settle();
        self.gauge(&guard);
        drop(guard);
        // The memory of those who gave way returns to the arena when the last batch that still reads it lets go.
        drop(retired);
        let weights = rows.iter().map(|row| row.weight).collect();
        let hits = rows.iter().map(|row| row.verdict == Verdict::Hit).collect();
        Some(Decision { number, serial, reach, ids, weights, hits, lookups, owned, joined, residents })
    }

    fn gauge(&self, state: &State) {
        let State { control, shelf, .. } = state;
        let Some(ledger) = control.ledger() else { return };
        let metadata = control.metadata_bytes() + shelf.metadata_bytes();
        let c = &self.counters;
        c.cache_bytes.store(ledger.used_bytes(), Relaxed);
        c.residents.store(ledger.residents() as u64, Relaxed);
        c.cache_metadata_bytes.store(metadata as u64 + self.arena.metadata_bytes(), Relaxed);
    }

    /// The scores of one batch, by sample; rows that have none are `None`. Returns how many samples were scored.
    /// `of` is the batch, if it is known which it is.
    pub fn learn(&self, of: Option<Scorable>, rows: impl Iterator<Item = Option<Scored>>) -> usize {
        let mut state = self.state.lock();
        let State { control, journal, .. } = &mut *state;
        let serial = of.map(|of| of.serial);
        let told = |row: &Scored| (row.id, row.score);
        let scored = if journal.is_on() {
            let rows: Vec<Scored> = rows.flatten().collect();
            let scored = control.learn(serial, rows.iter().map(told));
            // Scores that name their samples themselves stand where they came: at the batch that is decided next.
            let here = || (control.epoch().unwrap_or(0), control.next_batch());
            journal.learn(of.map_or_else(here, |of| (of.epoch, of.number)), rows);
            scored
        } else {
            control.learn(serial, rows.flatten().map(|row| told(&row)))
        };
        self.counters.scores_late_total.store(control.late(), Relaxed);
        self.gauge_age(control);
        scored
    }

    /// How old scores are on average. From sums: it costs nothing to be fresh.
    fn gauge_age(&self, control: &Control) {
        let age = control.scores().mean_age(control.step()).unwrap_or(0.0);
        self.counters.score_age_steps.store(age as u64, Relaxed);
    }

    /// Which samples of a batch could be read, and which not (see [`Control::read`]).
    pub fn read(&self, serial: u64, ids: &[SampleId], failed: &dyn Fn(usize) -> bool) {
        let mut state = self.state.lock();
        let State { control, journal, .. } = &mut *state;
        if journal.is_on() && (control.scores().failed() > 0 || (0..ids.len()).any(failed)) {
            journal.read(ids, failed);
        }
        control.read(serial, ids, failed);
    }

    /// Arena memory for a record that was admitted, or `None` when it is all taken (pinned by batches still being
    /// filled or on their way to a device, or fragmented): the admission is then cancelled by publishing
    /// [`Fetched::Passed`].
    pub fn reserve(&self, record_bytes: usize) -> Option<crate::arena::SlotMut> {
        self.arena.allocate(record_bytes)
    }

    /// Ends the flights of one batch. One without an outcome has failed: the source did not answer.
    pub fn publish(&self, owned: Vec<Owned>) {
        if owned.is_empty() {
            return;
        }
        let mut cancelled = Vec::new();
        let mut landings = Vec::with_capacity(owned.len());
        {
            let mut guard = self.whole();
            let State { control, shelf, flights, journal } = &mut *guard;
            for Owned { id, flight, outcome, .. } in owned {
                let current = flights.get(&id).is_some_and(|f| Arc::ptr_eq(f, &flight));
                if current {
                    flights.remove(&id);
                }
                // A resident whose bytes are not kept leaves the books again, unless a later fetch stands for it now.
                let mut cancel = || {
                    if current && control.cancel(id) {
                        cancelled.push(id);
                    }
                };
                let landing = match outcome.into_inner().unwrap_or_else(|| Fetched::Failed(unanswered())) {
                    Fetched::Kept(slot) => {
                        // Mostly nobody waits for it: then it needs no second reference, and nobody to land for.
                        let waited_for = (!flight.close_if_alone()).then(|| slot.clone());
                        // If it was evicted while in the air, joiners still get it and then its memory goes back.
                        if current && control.contains(id) {
                            shelf.put(id, slot);
                        }
                        let Some(slot) = waited_for else { continue };
                        Landing::Stored(slot)
                    }
                    Fetched::Passed(record) => {
                        cancel();
                        let Some(record) = record else { continue };
                        Landing::Loose(record)
                    }
                    Fetched::Failed(error) => {
                        cancel();
                        Landing::Failed(error)
                    }
                };
                landings.push((flight, landing));
            }
            self.counters.admission_cancelled_total.fetch_add(cancelled.len() as u64, Relaxed);
            journal.cancel(cancelled);
            self.gauge(&guard);
        }
        for (flight, landing) in landings {
            flight.land(landing);
        }
    }
}

fn unanswered() -> Arc<Error> {
    Arc::new(Error::internal("the source did not answer for this sample"))
}

/// What records of those sizes take in the arena.
fn footprint(record_bytes: &dyn Fn(SampleId) -> u64) -> impl Fn(SampleId) -> u64 {
    move |id| Arena::footprint(record_bytes(id) as usize)
}

#[cfg(test)]
mod tests;
