//! Dividing cache and link among jobs that run: by what is cached now, not only by what will be.
//!
//! The cache is divided as for a steady state, since what a job gets of it pays for the rest of its life. The link is
//! divided by what each job misses at the moment: a job whose dataset will be cached wholly still has to fetch it once,
//! and would wait for ever on a link that is given to it as if its cache were full.

use super::aiv::{cache_by_value, expected_benefits};
use super::link::{fill, in_turns};
use super::share::{Pieces, cache_in_order_of_score, equal_split, max_min_of};
use super::{Allocation, Cluster, Job};

/// A resident byte counts this much more than one that has to be fetched: estimates that differ by less from one look
/// to the next move no cache.
const KEEPS: f64 = 1.1;

/// The part of the link that is given to all jobs alike, whatever they want: a job that gets nothing shows nothing of
/// what it needs.
const FOR_ALL: f64 = 0.01;

/// The state of a cluster's jobs at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Present<'a> {
    /// Bytes in the cache, by dataset.
    pub resident_bytes: &'a [f64],
    /// Share of the reads that the cache answers, by job.
    pub hits: &'a [f64],
}

/// A way to divide.
#[derive(Debug, Clone, Copy)]
pub enum Way<'a> {
    /// SiloD with Gavel's max-min fairness (Eq. 9): the least share of what an equal split would give is largest.
    MaxMin,
    /// SiloD with FIFO: Algorithm 2 divides the cache, and the link is fair.
    Fifo,
    /// SiloD with multi-resource SJF (Eq. 7), by the seconds that each job would still run if it never waited: cache
    /// goes to the lowest scores first, and the link is fair.
    Sjf(&'a [f64]),
    /// iCACHE: samples by aggregated importance value, of [`expected_benefits`]; a fair link. What no job above the
    /// least benefit reads stays out, even if there is room.
    Aiv,
    /// Algorithm 2 for the cache, and the link to the jobs in their order.
    InOrder,
    /// The same part of both for every job.
    EqualSplit,
}

/// The division from now on. The whole link is given away: the jobs share alike what none of them wants at the moment.
pub fn at_present(cluster: &Cluster, way: Way<'_>, now: Present<'_>) -> Allocation {
    let jobs = cluster.jobs();
    let link = cluster.resources().bandwidth_bytes_per_s;
    let ideal: Vec<f64> = jobs.iter().map(|job| job.ideal_bytes_per_s).collect();
    let pieces = Pieces::of(cluster, now.resident_bytes, KEEPS);
    let even = vec![1.0; jobs.len()];
    let (cache_bytes, worth) = match way {
        Way::MaxMin => {
            let fair = max_min_of(cluster, &pieces, 0.0);
            (fair.allocation.cache_bytes, fair.worth)
        }
        Way::Fifo | Way::InOrder => (pieces.cache_for(&ideal), even),
        Way::Sjf(left_s) => (cache_in_order_of_score(cluster, left_s), even),
        Way::Aiv => (cache_by_value(cluster, &expected_benefits(cluster)), even),
        Way::EqualSplit => return equal_split(cluster),
    };
    let missed = |(number, job): (usize, &Job)| {
        let stays = now.resident_bytes[job.dataset].min(cache_bytes[job.dataset]);
        1.0 - job.hits.at(stays).min(now.hits[number])
    };
    let missed: Vec<f64> = jobs.iter().enumerate().map(missed).collect();
    let wanted: Vec<f64> = ideal.iter().zip(&missed).map(|(ideal, missed)| ideal * missed).collect();
    let shared = link * (1.0 - FOR_ALL);
    let mut given = match way {
        Way::InOrder => in_turns(&wanted, shared),
        Way::MaxMin => {
            let weights: Vec<f64> = worth.iter().zip(&missed).map(|(worth, missed)| worth * missed).collect();
            fill(&wanted, &weights, shared)
        }
        _ => fill(&wanted, &worth, shared),
    };
    let left = (link - given.iter().sum::<f64>()).max(0.0) / jobs.len().max(1) as f64;
    given.iter_mut().for_each(|given| *given += left);
    Allocation { cache_bytes, bandwidth_bytes_per_s: given }
}
