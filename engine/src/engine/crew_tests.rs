//! Threads that come and go change nothing but the time that a run takes.

use super::Engine;
use super::buffer_tests::{SAMPLES, dataset, settings};
use crate::journal::{Event, Limits, Recording, replay};
use crate::loader::Next;
use crate::sampler::{Echo, Replay, SamplerSettings, Uniform};
use crate::settings::Settings;
use crate::tune::crew::{Change, Why};
use crate::tune::decided::{Decided, Knob};
use crate::types::SampleId;
use std::fs::File;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// What three epochs deliver. `change`: another number of threads after almost every batch.
fn run(engine: &Engine, change: bool, seed: u64) -> Vec<Vec<SampleId>> {
    let mut seen = Vec::new();
    let mut chance = seed;
    for _ in 0..3 {
        let pass = engine.start_epoch().unwrap();
        loop {
            let batch = match engine.next_batch(pass, Duration::from_secs(60)).unwrap() {
                Next::Pending => continue,
                Next::End => break,
                Next::Batch(batch) => batch,
            };
            let held: Vec<u32> = bytemuck::pod_collect_to_vec(&batch.slot.data().unwrap()[..4 * batch.rows]);
            assert_eq!(*held, *batch.ticket.ids);
            let losses: Vec<f32> = held.iter().map(|&id| (id % 7) as f32).collect();
            engine.apply_losses(&batch.ticket, &losses).unwrap();
            if change {
                chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                engine.set_workers(1 + (chance >> 60) as usize);
            }
            seen.push(held);
        }
    }
    seen
}

#[test]
fn what_comes_is_the_same_whatever_the_number_of_threads_does() {
    let samplers = [
        (SamplerSettings::Uniform(Uniform::default()), Some("lru")),
        (SamplerSettings::Uniform(Uniform::default()), Some("minio")),
        (SamplerSettings::Echo(Echo { lag: 16, ..Echo::default() }), None),
        (SamplerSettings::Replay(Replay { lag: 16, ..Replay::default() }), None),
    ];
    for (sampler, policy) in samplers {
        let base = Settings { policy: policy.map(str::to_owned), ..settings(sampler, 0) };
        let expected = run(&Engine::new(dataset(), base.clone()).unwrap(), false, 0);
        for seed in 0..3 {
            let found = Settings { workers: None, processors: Some(4), ..base.clone() };
            let engine = Engine::new(dataset(), found).unwrap();
            assert_eq!(run(&engine, true, seed), expected, "{} {policy:?}", sampler.name());
        }
    }
}

/// Counters as a run would have them; no clock is asked.
#[test]
fn the_number_follows_what_is_counted_is_shown_with_its_reason_and_stays_for_the_next_epoch() {
    let sampler = SamplerSettings::Uniform(Uniform::default());
    let found = Settings { workers: None, processors: Some(4), batch_size: 1, ..settings(sampler, 0) };
    let engine = Engine::new(dataset(), found).unwrap();
    assert_eq!(engine.workers(), 4);
    let pass = engine.start_epoch().unwrap();
    let current = engine.clock.lock().current.clone().unwrap();
    let c = &engine.feed.counters;
    // Of a million batches each time.
    let time = |own_s: u64, waited_s: u64, worked_s: u64| {
        c.batches_total.fetch_add(1_000_000, Relaxed);
        c.filled_total.fetch_add(1_000_000, Relaxed);
        c.busy_us_total.fetch_add(own_s * 1_000_000, Relaxed);
        c.wait_us_total.fetch_add(waited_s * 1_000_000, Relaxed);
        c.work_us_total.fetch_add(worked_s * 1_000_000, Relaxed);
        c.processor_us_total.fetch_add(worked_s * 1_000_000, Relaxed);
    };
    // A second of work for a thread in ten of the consumer's.
    for _ in 0..20 {
        time(10, 0, 1);
        engine.tune(&current);
    }
    let stat = |name: &str| engine.stats().into_iter().find(|(n, _)| n == name).unwrap().1;
    assert_eq!((engine.workers(), stat("workers"), stat("workers_changes_total")), (1, 1.0, 1.0));
    assert_eq!(stat("workers_reason"), Why::Enough.code() as f64);
    // It waits for the rest of the epoch on one thread, and goes on so.
    let mut came = 0;
    while let Next::Batch(_) = engine.next_batch(pass, Duration::from_secs(60)).unwrap() {
        came += 1;
    }
    assert_eq!(came, SAMPLES);
    engine.start_epoch().unwrap();
    assert_eq!(engine.workers(), 1);
    let current = engine.clock.lock().current.clone().unwrap();
    // The first call tells what had been counted when the first batch came.
    for _ in 0..2 {
        time(1, 9, 10);
        engine.tune(&current);
    }
    assert_eq!((engine.workers(), stat("workers_reason")), (4, Why::Waits.code() as f64));
    engine.close();
}

/// As the loader of a store does, whose requests follow the link.
#[test]
fn what_was_decided_about_reading_is_counted_and_in_the_journal_and_a_replay_passes_over_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.csv");
    let sampler = SamplerSettings::Uniform(Uniform::default());
    let (journal, policy) = (Some(path.clone()), Some("lru".to_owned()));
    let with = Settings { workers: None, processors: Some(4), journal, policy, ..settings(sampler, 0) };
    let engine = Engine::new(dataset(), with).unwrap();
    let pass = engine.start_epoch().unwrap();
    let next = || engine.next_batch(pass, Duration::from_secs(60)).unwrap();
    for _ in 0..3 {
        assert!(matches!(next(), Next::Batch(_)));
    }
    let change = |before, now, why: Why| Decided { knob: Knob::Requests, before, now, ..crew(4, 2, why) };
    for decided in [crew(4, 2, Why::Enough), change(64, 32, Why::AsMuch), change(32, 64, Why::Less)] {
        engine.decisions.push(decided);
    }
    while let Next::Batch(_) = next() {}
    let stat = |name: &str| engine.stats().into_iter().find(|(n, _)| n == name).unwrap().1;
    assert_eq!((stat("read_ahead_changes_total"), stat("read_ahead_reason")), (2.0, Why::Less.code() as f64));
    // What comes when no batch is taken any more is written, too.
    engine.decisions.push(crew(2, 3, Why::Waits));
    engine.close();
    let recording = Recording::read(File::open(&path).unwrap(), Limits::default()).unwrap();
    let told = recording.events.iter().filter_map(|event| match event {
        Event::Io { epoch: 0, step, knob, before, now, why } => Some((*step, &knob[..], *before, *now, &why[..])),
        _ => None,
    });
    let last = engine.batches_per_epoch() as u32;
    let expected = [
        (4, "threads", 4, 2, "fewer threads are enough"),
        (4, "requests", 64, 32, "fewer threads bring as much"),
        (4, "requests", 32, 64, "fewer threads bring less"),
        (last, "threads", 2, 3, "the consumer waits"),
    ];
    // Its own threads may have been changed by what a busy machine showed.
    let told: Vec<_> = told.filter(|told| expected.contains(told)).collect();
    assert_eq!(told, expected);
    let replayed = replay(&recording, crate::policy::find("lru").unwrap(), recording.meta.capacity_bytes).unwrap();
    assert_eq!((replayed.otherwise, replayed.hits), (0, recording.counted().0));
}

fn crew(before: usize, threads: usize, why: Why) -> Decided {
    Change { before, threads, why }.into()
}

#[test]
fn a_number_that_was_named_stays() {
    let sampler = SamplerSettings::Uniform(Uniform::default());
    for workers in [0, 3] {
        let engine = Engine::new(dataset(), settings(sampler, workers)).unwrap();
        run(&engine, false, 0);
        assert_eq!((engine.workers(), engine.threading.lock().most()), (workers, workers));
    }
}
