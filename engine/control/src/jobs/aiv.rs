//! iCACHE's way of sharing one cache among jobs: aggregated importance values (Chen et al., HPCA'23).
//!
//! Each epoch a job runs [`PROBE_BATCHES`] batches without the cache and as many with it. The quotient of the two times
//! is its [`benefit`]. Jobs above [`BENEFIT_MIN`] take part, and the value of a sample is the sum over them of benefit ×
//! percentile of the sample's importance within the job. The cache holds the samples of the highest values. The public
//! code has none of this; the paper is the source.
//!
//! Where the paper leaves something open, this is how it is read here. The percentile is the part of the job's samples
//! whose importance is at most this one's, so equal samples rank alike and the best has 1. A sample without a score
//! ranks below all others, at 0. Capacity is in bytes, and jobs that do not take part bring nothing to any sample.

use super::link::fill;
use super::{Allocation, Cluster, equal_split, rate};
use crate::error::{Error, Result};

/// Batches without the cache, and batches with it, that an epoch measures.
pub const PROBE_BATCHES: usize = 20;

/// A job takes part in the sharing if its benefit is above this.
pub const BENEFIT_MIN: f64 = 1.5;

/// How many times as long batches take without the cache, of the seconds that each batch took.
///
/// # Errors
/// `Settings` unless both lists have [`PROBE_BATCHES`] finite times above 0.
pub fn benefit(without_s: &[f64], with_s: &[f64]) -> Result<f64> {
    let total = |what: &str, seconds: &[f64]| {
        if seconds.len() != PROBE_BATCHES {
            let found = seconds.len();
            return Err(Error::settings(format!("{found} batches {what} the cache: give {PROBE_BATCHES} times")));
        }
        if let Some(bad) = seconds.iter().find(|&&one| !one.is_finite() || one <= 0.0) {
            return Err(Error::settings(format!("a batch {what} the cache took {bad} s: give a number above 0")));
        }
        Ok(seconds.iter().sum::<f64>())
    };
    Ok(total("without", without_s)? / total("with", with_s)?)
}

/// The aggregated value of each sample of one dataset, of its jobs' benefits and importances by sample (NaN: none yet).
///
/// # Errors
/// `Settings` if two jobs have importances of different numbers of samples.
pub fn aggregated(jobs: &[(f64, &[f32])]) -> Result<Vec<f64>> {
    let samples = jobs.first().map_or(0, |(_, scores)| scores.len());
    let mut values = vec![0.0; samples];
    for (number, &(benefit, scores)) in jobs.iter().enumerate() {
        if scores.len() != samples {
            let found = scores.len();
            return Err(Error::settings(format!("job {number} scores {found} samples of a dataset of {samples}")));
        }
        if benefit > BENEFIT_MIN {
            let ranks = percentiles(scores);
            values.iter_mut().zip(ranks).for_each(|(value, rank)| *value += benefit * rank);
        }
    }
    Ok(values)
}

/// The part of all samples whose importance is at most each one's; 0 for one that is NaN.
fn percentiles(scores: &[f32]) -> Vec<f64> {
    let mut sorted: Vec<f32> = scores.iter().copied().filter(|score| !score.is_nan()).collect();
    sorted.sort_by(f32::total_cmp);
    let unscored = scores.len() - sorted.len();
    let rank = |&score: &f32| {
        if score.is_nan() {
            return 0.0;
        }
        (unscored + sorted.partition_point(|&other| other <= score)) as f64 / scores.len() as f64
    };
    scores.iter().map(rank).collect()
}

/// The benefit that the jobs of a cluster would measure, if each had its part of an [`equal_split`]: its rate with its
/// part of the cache, over its rate without.
pub fn expected_benefits(cluster: &Cluster) -> Vec<f64> {
    let split = equal_split(cluster);
    let one = |(number, with): (usize, f64)| {
        let without = rate(&cluster.jobs()[number], 0.0, split.bandwidth_bytes_per_s[number]);
        if without > 0.0 {
            with / without
        } else if with > 0.0 {
            f64::MAX
        } else {
            1.0
        }
    };
    split.rates(cluster).into_iter().enumerate().map(one).collect()
}

/// Halvings of the interval in which the value of the last sample lies: past them a float64 does not change, even from
/// the largest there is to the least.
const HALVINGS: u32 = 2200;

/// Divides the cache as if every sample of every dataset stood in one list by its aggregated value, for jobs with these
/// benefits. The link goes to all jobs alike, as the paper says nothing of it; nobody gets more than it can use.
///
/// Within a job percentiles are spread evenly from 0 to 1, whatever its scores are. So of a dataset whose jobs rank its
/// samples alike, and have the benefits b in sum, the part 1 − v/b has a value above v. That they rank alike is an
/// assumption: jobs that do not would have fewer samples far above the others.
///
/// # Errors
/// `Settings` if there is not one finite benefit above 0 for each job.
pub fn by_aiv(cluster: &Cluster, benefits: &[f64]) -> Result<Allocation> {
    let jobs = cluster.jobs();
    if benefits.len() != jobs.len() {
        return Err(Error::settings(format!("{} benefits of {} jobs", benefits.len(), jobs.len())));
    }
    for (job, &benefit) in jobs.iter().zip(benefits) {
        if !benefit.is_finite() || benefit <= 0.0 {
            return Err(Error::settings(format!("job {} has a benefit of {benefit}: give one above 0", job.name)));
        }
    }
    let cache_bytes = cache_by_value(cluster, benefits);
    let wanted: Vec<f64> =
        jobs.iter().map(|job| job.ideal_bytes_per_s * (1.0 - job.hits.at(cache_bytes[job.dataset]))).collect();
    let link = cluster.resources().bandwidth_bytes_per_s;
    Ok(Allocation { bandwidth_bytes_per_s: fill(&wanted, &vec![1.0; wanted.len()], link), cache_bytes })
}

/// See [`by_aiv`]; the benefits are finite and above 0.
pub(super) fn cache_by_value(cluster: &Cluster, benefits: &[f64]) -> Vec<f64> {
    let mut most = vec![0.0_f64; cluster.datasets().len()];
    for (job, &benefit) in cluster.jobs().iter().zip(benefits) {
        if benefit > BENEFIT_MIN {
            // Finite, so that a part of it is one too.
            most[job.dataset] = (most[job.dataset] + benefit).min(f64::MAX);
        }
    }
    let above = |value: f64| -> Vec<f64> {
        let part = |most: f64| if most > value { 1.0 - value / most } else { 0.0 };
        cluster.datasets().iter().zip(&most).map(|(dataset, &most)| dataset.bytes * part(most)).collect()
    };
    let room = cluster.resources().cache_bytes;
    let (mut low, mut high) = (0.0, most.iter().copied().fold(0.0, f64::max));
    let mut cache_bytes = above(low);
    if cache_bytes.iter().sum::<f64>() > room {
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            if middle <= low || middle >= high {
                break;
            }
            if above(middle).iter().sum::<f64>() > room { low = middle } else { high = middle }
        }
        cache_bytes = above(high);
    }
    cache_bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Dataset, HitCurve, Job, Resources};
    use super::*;

    #[test]
    fn the_benefit_is_the_quotient_of_twenty_and_twenty_batches() {
        let (without, with) = ([0.3; PROBE_BATCHES], [0.1; PROBE_BATCHES]);
        assert!((benefit(&without, &with).unwrap() - 3.0).abs() < 1e-12);
        assert!(benefit(&without[1..], &with).unwrap_err().to_string().contains("19 batches without"));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let mut with = with;
            with[7] = bad;
            assert!(benefit(&without, &with).is_err(), "{bad}");
        }
    }

    #[test]
    fn values_are_benefits_times_percentiles_of_the_jobs_that_gain() {
        let nan = f32::NAN;
        let (a, b, c) = ([1.0, 5.0, 5.0, nan], [9.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 9.0]);
        let values = aggregated(&[(2.0, &a), (4.0, &b), (BENEFIT_MIN, &c)]).unwrap();
        assert_eq!(values, [2.0 * 0.5 + 4.0, 2.0 + 1.0, 2.0 + 2.0, 3.0]);
        assert!(aggregated(&[(2.0, &a), (2.0, &b[1..])]).unwrap_err().to_string().contains("job 1 scores 3 samples"));
        assert!(aggregated(&[]).unwrap().is_empty());
    }

    fn cluster(cache: f64, link: f64, rows: &[(f64, usize, f64)]) -> Cluster {
        let dataset = |row: &(f64, usize, f64)| Dataset { name: "d".to_owned(), bytes: row.0 };
        let job = |row: &(f64, usize, f64)| {
            let hits = HitCurve::uniform(rows[row.1].0).unwrap();
            Job { name: "j".to_owned(), dataset: row.1, ideal_bytes_per_s: row.2, hits }
        };
        let resources = Resources { cache_bytes: cache, bandwidth_bytes_per_s: link };
        Cluster::new(resources, rows.iter().map(dataset).collect(), rows.iter().map(job).collect()).unwrap()
    }

    /// Above the value 2.4 lie 1/5 of one dataset, 1 - 2.4/3, and 2/5 of the other, 1 - 2.4/4.
    #[test]
    fn a_cluster_is_divided_at_one_value() {
        let two = cluster(60.0, 100.0, &[(100.0, 0, 50.0), (100.0, 1, 80.0)]);
        let given = by_aiv(&two, &[3.0, 4.0]).unwrap();
        assert!((given.cache_bytes[0] - 20.0).abs() < 1e-9 && (given.cache_bytes[1] - 40.0).abs() < 1e-9, "{given:?}");
        let link = given.bandwidth_bytes_per_s;
        assert!((link[0] - 40.0).abs() < 1e-9 && (link[1] - 48.0).abs() < 1e-9, "{link:?}");
        let one = by_aiv(&two, &[3.0, 1.2]).unwrap();
        assert!((one.cache_bytes[0] - 60.0).abs() < 1e-9 && one.cache_bytes[1] == 0.0, "{one:?}");
        assert_eq!(by_aiv(&two, &[1.0, 1.5]).unwrap().cache_bytes, [0.0, 0.0]);
        for bad in [&[2.0][..], &[2.0, 0.0], &[2.0, f64::NAN]] {
            assert!(by_aiv(&two, bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn expected_benefits_are_rates_with_over_rates_without() {
        let two = cluster(100.0, 40.0, &[(100.0, 0, 50.0), (50.0, 1, 10.0)]);
        assert_eq!(expected_benefits(&two), [2.0, 1.0]);
        let no_link = cluster(100.0, 0.0, &[(200.0, 0, 50.0), (50.0, 1, 10.0)]);
        assert_eq!(expected_benefits(&no_link), [1.0, f64::MAX]);
        let given = by_aiv(&no_link, &expected_benefits(&no_link)).unwrap();
        assert_eq!(given.cache_bytes, [0.0, 50.0]);
        let given = by_aiv(&no_link, &[3.0, f64::MAX]).unwrap().cache_bytes;
        assert!((given[0] - 50.0).abs() < 1e-9 && (given[1] - 50.0).abs() < 1e-9, "{given:?}");
    }

    proptest! {
        /// The twin makes the list: a thousand samples a dataset, one after the other, highest value first.
        #[test]
        fn the_division_is_that_of_one_sorted_list(
            rows in prop::collection::vec((1..20u32, 0..3usize, 3..60u32), 1..4), cache in 0..60u32,
        ) {
            const PARTS: u32 = 1000;
            let count = rows.len();
            let sized: Vec<_> =
                rows.iter().map(|&(bytes, of, _)| (f64::from(bytes), of % count, 10.0)).collect();
            let cluster = cluster(f64::from(cache), 1.0, &sized);
            let benefits: Vec<f64> = rows.iter().map(|row| f64::from(row.2) / 10.0).collect();
            let found = by_aiv(&cluster, &benefits).unwrap();
            prop_assert!(found.cache_bytes.iter().sum::<f64>() <= f64::from(cache) * (1.0 + 1e-12));
            let mut list = Vec::new();
            for (number, dataset) in cluster.datasets().iter().enumerate() {
                let jobs = cluster.jobs().iter().zip(&benefits).filter(|(job, benefit)| {
                    job.dataset == number && **benefit > BENEFIT_MIN
                });
                let sum: f64 = jobs.map(|(_, benefit)| benefit).sum();
                let part = |rank: u32| (sum * f64::from(rank) / f64::from(PARTS), number, dataset.bytes);
                list.extend((1..=PARTS).map(part).filter(|part| part.0 > 0.0));
            }
            list.sort_by(|a, b| b.0.total_cmp(&a.0));
            let (mut left, mut given) = (f64::from(cache), vec![0.0; count]);
            for (_, number, bytes) in list {
                let one = (bytes / f64::from(PARTS)).min(left);
                given[number] += one;
                left -= one;
            }
            for (found, given) in found.cache_bytes.iter().zip(&given) {
                prop_assert!((found - given).abs() <= 0.1, "{found} {given}");
            }
        }
    }
}
