//! The arena under use: its count is the truth, its slots never overlap, its limit holds.

use std::sync::Barrier;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::ErrorKind;
use crate::device::Cpu;
use crate::random::{Purpose, below, generator};

fn arena(limit_bytes: u64) -> Arc<Arena> {
    Arena::new(limit_bytes, &Cpu).unwrap()
}

#[test]
fn a_slot_has_the_asked_length_and_an_aligned_start_and_frees_its_footprint() {
    let arena = arena(1 << 16);
    for bytes in [0, 1, 63, 64, 65, 3072, 1 << 16] {
        let mut slot = arena.allocate(bytes).unwrap();
        assert_eq!((slot.len(), slot.as_ptr() as usize % 64), (bytes, 0));
        slot.fill(7);
        assert_eq!(arena.used_bytes(), Arena::footprint(bytes));
        let slot = slot.freeze();
        assert!(slot.iter().all(|&b| b == 7));
        assert_eq!(slot.footprint_bytes(), Arena::footprint(bytes));
        drop(slot);
        assert_eq!(arena.used_bytes(), 0);
    }
    assert_eq!(arena.peak_bytes(), 1 << 16);
}

#[test]
fn what_does_not_fit_is_refused_without_a_trace() {
    let arena = arena(1000);
    assert_eq!(arena.limit_bytes(), 960, "rounded down to a granule");
    assert!(arena.allocate(961).is_none() && arena.allocate(usize::MAX).is_none());
    let all = arena.allocate(960).unwrap();
    assert!(arena.allocate(1).is_none());
    drop(all);
    assert!(arena.allocate(960).is_some());
    assert!(self::arena(0).allocate(1).is_none() && self::arena(63).allocate(0).is_none());
}

#[test]
fn a_fragmented_arena_says_how_large_a_sample_it_can_still_keep() {
    let arena = arena(64 << 10);
    assert_eq!(arena.largest_free_bytes(), 64 << 10);
    let mut slots: Vec<_> = (0..64).map(|_| arena.allocate(1024)).collect();
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
    assert_eq!(arena.used_bytes(), kept.iter().map(Slot::footprint_bytes).sum::<u64>());
    assert!(arena.peak_bytes() <= arena.limit_bytes());
    let mut ranges: Vec<(usize, usize)> =
        kept.iter().map(|s| (s.as_ptr() as usize, s.as_ptr() as usize + s.footprint_bytes() as usize)).collect();
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0));
    arena.books.lock().check(256 * 1024 / 64);
    drop(kept);
    assert_eq!(arena.used_bytes(), 0);
    arena.books.lock().check(256 * 1024 / 64);
    assert!(arena.allocate(256 * 1024).is_some(), "all free again, in one piece");
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
    let held = arena.books.lock();
    let outcome = slot::in_forked_child(|| {
        let knows = pid() != parent && pid() == std::process::id();
        let refused = arena.allocate(64).is_none();
        drop(slot.take());
        knows && refused
    });
    assert_eq!(outcome, Ok(true));
    drop((held, slot));
    assert_eq!((pid(), arena.used_bytes()), (parent, 0), "the parent's own slot was freed by the parent");
}
