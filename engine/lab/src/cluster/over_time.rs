//! Means over a run's time: its fairness, and the part of the allocated cache that can be hit.

use lossfeed_control::jobs::{Cluster, Dataset, Job, equal_split};

use super::{Moment, Workload};

/// Sums over a run's moments. Moments without a job that reads do not count.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct OverTime {
    lasted_s: f64,
    fair_s: f64,
    allocated: f64,
    effective: f64,
}

impl OverTime {
    /// Adds a moment of the run of `workload`.
    pub fn add(&mut self, workload: &Workload, moment: &Moment<'_>) {
        let jobs = workload.jobs();
        let wanted: f64 = moment.jobs.iter().map(|job| f64::from(jobs[job.0].gpus)).sum();
        // Each runs for this part of its time, which an equal split changes for none.
        let share = moment.gpus / wanted.max(1.0);
        let mut place_of = vec![usize::MAX; workload.datasets().len()];
        let (mut datasets, mut readers, mut rates) = (Vec::new(), Vec::new(), Vec::new());
        for &(job, _, rate, _) in moment.jobs {
            let Some(reads) = &jobs[job].reads else { continue };
            if place_of[reads.dataset] == usize::MAX {
                place_of[reads.dataset] = datasets.len();
                datasets.push(Dataset { name: String::new(), bytes: workload.datasets()[reads.dataset].bytes });
            }
            readers.push(Job {
                name: String::new(),
                dataset: place_of[reads.dataset],
                ideal_bytes_per_s: reads.ideal_bytes_per_s * share,
                hits: reads.hits.clone(),
            });
            rates.push(rate);
        }
        let cluster = Cluster::of_checked(workload.resources(), datasets, readers);
        let equal = equal_split(&cluster).rates(&cluster);
        let ratios = rates.iter().zip(&equal).filter(|(_, equal)| **equal > 0.0).map(|(rate, equal)| rate / equal);
        let Some(least) = ratios.reduce(f64::min) else { return };
        self.fair_s += moment.lasts_s * least;
        self.lasted_s += moment.lasts_s;
        self.allocated += moment.lasts_s * moment.cache_bytes.iter().sum::<f64>();
        self.effective += moment.lasts_s * moment.effective_bytes.iter().sum::<f64>();
    }
    /// The least rate over that of an equal split of cache and link, of the jobs that run (SiloD's Eq. 8), as a mean
    /// over time.
    pub fn fairness(&self) -> f64 {
        self.fair_s / self.lasted_s
    }
    /// Bytes that can be hit, of those that are allocated (SiloD's Fig. 8).
    pub fn effective(&self) -> f64 {
        self.effective / self.allocated
    }
}
