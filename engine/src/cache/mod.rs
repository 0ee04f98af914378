//! The cache: what is resident, in which memory, and who is fetching what.
//!
//! Score table, policy and ledger are one state under one lock. A batch takes it twice: once to *decide* all its
//! samples, once to *publish* what it fetched. The lock is never held across I/O, a decode or a copy.

mod flight;

pub use flight::{Flight, Landing};

use crate::arena::{Arena, Slot};
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
    /// In memory; the handle pins it.
    Resident(Arc<Slot>),
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
    /// By id: 8 bytes a sample, and one look where a hash table takes two.
    slots: Vec<Option<Arc<Slot>>>,
    flights: HashMap<SampleId, Arc<Flight>>,
}

/// See the module's head.
pub struct Cache {
    state: Mutex<State>,
    arena: Arc<Arena>,
    counters: Arc<Counters>,
}

impl Cache {
    /// A cache over `arena`; `ledger` must have been made with the arena's limit.
    pub fn new(scores: ScoreTable, ledger: Ledger, arena: Arc<Arena>, counters: Arc<Counters>) -> Self {
        counters.cache_capacity_bytes.store(ledger.capacity_bytes(), Relaxed);
        let slots = vec![None; scores.as_slice().len()];
        let state = State { scores, ledger, step: 0, slots, flights: HashMap::new() };
        Self { state: Mutex::new(state), arena, counters }
    }

    /// The state, locked.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The arena behind the cache.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Decides the accesses of one batch, in order. `record_bytes(id)` is what the sample takes in memory.
    ///
    /// Slots of evicted samples are appended to `retired`: drop them after the lock. Their memory returns to the arena
    /// when the last batch that still reads them lets go.
    pub fn decide(
        &self,
        state: &mut State,
        ids: &[SampleId],
        record_bytes: &dyn Fn(SampleId) -> u64,
        retired: &mut Vec<Arc<Slot>>,
    ) -> Vec<Lookup> {
        let State { scores, ledger, slots, flights, .. } = state;
        ledger.prefetch(ids, scores);
        prefetch(slots, ids);
        let before = ledger.counts();
        let mut evicted = Vec::new();
        let mut coalesced = 0;
        let mut lookups: Vec<Lookup> = ids
            .iter()
            .map(|&id| {
                let access = ledger.access(id, Arena::footprint(record_bytes(id) as usize), scores, &mut evicted);
                retired.extend(evicted.drain(..).filter_map(|victim| slots[victim as usize].take()));
                if access == Access::Hit
                    && let Some(slot) = &slots[id as usize]
                {
                    return Lookup::Resident(Arc::clone(slot));
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
        c.cache_bytes.store(ledger.used_bytes(), Relaxed);
        c.residents.store(ledger.residents() as u64, Relaxed);
        lookups
    }

    /// Arena memory for a record that was admitted, or `None` when it is all taken (pinned by batches still being
    /// filled, or fragmented): the admission is then cancelled by publishing [`Fetched::Passed`].
    pub fn reserve(&self, record_bytes: usize) -> Option<crate::arena::SlotMut> {
        self.arena.allocate(record_bytes)
    }

    /// Ends the flights of one batch.
    pub fn publish(&self, fetched: Vec<(SampleId, Arc<Flight>, Fetched)>) {
        if fetched.is_empty() {
            return;
        }
        let mut cancelled = 0;
        let mut landings = Vec::with_capacity(fetched.len());
        {
            let mut guard = self.state.lock();
            let State { ledger, slots, flights, .. } = &mut *guard;
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
                        let slot = Arc::new(slot);
                        // If it was evicted while in the air, joiners still get it and then its memory goes back.
                        if current && ledger.contains(id) {
                            slots[id as usize] = Some(Arc::clone(&slot));
                        }
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
            self.counters.cache_bytes.store(ledger.used_bytes(), Relaxed);
            self.counters.residents.store(ledger.residents() as u64, Relaxed);
        }
        self.counters.admission_cancelled_total.fetch_add(cancelled, Relaxed);
        for (flight, landing) in landings {
            flight.land(landing);
        }
    }
}

/// Brings the handles of a batch's records into the processor's caches; see [`Ledger::prefetch`]. Without it a batch of
/// small records spends as long on its handles as on copying their bytes.
fn prefetch(slots: &[Option<Arc<Slot>>], ids: &[SampleId]) {
    let touched = |all: usize, &id: &SampleId| all ^ slots[id as usize].as_ref().map_or(0, Arc::strong_count);
    std::hint::black_box(ids.iter().fold(0, touched));
}
