//! Reading ahead: it brings samples sooner and changes nothing else.

use super::{RECORD_BYTES, loss_of, stat};
use crate::support::{Patterned, SAMPLE_BYTES, engine, epoch, next, settings};
use lossfeed::loader::Next;
use lossfeed::sampler::{CostAware, Echo, Importance, Replay, SamplerSettings, Uniform};
use lossfeed::settings::OnError;
use lossfeed::{Engine, SampleId, Settings};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const SAMPLES: usize = 600;
/// What one sample takes where it lands: its bytes and an int64.
const LANDED: u64 = SAMPLE_BYTES as u64 + 8;

/// Three epochs in the consumer's own thread, scored after each batch: ids and weights, then what was hit and missed.
fn run(sampler: SamplerSettings, policy: Option<&str>, read_ahead: u64, source: Patterned) -> (Engine, Vec<u64>) {
    let with = Settings {
        workers: Some(0),
        read_ahead: Some(read_ahead),
        cache_bytes: 200 * RECORD_BYTES,
        on_error: OnError::Skip,
        policy: policy.map(str::to_owned),
        sampler,
        ..settings(16)
    };
    let explosive = Arc::clone(&source.explosive);
    let (unexploded, left) = (explosive.lock().unwrap().len(), || explosive.lock().unwrap().len());
    let engine = engine(source, with);
    let mut seen = Vec::new();
    let reads = policy != Some("icache") && read_ahead >= LANDED;
    for epoch_number in 0..3 {
        let iteration = engine.start_epoch().unwrap();
        let begun = Instant::now();
        while epoch_number == 0 && reads && stat(&engine, "read_ahead_bytes") == 0.0 && left() == unexploded {
            assert!(begun.elapsed() < Duration::from_secs(60), "nothing is read ahead");
            std::thread::yield_now();
        }
        while let Some(batch) = next(&engine, iteration).unwrap() {
            let ids = &batch.ticket.ids;
            seen.extend(ids.iter().map(|&id| u64::from(id)));
            seen.extend(batch.slot.weight().iter().map(|weight| u64::from(weight.to_bits())));
            let losses: Vec<f32> = ids.iter().map(|&id| loss_of(id, epoch_number)).collect();
            engine.apply_losses(&batch.ticket, &losses).unwrap();
            assert!(stat(&engine, "read_ahead_bytes") <= read_ahead as f64);
        }
    }
    engine.close();
    let counted = ["hits_total", "misses_total", "admitted_total", "evicted_total", "bad_samples_total"];
    seen.extend(counted.iter().map(|name| stat(&engine, name) as u64));
    (engine, seen)
}

fn all_samplers() -> Vec<(SamplerSettings, Option<&'static str>)> {
    vec![
        (SamplerSettings::default(), Some("lru")),
        (SamplerSettings::default(), Some("minio")),
        (SamplerSettings::Uniform(Uniform::default()), Some("lru")),
        (SamplerSettings::Uniform(Uniform { in_order: true, ..Uniform::default() }), Some("clrfu")),
        (SamplerSettings::Uniform(Uniform { replacement: true, ..Uniform::default() }), None),
        (SamplerSettings::default(), None),
        (SamplerSettings::Importance(Importance::default()), None),
        (SamplerSettings::CostAware(CostAware::default()), None),
        (SamplerSettings::Replay(Replay::default()), None),
        (SamplerSettings::Echo(Echo::default()), None),
        // It delivers others than those drawn: nothing is known ahead, and nothing read.
        (SamplerSettings::default(), Some("icache")),
    ]
}

#[test]
fn the_same_batches_and_hits_come_whatever_is_read_ahead() {
    let source = || {
        let mut source = Patterned::new(SAMPLES);
        source.bad = [3, 77, 401].into();
        source
    };
    for (sampler, policy) in all_samplers() {
        let (without, expected) = run(sampler, policy, 0, source());
        assert_eq!(stat(&without, "read_ahead_samples_total") + stat(&without, "read_ahead_late_total"), 0.0);
        let fetched = stat(&without, "fetched_samples_total");
        for read_ahead in [LANDED - 1, LANDED, 10 * LANDED, 100 * LANDED, 1 << 30] {
            let (engine, seen) = run(sampler, policy, read_ahead, source());
            assert_eq!(seen, expected, "{sampler:?} {policy:?} {read_ahead}");
            let on_time = stat(&engine, "read_ahead_samples_total");
            let late = stat(&engine, "read_ahead_late_total");
            let vain = stat(&engine, "read_ahead_vain_total");
            let reads = policy != Some("icache") && read_ahead >= LANDED;
            assert_eq!(on_time + late > 0.0, reads, "{sampler:?} {policy:?} {read_ahead}: {on_time} {late} {vain}");
            // Less what stayed from one epoch to the next.
            assert!(stat(&engine, "fetched_samples_total") <= fetched + vain);
            assert_eq!(stat(&engine, "read_ahead_bytes"), 0.0);
        }
    }
}

#[test]
fn a_source_that_panics_while_it_is_read_ahead_costs_nobody_a_batch() {
    let mut source = Patterned::new(SAMPLES);
    source.explodes_in = "lossfeed-ahead";
    source.explosive.lock().unwrap().extend(0..SAMPLES as SampleId);
    let explosive = Arc::clone(&source.explosive);
    let (engine, seen) = run(SamplerSettings::default(), Some("lru"), 40 * LANDED, source);
    let (_, expected) = run(SamplerSettings::default(), Some("lru"), 0, Patterned::new(SAMPLES));
    assert_eq!(seen, expected);
    assert!(explosive.lock().unwrap().len() < SAMPLES);
    drop(engine);
}

#[test]
fn samples_have_come_when_their_batch_is_asked_for() {
    let mut source = Patterned::new(SAMPLES);
    source.delay = Duration::from_millis(20);
    let engine = engine(source, Settings { read_ahead: Some(1 << 20), workers: Some(1), ..settings(16) });
    let iteration = engine.start_epoch().unwrap();
    // Nobody asks for a batch: what is read ahead of slots is all that is left of the epoch.
    let begun = Instant::now();
    while stat(&engine, "read_ahead_bytes") < ((SAMPLES - 5 * 16) as u64 * LANDED) as f64 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", engine.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
    // It may still be on its way, but it is asked for.
    let mut batches = 0;
    while next(&engine, iteration).unwrap().is_some() {
        batches += 1;
    }
    assert_eq!(batches, SAMPLES.div_ceil(16));
    let stats = ["read_ahead_samples_total", "read_ahead_late_total"].map(|name| stat(&engine, name));
    assert!(stats[0] > 0.8 * SAMPLES as f64, "{stats:?}");
    assert_eq!(stat(&engine, "fetched_samples_total"), SAMPLES as f64);
}

#[test]
fn a_pass_that_ends_early_lets_go_of_everything_and_the_next_one_begins_anew() {
    let mut source = Patterned::new(SAMPLES);
    source.delay = Duration::from_millis(1);
    let engine = engine(source, Settings { read_ahead: Some(100 * LANDED), workers: Some(3), ..settings(16) });
    for round in 0..60usize {
        let iteration = engine.start_epoch().unwrap();
        for _ in 0..round % 7 {
            assert!(next(&engine, iteration).unwrap().is_some());
        }
        if round % 3 == 0 {
            engine.abandon(iteration);
        }
    }
    let iteration = engine.start_epoch().unwrap();
    let mut ids: Vec<SampleId> = Vec::new();
    while let Some(batch) = next(&engine, iteration).unwrap() {
        ids.extend_from_slice(&batch.ticket.ids);
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..SAMPLES as SampleId).collect::<Vec<_>>());
    assert!(matches!(engine.next_batch(iteration, Duration::ZERO), Ok(Next::End)));
    engine.close();
    assert_eq!(stat(&engine, "read_ahead_bytes"), 0.0);
}

fn uniform(read_ahead: u64, workers: usize) -> Settings {
    let sampler = SamplerSettings::Uniform(Uniform::default());
    Settings { sampler, workers: Some(workers), read_ahead: Some(read_ahead), ..settings(16) }
}

/// Waits for something that other threads bring about.
#[track_caller]
fn until(what: &str, engine: &Engine, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {:?}", engine.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_next_epochs_first_batches_are_there_when_it_begins() {
    for workers in [0, 2] {
        let source = Patterned::new(SAMPLES);
        let (fetches, shut) = (Arc::clone(&source.fetches), Arc::clone(&source.shut));
        // In order, so that nobody is wanted at the end of one epoch and at the start of the next.
        let sampler = SamplerSettings::Uniform(Uniform { in_order: true, ..Uniform::default() });
        let engine = engine(source, Settings { sampler, ..uniform(100 * LANDED, workers) });
        for epoch_number in 0..3 {
            let iteration = engine.start_epoch().unwrap();
            let mut ids = Vec::new();
            let mut take = |batches: usize| {
                for _ in 0..batches {
                    ids.extend_from_slice(&next(&engine, iteration).unwrap().unwrap().ticket.ids);
                }
            };
            let first = if epoch_number == 0 { 0 } else { 3 };
            {
                // The source answers nobody, and the batches come.
                let _shut = (epoch_number > 0).then(|| shut.write().unwrap());
                take(first);
            }
            take(SAMPLES.div_ceil(16) - first);
            assert!(next(&engine, iteration).unwrap().is_none());
            assert_eq!(ids, (0..SAMPLES as SampleId).collect::<Vec<_>>());
            // Everything that was asked for has come: of each epoch each sample once, and what is held for the next. If
            // the first samples of this epoch stayed for the next, less is fetched; then nothing comes any more.
            let last = Cell::new((0, Instant::now()));
            until("nothing is read for the next epoch", &engine, || {
                let (held, fetched) = (stat(&engine, "read_ahead_bytes") as u64 / LANDED, fetches.load(Relaxed));
                if last.get().0 != fetched {
                    last.set((fetched, Instant::now()));
                }
                let all = fetched == (epoch_number + 1) * SAMPLES as u64 + held;
                held >= 50 && (all || last.get().1.elapsed() > Duration::from_secs(2))
            });
        }
        assert_eq!(stat(&engine, "read_ahead_vain_total"), 0.0);
        engine.close();
        assert!(stat(&engine, "read_ahead_vain_total") >= 50.0);
        assert_eq!(stat(&engine, "fetched_samples_total"), fetches.load(Relaxed) as f64);
    }
}

#[test]
fn a_sample_that_stays_for_the_next_epoch_is_counted_once() {
    let source = Patterned::new(SAMPLES);
    let fetches = Arc::clone(&source.fetches);
    // No cache, and room for all.
    let kept = engine(source, uniform(1 << 20, 2));
    let none = engine(Patterned::new(SAMPLES), uniform(0, 2));
    for _ in 0..4 {
        assert_eq!(epoch(&kept, |_| ()), epoch(&none, |_| ()));
        until("not everything is there for the next epoch", &kept, || {
            stat(&kept, "read_ahead_bytes") == (SAMPLES as u64 * LANDED) as f64
        });
    }
    kept.close();
    assert_eq!(stat(&kept, "fetched_samples_total"), fetches.load(Relaxed) as f64);
    assert_eq!(stat(&kept, "hits_total"), 0.0);
}

#[test]
fn what_was_read_for_an_epoch_that_does_not_come_is_let_go_of_and_a_state_does_not_tell() {
    let make = |read_ahead| {
        let cache_bytes = 100 * RECORD_BYTES;
        let with = Settings { cache_bytes, policy: Some("lru".into()), ..uniform(read_ahead, 0) };
        engine(Patterned::new(SAMPLES), with)
    };
    // Whole epochs, one that is left early, others than the next, and a state that is put back, once in mid-epoch.
    let run = |engine: &Engine, foreseen: &dyn Fn(&Engine)| {
        let mut seen: Vec<Vec<SampleId>> = Vec::new();
        let mut take = |batches: usize| {
            let iteration = engine.start_epoch().unwrap();
            let mut ids = Vec::new();
            for _ in 0..batches {
                ids.extend_from_slice(&next(engine, iteration).unwrap().unwrap().ticket.ids);
            }
            seen.push(ids);
            iteration
        };
        let whole = SAMPLES.div_ceil(16);
        let mut states = Vec::new();
        take(whole);
        foreseen(engine);
        states.push(engine.state().unwrap());
        engine.set_epoch(7).unwrap();
        take(whole);
        foreseen(engine);
        let left = take(5);
        states.push(engine.state().unwrap());
        engine.abandon(left);
        take(whole);
        foreseen(engine);
        engine.load_state(&states[1]).unwrap();
        take(whole - 5);
        foreseen(engine);
        engine.load_state(&states[0]).unwrap();
        take(whole);
        engine.set_epoch(1).unwrap();
        take(whole);
        states.push(engine.state().unwrap());
        engine.close();
        let counted = ["hits_total", "misses_total", "admitted_total", "evicted_total"];
        (seen, states, counted.map(|name| stat(engine, name) as u64))
    };
    let expected = run(&make(0), &|_| ());
    for read_ahead in [40 * LANDED, 1 << 30] {
        let engine = make(read_ahead);
        let foreseen = |engine: &Engine| {
            until("nothing is foreseen", engine, || stat(engine, "read_ahead_bytes") >= 20.0 * LANDED as f64);
        };
        let (seen, states, counted) = run(&engine, &foreseen);
        assert_eq!((seen, counted), (expected.0.clone(), expected.2), "{read_ahead}");
        assert!(states == expected.1, "a state tells what was read ahead");
        // Where there is room for all, it may all have been of use to the epoch before.
        let vain = stat(&engine, "read_ahead_vain_total");
        assert!(vain > 0.0 || read_ahead > SAMPLES as u64 * LANDED, "{:?}", engine.stats());
        assert_eq!(stat(&engine, "read_ahead_bytes"), 0.0);
    }
}

#[test]
fn nothing_is_read_for_an_epoch_that_scores_will_decide() {
    let sampler = SamplerSettings::Importance(Importance::default());
    let engine = engine(Patterned::new(SAMPLES), Settings { sampler, ..uniform(1 << 20, 0) });
    for _ in 0..2 {
        epoch(&engine, |batch| {
            let losses: Vec<f32> = batch.ticket.ids.iter().map(|&id| loss_of(id, 0)).collect();
            engine.apply_losses(&batch.ticket, &losses).unwrap();
        });
        assert_eq!(stat(&engine, "read_ahead_bytes"), 0.0);
    }
    let distinct = stat(&engine, "fetched_samples_total") - stat(&engine, "read_ahead_vain_total");
    assert!(distinct <= 2.0 * SAMPLES as f64);
}
