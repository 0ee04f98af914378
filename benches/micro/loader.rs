//! What the engine's loader costs without Python: samples a second, cold and warm, beside the machine's gather bound.
//!
//! `LOSSFEED_CIFAR=DIR cargo bench -p lossfeed-benches --bench loader` with DIR holding `train-*.tar`. One line of JSON.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use lossfeed::loader::Next;
use lossfeed::sampler::SamplerSettings;
use lossfeed::settings::CacheForm;
use lossfeed::source::{ImageMode, OpenOptions, open};
use lossfeed::{Dataset, Engine, Settings};
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
                touched += u64::from(batch.slot.data()[0]);
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

fn main() {
    let Some(data) = std::env::var_os("LOSSFEED_CIFAR") else {
        println!("LOSSFEED_CIFAR is not set: no shards to load, nothing measured");
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
