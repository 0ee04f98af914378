//! The residents of a machine's cache, judged by all of its jobs: by expected draws, as the node cache has it (decision
//! 69), beside iCACHE's aggregated importance value and the samples that came first.
//!
//! `cargo test -p lossfeed-tests --test pure residents -- --nocapture` prints the table.

use lossfeed::jobs::{BENEFIT_MIN, aggregated};
use lossfeed::random::{Purpose, below, generator};

const SAMPLES: usize = 10_000;
const KEPT: usize = SAMPLES / 5;

/// Importances of a job with mean 1, lognormal: `spread` 0 is a job that draws uniformly.
fn draws(seed: u64, spread: f64) -> Vec<f32> {
    let mut rng = generator(seed, 0, 0, Purpose::Draw);
    let mut uniform = || (f64::from(below(&mut rng, 1 << 30)) + 0.5) / f64::from(1 << 30);
    let normal = |(a, b): (f64, f64)| (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
    let all: Vec<f64> = (0..SAMPLES).map(|_| (spread * normal((uniform(), uniform()))).exp()).collect();
    let mean = all.iter().sum::<f64>() / SAMPLES as f64;
    all.into_iter().map(|draws| (draws / mean) as f32).collect()
}

/// The samples of the highest values.
fn best(values: &[f64]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..SAMPLES).collect();
    ids.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    ids.truncate(KEPT);
    ids
}

/// The part of the draws of these jobs that `kept` has.
fn hits(jobs: &[&(f64, Vec<f32>)], kept: &[usize]) -> f64 {
    let of = |(_, draws): &&(f64, Vec<f32>)| kept.iter().map(|&id| f64::from(draws[id])).sum::<f64>();
    jobs.iter().map(of).sum::<f64>() / (jobs.len() * SAMPLES) as f64
}

#[test]
fn residents_by_expected_draws_are_hit_most_and_by_aiv_where_a_job_gains_nothing_from_them() {
    // Each job's benefit (its time without the cache over that with it), and its draws.
    let alike = draws(1, 1.0);
    let cases = [
        ("rank alike", vec![(3.0, alike.clone()), (3.0, alike)]),
        ("rank apart", vec![(3.0, draws(1, 1.0)), (3.0, draws(2, 1.0))]),
        ("one of them uniform", vec![(3.0, draws(1, 1.0)), (3.0, draws(2, 0.0))]),
        ("few samples count much", vec![(3.0, draws(1, 2.0)), (3.0, draws(2, 0.5))]),
        ("one gains more", vec![(6.0, draws(1, 1.0)), (2.0, draws(2, 1.0))]),
        ("one gains nothing", vec![(3.0, draws(1, 1.0)), (1.2, draws(2, 1.0))]),
    ];
    println!("two jobs: all draws, those of jobs that gain; by draws, AIV, first come");
    for (name, jobs) in cases {
        let sums: Vec<f64> = (0..SAMPLES).map(|id| jobs.iter().map(|(_, draws)| f64::from(draws[id])).sum()).collect();
        let values: Vec<(f64, &[f32])> = jobs.iter().map(|(benefit, draws)| (*benefit, &draws[..])).collect();
        let ways = [best(&sums), best(&aggregated(&values).unwrap()), (0..KEPT).collect()];
        let all: Vec<_> = jobs.iter().collect();
        let gain: Vec<_> = jobs.iter().filter(|(benefit, _)| *benefit > BENEFIT_MIN).collect();
        let [by_draws, by_aiv, first] = ways.each_ref().map(|kept| hits(&all, kept));
        let [gain_by_draws, gain_by_aiv, gain_first] = ways.each_ref().map(|kept| hits(&gain, kept));
        println!(
            "{name:24} {by_draws:.3} {by_aiv:.3} {first:.3}   {gain_by_draws:.3} {gain_by_aiv:.3} {gain_first:.3}"
        );
        assert!(by_draws >= by_aiv - 1e-9 && by_draws > first + 0.05, "{name}");
        assert_eq!(gain_by_aiv > gain_by_draws + 0.01, gain.len() < jobs.len(), "{name}");
    }
}
