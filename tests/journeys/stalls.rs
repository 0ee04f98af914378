//! Why the consumer waited: every microsecond has a cause, and a planted cause is the one that is named.

use super::stat;
use super::support::{Patterned, engine, next, settings};
use lossfeed::{Engine, Settings};
use std::time::{Duration, Instant};

const CAUSES: [&str; 6] = ["source", "decode", "slot", "copy", "decide", "handover"];

fn cause(engine: &Engine, cause: &str) -> f64 {
    stat(engine, &format!("wait_{cause}_us_total"))
}

/// One epoch; returns the microseconds spent in `next_batch`, measured from outside.
fn epoch(engine: &Engine, mut keep: impl FnMut(lossfeed::loader::Batch)) -> f64 {
    let iteration = engine.start_epoch().unwrap();
    let mut waited = Duration::ZERO;
    loop {
        let started = Instant::now();
        let batch = next(engine, iteration).unwrap();
        waited += started.elapsed();
        match batch {
            Some(batch) => keep(batch),
            None => return waited.as_secs_f64() * 1e6,
        }
    }
}

fn causes_add_up(engine: &Engine, measured_us: f64) {
    let waited = stat(engine, "wait_us_total");
    assert_eq!(CAUSES.map(|c| cause(engine, c)).iter().sum::<f64>(), waited, "the parts are not the whole");
    // The clock around the call includes what the test does itself, and whatever else runs on the machine.
    assert!(waited <= measured_us, "counted {waited} us, measured {measured_us} us");
}

/// What the loader's threads are blamed with besides `cause`. A thread that wakes up late ("handover") is the machine's
/// doing.
fn others(engine: &Engine, but: &str) -> f64 {
    CAUSES.into_iter().filter(|&c| c != but && c != "handover").map(|c| cause(engine, c)).sum()
}

#[test]
fn a_slow_source_is_blamed_with_and_without_workers() {
    for workers in [0, 1, 2] {
        let mut source = Patterned::new(320);
        source.delay = Duration::from_millis(20);
        let engine = engine(source, Settings { workers: Some(workers), ..settings(16) });
        let measured = epoch(&engine, drop);
        causes_add_up(&engine, measured);
        let (source, others) = (cause(&engine, "source"), others(&engine, "source"));
        assert!(source > others, "{workers} workers: {source} us, and {others} us of other causes");
        if workers == 0 {
            assert!(source >= 20.0 * 20_000.0, "every fetch of 20 ms was waited for: {source} us");
        }
        assert!(stat(&engine, "source_us_total") >= 20.0 * 20_000.0, "20 fetches of 20 ms");
    }
}

#[test]
fn a_consumer_that_holds_on_to_batches_is_blamed_as_such() {
    let narrow = Settings { workers: Some(1), prefetch_factor: 2, max_slots: Some(4), ..settings(16) };
    let engine = engine(Patterned::new(640), narrow);
    // Somebody else lets each batch go 30 ms after it was handed over.
    let (hand_over, held) = std::sync::mpsc::channel::<(Instant, lossfeed::loader::Batch)>();
    let holder = std::thread::spawn(move || {
        for (since, batch) in held {
            std::thread::sleep(Duration::from_millis(30).saturating_sub(since.elapsed()));
            drop(batch);
        }
    });
    let measured = epoch(&engine, |batch| hand_over.send((Instant::now(), batch)).unwrap());
    drop(hand_over);
    holder.join().unwrap();
    causes_add_up(&engine, measured);
    let (slot, others) = (cause(&engine, "slot"), others(&engine, "slot"));
    assert!(slot > others, "{slot} us, and {others} us of other causes");
}

#[test]
fn a_fast_epoch_waits_for_little_and_still_adds_up() {
    let engine = engine(Patterned::new(4096), settings(64));
    let mut measured = 0.0;
    for _ in 0..3 {
        measured += epoch(&engine, drop);
    }
    causes_add_up(&engine, measured);
}
