//! A hundred thousand batches through engines that are treated badly. Alone in its process, so that its threads can be
//! counted.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code)]
mod support;

use lossfeed::error::ErrorKind;
use lossfeed::loader::{Batch, Next};
use lossfeed::{Engine, Settings};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use support::{Patterned, SAMPLE_BYTES, check, engine, settings};

const BATCHES: usize = 100_000;
const SAMPLES: usize = 400;
const BATCH_SIZE: usize = 4;

/// A small generator: the same storm every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// What the storm has met.
#[derive(Default, Debug)]
struct Met {
    batches: usize,
    ends: usize,
    abandoned: usize,
    overtaken: usize,
    exhausted: usize,
    closed_in_mid_pass: usize,
    outlived: usize,
    read_ahead: usize,
}

fn stat(engine: &Engine, name: &str) -> usize {
    engine.stats().into_iter().find(|(n, _)| n == name).unwrap().1 as usize
}

/// Waits for a batch. `None`: the epoch is over, or batches were let go of because all were held.
fn take(engine: &Engine, iteration: u64, held: &mut VecDeque<Batch>, met: &mut Met) -> Option<Batch> {
    let started = Instant::now();
    loop {
        match engine.next_batch(iteration, Duration::from_micros(300)) {
            Ok(Next::Batch(batch)) => return Some(batch),
            Ok(Next::End) => return None,
            Ok(Next::Pending) => assert!(started.elapsed() < Duration::from_secs(30), "nothing comes"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
                assert!(!held.is_empty(), "told to hold fewer, and holds none: {error}");
                met.exhausted += 1;
                held.clear();
            }
        }
    }
}

/// One pass, to its end or not. What is still held goes on being held.
fn pass(engine: &Engine, max_slots: usize, dice: &mut Dice, held: &mut VecDeque<Batch>, met: &mut Met) {
    let iteration = engine.start_epoch().unwrap();
    let leave_after = if dice.one_in(3) { dice.below(SAMPLES / BATCH_SIZE) } else { usize::MAX };
    let slow = dice.one_in(2);
    let greed = dice.below(max_slots + 2);
    let mut taken = 0;
    while taken < leave_after {
        let Some(batch) = take(engine, iteration, held, met) else {
            met.ends += 1;
            assert_eq!(taken, SAMPLES / BATCH_SIZE, "batches are missing");
            return;
        };
        check(engine, &batch);
        taken += 1;
        met.batches += 1;
        held.push_back(batch);
        if slow && dice.one_in(40) {
            std::thread::sleep(Duration::from_micros(500));
        }
        while held.len() > greed {
            // Not in the order they came.
            let batch = held.remove(dice.below(held.len())).unwrap();
            // What was held until now was nobody else's.
            check(engine, &batch);
            if dice.one_in(8) {
                batch.slot.copying().unwrap();
            }
            if dice.one_in(200) {
                std::thread::spawn(move || drop(batch)).join().unwrap();
            }
        }
    }
    if dice.one_in(2) {
        engine.abandon(iteration);
        met.abandoned += 1;
    } else {
        met.overtaken += 1;
    }
}

/// One engine's life.
fn life(dice: &mut Dice, met: &mut Met) {
    let (workers, prefetch_factor) = (dice.below(4), 1 + dice.below(2));
    let read_ahead = if dice.one_in(2) { Some(dice.below(3) as u64 * 40 * SAMPLE_BYTES as u64) } else { None };
    let with =
        Settings { workers: Some(workers), prefetch_factor, read_ahead, cache_bytes: 200 * 64, ..settings(BATCH_SIZE) };
    let max_slots = with.depth() + dice.below(6);
    let engine = engine(Patterned::new(SAMPLES), Settings { max_slots: Some(max_slots), ..with });
    let mut held = VecDeque::new();
    for _ in 0..8 + dice.below(16) {
        pass(&engine, max_slots, dice, &mut held, met);
    }
    if dice.one_in(2) {
        // Closed with threads in every state: filling, waiting for a slot, waiting for the window's room.
        let iteration = engine.start_epoch().unwrap();
        for _ in 0..dice.below(5) {
            let batch = take(&engine, iteration, &mut held, met).unwrap();
            held.push_back(batch);
        }
        met.closed_in_mid_pass += 1;
    }
    held.iter().for_each(|batch| check(&engine, batch));
    if dice.one_in(4) {
        // The consumer's batches outlive it.
        let kept: Vec<(Vec<u8>, Batch)> = held.drain(..).map(|batch| (batch.slot.bytes().to_vec(), batch)).collect();
        drop(engine);
        assert!(kept.iter().all(|(bytes, batch)| batch.slot.bytes() == bytes));
        met.outlived += kept.len();
        return;
    }
    engine.close();
    met.read_ahead += stat(&engine, "read_ahead_samples_total") + stat(&engine, "read_ahead_late_total");
    assert_eq!(stat(&engine, "read_ahead_bytes"), 0);
    assert_eq!(stat(&engine, "slots_free") + held.len(), stat(&engine, "slots_total"), "{held:?}");
    held.iter().for_each(|batch| check(&engine, batch));
    drop(held);
    assert_eq!(stat(&engine, "slots_free"), stat(&engine, "slots_total"), "a slot is missing");
    assert_eq!((stat(&engine, "slots_lent"), stat(&engine, "slots_copying")), (0, 0));
}

/// Names of this process's threads.
#[cfg(target_os = "linux")]
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok()).collect()
}

#[test]
fn a_hundred_thousand_batches_lose_no_slot_no_thread_and_no_byte() {
    let (mut dice, mut met) = (Dice(20_260_727), Met::default());
    while met.batches < BATCHES {
        life(&mut dice, &mut met);
    }
    println!("{met:?}");
    let Met { batches: _, ends, abandoned, overtaken, exhausted, closed_in_mid_pass, outlived, read_ahead } = met;
    let met = [ends, abandoned, overtaken, exhausted, closed_in_mid_pass, outlived, read_ahead];
    assert!(met.iter().all(|&n| n > 10), "too calm");
    #[cfg(target_os = "linux")]
    {
        let started = Instant::now();
        // Engines that were dropped, not closed, do not wait for their threads.
        while threads().iter().any(|name| name.starts_with("lossfeed-")) {
            assert!(started.elapsed() < Duration::from_secs(10), "threads are left: {:?}", threads());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
