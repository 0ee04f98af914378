//! The cache: what is resident, in which memory, and who is fetching what.
//!
//! Score table, policy and ledger are one state under one lock. A batch takes it twice: once to *decide* all its
//! samples, once to *publish* what it fetched. The lock is never held across I/O, a decode or a copy.

mod flight;

pub use flight::{Flight, Landing};

use crate::arena::{Arena, Pins, Shelf, Slot};
use crate::error::Error;
use crate::index::ScoreTable;
use crate::ledger::{Access, Ledger};
use crate::stats::Counters;
use crate::types::SampleId;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Where a requested sample is.
pub enum Lookup {
    /// In memory: the next of [`Decision::residents`].
    Resident,
    /// In the source's memory, and not to be kept: the caller reads it there and tells nobody.
    Passing,
    /// Somebody is fetching it.
    Joined(Arc<Flight>),
    /// The caller must fetch it and [`Cache::publish`] the outcome, whatever it is.
    Owned {
        /// To be landed by publishing.
        flight: Arc<Flight>,
        /// Whether the record is to be kept.
        admitted: bool,
    },
}

/// What was decided about a batch.
pub struct Decision {
    /// By position in the batch.
    pub lookups: Vec<Lookup>,
    /// The residents among them, in order: in memory until this is dropped.
    pub residents: Pins,
    /// Evicted for this batch: drop it after the lock. The memory returns to the arena when the last batch that still reads
    /// it lets go.
    pub retired: Pins,
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

/// The pure state and the memory it decides about.
pub struct State {
    /// Beliefs.
    pub scores: ScoreTable,
    /// The books.
    pub ledger: Ledger,
    /// Batches scored so far: the clock of score ages.
    pub step: u32,
    shelf: Shelf,
    flights: HashMap<SampleId, Arc<Flight>>,
}

/// See the module's head.
pub struct Cache {
    state: Mutex<State>,
    arena: Arc<Arena>,
    counters: Arc<Counters>,
    /// Whether two who want a sample at a time fetch it once.
    coalesces: bool,
}

impl Cache {
    /// A cache over `arena`; `ledger` must have been made with the arena's limit.
    pub fn new(scores: ScoreTable, ledger: Ledger, arena: Arc<Arena>, counters: Arc<Counters>) -> Self {
        counters.cache_capacity_bytes.store(ledger.capacity_bytes(), Relaxed);
        let shelf = Shelf::new(Arc::clone(&arena), scores.len());
        let state = State { scores, ledger, step: 0, shelf, flights: HashMap::new() };
        Self { state: Mutex::new(state), arena, counters, coalesces: true }
    }

    /// The same over a source whose samples lie in memory: those that are not to be kept need no flight.
    pub fn over_memory(self) -> Self {
        Self { coalesces: false, ..self }
    }

    /// The state, locked.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The arena behind the cache.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Decides the accesses of one batch, in order. `record_bytes(id)` is what the sample takes in memory, always the same.
    pub fn decide(&self, state: &mut State, ids: &[SampleId], record_bytes: &dyn Fn(SampleId) -> u64) -> Decision {
        let State { scores, ledger, shelf, flights, .. } = state;
        let footprint = footprint(record_bytes);
        ledger.prefetch(ids, scores);
        shelf.begin(ids);
        let before = ledger.counts();
        let mut evicted = Vec::new();
        let mut coalesced = 0;
        let mut lookups: Vec<Lookup> = ids
            .iter()
            .map(|&id| {
                let access = ledger.access(id, &footprint, scores, &mut evicted);
                evicted.drain(..).for_each(|victim| shelf.evict(victim));
                if access == Access::Hit && shelf.pin(id) {
                    return Lookup::Resident;
                }
                if access == Access::Bypassed && !self.coalesces {
                    return Lookup::Passing;
                }
                if let Some(flight) = flights.get(&id)
                    && flight.try_join()
                {
                    coalesced += u64::from(access != Access::Hit);
                    return Lookup::Joined(Arc::clone(flight));
                }
                let flight = Arc::new(Flight::default());
                flights.insert(id, Arc::clone(&flight));
                Lookup::Owned { flight, admitted: access != Access::Bypassed }
            })
            .collect();
        // Admitted and evicted again within this batch: keeping it would take the memory promised to its successor.
        for (&id, lookup) in ids.iter().zip(&mut lookups) {
            if let Lookup::Owned { admitted, .. } = lookup {
                *admitted &= ledger.contains(id);
            }
        }
        let after = ledger.counts();
        let c = &self.counters;
        c.requests_total.fetch_add(ids.len() as u64, Relaxed);
        c.hits_total.fetch_add(after.hits - before.hits, Relaxed);
        c.misses_total.fetch_add(after.misses - before.misses, Relaxed);
        c.admitted_total.fetch_add(after.admitted - before.admitted, Relaxed);
        c.bypassed_total.fetch_add(after.bypassed - before.bypassed, Relaxed);
        c.evicted_total.fetch_add(after.evicted - before.evicted, Relaxed);
        c.coalesced_total.fetch_add(coalesced, Relaxed);
        let (residents, retired) = shelf.settle();
        self.gauge(state);
        Decision { lookups, residents, retired }
    }

    fn gauge(&self, state: &State) {
        let State { scores, ledger, shelf, .. } = state;
        let metadata = scores.metadata_bytes() + ledger.metadata_bytes() + shelf.metadata_bytes();
        let c = &self.counters;
        c.cache_bytes.store(ledger.used_bytes(), Relaxed);
        c.residents.store(ledger.residents() as u64, Relaxed);
        c.cache_metadata_bytes.store(metadata as u64 + self.arena.metadata_bytes(), Relaxed);
    }

    /// Arena memory for a record that was admitted, or `None` when it is all taken (pinned by batches still being
    /// filled or on their way to a device, or fragmented): the admission is then cancelled by publishing [`Fetched::Passed`].
    pub fn reserve(&self, record_bytes: usize) -> Option<crate::arena::SlotMut> {
        self.arena.allocate(record_bytes)
    }

    /// Ends the flights of one batch. `record_bytes` as in [`Self::decide`].
    pub fn publish(&self, fetched: Vec<(SampleId, Arc<Flight>, Fetched)>, record_bytes: &dyn Fn(SampleId) -> u64) {
        if fetched.is_empty() {
            return;
        }
        let mut cancelled = 0;
        let mut landings = Vec::with_capacity(fetched.len());
        {
            let mut guard = self.state.lock();
            let State { ledger, shelf, flights, .. } = &mut *guard;
            for (id, flight, outcome) in fetched {
                let current = flights.get(&id).is_some_and(|f| Arc::ptr_eq(f, &flight));
                if current {
                    flights.remove(&id);
                }
                // A resident whose bytes are not kept leaves the books again, unless a later fetch stands for it now.
                let mut cancel = || {
                    if current && ledger.contains(id) {
                        ledger.cancel(id);
                        cancelled += 1;
                    }
                };
                let landing = match outcome {
                    Fetched::Kept(slot) => {
                        // Mostly nobody waits for it: then it needs no second reference, and nobody to land for.
                        let waited_for = (!flight.close_if_alone()).then(|| slot.clone());
                        // If it was evicted while in the air, joiners still get it and then its memory goes back.
                        if current && ledger.contains(id) {
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
            self.gauge(&guard);
        }
        self.counters.admission_cancelled_total.fetch_add(cancelled, Relaxed);
        for (flight, landing) in landings {
            flight.land(landing);
        }
    }
}

/// What records of those sizes take in the arena.
fn footprint(record_bytes: &dyn Fn(SampleId) -> u64) -> impl Fn(SampleId) -> u64 {
    move |id| Arena::footprint(record_bytes(id) as usize)
}

#[cfg(test)]
mod tests;
