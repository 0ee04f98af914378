//! The arena under use: its count is the truth, its slots never overlap, its limit holds.

use std::sync::Barrier;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::*;
use crate::ErrorKind;
use crate::device::Cpu;
use crate::process::pid;
use crate::random::{Purpose, below, generator};

fn arena(limit_bytes: u64) -> Arc<Arena> {
    Arena::new(limit_bytes, &Cpu).unwrap()
}

#[test]
fn a_slot_has_the_asked_length_and_an_aligned_start_and_frees_its_footprint() {
    let arena = arena(1 << 16);
    for bytes in [0, 1, 57, 58, 59, 3072, (1 << 16) - 6] {
        let mut slot = arena.allocate(bytes).unwrap();
        assert_eq!((slot.len(), slot.as_ptr() as usize % 64), (bytes, 0));
        slot.fill(7);
        assert_eq!(arena.used_bytes(), Arena::footprint(bytes));
        let slot = slot.freeze();
        assert!(slot.iter().all(|&b| b == 7));
        drop(slot);
        assert_eq!(arena.used_bytes(), 0);
    }
    assert_eq!(arena.peak_bytes(), 1 << 16);
}

#[test]
fn what_does_not_fit_is_refused_without_a_trace() {
    let arena = arena(1000);
    assert_eq!(arena.limit_bytes(), 960, "rounded down to a granule");
    assert!(arena.allocate(955).is_none() && arena.allocate(usize::MAX).is_none());
    let all = arena.allocate(954).unwrap();
    assert!(arena.allocate(1).is_none());
    drop(all);
    assert!(arena.allocate(954).is_some());
    assert!(self::arena(0).allocate(1).is_none() && self::arena(63).allocate(0).is_none());
}

#[test]
fn a_fragmented_arena_says_how_large_a_sample_it_can_still_keep() {
    let arena = arena(64 << 10);
    assert_eq!(arena.largest_free_bytes(), 64 << 10);
    let mut slots: Vec<_> = (0..64).map(|_| arena.allocate(1000)).collect();
    assert_eq!(arena.largest_free_bytes(), 0);
    slots.iter_mut().step_by(2).for_each(|slot| *slot = None);
    assert_eq!((arena.used_bytes(), arena.largest_free_bytes()), (32 << 10, 1024), "half is free, in pieces");
    assert!(arena.allocate(2048).is_none());
    slots.clear();
    assert_eq!(arena.largest_free_bytes(), 64 << 10);
}

#[test]
fn a_limit_above_what_books_can_count_is_a_settings_error_with_both_numbers() {
    let error = Arena::new(300 << 30, &Cpu).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Settings);
    assert!(error.to_string().contains("300.0 GiB") && error.to_string().contains("256.0 GiB"), "{error}");
}

#[test]
fn an_address_space_too_small_is_a_memory_error_and_not_an_abort() {
    let error = Mapping::new(1 << 62, &Cpu, "the cache", "lower `cache`").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Memory);
    assert!(error.to_string().contains("4.0 EiB") && error.to_string().contains("lower `cache`"), "{error}");
}

#[test]
fn slots_outlive_the_handle_of_their_arena() {
    let arena = arena(4096);
    let mut slot = arena.allocate(100).unwrap();
    drop(arena);
    slot.fill(3);
    let slot = slot.freeze();
    std::thread::spawn(move || assert!(slot.iter().all(|&b| b == 3))).join().unwrap();
}

#[test]
fn under_random_use_by_threads_the_count_is_exact_the_limit_holds_and_no_slot_overlaps() {
    const THREADS: u32 = 4;
    let arena = arena(256 * 1024);
    let start = Barrier::new(THREADS as usize + 1);
    let over = AtomicBool::new(false);
    let kept: Vec<Slot> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (arena, start) = (&arena, &start);
                scope.spawn(move || {
                    let mut rng = generator(11, 0, thread, Purpose::Draw);
                    let mut held: Vec<(u8, Slot)> = Vec::new();
                    let (mut refused, mut given) = (0u32, 0u32);
                    start.wait();
                    for step in 0..4000u32 {
                        if held.is_empty() || below(&mut rng, 5) < 3 {
                            let mark = (step.wrapping_mul(31) + thread) as u8;
                            match arena.allocate(below(&mut rng, 9000) as usize) {
                                Some(mut slot) => {
                                    slot.fill(mark);
                                    held.push((mark, slot.freeze()));
                                    given += 1;
                                }
                                None => refused += 1,
                            }
                        } else {
                            let at = below(&mut rng, held.len() as u32) as usize;
                            let (mark, slot) = held.swap_remove(at);
                            assert!(slot.iter().all(|&b| b == mark), "another slot wrote here");
                        }
                        assert!(arena.used_bytes() <= arena.limit_bytes());
                    }
                    assert!(
                        given > 0 && refused > 0,
                        "the test must press against the limit: {given} given, {refused} refused"
                    );
                    for (mark, slot) in &held {
                        assert!(slot.iter().all(|b| b == mark), "another slot wrote here");
                    }
                    held.into_iter().map(|(_, slot)| slot).collect::<Vec<_>>()
                })
            })
            .collect();
        let (watched, done) = (&arena, &over);
        let watcher = scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                assert!(watched.used_bytes() <= watched.limit_bytes());
            }
        });
        start.wait();
        let kept = workers.into_iter().flat_map(|w| w.join().unwrap()).collect();
        over.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
        kept
    });
    assert_eq!(arena.used_bytes(), kept.iter().map(|slot| Arena::footprint(slot.len())).sum::<u64>());
    assert!(arena.peak_bytes() <= arena.limit_bytes());
    let mut ranges: Vec<(usize, usize)> =
        kept.iter().map(|s| (s.as_ptr() as usize, s.as_ptr() as usize + Arena::footprint(s.len()) as usize)).collect();
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0));
    arena.books.lock().check(256 * 1024 / 64);
    drop(kept);
    assert_eq!(arena.used_bytes(), 0);
    arena.books.lock().check(256 * 1024 / 64);
    assert!(arena.allocate(256 * 1024 - 6).is_some(), "all free again, in one piece");
}

/// What record number `number` of sample `id` holds: no two records of a test look alike, not even in part.
fn fill(slot: &mut SlotMut, id: u32, number: u32) {
    slot.iter_mut().enumerate().for_each(|(k, byte)| *byte = pattern(id, number, k));
}

fn pattern(id: u32, number: u32, at: usize) -> u8 {
    (id.wrapping_mul(0x9e37_79b1) ^ number.wrapping_mul(0x85eb_ca6b) ^ (at as u32).wrapping_mul(0x27d4_eb2f))
        .to_be_bytes()[0]
}

fn holds(record: &[u8], id: u32, number: u32) -> bool {
    record.iter().enumerate().all(|(k, &byte)| byte == pattern(id, number, k))
}

#[derive(Debug, Clone)]
enum Op {
    Put(u32, usize),
    /// A batch: these are pinned, those evicted, these pinned.
    Batch(Vec<u32>, Vec<u32>, Vec<u32>),
    LetGo(prop::sample::Index),
    /// One more reference to a record, on its own.
    Keep(u32, usize),
    Forget(prop::sample::Index),
}

fn op() -> impl Strategy<Value = Op> {
    let id = || 0..8u32;
    let ids = || prop::collection::vec(id(), 0..6);
    prop_oneof![
        4 => (id(), 0..700usize).prop_map(|(id, bytes)| Op::Put(id, bytes)),
        3 => (ids(), ids(), ids()).prop_map(|(first, evicted, then)| Op::Batch(first, evicted, then)),
        2 => any::<prop::sample::Index>().prop_map(Op::LetGo),
        1 => (id(), 0..700usize).prop_map(|(id, bytes)| Op::Keep(id, bytes)),
        1 => any::<prop::sample::Index>().prop_map(Op::Forget),
    ]
}

proptest! {
    /// The naive twin is a list of records with everyone who may read each. After every step the arena must have in use
    /// exactly the records with a reader: one that is freed too early or twice is missing from the count, one that is
    /// not freed exceeds it, and what everybody can read is what was written.
    #[test]
    fn a_record_is_in_use_exactly_while_it_is_on_the_shelf_or_pinned(ops in prop::collection::vec(op(), 1..120)) {
        const GRANULES: u32 = 40;
        let arena = arena(u64::from(GRANULES) * GRANULE_BYTES);
        let mut shelf = Shelf::new(Arc::clone(&arena), 8);
        // (id, number, bytes) names a record.
        let mut shelved: [Option<(u32, u32, usize)>; 8] = [None; 8];
        let mut batches: Vec<(Pins, Vec<(u32, u32, usize)>)> = Vec::new();
        let mut kept: Vec<(Slot, (u32, u32, usize))> = Vec::new();
        for (number, op) in (0..).zip(ops) {
            match op {
                Op::Put(id, bytes) | Op::Keep(id, bytes) => if let Some(mut slot) = arena.allocate(bytes) {
                    fill(&mut slot, id, number);
                    let slot = slot.freeze();
                    if matches!(op, Op::Keep(..)) {
                        kept.push((slot.clone(), (id, number, bytes)));
                    }
                    shelf.put(id, slot);
                    shelved[id as usize] = Some((id, number, bytes));
                    drop(shelf.settle()); // of what was there before
                },
                Op::Batch(first, evicted, then) => {
                    shelf.begin(&first);
                    let mut expected = Vec::new();
                    let mut pin = |shelf: &mut Shelf, shelved: &[Option<_>; 8], ids: Vec<u32>| for id in ids {
                        assert_eq!(shelf.pin(id), shelved[id as usize].is_some());
                        expected.extend(shelved[id as usize]);
                    };
                    pin(&mut shelf, &shelved, first);
                    for id in evicted {
                        shelf.evict(id);
                        shelved[id as usize] = None;
                    }
                    pin(&mut shelf, &shelved, then);
                    let (pins, retired) = shelf.settle();
                    drop(retired);
                    batches.push((pins, expected));
                }
                Op::LetGo(pick) => if !batches.is_empty() {
                    drop(batches.swap_remove(pick.index(batches.len())));
                },
                Op::Forget(pick) => if !kept.is_empty() {
                    drop(kept.swap_remove(pick.index(kept.len())));
                },
            }
            for (pins, expected) in &batches {
                prop_assert_eq!(pins.iter().len(), expected.len());
                for (record, &(id, number, bytes)) in pins.iter().zip(expected) {
                    prop_assert!(record.len() == bytes && holds(record, id, number));
                }
            }
            prop_assert!(kept.iter().all(|(slot, (id, number, bytes))| slot.len() == *bytes && holds(slot, *id, *number)));
            let readers = batches.iter().flat_map(|b| &b.1).chain(kept.iter().map(|k| &k.1)).chain(shelved.iter().flatten());
            let alive: std::collections::HashSet<_> = readers.collect();
            prop_assert_eq!(arena.used_bytes(), alive.iter().map(|r| Arena::footprint(r.2)).sum::<u64>());
            arena.books.lock().check(GRANULES);
        }
        drop((batches, kept, shelf));
        prop_assert_eq!(arena.used_bytes(), 0);
        prop_assert!(arena.allocate(GRANULES as usize * 64 - 6).is_some(), "all free again, in one piece");
    }
}

#[test]
fn what_a_thread_has_pinned_stays_as_it_was_while_others_evict_it_and_fill_its_place() {
    const IDS: u32 = 40;
    let arena = arena(64 * 1024);
    // The lock of the cache: the shelf, and which record of each sample lies there.
    let state = Mutex::new((Shelf::new(Arc::clone(&arena), IDS as usize), [None::<u32>; IDS as usize]));
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (arena, state, start) = (&arena, &state, &start);
            scope.spawn(move || {
                let mut rng = generator(12, 0, thread, Purpose::Draw);
                let mut reading: std::collections::VecDeque<(Pins, Vec<(u32, u32)>)> = Default::default();
                let (mut refused, mut pinned) = (0, 0);
                start.wait();
                for step in 0..3000u32 {
                    let (pins, expected, retired) = {
                        let mut guard = state.lock();
                        let (shelf, shelved) = &mut *guard;
                        let ids: Vec<u32> = (0..12).map(|_| below(&mut rng, IDS)).collect();
                        shelf.begin(&ids);
                        let mut expected = Vec::new();
                        for &id in &ids {
                            assert_eq!(shelf.pin(id), shelved[id as usize].is_some());
                            expected.extend(shelved[id as usize].map(|number| (id, number)));
                            let victim = below(&mut rng, 2 * IDS);
                            if victim < IDS {
                                shelf.evict(victim);
                                shelved[victim as usize] = None;
                            }
                        }
                        let (pins, retired) = shelf.settle();
                        (pins, expected, retired)
                    };
                    drop(retired);
                    pinned += expected.len();
                    reading.push_back((pins, expected));
                    for _ in 0..6 {
                        let (id, number) = (below(&mut rng, IDS), step * 4 + thread);
                        let Some(mut slot) = arena.allocate(below(&mut rng, 6000) as usize) else {
                            refused += 1;
                            continue;
                        };
                        fill(&mut slot, id, number);
                        let slot = slot.freeze();
                        let joined = below(&mut rng, 2) == 0;
                        let mine = joined.then(|| slot.clone());
                        let mut guard = state.lock();
                        guard.0.put(id, slot);
                        guard.1[id as usize] = Some(number);
                        drop(guard);
                        assert!(mine.is_none_or(|slot| holds(&slot, id, number)));
                    }
                    while reading.len() > below(&mut rng, 4) as usize {
                        for (pins, expected) in &reading {
                            let mut records = pins.iter().zip(expected);
                            assert!(
                                records.all(|(record, &(id, number))| holds(record, id, number)),
                                "it was written to"
                            );
                        }
                        reading.pop_front();
                    }
                    assert!(arena.used_bytes() <= arena.limit_bytes());
                }
                assert!(refused > 1000 && pinned > 1000, "the test must press: {refused} refused, {pinned} pinned");
            });
        }
    });
    arena.books.lock().check(1024);
    drop(state);
    assert_eq!((arena.used_bytes(), arena.books.lock().records()), (0, 0));
    arena.books.lock().check(1024);
    assert!(arena.allocate(64 * 1024 - 6).is_some(), "all free again, in one piece");
}

#[test]
fn a_shelf_of_an_arena_that_holds_nothing_costs_nothing() {
    let mut shelf = Shelf::new(arena(0), 1 << 30);
    shelf.begin(&[5]);
    assert!(!shelf.pin(5));
    shelf.evict(5);
    assert_eq!((shelf.settle().0.iter().len(), shelf.metadata_bytes()), (0, 0));
}

#[test]
fn the_cached_process_id_is_the_real_one() {
    assert_eq!((pid(), pid()), (std::process::id(), std::process::id()));
}

#[test]
fn a_forked_child_knows_that_it_is_one_and_never_waits_for_a_lock_held_at_the_fork() {
    let parent = pid();
    let arena = arena(4096);
    let mut slot = arena.allocate(64);
    let mut shelf = Some(Shelf::new(Arc::clone(&arena), 1));
    let mut other = arena.allocate(64).map(SlotMut::freeze);
    shelf.iter_mut().for_each(|shelf| shelf.put(0, other.take().unwrap()));
    let held = arena.books.lock();
    let outcome = mapping::in_forked_child(|| {
        let knows = pid() != parent && pid() == std::process::id();
        let refused = arena.allocate(64).is_none();
        let settled = shelf.iter_mut().all(|shelf| {
            let pinned = shelf.pin(0);
            shelf.evict(0);
            drop(shelf.settle());
            pinned
        });
        drop((slot.take(), shelf.take()));
        knows && refused && settled
    });
    assert_eq!(outcome, Ok(true));
    drop((held, slot, shelf));
    assert_eq!((pid(), arena.used_bytes()), (parent, 0), "the parent's own slots were freed by the parent");
}

#[test]
fn a_smaller_arena_gives_its_pages_back_and_what_it_keeps_is_whole() {
    let (bytes, record) = (64u64 << 20, 3000);
    let arena = Arena::new(bytes, &Cpu).unwrap();
    let samples = (bytes / Arena::footprint(record)) as u32;
    let content = |id: u32| (id.wrapping_mul(2_654_435_761) >> 24) as u8 | 1;
    let mut shelf = Shelf::new(Arc::clone(&arena), samples as usize);
    for id in 0..samples {
        let mut slot = arena.allocate(record).unwrap();
        slot.fill(content(id));
        shelf.put(id, slot.freeze());
    }
    // Every second one leaves: what stays lies everywhere.
    (0..samples).step_by(2).for_each(|id| shelf.evict(id));
    drop(shelf.settle());
    assert!(shelf.pin(1));
    let (held, _) = shelf.settle();
    arena.withdraw(bytes / 2);
    let left_over: Vec<u32> =
        (0..samples).step_by(64).flat_map(|id| shelf.move_before_fence(id..(id + 64).min(samples))).collect();
    assert!(left_over.len() < 50, "{} found no room", left_over.len());
    left_over.iter().for_each(|&id| shelf.evict(id));
    drop(shelf.settle());
    let given = arena.give_back();
    // No byte of a record is 0; what went back to the system reads as zeros.
    let empty = |page: &u64| (0..4096).step_by(4).all(|at| arena.words.peek(page + at) == 0);
    let pages = (bytes / 2..bytes).step_by(4096).filter(empty).count() as u64;
    assert!(given > bytes / 2 - (1 << 20) && pages * 4096 >= given, "{given} given back, {pages} empty pages");
    assert!(arena.allocate(record).is_none() || arena.used_bytes() <= bytes / 2);
    let check = |shelf: &mut Shelf| {
        for id in (1..samples).step_by(2).filter(|id| !left_over.contains(id)) {
            assert!(shelf.pin(id));
            let (pins, _) = shelf.settle();
            assert!(pins.get(0).iter().all(|&byte| byte == content(id)), "{id}");
        }
    };
    check(&mut shelf);
    assert!(held.get(0).iter().all(|&byte| byte == content(1)));
    arena.restore(bytes);
    assert!(arena.largest_free_bytes() > bytes / 2 - (8 << 20));
    let more: Vec<_> = std::iter::from_fn(|| arena.allocate(record))
        .map(|mut slot| {
            slot.fill(7);
            slot
        })
        .collect();
    assert!(more.len() as u64 * Arena::footprint(record) > bytes / 2 - (1 << 20));
    check(&mut shelf);
}
