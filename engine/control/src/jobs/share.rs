//! Dividing cache and link.

use serde::Serialize;

use super::{Cluster, HitCurve, Job};

/// Who gets what.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Allocation {
    /// Bytes of cache, by dataset.
    pub cache_bytes: Vec<f64>,
    /// Bytes a second of the link, by job.
    pub bandwidth_bytes_per_s: Vec<f64>,
}

impl Allocation {
    /// The rate of each job under it, in bytes a second.
    pub fn rates(&self, cluster: &Cluster) -> Vec<f64> {
        let one = |(job, &bandwidth): (&Job, &f64)| rate(job, self.cache_bytes[job.dataset], bandwidth);
        cluster.jobs().iter().zip(&self.bandwidth_bytes_per_s).map(one).collect()
    }
}

/// The rate of a job with `cached` bytes of its dataset and `bandwidth` bytes a second of the link: SiloD's Eq. 4.
pub fn rate(job: &Job, cached: f64, bandwidth: f64) -> f64 {
    let missed = 1.0 - job.hits.at(cached);
    if missed <= 0.0 { job.ideal_bytes_per_s } else { job.ideal_bytes_per_s.min(bandwidth / missed) }
}

/// Divides the cache among the datasets so that jobs that read at `rates` (bytes a second) fetch the least together.
///
/// A byte of cache saves Σ rate × slope of the hit curves of the dataset's jobs. Curves are concave, so the steepest
/// pieces first is exact: SiloD's greedy division, with every job's own curve. Takes the square of the pieces that the
/// jobs of one dataset have together; curves have few.
pub fn cache_for(cluster: &Cluster, rates: &[f64]) -> Vec<f64> {
    Pieces::of(cluster).cache_for(rates)
}

/// The straight pieces of what the jobs of each dataset save together; they stay the same at all rates.
#[derive(Debug)]
struct Pieces {
    datasets: usize,
    cache_bytes: f64,
    /// In the order of each dataset's bytes.
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Piece {
    dataset: usize,
    bytes: f64,
    /// (job, hit ratio gained a byte).
    slopes: Vec<(usize, f64)>,
}

impl Pieces {
    fn of(cluster: &Cluster) -> Self {
        let mut readers_of: Vec<Vec<(usize, &HitCurve)>> = vec![Vec::new(); cluster.datasets().len()];
        for (number, job) in cluster.jobs().iter().enumerate() {
            readers_of[job.dataset].push((number, &job.hits));
        }
        let mut pieces = Vec::new();
        for (number, (dataset, readers)) in cluster.datasets().iter().zip(readers_of).enumerate() {
            let ends = readers.iter().flat_map(|(_, curve)| curve.pieces().map(|piece| piece.1));
            let mut corners: Vec<f64> = ends.collect();
            corners.push(dataset.bytes);
            corners.retain(|&bytes| bytes <= dataset.bytes);
            corners.sort_by(f64::total_cmp);
            corners.dedup();
            let mut from = 0.0;
            for to in corners {
                let middle = f64::midpoint(from, to);
                let slope = |&(job, curve): &(usize, &HitCurve)| {
                    let found = curve.pieces().find(|piece| piece.0 <= middle && middle < piece.1);
                    (job, found.map_or(0.0, |piece| piece.2))
                };
                pieces.push(Piece { dataset: number, bytes: to - from, slopes: readers.iter().map(slope).collect() });
                from = to;
            }
        }
        Self { datasets: cluster.datasets().len(), cache_bytes: cluster.resources().cache_bytes, pieces }
    }

    fn cache_for(&self, rates: &[f64]) -> Vec<f64> {
        let saved = |piece: &Piece| piece.slopes.iter().map(|&(job, slope)| rates[job] * slope).sum::<f64>();
        let mut steepest: Vec<(f64, &Piece)> = self.pieces.iter().map(|piece| (saved(piece), piece)).collect();
        // Stable: the pieces of a dataset stay in their order.
        steepest.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut left = self.cache_bytes;
        let mut cached = vec![0.0; self.datasets];
        for (saved, piece) in steepest {
            if saved <= 0.0 || left <= 0.0 {
                break;
            }
            let given = piece.bytes.min(left);
            cached[piece.dataset] += given;
            left -= given;
        }
        cached
    }
}

/// What each job fetches at `rates` with `cached` bytes of its dataset.
fn fetched(cluster: &Cluster, rates: &[f64], cached: &[f64]) -> Vec<f64> {
    let one = |(job, &rate): (&Job, &f64)| rate * (1.0 - job.hits.at(cached[job.dataset]));
    cluster.jobs().iter().zip(rates).map(one).collect()
}

/// Cache by [`cache_for`] at ideal rates; the link goes to the jobs in their order, each as much as it can use. With
/// jobs in order of arrival that is SiloD's FIFO; in order of what is left of them, its shortest job first.
pub fn in_order(cluster: &Cluster) -> Allocation {
    let ideal: Vec<f64> = cluster.jobs().iter().map(|job| job.ideal_bytes_per_s).collect();
    let cache_bytes = cache_for(cluster, &ideal);
    let mut left = cluster.resources().bandwidth_bytes_per_s;
    let take = |wanted: f64| {
        let given = wanted.min(left);
        left -= given;
        given
    };
    let bandwidth_bytes_per_s = fetched(cluster, &ideal, &cache_bytes).into_iter().map(take).collect();
    Allocation { cache_bytes, bandwidth_bytes_per_s }
}

/// Each of n jobs gets an n-th of the link, and brings an n-th of the cache to its dataset: what nobody has to decide,
/// and what the others are measured by. Cache beyond a dataset's size stays unused.
pub fn equal_split(cluster: &Cluster) -> Allocation {
    let jobs = cluster.jobs().len().max(1) as f64;
    let resources = cluster.resources();
    let mut cache_bytes = vec![0.0; cluster.datasets().len()];
    for job in cluster.jobs() {
        cache_bytes[job.dataset] += resources.cache_bytes / jobs;
    }
    for (cached, dataset) in cache_bytes.iter_mut().zip(cluster.datasets()) {
        *cached = cached.min(dataset.bytes);
    }
    Allocation {
        cache_bytes,
        bandwidth_bytes_per_s: vec![resources.bandwidth_bytes_per_s / jobs; cluster.jobs().len()],
    }
}

/// Halvings of the interval in which the common factor lies: past them a float64 does not change.
const HALVINGS: u32 = 200;

/// The largest factor t at which every job can run at t × its rate under [`equal_split`], or at its ideal rate if that
/// is less (Gavel's max-min fairness, over cache and link together).
///
/// At given rates the least to be fetched is known ([`cache_for`]), and it grows with t: so t is found by bisection,
/// and no linear program is needed. What is left of the link goes to the jobs in their order. A job whose rate under an
/// equal split is 0 (no link, and not all of it cached) waits for nobody: it is measured by its ideal rate.
pub fn max_min(cluster: &Cluster) -> Allocation {
    max_min_within(cluster, 0.0).allocation
}

/// What [`max_min`] found, and the rate of each job that its share is measured by.
#[derive(Debug)]
pub struct Fair {
    /// Who gets what.
    pub allocation: Allocation,
    /// By job, in bytes a second.
    pub worth: Vec<f64>,
}

/// The same, with a factor that is at most this part of it below the largest.
pub fn max_min_within(cluster: &Cluster, within: f64) -> Fair {
    let pieces = Pieces::of(cluster);
    let equal = equal_split(cluster).rates(cluster);
    let jobs = cluster.jobs();
    let worth: Vec<f64> =
        jobs.iter().zip(&equal).map(|(job, &rate)| if rate > 0.0 { rate } else { job.ideal_bytes_per_s }).collect();
    let rates = |t: f64| -> Vec<f64> {
        jobs.iter().zip(&worth).map(|(job, worth)| job.ideal_bytes_per_s.min(t * worth)).collect()
    };
    let link = cluster.resources().bandwidth_bytes_per_s;
    let wanted = |t: f64| {
        let rates = rates(t);
        let cached = pieces.cache_for(&rates);
        (fetched(cluster, &rates, &cached), cached)
    };
    let fits = |t: f64| wanted(t).0.iter().sum::<f64>() <= link;
    let most = jobs.iter().zip(&worth).map(|(job, worth)| job.ideal_bytes_per_s / worth).fold(0.0, f64::max);
    let (mut low, mut high) = (0.0, most);
    if fits(most) {
        low = most;
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if middle <= low || middle >= high || high - low <= within * high {
            break;
        }
        if fits(middle) { low = middle } else { high = middle }
    }
    let (mut bandwidth_bytes_per_s, cache_bytes) = wanted(low);
    let mut left = (link - bandwidth_bytes_per_s.iter().sum::<f64>()).max(0.0);
    let ideal: Vec<f64> = jobs.iter().map(|job| job.ideal_bytes_per_s).collect();
    for (given, most) in bandwidth_bytes_per_s.iter_mut().zip(fetched(cluster, &ideal, &cache_bytes)) {
        let more = (most - *given).clamp(0.0, left);
        *given += more;
        left -= more;
    }
    Fair { allocation: Allocation { cache_bytes, bandwidth_bytes_per_s }, worth }
}
