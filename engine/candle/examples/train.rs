//! Trains a small candle model in pure Rust, fed by the engine and steered by its own losses.
//!
//! ```text
//! cargo run --release -p lossfeed-candle --example train                       # generated clusters, some of them noisy
//! cargo run --release -p lossfeed-candle --example train -- FOLDER 10 uniform  # class-per-folder images, epochs, sampler
//! ```
//!
//! Each epoch prints its mean loss, the share of requests that the cache answered, and what was fetched from the
//! source.
#![allow(missing_docs)]

use std::error::Error;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use candle_nn::{AdamW, Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, linear};
use lossfeed::engine::Dataset;
use lossfeed::sampler::SamplerSettings;
use lossfeed::source::{Arrays, ImageMode, Resize, open};
use lossfeed::{Dtype, Engine, Settings, TensorSpec};
use lossfeed_candle::{Batch, Loader, Options};

/// Generated samples: bytes, as images are.
const SAMPLES: usize = 4096;
const WIDTH: usize = 64;
const CLASSES: usize = 10;

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Summary {
    /// Mean loss of every epoch, as seen while training.
    pub(crate) losses: Vec<f64>,
    /// Share of requests answered by the cache, over the run.
    pub(crate) hit_ratio: f64,
    /// Samples read from the source, over the run.
    pub(crate) fetched: f64,
}

/// Two layers over flattened bytes.
struct Model {
    hidden: Linear,
    out: Linear,
}

impl Model {
    fn new(width: usize, classes: usize, vars: VarBuilder<'_>) -> candle_core::Result<Self> {
        Ok(Self { hidden: linear(width, 128, vars.pp("hidden"))?, out: linear(128, classes, vars.pp("out"))? })
    }

    fn forward(&self, batch: &Batch) -> candle_core::Result<Tensor> {
        let x = (batch.data.flatten_from(1)?.to_dtype(DType::F32)? / 127.5)?;
        self.out.forward(&self.hidden.forward(&(x - 1.0)?)?.relu()?)
    }
}

/// Clusters of bytes around one centre a class; every fourth class is spread widely, so that some samples are hard.
fn generated() -> Result<Arrays, Box<dyn Error>> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 24) as f32
    };
    let centres: Vec<f32> = (0..CLASSES * WIDTH).map(|_| 64.0 + 128.0 * random()).collect();
    let mut data = Vec::with_capacity(SAMPLES * WIDTH);
    let mut labels = Vec::with_capacity(SAMPLES);
    for sample in 0..SAMPLES {
        let class = sample % CLASSES;
        let spread = if class.is_multiple_of(4) { 300.0 } else { 60.0 };
        data.extend((0..WIDTH).map(|k| (centres[class * WIDTH + k] + spread * (random() - 0.5)) as u8));
        labels.extend((class as i64).to_ne_bytes());
    }
    let spec = TensorSpec::new(Dtype::U8, [WIDTH]);
    Ok(Arrays::new(data, spec, labels, TensorSpec::class_index(), SAMPLES)?)
}

/// Trains for `epochs` on images below `folder`, or on generated data.
pub(crate) fn run(folder: Option<&str>, epochs: usize, sampler: &str) -> Result<Summary, Box<dyn Error>> {
    let (dataset, classes) = match folder {
        Some(path) => {
            let source = open(path, &Default::default())?;
            // Labels of shards are numbers that may have no names.
            let labels = source.labels().and_then(|l| l.iter().max()).map_or(0, |&l| l as usize + 1);
            let classes = source.classes().len().max(labels);
            (Dataset::new(source, ImageMode::Rgb, Some(Resize { to: (32, 32), crop: None }))?, classes)
        }
        None => (Dataset::new(Arc::new(generated()?), ImageMode::Auto, None)?, CLASSES),
    };
    let (samples, width) = (dataset.source.len(), dataset.spec().shape.iter().product());
    // Room for about a fifth of the samples.
    let bytes = (0..samples as u32).map(|id| dataset.source.payload_bytes(id)).sum::<u64>();
    let settings = Settings {
        batch_size: 64.min(samples),
        cache_bytes: (bytes / 5).max(1 << 16),
        sampler: SamplerSettings::from_name(sampler)?,
        ..Settings::default()
    };
    let loader = Loader::new(Arc::new(Engine::new(dataset, settings)?), Device::Cpu);
    let vars = VarMap::new();
    let model = Model::new(width, classes, VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu))?;
    let mut optimizer = AdamW::new(vars.all_vars(), ParamsAdamW { lr: 1e-3, ..Default::default() })?;

    let stat = |name| loader.engine().stats().into_iter().find(|(n, _)| n == name).map_or(0.0, |(_, value)| value);
    let mut losses = Vec::new();
    let mut before = (0.0, 0.0, 0.0);
    println!("{samples} samples, {classes} classes, sampler {sampler}");
    println!("epoch     loss   hits  fetched");
    for epoch in 0..epochs {
        let (mut sum, mut batches) = (0.0, 0.0);
        for batch in loader.epoch()? {
            let batch = batch?;
            // The whole hook: the loss to descend, and the scores on their way home.
            let loss = loader.cross_entropy(&model.forward(&batch)?, &batch, &Options::default())?;
            optimizer.backward_step(&loss)?;
            sum += f64::from(loss.to_scalar::<f32>()?);
            batches += 1.0;
        }
        loader.flush()?;
        let now = (stat("hits_total"), stat("requests_total"), stat("fetched_samples_total"));
        let hits = (now.0 - before.0) / (now.1 - before.1);
        losses.push(sum / batches);
        println!("{epoch:5} {:8.4} {:5.1}% {:8}", sum / batches, 100.0 * hits, now.2 - before.2);
        before = now;
    }
    Ok(Summary { losses, hit_ratio: stat("hit_ratio"), fetched: stat("fetched_samples_total") })
}

#[allow(dead_code)] // Also a module of `tests/example.rs`, which calls `run`.
fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize| arguments.get(at).map(String::as_str);
    let epochs = argument(1).unwrap_or("6").parse()?;
    let summary = run(argument(0), epochs, argument(2).unwrap_or("cost-aware"))?;
    println!(
        "{} epochs: {:.1}% of requests answered by the cache, {} samples fetched",
        summary.losses.len(),
        100.0 * summary.hit_ratio,
        summary.fetched
    );
    Ok(())
}
