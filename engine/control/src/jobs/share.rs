//! Dividing cache and link.

use serde::Serialize;

use super::link::{fill, in_turns};
use super::{Cluster, HitCurve, Job, Resources};

/// Who gets what.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Allocation {
    /// Bytes of cache, by dataset.
    pub cache_bytes: Vec<f64>,
    /// Bytes a second of the link, by job.
    pub bandwidth_bytes_per_s: Vec<f64>,
}

impl Allocation {
    /// Bytes of the cache that it leaves unused although some dataset would have use for them.
    pub fn unused(&self, cluster: &Cluster) -> f64 {
        let useful: f64 = cluster.datasets().iter().map(|dataset| dataset.bytes).sum();
        (useful.min(cluster.resources().cache_bytes) - self.cache_bytes.iter().sum::<f64>()).max(0.0)
    }

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
    Pieces::cold(cluster).cache_for(rates)
}

/// The straight pieces of what the jobs of each dataset save together; they stay the same at all rates.
#[derive(Debug)]
pub(super) struct Pieces {
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
    /// Factor by which its bytes count.
    counts: f64,
}

impl Pieces {
    /// Pieces of datasets that are not cached at all yet.
    fn cold(cluster: &Cluster) -> Self {
        Self::of(cluster, &vec![0.0; cluster.datasets().len()], 1.0)
    }

    /// Pieces where some bytes of each dataset are cached already. Those count `keeps` times.
    pub(super) fn of(cluster: &Cluster, resident_bytes: &[f64], keeps: f64) -> Self {
        let mut readers_of: Vec<Vec<(usize, &HitCurve)>> = vec![Vec::new(); cluster.datasets().len()];
        for (number, job) in cluster.jobs().iter().enumerate() {
            readers_of[job.dataset].push((number, &job.hits));
        }
        let mut pieces = Vec::new();
        for (number, (dataset, readers)) in cluster.datasets().iter().zip(readers_of).enumerate() {
            let ends = readers.iter().flat_map(|(_, curve)| curve.pieces().map(|piece| piece.1));
            let mut corners: Vec<f64> = ends.collect();
            corners.extend([dataset.bytes, resident_bytes[number]]);
            corners.retain(|&bytes| 0.0 < bytes && bytes <= dataset.bytes);
            corners.sort_by(f64::total_cmp);
            corners.dedup();
            let mut from = 0.0;
            for to in corners {
                let middle = f64::midpoint(from, to);
                let slope = |&(job, curve): &(usize, &HitCurve)| {
                    let found = curve.pieces().find(|piece| piece.0 <= middle && middle < piece.1);
                    (job, found.map_or(0.0, |piece| piece.2))
                };
                let counts = if to <= resident_bytes[number] { keeps } else { 1.0 };
                let slopes = readers.iter().map(slope).collect();
                pieces.push(Piece { dataset: number, bytes: to - from, slopes, counts });
                from = to;
            }
        }
        Self { datasets: cluster.datasets().len(), cache_bytes: cluster.resources().cache_bytes, pieces }
    }

    pub(super) fn cache_for(&self, rates: &[f64]) -> Vec<f64> {
        let saved =
            |piece: &Piece| piece.counts * piece.slopes.iter().map(|&(job, slope)| rates[job] * slope).sum::<f64>();
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
/// jobs in order of arrival that is what Gavel's code calls SiloD; the paper's own FIFO is [`fifo`].
pub fn in_order(cluster: &Cluster) -> Allocation {
    let ideal: Vec<f64> = cluster.jobs().iter().map(|job| job.ideal_bytes_per_s).collect();
    let cache_bytes = cache_for(cluster, &ideal);
    let wanted = fetched(cluster, &ideal, &cache_bytes);
    let bandwidth_bytes_per_s = in_turns(&wanted, cluster.resources().bandwidth_bytes_per_s);
    Allocation { cache_bytes, bandwidth_bytes_per_s }
}

/// Cache by [`cache_for`] at ideal rates, SiloD's Algorithm 2; of the link each job gets the same part, and none more
/// than it can use.
pub fn fifo(cluster: &Cluster) -> Allocation {
    let ideal: Vec<f64> = cluster.jobs().iter().map(|job| job.ideal_bytes_per_s).collect();
    fair_link(cluster, cache_for(cluster, &ideal))
}

/// SiloD's multi-resource SJF (Eq. 7): cache goes to the jobs with the lowest scores first, each as much as makes its
/// score lowest. The link is as in [`fifo`]. `left_s`: the seconds that each job would still run if it never waited.
pub fn sjf(cluster: &Cluster, left_s: &[f64]) -> Allocation {
    fair_link(cluster, cache_in_order_of_score(cluster, left_s))
}

fn fair_link(cluster: &Cluster, cache_bytes: Vec<f64>) -> Allocation {
    let ideal: Vec<f64> = cluster.jobs().iter().map(|job| job.ideal_bytes_per_s).collect();
    let wanted = fetched(cluster, &ideal, &cache_bytes);
    let link = cluster.resources().bandwidth_bytes_per_s;
    Allocation { bandwidth_bytes_per_s: fill(&wanted, &vec![1.0; wanted.len()], link), cache_bytes }
}

/// The least sum of the shares of cache and link that a job needs to run at its ideal rate, and the bytes of cache at
/// which it is least. With the share of the GPUs, times its seconds, that is SiloD's score of it (Eq. 7).
///
/// Slower than ideal is never less: GPUs and cache are then held longer for the same bytes. Between two corners of the
/// curve the sum is a straight line, so the least is at a corner, or where the whole cache is the job's own.
pub fn least_share(hits: &HitCurve, ideal_bytes_per_s: f64, dataset_bytes: f64, resources: Resources) -> (f64, f64) {
    let most = dataset_bytes.min(resources.cache_bytes);
    let part = |of: f64, total: f64| if of <= 0.0 { 0.0 } else { of / total };
    let with = |cached: f64| {
        let link = part(ideal_bytes_per_s * (1.0 - hits.at(cached)), resources.bandwidth_bytes_per_s);
        (part(cached, resources.cache_bytes) + link, cached)
    };
    let corners = hits.pieces().map(|piece| piece.1).filter(|&bytes| bytes < most);
    corners.chain([0.0, most]).map(with).fold((f64::INFINITY, 0.0), |a, b| if b.0 < a.0 { b } else { a })
}

/// See [`sjf`]. What is left when every job has what it asked for goes where a byte saves most.
pub(super) fn cache_in_order_of_score(cluster: &Cluster, left_s: &[f64]) -> Vec<f64> {
    let (jobs, datasets, resources) = (cluster.jobs(), cluster.datasets(), cluster.resources());
    let score = |(job, left_s): (&Job, &f64)| {
        let (share, bytes) = least_share(&job.hits, job.ideal_bytes_per_s, datasets[job.dataset].bytes, resources);
        (share * left_s, job.dataset, bytes)
    };
    let mut asked: Vec<(f64, usize, f64)> = jobs.iter().zip(left_s).map(score).collect();
    asked.sort_by(|a, b| a.0.total_cmp(&b.0));
    let ideal: Vec<f64> = jobs.iter().map(|job| job.ideal_bytes_per_s).collect();
    let greedy = cache_for(cluster, &ideal).into_iter().enumerate().map(|(dataset, bytes)| (0.0, dataset, bytes));
    let mut left = resources.cache_bytes;
    let mut cached = vec![0.0_f64; datasets.len()];
    for (_, dataset, bytes) in asked.into_iter().chain(greedy) {
        let more = (bytes - cached[dataset]).clamp(0.0, left);
        cached[dataset] += more;
        left -= more;
    }
    cached
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
    max_min_of(cluster, &Pieces::cold(cluster), within)
}

/// The same, where some of the cluster's bytes may be cached already.
pub(super) fn max_min_of(cluster: &Cluster, pieces: &Pieces, within: f64) -> Fair {
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
