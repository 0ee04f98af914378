//! Reading ahead: it brings samples sooner and changes nothing else.

use super::{RECORD_BYTES, loss_of, stat};
use crate::support::{Patterned, SAMPLE_BYTES, engine, next, settings};
use lossfeed::loader::Next;
use lossfeed::sampler::{CostAware, Importance, Replay, SamplerSettings};
use lossfeed::settings::OnError;
use lossfeed::{Engine, SampleId, Settings};
use std::sync::Arc;
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
    let engine = engine(source, with);
    let mut seen = Vec::new();
    let reads = policy != Some("icache") && read_ahead >= LANDED;
    for epoch_number in 0..3 {
        let iteration = engine.start_epoch().unwrap();
        let begun = Instant::now();
        while epoch_number == 0 && reads && stat(&engine, "read_ahead_bytes") == 0.0 {
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
        (SamplerSettings::default(), None),
        (SamplerSettings::Importance(Importance::default()), None),
        (SamplerSettings::CostAware(CostAware::default()), None),
        (SamplerSettings::Replay(Replay::default()), None),
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
            assert_eq!(stat(&engine, "fetched_samples_total"), fetched + vain);
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
            engine.abandon(iteration, 0);
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
