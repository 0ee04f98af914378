//! Threads that want slots of one pool.

use std::sync::Arc;
use std::time::Duration;

use lossfeed::error::ErrorKind;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use crate::staging::{BatchSlot, SlotPool};
use crate::stand_ins::{all_are_back, pool};
use crate::sync::{Clock, Fault, deadlocks, explore};

const LONG: Duration = Duration::from_secs(3600);

/// A slot's round, or the beginning of one.
fn use_up(mut slot: BatchSlot, mark: u8) {
    slot.bytes_mut().fill(mark);
    thread::yield_now();
    let steps = thread_rng().gen_range(0..4);
    for step in 0..steps {
        [BatchSlot::ready, BatchSlot::lend, |slot: &mut BatchSlot| slot.copying()][step](&mut slot).unwrap();
        thread::yield_now();
        assert!(slot.bytes().iter().all(|&byte| byte == mark), "two owners of one slot");
    }
}

fn threads(pool: &SlotPool, count: u8, life: impl Fn(&SlotPool, u8) + Send + Sync + Copy + 'static) {
    let threads: Vec<_> = (0..count)
        .map(|number| {
            let pool = pool.clone();
            thread::spawn(move || life(&pool, number))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Four threads, two or three slots, of which the last cannot be made in some runs; no clock helps.
fn four_threads_share_a_few_slots() {
    let (max_slots, most) = (thread_rng().gen_range(1..4), thread_rng().gen_range(1..4));
    let pool = pool(1, max_slots, most);
    threads(&pool, 4, |pool, number| {
        for round in 0..2 {
            use_up(pool.acquire(LONG).unwrap().expect("the clock stands"), 10 * number + round);
        }
    });
    assert!(pool.gauges().total <= max_slots.min(most));
    all_are_back(&pool);
}

#[test]
fn whoever_wants_a_slot_gets_one_without_a_clock_and_alone() {
    explore(Clock::Stands, 5000, four_threads_share_a_few_slots);
}

#[test]
fn a_lost_wake_up_is_found() {
    deadlocks(Fault::NobodyIsNotified, 3000, four_threads_share_a_few_slots);
    deadlocks(Fault::SleepsTooLate, 3000, four_threads_share_a_few_slots);
}

/// The one slot is never given back before the pool is closed.
fn closing_ends_every_wait() {
    let pool = pool(1, 1, 1);
    let held = pool.acquire(LONG).unwrap().unwrap();
    let closer = pool.clone();
    let closer = thread::spawn(move || closer.close());
    threads(&pool, 3, |pool, _| assert_eq!(pool.acquire(LONG).unwrap_err().kind(), ErrorKind::Usage));
    closer.join().unwrap();
    drop(held);
    all_are_back(&pool);
}

#[test]
fn closing_wakes_everybody() {
    explore(Clock::Stands, 2000, closing_ends_every_wait);
}

#[test]
fn waking_one_where_all_are_meant_is_found() {
    deadlocks(Fault::NotAllAreNotified, 2000, closing_ends_every_wait);
}

/// Waits end at any moment, the pool closes at any moment.
fn impatient_threads() {
    let pool = pool(1, thread_rng().gen_range(1..4), thread_rng().gen_range(1..4));
    let closer = Arc::new(pool.clone());
    let closer = thread::spawn(move || {
        for _ in 0..thread_rng().gen_range(0..30) {
            thread::yield_now();
        }
        closer.close();
    });
    threads(&pool, 3, |pool, number| {
        for round in 0..3 {
            match pool.acquire(LONG) {
                Ok(Some(slot)) => use_up(slot, 10 * number + round),
                Ok(None) => {}
                Err(error) => return assert_eq!(error.kind(), ErrorKind::Usage),
            }
        }
    });
    closer.join().unwrap();
    all_are_back(&pool);
}

#[test]
fn waits_that_end_at_any_moment_lose_no_slot() {
    explore(Clock::Runs, 5000, impatient_threads);
}
