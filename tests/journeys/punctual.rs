//! What is delivered was a hit, or it was on time, or late: the three are all, whatever the run does.

use super::{RECORD_BYTES, loss_of, stat};
use crate::support::{Patterned, engine, next, settings};
use lossfeed::engine::Dataset;
use lossfeed::sampler::{Replay, SamplerSettings, Uniform};
use lossfeed::settings::OnError;
use lossfeed::source::{Arrays, ImageMode};
use lossfeed::{Dtype, Engine, Settings, TensorSpec};
use std::sync::Arc;

const SAMPLES: usize = 300;

/// Delivered in three epochs, and of these hits, on time and late.
fn counted(engine: &Engine) -> [u64; 4] {
    ["samples_total", "hits_total", "on_time_total", "late_total"].map(|name| stat(engine, name) as u64)
}

/// Three epochs, scored. Rows that came, counted here.
fn run(engine: &Engine) -> u64 {
    let mut rows = 0;
    for epoch in 0..3 {
        let pass = engine.start_epoch().unwrap();
        while let Some(batch) = next(engine, pass).unwrap() {
            rows += batch.ticket.ids.len() as u64;
            let losses: Vec<f32> = batch.ticket.ids.iter().map(|&id| loss_of(id, epoch)).collect();
            engine.apply_losses(&batch.ticket, &losses).unwrap();
        }
    }
    rows
}

fn modes() -> Vec<Settings> {
    let mut modes = Vec::new();
    for workers in [0, 3] {
        for read_ahead in [0, 1 << 20] {
            for cached in [0, 100, SAMPLES as u64] {
                for policy in ["lru", "minio", "icache"] {
                    modes.push(Settings {
                        workers: Some(workers),
                        read_ahead: Some(read_ahead),
                        cache_bytes: cached * RECORD_BYTES,
                        policy: Some(policy.to_owned()),
                        ..settings(16)
                    });
                }
            }
        }
    }
    modes
}

#[test]
fn hits_and_those_on_time_and_late_are_all_that_is_delivered() {
    for mode in modes() {
        let substitutes = mode.policy.as_deref() == Some("icache");
        let uniform = SamplerSettings::Uniform(Uniform { replacement: true, ..Uniform::default() });
        let samplers =
            if substitutes { vec![SamplerSettings::default()] } else { vec![SamplerSettings::default(), uniform] };
        for sampler in samplers {
            let mode = Settings { sampler, ..mode.clone() };
            let told = format!("{:?} {:?} {} {:?}", mode.workers, mode.read_ahead, mode.cache_bytes, mode.policy);
            let (reads, no_cache) = (mode.read_ahead > Some(0), mode.cache_bytes == 0);
            let inline = mode.workers == Some(0);
            let engine = engine(Patterned::new(SAMPLES), mode);
            let rows = run(&engine);
            let [delivered, hits, on_time, late] = counted(&engine);
            assert_eq!((delivered, hits + on_time + late), (rows, rows), "{told}: {hits} {on_time} {late}");
            assert_eq!(hits, rows - stat(&engine, "misses_total") as u64, "{told}");
            if !reads {
                assert_eq!(on_time, 0, "{told}: every batch waits for its own");
            } else if inline {
                // What was read for a batch and had come at the first look lay ready; a sample may be in it twice.
                assert!(on_time >= stat(&engine, "read_ahead_samples_total") as u64, "{told}");
            }
            assert!(!no_cache || hits == 0, "{told}");
            let ratio = if on_time + late == 0 { 0.0 } else { on_time as f64 / (on_time + late) as f64 };
            assert_eq!(stat(&engine, "on_time_ratio"), ratio);
            engine.close();
        }
    }
}

#[test]
fn bad_samples_are_late_or_not_delivered() {
    for (on_error, per_step) in [(OnError::Skip, false), (OnError::Substitute, true)] {
        for mode in modes().into_iter().filter(|mode| mode.policy.as_deref() != Some("icache")) {
            let inline = mode.workers == Some(0);
            let mut source = Patterned::new(SAMPLES);
            source.bad = [3, 77, 150, 151].into();
            // An order in which every sample comes once.
            let sampler = SamplerSettings::Uniform(Uniform::default());
            let engine = engine(source, Settings { on_error, sampler, ..mode });
            let rows = run(&engine);
            let [delivered, hits, on_time, late] = counted(&engine);
            assert_eq!(delivered, rows);
            assert_eq!(rows, if per_step { 3 * SAMPLES as u64 } else { 3 * (SAMPLES as u64 - 4) });
            // Several threads may decide on a sample as a hit before it turns out to be bad.
            let sum = hits + on_time + late;
            assert!(if inline { sum == rows } else { on_time + late <= rows && sum >= rows }, "{sum} of {rows}");
            engine.close();
        }
    }
}

#[test]
fn what_lies_in_the_source_s_memory_is_always_on_time() {
    for (workers, cached) in [(0, 0), (3, 0), (0, 40), (3, 40)] {
        for replay in [false, cached > 0] {
            let spec = TensorSpec::new(Dtype::U8, [48]);
            let arrays =
                Arrays::new(vec![7; 48 * SAMPLES], spec, vec![0; 8 * SAMPLES], TensorSpec::class_index(), SAMPLES);
            let dataset = Dataset::new(Arc::new(arrays.unwrap()), ImageMode::Auto, None).unwrap();
            let sampler = if replay { SamplerSettings::Replay(Replay::default()) } else { SamplerSettings::default() };
            let with = Settings { workers: Some(workers), cache_bytes: cached * RECORD_BYTES, sampler, ..settings(16) };
            let engine = Engine::new(dataset, with).unwrap();
            let mut rows = 0;
            for _ in 0..3 {
                let pass = engine.start_epoch().unwrap();
                while let lossfeed::loader::Next::Batch(batch) =
                    engine.next_batch(pass, std::time::Duration::from_secs(60)).unwrap()
                {
                    rows += batch.rows as u64;
                }
            }
            let [delivered, hits, on_time, late] = counted(&engine);
            assert_eq!(
                (delivered, hits + on_time),
                (rows, rows),
                "{workers} {cached} {replay}: {hits} {on_time} {late}"
            );
            engine.close();
        }
    }
}
