//! Several training jobs, one cache and one link to the store: who gets how much of both.
//!
//! A job that is never waited for reads its dataset at its ideal rate f*. Of what it reads a share h comes from the
//! cache, and the rest over the link. With b bytes a second of the link it therefore runs at min(f*, b / (1 − h))
//! (SiloD, EuroSys'23, Eq. 4). SiloD has h = cached / dataset, which is true of plain epochs over a cache that evicts
//! nobody before its use; here every job may bring the [`HitCurve`] that was measured of it.
//!
//! Cache is given to datasets, not to jobs: jobs that read the same one share what is cached of it. [`cache_for`]
//! divides it so that the least is left to be fetched, and SiloD's ways of sharing build on it: [`fifo`] and [`sjf`]
//! share the link fairly, [`max_min`] raises the job that is worst off. [`in_order`] gives the link to the first that
//! asks, [`by_aiv`] is iCACHE's way. [`at_present`] divides among jobs that run, by what is cached of each now.

mod aiv;
mod curve;
mod dlcache;
mod form;
mod link;
mod present;
mod share;

pub use aiv::{BENEFIT_MIN, PROBE_BATCHES, aggregated, benefit, by_aiv, expected_benefits};
pub use curve::HitCurve;
pub use dlcache::{Loading, NodeView, Placement, place, placement_scores, workers};
pub use form::{Form, Forms, Means, Samples, choose_forms};
pub use link::{Filler, fill};
pub use present::{Present, Way, at_present};
pub use share::{
    Allocation, Fair, cache_for, equal_split, fifo, in_order, least_share, max_min, max_min_within, rate, sjf,
};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What there is to be shared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Bytes of cache.
    pub cache_bytes: f64,
    /// Bytes a second from the store.
    pub bandwidth_bytes_per_s: f64,
}

/// One dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dataset {
    /// What it is called.
    pub name: String,
    /// Its size: caching more of it is of no use.
    pub bytes: f64,
}

/// One job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// What it is called.
    pub name: String,
    /// The [`Dataset`] it reads, by its place in the list.
    pub dataset: usize,
    /// Bytes a second that it reads if it never waits for data.
    pub ideal_bytes_per_s: f64,
    /// What share of its reads the cache answers, by how much of its dataset is cached.
    pub hits: HitCurve,
}

/// Jobs, datasets and what they share, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    resources: Resources,
    datasets: Vec<Dataset>,
    jobs: Vec<Job>,
}

impl Cluster {
    /// Checks all numbers.
    ///
    /// # Errors
    /// `Settings` for an amount that is negative or not finite, a dataset or job that reads nothing, or a job whose
    /// dataset does not exist.
    pub fn new(resources: Resources, datasets: Vec<Dataset>, jobs: Vec<Job>) -> Result<Self> {
        amount("the cache", resources.cache_bytes, "bytes")?;
        amount("the link", resources.bandwidth_bytes_per_s, "bytes a second")?;
        for dataset in &datasets {
            above_zero(&format!("dataset {}", dataset.name), dataset.bytes, "bytes")?;
        }
        for job in &jobs {
            above_zero(&format!("job {}", job.name), job.ideal_bytes_per_s, "bytes a second")?;
            if job.dataset >= datasets.len() {
                return Err(Error::settings(format!(
                    "job {} reads dataset number {}, and there are {}, counted from 0",
                    job.name,
                    job.dataset,
                    datasets.len()
                )));
            }
        }
        Ok(Self { resources, datasets, jobs })
    }
    /// The same of what was checked before.
    pub fn of_checked(resources: Resources, datasets: Vec<Dataset>, jobs: Vec<Job>) -> Self {
        Self { resources, datasets, jobs }
    }
    /// What is shared.
    pub fn resources(&self) -> Resources {
        self.resources
    }
    /// The datasets.
    pub fn datasets(&self) -> &[Dataset] {
        &self.datasets
    }
    /// The jobs.
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }
}

/// Checks an amount.
///
/// # Errors
/// `Settings` if it is negative or not finite.
pub fn amount(what: &str, value: f64, unit: &str) -> Result<()> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(Error::settings(format!("{what} has {value} {unit}: give a finite number that is not negative")))
}

/// Checks an amount of which there must be some.
///
/// # Errors
/// `Settings` if it is not above 0, or not finite.
pub fn above_zero(what: &str, value: f64, unit: &str) -> Result<()> {
    amount(what, value, unit)?;
    if value > 0.0 { Ok(()) } else { Err(Error::settings(format!("{what} has {value} {unit}: give a number above 0"))) }
}
