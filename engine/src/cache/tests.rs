//! The cache whole: what it serves, and what it costs beside the records.

use super::*;
use crate::control::{Cut, Plan};
use crate::device::Cpu;
use crate::index::ScoreTable;

use crate::ledger::Ledger;
use crate::policy::{self, Needs};
use crate::sampler::Order;

const SAMPLES: u32 = 20_000;

fn sizes(kind: &str) -> fn(SampleId) -> u64 {
    match kind {
        "equal" => |_| 100,
        _ => |id| 20 + u64::from(id.wrapping_mul(0x9e37_79b1) % 300),
    }
}

fn cache(room: u64, samples: usize, policy: &str) -> Cache {
    let ledger = Ledger::new(room, samples, policy::from_name(policy, samples).unwrap());
    let control = Control::new(ScoreTable::new(samples, 0.5), ledger);
    Cache::new(control, Arena::new(room, &Cpu).unwrap(), Arc::default())
}

/// Batches of `rows` rows.
fn plan(epoch: u64, ids: Vec<SampleId>, rows: usize) -> Plan {
    let ends = (rows..ids.len() + rows).step_by(rows).map(|end| end.min(ids.len())).collect();
    Plan {
        epoch,
        order: Arc::new(Order { weights: vec![1.0; ids.len()], ids }),
        cut: Cut::At(ends),
        behind: Vec::new(),
    }
}

/// The books are as a recount has them, and as the arena has them.
fn check(cache: &Cache) {
    let state = cache.whole();
    let ledger = state.control.ledger().unwrap();
    ledger.check(state.control.scores()).unwrap();
    assert_eq!(ledger.used_bytes(), cache.arena().used_bytes());
}

/// A cache that has seen three epochs with a plan and scores, all records checked. `spare` is what it lacks to hold
/// everything.
fn used(policy: &str, record_bytes: fn(SampleId) -> u64, spare: u64) -> Cache {
    let all: u64 = (0..SAMPLES).map(|id| Arena::footprint(record_bytes(id) as usize)).sum();
    let cache = cache(all - spare, SAMPLES as usize, policy);
    let record = |id: SampleId| id.to_le_bytes().into_iter().cycle().take(record_bytes(id) as usize);
    for epoch in 0..3 {
        let order: Vec<SampleId> = (0..SAMPLES).map(|k| (k * 7919 + epoch) % SAMPLES).collect();
        let pass = cache.begin(plan(u64::from(epoch), order, 256), 0).pass;
        while let Some(Decision { ids, lookups, owned, residents, .. }) = cache.decide(pass, 0, &record_bytes) {
            let mut records = residents.iter();
            for (&id, lookup) in ids.iter().zip(lookups) {
                match lookup {
                    Lookup::Resident => assert!(records.next().unwrap().iter().copied().eq(record(id))),
                    Lookup::Joined | Lookup::Passing => panic!("nobody else fetches, and not from memory"),
                    Lookup::Owned(number) => {
                        let owned = &owned[number as usize];
                        let slot = owned.admitted.then(|| cache.reserve(record_bytes(id) as usize)).flatten();
                        let kept = slot.map(|mut slot| {
                            slot.iter_mut().zip(record(id)).for_each(|(to, from)| *to = from);
                            Fetched::Kept(slot.freeze())
                        });
                        owned.outcome.set(Some(kept.unwrap_or(Fetched::Passed(None))));
                    }
                }
            }
            assert!(records.next().is_none());
            drop(records);
            drop(residents);
            cache.publish(owned);
            let scored = |&id: &SampleId| {
                let score = (id % 1000 + epoch) as f32;
                Some(Scored { id, score, loss: score, gradient_norm: f32::NAN })
            };
            cache.learn(None, ids.iter().map(scored));
        }
    }
    check(&cache);
    cache
}

#[test]
fn all_that_is_kept_about_a_resident_is_at_most_32_bytes_or_40_for_who_looks_ahead() {
    for entry in &policy::ALL {
        let name = entry.name;
        let most = if entry.needs.contains(Needs::NEXT_EPOCH) { 40.0 } else { 32.0 };
        for kind in ["equal", "unequal"] {
            // With room for all, and with so little less that some always have to give way.
            for spare in [0, 20_000] {
                let cache = used(name, sizes(kind), spare);
                let state = cache.whole();
                let ledger = state.control.ledger().unwrap();
                let counted = cache.counters.cache_metadata_bytes.load(Relaxed);
                let each = |bytes: u64| bytes as f64 / ledger.residents() as f64;
                println!(
                    "{name}, {kind}, {} of {SAMPLES} resident: {:.2} bytes each: scores {:.2}, ledger and policy {:.2}, shelf {:.2}, arena {:.2}",
                    ledger.residents(),
                    each(counted),
                    each(state.control.scores().metadata_bytes() as u64),
                    each(ledger.metadata_bytes() as u64),
                    each(state.shelf.metadata_bytes() as u64),
                    each(cache.arena().metadata_bytes()),
                );
                assert!(ledger.residents() > SAMPLES as usize * 9 / 10);
                assert!(each(counted) <= most, "{name} with {kind} sizes: {:.2} bytes a resident", each(counted));
            }
        }
    }
}

#[test]
fn a_cache_of_nothing_keeps_no_places() {
    let cache = cache(0, 1000, "minio");
    let pass = cache.begin(plan(0, vec![3], 1), 0).pass;
    let decision = cache.decide(pass, 0, &|_| 10).unwrap();
    assert!(matches!(decision.owned[..], [Owned { id: 3, admitted: false, .. }]));
    assert_eq!(cache.whole().shelf.metadata_bytes(), 0);
}

#[test]
fn over_memory_only_what_is_to_be_kept_has_a_flight() {
    let record_bytes: fn(SampleId) -> u64 = |_| 100;
    let room = 3 * Arena::footprint(100);
    for (over_memory, fetched_alone) in [(true, 1), (false, 0)] {
        let cache = cache(room, 10, "minio");
        let cache = if over_memory { cache.over_memory() } else { cache };
        let ids = vec![0, 1, 2, 3, 4, 3, 0];
        let pass = cache.begin(plan(0, ids, 7), 0).pass;
        let decision = cache.decide(pass, 0, &record_bytes).unwrap();
        let owned = decision.owned.iter().filter(|owned| owned.admitted).count();
        let count = |of: Lookup| decision.lookups.iter().filter(|lookup| **lookup == of).count();
        let (passing, joined) = (count(Lookup::Passing), count(Lookup::Joined));
        // Three are admitted, the first of them is asked for again; 3 and 4 are not kept, and 3 comes twice.
        assert_eq!((owned, passing, joined), (3, 3 * fetched_alone, 2 - fetched_alone), "over memory: {over_memory}");
    }
}
