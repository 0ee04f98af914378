//! What the engine's loader costs without Python: samples a second, cold and warm, beside the machine's gather bound.
//!
//! `cargo bench -p lossfeed-benches --bench loader` measures rows of CIFAR-10's shape in memory, as they are and in a
//! cache; with `LOSSFEED_CIFAR=DIR`, DIR holding `train-*.tar`, also pictures. Lines of JSON.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use lossfeed::loader::Next;
use lossfeed::sampler::SamplerSettings;
use lossfeed::settings::CacheForm;
use lossfeed::source::{Arrays, ImageMode, OpenOptions, open};
use lossfeed::{Dataset, Dtype, Engine, Settings, TensorSpec};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BATCH: usize = 256;

/// Samples a second of one epoch.
fn epoch(engine: &Engine) -> f64 {
    let started = Instant::now();
    let iteration = engine.start_epoch().unwrap();
    let (mut samples, mut touched) = (0, 0u64);
    loop {
        match engine.next_batch(iteration, Duration::from_secs(1)).unwrap() {
            Next::Batch(batch) => {
                samples += batch.rows;
                touched += u64::from(batch.slot.data().unwrap()[0]);
            }
            Next::End => break,
            Next::Pending => {}
        }
    }
    std::hint::black_box(touched);
    samples as f64 / started.elapsed().as_secs_f64()
}

/// Random rows of decoded samples copied into one batch buffer, one thread: the bound of the warm case.
fn gather(samples: usize, row: usize) -> f64 {
    let pool: Vec<u8> = (0..samples * row).map(|i| i as u8).collect();
    let mut out = vec![0u8; BATCH * row];
    let mut at = 1u32;
    let started = Instant::now();
    let batches = 4 * samples / BATCH;
    for _ in 0..batches {
        for place in out.chunks_exact_mut(row) {
            at = at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let from = (at as usize % samples) * row;
            place.copy_from_slice(&pool[from..from + row]);
        }
        std::hint::black_box(&out);
    }
    (batches * BATCH) as f64 / started.elapsed().as_secs_f64()
}

/// The median of rounds in which all take their turn, so that a clock that drifts moves all of them.
fn in_turns<const N: usize>(rounds: usize, mut measure: impl FnMut(usize) -> f64) -> [f64; N] {
    let mut seen = [const { Vec::new() }; N];
    for _ in 0..rounds {
        seen.iter_mut().enumerate().for_each(|(k, seen)| seen.push(measure(k)));
    }
    seen.map(|mut seen| {
        seen.sort_by(f64::total_cmp);
        seen[seen.len() / 2]
    })
}

/// Rows in memory, and the same in a cache that holds them all.
fn rows() {
    let (samples, spec) = (50_000, TensorSpec::new(Dtype::U8, [32, 32, 3]));
    let row = spec.bytes();
    for workers in [0, 1, 2] {
        let engines = [0, 1 << 30].map(|cache_bytes| {
            let (data, labels) = ((0..samples * row).map(|i| i as u8).collect::<Vec<u8>>(), vec![0u8; 8 * samples]);
            let source = Arrays::new(data, spec.clone(), labels, TensorSpec::class_index(), samples).unwrap();
            let dataset = Dataset::new(Arc::new(source), ImageMode::Auto, None).unwrap();
            let (workers, drop_last) = (Some(workers), true);
            let settings =
                Settings { batch_size: BATCH, drop_last, cache_bytes, workers, stats: false, ..Settings::default() };
            let engine = Engine::new(dataset, settings).unwrap();
            epoch(&engine);
            engine
        });
        let [arrays, cached, bound] = in_turns(15, |k| engines.get(k).map_or_else(|| gather(samples, row), epoch));
        println!(
            "{{\"workers\":{workers},\"arrays\":{arrays:.0},\"arrays_cached\":{cached:.0},\"gather\":{bound:.0},\"fractions\":[{:.2},{:.2}]}}",
            arrays / bound,
            cached / bound
        );
    }
}

fn main() {
    rows();
    let Some(data) = std::env::var_os("LOSSFEED_CIFAR") else {
        println!("LOSSFEED_CIFAR is not set: no shards to load");
        return;
    };
    let pattern = format!("{}/train-*.tar", data.to_string_lossy());
    let source = open(&pattern, &OpenOptions::default()).unwrap();
    let dataset = Dataset::new(source, ImageMode::Auto, None).unwrap();
    let row = dataset.spec().bytes();
    let samples = dataset.source.len();
    let make = |cache_bytes, cache_form, workers| {
        let sampler = SamplerSettings::from_name("uniform").unwrap();
        let workers = Some(workers);
        let settings = Settings {
            batch_size: BATCH,
            drop_last: true,
            cache_bytes,
            cache_form,
            sampler,
            workers,
            stats: false,
            ..Settings::default()
        };
        Engine::new(dataset.clone(), settings).unwrap()
    };
    let all = 8 << 30;
    for workers in [0, 1, 2] {
        let cold = epoch(&make(0, CacheForm::Encoded, workers));
        let best = |engine: Engine| {
            epoch(&engine);
            (0..5).map(|_| epoch(&engine)).fold(0.0, f64::max)
        };
        let encoded = best(make(all, CacheForm::Encoded, workers));
        let decoded = best(make(all, CacheForm::Decoded, workers));
        println!(
            "{{\"workers\":{workers},\"cold\":{cold:.0},\"warm_encoded\":{encoded:.0},\"warm_decoded\":{decoded:.0},\"gather\":{:.0}}}",
            gather(samples, row)
        );
    }
}
