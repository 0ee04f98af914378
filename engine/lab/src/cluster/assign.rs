//! What the jobs of a trace read, where the trace does not say: assigned by a seed.

use std::collections::BTreeMap;

use lossfeed_control::Result;
use lossfeed_control::jobs::{Dataset, HitCurve};
use lossfeed_control::random::{Purpose, below, generator, unit};

use super::{Reads, Submitted, Throughputs, TraceJob};

/// One model on one dataset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// Model and dataset.
    pub name: &'static str,
    /// The dataset's size.
    pub bytes: f64,
    /// Bytes a second that one GPU (a V100) asks for, if it never waits.
    pub bytes_per_s_a_gpu: f64,
}

const TIB: f64 = 1_099_511_627_776.0;

/// What is drawn from, each as likely as the others: models and datasets as in SiloD's evaluation, in round numbers.
/// They are assumptions of whoever reads a result made with them, so every result names them.
pub const READINGS: [Reading; 6] = [
    Reading { name: "ResNet-50 on ImageNet-1k", bytes: 143e9, bytes_per_s_a_gpu: 114e6 },
    Reading { name: "ResNet-50 on ImageNet-22k", bytes: 1.3 * TIB, bytes_per_s_a_gpu: 114e6 },
    Reading { name: "EfficientNet-B1 on ImageNet-22k", bytes: 1.3 * TIB, bytes_per_s_a_gpu: 69e6 },
    Reading { name: "ResNet-50 on Open Images", bytes: 660e9, bytes_per_s_a_gpu: 114e6 },
    Reading { name: "EfficientNet-B1 on Open Images", bytes: 660e9, bytes_per_s_a_gpu: 69e6 },
    Reading { name: "BERT on WebSearch", bytes: 20.9 * TIB, bytes_per_s_a_gpu: 2e6 },
];

/// Part of the dataset in the cache, and part of the reads that hit: this project's cost-aware sampler on CIFAR-10
/// (κ 16, as it was on 2026-11-20).
pub const SCORED_HITS: (f64, f64) = (0.2, 0.62);

/// Assumptions about jobs, beyond what a trace says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assumed {
    /// The part of the jobs that choose samples by scores and hit as [`SCORED_HITS`] says. Others read plain epochs.
    pub scored: f64,
    /// The part of the jobs that share one copy of their dataset with each other; the others have one of their own.
    pub shared: f64,
    /// Speed of the GPUs, as a multiple of the trace's.
    pub gpu_speed: f64,
    /// Seed of every draw.
    pub seed: u64,
}

/// Gives every job that reads one of [`READINGS`], drawn as [`Assumed`] says.
///
/// # Errors
/// `Settings` for a kind of job whose throughput is not known, with the number of the job.
pub fn assign(
    jobs: &[TraceJob],
    throughputs: &Throughputs,
    assumed: Assumed,
) -> Result<(Vec<Dataset>, Vec<Submitted>)> {
    let Assumed { scored, shared, gpu_speed, seed } = assumed;
    let mut rng = generator(seed, 0, 0, Purpose::Draw);
    // From draws of its own, so that it changes no other.
    let mut sharing = generator(seed, 1, 0, Purpose::Draw);
    let mut common: BTreeMap<&str, usize> = BTreeMap::new();
    let mut datasets = Vec::new();
    let mut submitted = Vec::with_capacity(jobs.len());
    for (number, job) in jobs.iter().enumerate() {
        let drawn = READINGS[below(&mut rng, READINGS.len() as u32) as usize];
        let by_scores = unit(&mut rng) < scored;
        let name = format!("{} ({})", number + 1, job.kind);
        let reads = if job.reads {
            let hits = if by_scores {
                HitCurve::measured(&[(SCORED_HITS.0 * drawn.bytes, SCORED_HITS.1), (drawn.bytes, 1.0)])?
            } else {
                HitCurve::uniform(drawn.bytes)?
            };
            let data = drawn.name.rsplit(" on ").next().unwrap_or(drawn.name);
            let known = common.get(data).copied().filter(|_| unit(&mut sharing) < shared);
            let dataset = known.unwrap_or_else(|| {
                datasets.push(Dataset { name: format!("{data} of job {}", number + 1), bytes: drawn.bytes });
                datasets.len() - 1
            });
            common.entry(data).or_insert(dataset);
            let ideal_bytes_per_s = drawn.bytes_per_s_a_gpu * f64::from(job.gpus) * gpu_speed;
            Some(Reads { dataset, ideal_bytes_per_s, hits })
        } else {
            None
        };
        let ideal_s = throughputs.ideal_s(job)? / gpu_speed;
        submitted.push(Submitted { name, arrives_s: job.arrives_s, gpus: job.gpus, ideal_s, reads });
    }
    Ok((datasets, submitted))
}
