//! What a simulated cluster is asked to do.

use lossfeed_control::jobs::{Dataset, HitCurve, Resources, above_zero, amount};
use lossfeed_control::{Error, Result};
use serde::{Deserialize, Serialize};

/// A job that is to come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Submitted {
    /// What it is called.
    pub name: String,
    /// When it comes, in seconds.
    pub arrives_s: f64,
    /// GPUs that it needs, all at once.
    pub gpus: u32,
    /// How long it runs if it never waits for data, in seconds.
    pub ideal_s: f64,
    /// What it reads; nothing if it makes its own data.
    pub reads: Option<Reads>,
}

/// What a job reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reads {
    /// The [`Dataset`], by its place in the list.
    pub dataset: usize,
    /// Bytes a second, if it never waits for data.
    pub ideal_bytes_per_s: f64,
    /// What share of its reads the cache answers, by how much of its dataset was cached when the epoch began.
    pub hits: HitCurve,
}

/// A cluster and the jobs that come to it, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    gpus: u32,
    resources: Resources,
    datasets: Vec<Dataset>,
    jobs: Vec<Submitted>,
}

impl Workload {
    /// Checks all numbers.
    ///
    /// # Errors
    /// `Settings` for an amount that is negative or not finite, a job that takes no time or no GPU or more of them than
    /// there are, or one whose dataset does not exist.
    pub fn new(gpus: u32, resources: Resources, datasets: Vec<Dataset>, jobs: Vec<Submitted>) -> Result<Self> {
        amount("the cache", resources.cache_bytes, "bytes")?;
        amount("the link", resources.bandwidth_bytes_per_s, "bytes a second")?;
        for dataset in &datasets {
            above_zero(&format!("dataset {}", dataset.name), dataset.bytes, "bytes")?;
        }
        for job in &jobs {
            let name = format!("job {}", job.name);
            amount(&format!("the arrival of {name}"), job.arrives_s, "seconds")?;
            above_zero(&name, job.ideal_s, "seconds of work")?;
            if job.gpus == 0 || job.gpus > gpus {
                return Err(Error::settings(format!("{name} needs {} GPUs of {gpus}: give more GPUs", job.gpus)));
            }
            let Some(reads) = &job.reads else { continue };
            above_zero(&name, reads.ideal_bytes_per_s, "bytes a second")?;
            if reads.dataset >= datasets.len() {
                let (number, count) = (reads.dataset, datasets.len());
                return Err(Error::settings(format!(
                    "{name} reads dataset number {number}, and there are {count}, counted from 0"
                )));
            }
        }
        Ok(Self { gpus, resources, datasets, jobs })
    }
    /// How many GPUs there are.
    pub fn gpus(&self) -> u32 {
        self.gpus
    }
    /// Cache and link.
    pub fn resources(&self) -> Resources {
        self.resources
    }
    /// The datasets.
    pub fn datasets(&self) -> &[Dataset] {
        &self.datasets
    }
    /// The jobs, in the order in which they were given.
    pub fn jobs(&self) -> &[Submitted] {
        &self.jobs
    }
}
