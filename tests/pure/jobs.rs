//! Dividing cache and link among jobs: against brute force, grids and hand counts.

use lossfeed::jobs::{
    Allocation, Cluster, Dataset, HitCurve, Job, Resources, cache_for, equal_split, in_order, max_min,
};
use proptest::prelude::*;

fn dataset(bytes: f64) -> Dataset {
    Dataset { name: format!("of {bytes}"), bytes }
}

fn job(dataset: usize, ideal: f64, hits: HitCurve) -> Job {
    Job { name: format!("reads {dataset}"), dataset, ideal_bytes_per_s: ideal, hits }
}

fn cluster(cache: f64, link: f64, datasets: Vec<Dataset>, jobs: Vec<Job>) -> Cluster {
    Cluster::new(Resources { cache_bytes: cache, bandwidth_bytes_per_s: link }, datasets, jobs).unwrap()
}

/// Up to three datasets of whole sizes up to 6, up to four jobs with curves over whole bytes, a small cache and link.
fn clusters() -> impl Strategy<Value = Cluster> {
    let sizes = prop::collection::vec(1..=6u32, 1..=3);
    let points = || prop::collection::vec((1..=8u32, 0..=10u32), 0..5);
    let jobs = prop::collection::vec((0..3usize, 1..=9u32, points()), 1..=4);
    (sizes, jobs, 0..=12u32, 0..=12u32).prop_map(|(sizes, jobs, cache, link)| {
        let datasets: Vec<_> = sizes.iter().map(|&bytes| dataset(bytes.into())).collect();
        let jobs = jobs.into_iter().map(|(of, ideal, points)| {
            let of = of % datasets.len();
            let points: Vec<_> = points.into_iter().map(|(b, h)| (f64::from(b), f64::from(h) / 10.0)).collect();
            let hits = if points.is_empty() {
                HitCurve::uniform(datasets[of].bytes).unwrap()
            } else {
                HitCurve::measured(&points).unwrap()
            };
            job(of, ideal.into(), hits)
        });
        let jobs = jobs.collect();
        cluster(cache.into(), link.into(), datasets, jobs)
    })
}

/// Every way to give whole bytes of the cache to the datasets.
fn whole_divisions(cluster: &Cluster) -> Vec<Vec<f64>> {
    let mut ways = vec![vec![]];
    for dataset in cluster.datasets() {
        let mut longer = vec![];
        for way in &ways {
            let left = cluster.resources().cache_bytes - way.iter().sum::<f64>();
            let most = dataset.bytes.min(left) as u32;
            longer.extend((0..=most).map(|bytes| [&way[..], &[f64::from(bytes)]].concat()));
        }
        ways = longer;
    }
    ways
}

fn fetched(cluster: &Cluster, rates: &[f64], cached: &[f64]) -> f64 {
    cluster.jobs().iter().zip(rates).map(|(job, rate)| rate * (1.0 - job.hits.at(cached[job.dataset]))).sum()
}

/// The rate of the job that is worst off, against its rate under an equal split.
fn least(cluster: &Cluster, rates: &[f64]) -> f64 {
    let equal = equal_split(cluster).rates(cluster);
    let shares = rates.iter().zip(equal).zip(cluster.jobs()).map(|((&rate, equal), job)| {
        let worth = if equal > 0.0 { equal } else { job.ideal_bytes_per_s };
        // Whoever runs at its ideal rate is no worse off, whatever the factor.
        if rate >= job.ideal_bytes_per_s * (1.0 - 1e-9) { f64::INFINITY } else { rate / worth }
    });
    shares.fold(f64::INFINITY, f64::min)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_curve_is_the_hull_of_its_points(points in prop::collection::vec((1..=20u32, 0..=20u32), 1..8)) {
        let mut points: Vec<_> = points.into_iter().map(|(b, h)| (f64::from(b), f64::from(h) / 20.0)).collect();
        let curve = HitCurve::measured(&points).unwrap();
        points.push((0.0, 0.0));
        for step in 0..=44 {
            let at = f64::from(step) / 2.0;
            // The best mixture of two measured points that takes no more than `at`.
            let mut best = 0.0f64;
            for &(a, ha) in &points {
                for &(b, hb) in &points {
                    if a <= at {
                        best = best.max(ha);
                        if b > at {
                            best = best.max(ha + (hb - ha) * (at - a) / (b - a));
                        }
                    }
                }
            }
            prop_assert!((curve.at(at) - best).abs() < 1e-12, "{at}: {} and not {best}", curve.at(at));
        }
        let again: HitCurve = serde_json::from_str(&serde_json::to_string(&curve).unwrap()).unwrap();
        prop_assert_eq!(again, curve);
    }

    #[test]
    fn steepest_first_is_what_brute_force_finds(cluster in clusters(), factors in prop::collection::vec(0..=4u32, 4)) {
        let rates: Vec<f64> =
            cluster.jobs().iter().zip(&factors).map(|(j, &f)| j.ideal_bytes_per_s * f64::from(f) / 4.0).collect();
        // Curves bend at whole bytes, so some division into whole bytes is as good as any.
        let best = whole_divisions(&cluster).iter().map(|way| fetched(&cluster, &rates, way)).fold(f64::MAX, f64::min);
        let found = cache_for(&cluster, &rates);
        prop_assert!((fetched(&cluster, &rates, &found) - best).abs() < 1e-9);
    }

    #[test]
    fn nobody_gets_what_is_not_there(cluster in clusters()) {
        for Allocation { cache_bytes, bandwidth_bytes_per_s } in
            [in_order(&cluster), max_min(&cluster), equal_split(&cluster)]
        {
            let resources = cluster.resources();
            prop_assert!(cache_bytes.iter().sum::<f64>() <= resources.cache_bytes * (1.0 + 1e-12));
            prop_assert!(bandwidth_bytes_per_s.iter().sum::<f64>() <= resources.bandwidth_bytes_per_s * (1.0 + 1e-12));
            prop_assert!(cache_bytes.iter().chain(&bandwidth_bytes_per_s).all(|&x| x >= 0.0 && x.is_finite()));
            prop_assert!(cache_bytes.iter().zip(cluster.datasets()).all(|(&c, d)| c <= d.bytes));
        }
    }

    #[test]
    fn no_grid_is_fairer_than_max_min(cluster in clusters()) {
        let found = least(&cluster, &max_min(&cluster).rates(&cluster));
        let link = cluster.resources().bandwidth_bytes_per_s;
        let count = cluster.jobs().len();
        for cache_bytes in whole_divisions(&cluster) {
            // Every way to cut the link into sixths.
            for cut in 0..7u32.pow(count as u32) {
                let sixths: Vec<u32> = (0..count as u32).map(|j| cut / 7u32.pow(j) % 7).collect();
                if sixths.iter().sum::<u32>() > 6 {
                    continue;
                }
                let bandwidth_bytes_per_s = sixths.iter().map(|&s| link * f64::from(s) / 6.0).collect();
                let other = Allocation { cache_bytes: cache_bytes.clone(), bandwidth_bytes_per_s };
                let theirs = least(&cluster, &other.rates(&cluster));
                prop_assert!(found >= theirs * (1.0 - 1e-9), "{found}, and {theirs} by {other:?}");
            }
        }
        let equal = least(&cluster, &equal_split(&cluster).rates(&cluster));
        prop_assert!(found >= equal * (1.0 - 1e-9));
    }
}

/// Two jobs at 100 bytes a second each, over 1000 and 250 bytes: the small dataset's bytes save four times as much.
#[test]
fn cache_goes_where_a_byte_saves_most() {
    let jobs =
        vec![job(0, 100.0, HitCurve::uniform(1000.0).unwrap()), job(1, 100.0, HitCurve::uniform(250.0).unwrap())];
    let cluster = cluster(300.0, 60.0, vec![dataset(1000.0), dataset(250.0)], jobs);
    let found = in_order(&cluster);
    assert_eq!(found.cache_bytes, [50.0, 250.0]);
    // The first job asks for 95 and gets all there is; the second reads nothing over the link.
    assert_eq!(found.bandwidth_bytes_per_s, [60.0, 0.0]);
    let rates = found.rates(&cluster);
    assert!((rates[0] - 60.0 / 0.95).abs() < 1e-9 && rates[1] == 100.0, "{rates:?}");
    // An equal split: 150 bytes and 30 a second each, so 30/0.85 and 30/0.4.
    let equal = equal_split(&cluster).rates(&cluster);
    assert!((equal[0] - 30.0 / 0.85).abs() < 1e-9 && (equal[1] - 75.0).abs() < 1e-9, "{equal:?}");
    let fair = max_min(&cluster).rates(&cluster);
    assert!(fair[0] > equal[0] && fair[1] > equal[1], "{fair:?}");
}

/// Jobs that read the same dataset share what is cached of it, and it counts for both.
#[test]
fn a_dataset_is_cached_once_for_all_its_jobs() {
    let uniform = || HitCurve::uniform(100.0).unwrap();
    let jobs = vec![job(0, 30.0, uniform()), job(1, 20.0, uniform()), job(1, 20.0, uniform())];
    let cluster = cluster(100.0, 1000.0, vec![dataset(100.0), dataset(100.0)], jobs);
    assert_eq!(in_order(&cluster).cache_bytes, [0.0, 100.0]);
    assert_eq!(in_order(&cluster).bandwidth_bytes_per_s, [30.0, 0.0, 0.0]);
}

#[test]
fn numbers_that_mean_nothing_are_refused_by_name() {
    let make = |cache: f64, link: f64, bytes: f64, ideal: f64, of: usize| {
        let resources = Resources { cache_bytes: cache, bandwidth_bytes_per_s: link };
        let hits = HitCurve::uniform(1.0).unwrap();
        Cluster::new(resources, vec![dataset(bytes)], vec![job(of, ideal, hits)]).map_err(|e| e.to_string())
    };
    make(0.0, 0.0, 1.0, 1.0, 0).unwrap();
    for (found, says) in [
        (make(-1.0, 0.0, 1.0, 1.0, 0), "the cache has -1 bytes"),
        (make(0.0, f64::INFINITY, 1.0, 1.0, 0), "the link has inf bytes a second"),
        (make(0.0, 0.0, 0.0, 1.0, 0), "dataset of 0 has 0 bytes"),
        (make(0.0, 0.0, 1.0, f64::NAN, 0), "job reads 0 has NaN bytes a second"),
        (make(0.0, 0.0, 1.0, 1.0, 1), "reads dataset number 1, and there are 1"),
    ] {
        assert!(found.clone().unwrap_err().contains(says), "{found:?}");
    }
    for points in [[(-1.0, 0.5)], [(0.0, 0.5)], [(f64::NAN, 0.5)], [(1.0, 1.5)], [(1.0, f64::NAN)]] {
        assert!(HitCurve::measured(&points).unwrap_err().to_string().contains("give bytes above 0"), "{points:?}");
    }
}
