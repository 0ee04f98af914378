//! Dividing among jobs that run, by what is cached now: against naive twins and hand counts.

use lossfeed::jobs::{
    Allocation, Cluster, Dataset, HitCurve, Job, Present, Resources, Way, at_present, equal_split, fifo, least_share,
    sjf,
};
use proptest::prelude::*;

/// The module's factor of a resident byte, and the part of the link that all get alike.
const KEEPS: f64 = 1.1;
const FOR_ALL: f64 = 0.01;

fn job(dataset: usize, ideal: f64, hits: HitCurve) -> Job {
    Job { name: format!("reads {dataset}"), dataset, ideal_bytes_per_s: ideal, hits }
}

fn cluster(cache: f64, link: f64, sizes: &[f64], jobs: Vec<Job>) -> Cluster {
    let datasets = sizes.iter().map(|&bytes| Dataset { name: format!("of {bytes}"), bytes }).collect();
    Cluster::new(Resources { cache_bytes: cache, bandwidth_bytes_per_s: link }, datasets, jobs).unwrap()
}

/// A small cluster of whole bytes, with what is resident of each dataset and what each job hits.
fn running() -> impl Strategy<Value = (Cluster, Vec<f64>, Vec<f64>)> {
    let datasets = prop::collection::vec((1..=6u32, 0..=6u32), 1..=3);
    let points = || prop::collection::vec((1..=8u32, 0..=10u32), 0..5);
    let jobs = prop::collection::vec((0..3usize, 1..=9u32, points(), 0..=4u32), 1..=4);
    (datasets, jobs, 0..=12u32, 1..=12u32).prop_map(|(datasets, jobs, cache, link)| {
        let sizes: Vec<f64> = datasets.iter().map(|&(bytes, _)| bytes.into()).collect();
        let resident = datasets.iter().map(|&(bytes, resident)| f64::from(resident.min(bytes))).collect();
        let hits = jobs.iter().map(|&(.., hits)| f64::from(hits) / 4.0).collect();
        let jobs = jobs.into_iter().map(|(of, ideal, points, _)| {
            let of = of % sizes.len();
            let points: Vec<_> = points.into_iter().map(|(b, h)| (f64::from(b), f64::from(h) / 10.0)).collect();
            let uniform = || HitCurve::uniform(sizes[of]).unwrap();
            job(of, ideal.into(), if points.is_empty() { uniform() } else { HitCurve::measured(&points).unwrap() })
        });
        let jobs = jobs.collect();
        (cluster(cache.into(), link.into(), &sizes, jobs), resident, hits)
    })
}

/// Bytes a second that `cached` bytes of a dataset save at ideal rates, byte by byte; resident ones count more.
fn worth(cluster: &Cluster, dataset: usize, cached: f64, resident: f64) -> f64 {
    let gained = |job: &Job, byte: f64| job.ideal_bytes_per_s * (job.hits.at(byte + 1.0) - job.hits.at(byte));
    let of = |byte: f64| -> f64 {
        let jobs = cluster.jobs().iter().filter(|job| job.dataset == dataset);
        let counts = if byte + 1.0 <= resident { KEEPS } else { 1.0 };
        counts * jobs.map(|job| gained(job, byte)).sum::<f64>()
    };
    let whole = cached.floor();
    (0..whole as u32).map(|byte| of(byte.into())).sum::<f64>() + (cached - whole) * of(whole)
}

/// The most that any division of the cache into whole bytes is worth.
fn best(cluster: &Cluster, resident: &[f64], dataset: usize, left: f64) -> f64 {
    let Some(of) = cluster.datasets().get(dataset) else { return 0.0 };
    let with = |bytes: u32| {
        let bytes = f64::from(bytes);
        worth(cluster, dataset, bytes, resident[dataset]) + best(cluster, resident, dataset + 1, left - bytes)
    };
    (0..=of.bytes.min(left) as u32).map(with).fold(0.0, f64::max)
}

/// The least level at which the link is full, by halving: each job gets level × weight, and none more than it wants.
fn filled(wanted: &[f64], weights: &[f64], link: f64) -> Vec<f64> {
    let at = |level: f64| -> Vec<f64> {
        wanted
            .iter()
            .zip(weights)
            .map(|(&wanted, &weight)| if weight > 0.0 { wanted.min(level * weight) } else { 0.0 })
            .collect()
    };
    let (mut low, mut high) = (0.0, 1e9);
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if at(middle).iter().sum::<f64>() <= link { low = middle } else { high = middle }
    }
    at(low)
}

fn misses(cluster: &Cluster, found: &Allocation, resident: &[f64], hits: &[f64]) -> Vec<f64> {
    let of = |(job, hits): (&Job, &f64)| {
        let stays = resident[job.dataset].min(found.cache_bytes[job.dataset]);
        (1.0 - hits).max(1.0 - job.hits.at(stays))
    };
    cluster.jobs().iter().zip(hits).map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn cache_and_link_are_those_of_the_naive_twin((cluster, resident, hits) in running()) {
        let now = Present { resident_bytes: &resident, hits: &hits };
        let found = at_present(&cluster, Way::Fifo, now);
        let saved: f64 =
            found.cache_bytes.iter().enumerate().map(|(k, &bytes)| worth(&cluster, k, bytes, resident[k])).sum();
        let most = best(&cluster, &resident, 0, cluster.resources().cache_bytes);
        prop_assert!((saved - most).abs() < 1e-9, "{saved} of {most} by {found:?}");
        let missed = misses(&cluster, &found, &resident, &hits);
        let wanted: Vec<f64> =
            cluster.jobs().iter().zip(&missed).map(|(job, missed)| job.ideal_bytes_per_s * missed).collect();
        let link = cluster.resources().bandwidth_bytes_per_s;
        let given = filled(&wanted, &vec![1.0; wanted.len()], link * (1.0 - FOR_ALL));
        let left = (link - given.iter().sum::<f64>()) / given.len() as f64;
        for (found, twin) in found.bandwidth_bytes_per_s.iter().zip(given) {
            prop_assert!((found - twin - left).abs() < 1e-6, "{found}, and {twin} + {left}");
        }
    }

    #[test]
    fn the_whole_link_and_no_more_is_given_and_each_job_gets_some((cluster, resident, hits) in running()) {
        let left_s: Vec<f64> = (0..cluster.jobs().len()).map(|k| k as f64).collect();
        let now = Present { resident_bytes: &resident, hits: &hits };
        for way in [Way::MaxMin, Way::Fifo, Way::Sjf(&left_s), Way::InOrder, Way::EqualSplit] {
            let found = at_present(&cluster, way, now);
            let link = cluster.resources().bandwidth_bytes_per_s;
            prop_assert!((found.bandwidth_bytes_per_s.iter().sum::<f64>() - link).abs() < 1e-9 * link);
            prop_assert!(found.cache_bytes.iter().sum::<f64>() <= cluster.resources().cache_bytes * (1.0 + 1e-12));
            prop_assert!(found.cache_bytes.iter().zip(cluster.datasets()).all(|(&c, d)| 0.0 <= c && c <= d.bytes));
            let least = FOR_ALL * link / cluster.jobs().len() as f64;
            prop_assert!(found.bandwidth_bytes_per_s.iter().all(|&b| b >= least * (1.0 - 1e-9)), "{way:?}: {found:?}");
        }
    }

    #[test]
    fn a_score_is_least_at_no_other_size_of_the_cache((cluster, ..) in running()) {
        let Resources { cache_bytes, bandwidth_bytes_per_s } = cluster.resources();
        for job in cluster.jobs() {
            let bytes = cluster.datasets()[job.dataset].bytes;
            let (share, _) = least_share(&job.hits, job.ideal_bytes_per_s, bytes, cluster.resources());
            for step in 0..=48 {
                let cached = bytes.min(cache_bytes) * f64::from(step) / 48.0;
                let part = if cached > 0.0 { cached / cache_bytes } else { 0.0 };
                let other = part + job.ideal_bytes_per_s * (1.0 - job.hits.at(cached)) / bandwidth_bytes_per_s;
                prop_assert!(share <= other + 1e-9, "{share}, and {other} with {cached}");
            }
        }
    }
}

/// Two jobs at 4 and 2 bytes a second over 5 bytes each, a cache of 5, a link of 2.
fn two() -> Cluster {
    let uniform = || HitCurve::uniform(5.0).unwrap();
    cluster(5.0, 2.0, &[5.0, 5.0], vec![job(0, 4.0, uniform()), job(1, 2.0, uniform())])
}

/// The steady state gives the first job the whole cache and none of the link. Cold, it would never fill it.
#[test]
fn a_cold_job_gets_the_link_that_fills_its_cache() {
    let cluster = two();
    assert_eq!(fifo(&cluster), Allocation { cache_bytes: vec![5.0, 0.0], bandwidth_bytes_per_s: vec![0.0, 2.0] });
    let at = |resident: f64, hits: f64| {
        let now = Present { resident_bytes: &[resident, 0.0], hits: &[hits, 0.0] };
        let Allocation { cache_bytes, bandwidth_bytes_per_s } = at_present(&cluster, Way::Fifo, now);
        assert_eq!(cache_bytes, [5.0, 0.0]);
        bandwidth_bytes_per_s
    };
    let near = |found: Vec<f64>, first: f64, second: f64| {
        assert!((found[0] - first).abs() < 1e-9 && (found[1] - second).abs() < 1e-9, "{found:?}");
    };
    near(at(0.0, 0.0), 1.0, 1.0);
    // Its first epoch hits nothing, whatever has come by then.
    near(at(4.0, 0.0), 1.0, 1.0);
    // Filled: it wants nothing any more, but for what all get.
    near(at(5.0, 1.0), 0.01, 1.99);
    // Hits that were measured before it lost what it had do not count.
    near(at(0.0, 1.0), 1.0, 1.0);
}

#[test]
fn a_small_difference_moves_no_cache_and_a_large_one_does() {
    let uniform = || HitCurve::uniform(5.0).unwrap();
    for (other, moves) in [(2.1, false), (2.19, false), (2.3, true)] {
        let cluster = cluster(5.0, 1.0, &[5.0, 5.0], vec![job(0, 2.0, uniform()), job(1, other, uniform())]);
        let now = Present { resident_bytes: &[5.0, 0.0], hits: &[1.0, 0.0] };
        let found = at_present(&cluster, Way::Fifo, now).cache_bytes;
        assert_eq!(found, if moves { [0.0, 5.0] } else { [5.0, 0.0] }, "{other}");
    }
}

/// Two jobs alike, a cache for one of them, and a link that is too small for one: whose work is least has the cache.
#[test]
fn under_sjf_the_least_work_has_its_cache_first() {
    let jobs = || vec![job(0, 6.0, HitCurve::uniform(6.0).unwrap()), job(1, 6.0, HitCurve::uniform(6.0).unwrap())];
    let cluster = cluster(6.0, 5.0, &[6.0, 6.0], jobs());
    assert_eq!(sjf(&cluster, &[1.0, 2.0]).cache_bytes, [6.0, 0.0]);
    assert_eq!(sjf(&cluster, &[2.0, 1.0]).cache_bytes, [0.0, 6.0]);
    assert_eq!(sjf(&cluster, &[2.0, 1.0]).bandwidth_bytes_per_s, [5.0, 0.0]);
    // A job whose bytes save less than they take asks for none, and what is left goes where it saves most.
    let wide = self::cluster(6.0, 100.0, &[6.0, 6.0], jobs());
    assert_eq!(sjf(&wide, &[2.0, 1.0]).cache_bytes, [6.0, 0.0]);
}

#[test]
fn an_allocation_says_what_it_leaves_unused() {
    let cluster = two();
    assert_eq!((fifo(&cluster).unused(&cluster), equal_split(&cluster).unused(&cluster)), (0.0, 0.0));
    let none = Allocation { cache_bytes: vec![1.0, 0.0], bandwidth_bytes_per_s: vec![1.0, 1.0] };
    assert_eq!(none.unused(&cluster), 4.0);
}
