//! The cache whole: what it serves, and what it costs beside the records.

use super::*;
use crate::device::Cpu;
use crate::policy;

const SAMPLES: u32 = 100_000;

fn sizes(kind: &str) -> fn(SampleId) -> u64 {
    match kind {
        "equal" => |_| 100,
        _ => |id| 20 + u64::from(id.wrapping_mul(0x9e37_79b1) % 300),
    }
}

/// A cache that has seen three epochs with a plan and scores, all records checked. `spare` is what it lacks to hold everything.
fn used(policy: &str, record_bytes: fn(SampleId) -> u64, spare: u64) -> Cache {
    let all: u64 = (0..SAMPLES).map(|id| Arena::footprint(record_bytes(id) as usize)).sum();
    let samples = SAMPLES as usize;
    let ledger = Ledger::new(all - spare, samples, policy::from_name(policy, samples).unwrap());
    let arena = Arena::new(all - spare, &Cpu).unwrap();
    let cache = Cache::new(ScoreTable::new(samples, 0.5), ledger, arena, Arc::default());
    let record = |id: SampleId| id.to_le_bytes().into_iter().cycle().take(record_bytes(id) as usize);
    for epoch in 0..3 {
        let order: Vec<SampleId> = (0..SAMPLES).map(|k| (k * 7919 + epoch) % SAMPLES).collect();
        cache.lock().ledger.plan(&order);
        for ids in order.chunks(256) {
            let Decision { lookups, residents, retired } = cache.decide(&mut cache.lock(), ids, &record_bytes);
            drop(retired);
            let mut records = residents.iter();
            let mut fetched = Vec::new();
            for (&id, lookup) in ids.iter().zip(lookups) {
                match lookup {
                    Lookup::Resident => assert!(records.next().unwrap().iter().copied().eq(record(id))),
                    Lookup::Joined(_) | Lookup::Passing => panic!("nobody else fetches, and not from memory"),
                    Lookup::Owned { flight, admitted } => {
                        let slot = admitted.then(|| cache.reserve(record_bytes(id) as usize)).flatten();
                        let kept = slot.map(|mut slot| {
                            slot.iter_mut().zip(record(id)).for_each(|(to, from)| *to = from);
                            Fetched::Kept(slot.freeze())
                        });
                        fetched.push((id, flight, kept.unwrap_or(Fetched::Passed(None))));
                    }
                }
            }
            assert!(records.next().is_none());
            drop(records);
            drop(residents);
            cache.publish(fetched, &record_bytes);
            let State { scores, ledger, .. } = &mut *cache.lock();
            for &id in ids {
                let belief = scores.record(id, (id % 1000 + epoch) as f32, epoch).unwrap();
                ledger.rescore(id, belief);
            }
        }
    }
    let state = cache.lock();
    state.ledger.check(&state.scores).unwrap();
    assert_eq!(state.ledger.used_bytes(), cache.arena().used_bytes());
    drop(state);
    cache
}

#[test]
fn all_that_is_kept_about_a_resident_is_at_most_32_bytes() {
    for name in policy::ALL.iter().filter(|entry| entry.is_live()).map(|entry| entry.name) {
        for kind in ["equal", "unequal"] {
            // With room for all, and with so little less that some always have to give way.
            for spare in [0, 100_000] {
                let cache = used(name, sizes(kind), spare);
                let state = cache.lock();
                let counted = cache.counters.cache_metadata_bytes.load(Relaxed);
                let each = |bytes: u64| bytes as f64 / state.ledger.residents() as f64;
                println!(
                    "{name}, {kind}, {} of {SAMPLES} resident: {:.2} bytes each: scores {:.2}, ledger and policy {:.2}, shelf {:.2}, arena {:.2}",
                    state.ledger.residents(),
                    each(counted),
                    each(state.scores.metadata_bytes() as u64),
                    each(state.ledger.metadata_bytes() as u64),
                    each(state.shelf.metadata_bytes() as u64),
                    each(cache.arena().metadata_bytes()),
                );
                assert!(state.ledger.residents() > SAMPLES as usize * 9 / 10);
                assert!(each(counted) <= 32.0, "{name} with {kind} sizes: {:.2} bytes a resident", each(counted));
            }
        }
    }
}

#[test]
fn a_cache_of_nothing_keeps_no_places() {
    let ledger = Ledger::new(0, 1000, policy::from_name("minio", 1000).unwrap());
    let cache = Cache::new(ScoreTable::new(1000, 0.5), ledger, Arena::new(0, &Cpu).unwrap(), Arc::default());
    let decision = cache.decide(&mut cache.lock(), &[3], &|_| 10);
    assert!(matches!(decision.lookups[..], [Lookup::Owned { admitted: false, .. }]));
    assert_eq!(cache.lock().shelf.metadata_bytes(), 0);
}

#[test]
fn over_memory_only_what_is_to_be_kept_has_a_flight() {
    let record_bytes: fn(SampleId) -> u64 = |_| 100;
    let room = 3 * Arena::footprint(100);
    for (over_memory, fetched_alone) in [(true, 1), (false, 0)] {
        let ledger = Ledger::new(room, 10, policy::from_name("minio", 10).unwrap());
        let cache = Cache::new(ScoreTable::new(10, 0.5), ledger, Arena::new(room, &Cpu).unwrap(), Arc::default());
        let cache = if over_memory { cache.over_memory() } else { cache };
        let ids = [0, 1, 2, 3, 4, 3, 0];
        cache.lock().ledger.plan(&ids);
        let lookups = cache.decide(&mut cache.lock(), &ids, &record_bytes).lookups;
        let owned = lookups.iter().filter(|l| matches!(l, Lookup::Owned { admitted: true, .. })).count();
        let passing = lookups.iter().filter(|l| matches!(l, Lookup::Passing)).count();
        let joined = lookups.iter().filter(|l| matches!(l, Lookup::Joined(_))).count();
        // Three are admitted, the first of them is asked for again; 3 and 4 are not kept, and 3 comes twice.
        assert_eq!((owned, passing, joined), (3, 3 * fetched_alone, 2 - fetched_alone), "over memory: {over_memory}");
    }
}
