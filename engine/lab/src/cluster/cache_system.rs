//! How a cache is divided among running jobs, by system.

use lossfeed_control::jobs::{Cluster, Dataset, Filler, HitCurve, Job, Resources, cache_for, max_min_within};

use super::rules::{CacheSystem, Order};

/// How far a fair factor may be from the largest, as a part of it.
const LEVEL_WITHIN: f64 = 1e-6;

/// One running job, as those who divide see it.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    /// Place among the datasets that are read now.
    pub(super) dataset: usize,
    pub(super) gpus: f64,
    /// At its present share of GPU time.
    pub(super) ideal_bytes_per_s: f64,
    pub(super) hits: &'a HitCurve,
}

/// What each dataset is to have of the cache, and what each reader's part of the link is measured by.
#[derive(Debug)]
pub(super) struct Division {
    pub(super) cache_bytes: Vec<f64>,
    pub(super) weights: Vec<f64>,
}

/// Hits of LRU on epochs in fresh random order, with room for this part of the dataset.
pub fn lru_hits(cached: f64) -> f64 {
    if cached >= 1.0 { 1.0 } else { (cached + (1.0 - cached) * (-cached).ln_1p()).max(0.0) }
}

/// Divides the cache among the `datasets` (sizes in bytes) that the `readers` read; `gpus` are those of the cluster.
pub(super) fn divide(
    system: CacheSystem,
    order: Order,
    resources: Resources,
    gpus: f64,
    datasets: &[f64],
    readers: &[Reader],
) -> Division {
    let total = resources.cache_bytes;
    let weights = vec![1.0; readers.len()];
    let cache_bytes = match system {
        CacheSystem::Lru => lru(resources, datasets, readers),
        CacheSystem::Static => {
            let a_gpu = total / gpus.max(readers.iter().map(|reader| reader.gpus).sum());
            let mut given = vec![0.0; datasets.len()];
            readers.iter().for_each(|reader| given[reader.dataset] += a_gpu * reader.gpus);
            given.iter().zip(datasets).map(|(given, bytes)| bytes.min(*given)).collect()
        }
        CacheSystem::Quiver => quiver(total, datasets, readers),
        CacheSystem::Silod | CacheSystem::SilodInOrder | CacheSystem::Curves => {
            let cluster = believed(system, resources, datasets, readers);
            if order == Order::MaxMin {
                let fair = max_min_within(&cluster, LEVEL_WITHIN);
                return Division { cache_bytes: fair.allocation.cache_bytes, weights: fair.worth };
            }
            let ideal: Vec<f64> = readers.iter().map(|reader| reader.ideal_bytes_per_s).collect();
            cache_for(&cluster, &ideal)
        }
    };
    Division { cache_bytes, weights }
}

/// The cluster as the system sees it.
fn believed(system: CacheSystem, resources: Resources, datasets: &[f64], readers: &[Reader]) -> Cluster {
    let job = |reader: &Reader| Job {
        name: String::new(),
        dataset: reader.dataset,
        ideal_bytes_per_s: reader.ideal_bytes_per_s,
        hits: match system {
            CacheSystem::Curves => reader.hits.clone(),
            _ => HitCurve::straight(datasets[reader.dataset]),
        },
    };
    let datasets = datasets.iter().map(|&bytes| Dataset { name: String::new(), bytes }).collect();
    Cluster::of_checked(resources, datasets, readers.iter().map(job).collect())
}

fn quiver(total: f64, datasets: &[f64], readers: &[Reader]) -> Vec<f64> {
    let mut saved = vec![0.0; datasets.len()];
    readers.iter().for_each(|r| saved[r.dataset] += r.ideal_bytes_per_s / datasets[r.dataset]);
    let mut best_first: Vec<usize> = (0..datasets.len()).collect();
    best_first.sort_by(|&a, &b| saved[b].total_cmp(&saved[a]));
    let mut left = total;
    let mut given = vec![0.0; datasets.len()];
    for dataset in best_first {
        if saved[dataset] > 0.0 && datasets[dataset] <= left {
            given[dataset] = datasets[dataset];
            left -= datasets[dataset];
        }
    }
    given
}

/// Rounds in which rates and shares of a common list settle; they have done so to a millionth after about ten.
const ROUNDS: u32 = 50;

/// A common list holds what was read last, so a dataset's part of it grows with the rate at which it is read, and the
/// rate with its hits: the point where both agree.
fn lru(resources: Resources, datasets: &[f64], readers: &[Reader]) -> Vec<f64> {
    let ideal: Vec<f64> = readers.iter().map(|reader| reader.ideal_bytes_per_s).collect();
    let mut rates = ideal.clone();
    let mut shares = vec![0.0; datasets.len()];
    let equally = vec![1.0; readers.len()];
    let (mut cache, mut link) = (Filler::default(), Filler::default());
    for _ in 0..ROUNDS {
        let mut read = vec![0.0; datasets.len()];
        readers.iter().zip(&rates).for_each(|(reader, rate)| read[reader.dataset] += rate);
        let next = cache.fill(datasets, &read, resources.cache_bytes);
        let moved = next.iter().zip(&shares).zip(datasets).map(|((a, b), bytes)| (a - b).abs() / bytes);
        let settled = moved.fold(0.0, f64::max) < LEVEL_WITHIN;
        shares = next;
        if settled {
            break;
        }
        let missed = |reader: &Reader| 1.0 - lru_hits(shares[reader.dataset] / datasets[reader.dataset]);
        let missed: Vec<f64> = readers.iter().map(missed).collect();
        let wanted: Vec<f64> = ideal.iter().zip(&missed).map(|(ideal, missed)| ideal * missed).collect();
        let given = link.fill(&wanted, &equally, resources.bandwidth_bytes_per_s);
        for ((rate, ideal), (given, missed)) in rates.iter_mut().zip(&ideal).zip(given.iter().zip(&missed)) {
            *rate = if *missed > 0.0 { ideal.min(given / missed) } else { *ideal };
        }
    }
    shares
}
