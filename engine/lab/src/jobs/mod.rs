//! `lossfeed-lab jobs`: a cluster's trace of jobs under several schedulers and cache systems.

mod read;

use std::io::{self, Write};
use std::path::PathBuf;

use lossfeed_cli::parallel::in_parallel;
use lossfeed_cli::term;
use lossfeed_control::Result;
use lossfeed_control::jobs::Resources;
use serde::Serialize;

use crate::args::JobsArgs;
use crate::cluster::{
    Assumed, CacheSystem, Order, OverTime, READINGS, Ran, Reading, Rules, SCORED_HITS, Workload, assign, simulate,
};
use read::{rates, read, trace};

/// What SiloD's small cluster has for each of its eight GPUs: 2 TB and 200 MB/s.
const CACHE_BYTES_A_GPU: f64 = 250e9;
const BANDWIDTH_A_GPU: f64 = 25e6;

/// The JSON document: `{"gpus", "gpu_speed", "cache_bytes", "bandwidth_bytes_per_s", "scored", "shared", "seed",
/// "assumed", "traces": [{"trace", "jobs"}…], "runs": [{"trace", "order", "cache", "jobs", "mean_completion_s",
/// "makespan_s", "read_bytes", "fetched_bytes", "fairness", "effective"}…]}`.
#[derive(Debug, Serialize)]
struct Report {
    gpus: u32,
    gpu_speed: f64,
    cache_bytes: f64,
    bandwidth_bytes_per_s: f64,
    scored: f64,
    shared: f64,
    seed: u64,
    /// What no trace says.
    assumed: String,
    traces: Vec<Trace>,
    runs: Vec<Run>,
}

#[derive(Debug, Serialize)]
struct Trace {
    trace: String,
    jobs: usize,
}

#[derive(Debug, Clone, Serialize)]
struct Run {
    trace: String,
    order: Order,
    cache: CacheSystem,
    jobs: usize,
    /// From a job's arrival to its end, over its jobs.
    mean_completion_s: f64,
    /// From the first arrival to the last end.
    makespan_s: f64,
    read_bytes: f64,
    fetched_bytes: f64,
    /// The least job's rate over that of an equal split, as a mean over time.
    fairness: f64,
    /// Bytes that can be hit, of those that are allocated, as a mean over time. None under LRU, which allocates none.
    effective: Option<f64>,
}

/// Runs the command and returns its exit code.
pub(crate) fn run(args: &JobsArgs) -> i32 {
    match report(args) {
        Ok(report) => term::exit_code(print(&report, args, &mut io::stdout().lock())),
        Err(e) => term::failed(&e),
    }
}

/// Over all traces, for an order and a cache system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overall {
    /// Mean over the jobs.
    pub(crate) completion_s: f64,
    pub(crate) fairness: f64,
    pub(crate) effective: Option<f64>,
}

/// Every order and cache system.
pub(crate) fn overall(args: &JobsArgs) -> Result<Vec<Overall>> {
    let report = report(args)?;
    let of = |runs: &[Run]| runs.first().map(|first| sum_up_all(first, runs));
    Ok(report.runs.chunks(args.trace.len().max(1)).filter_map(of).collect())
}

fn sum_up_all(first: &Run, runs: &[Run]) -> Overall {
    let mean = |of: fn(&Run) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
    Overall {
        completion_s: completion_s(runs),
        fairness: mean(|run| run.fairness),
        effective: first.effective.map(|_| mean(|run| run.effective.unwrap_or(0.0))),
    }
}

/// Over all jobs of these runs.
fn completion_s(runs: &[Run]) -> f64 {
    let jobs: usize = runs.iter().map(|run| run.jobs).sum();
    runs.iter().map(|run| run.mean_completion_s * run.jobs as f64).sum::<f64>() / jobs as f64
}

fn report(args: &JobsArgs) -> Result<Report> {
    let gpus = f64::from(args.gpus);
    let resources = Resources {
        cache_bytes: args.cache_bytes.map_or(CACHE_BYTES_A_GPU * gpus, |bytes| bytes as f64),
        bandwidth_bytes_per_s: args.bandwidth.map_or(BANDWIDTH_A_GPU * gpus, |bytes| bytes as f64),
    };
    let rates = rates(args)?;
    // The number of a trace is part of its seed, so the order in which they were named must not count.
    let mut paths: Vec<&PathBuf> = args.trace.iter().collect();
    paths.sort();
    let workload = |(number, path): (usize, &&PathBuf)| {
        read(path, |text| {
            let assumed = Assumed {
                scored: args.scored,
                shared: args.shared,
                gpu_speed: args.gpu_speed,
                seed: args.seed.wrapping_add(number as u64),
            };
            let (datasets, jobs) = assign(&trace(text, args)?, &rates, assumed)?;
            let told = Trace { trace: path.display().to_string(), jobs: jobs.len() };
            Ok((Workload::new(args.gpus, resources, datasets, jobs)?, told))
        })
    };
    let found = paths.iter().enumerate().map(workload).collect::<Result<Vec<_>>>()?;
    let assumed = assumed(args);
    let (workloads, traces): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let mut wanted = Vec::new();
    for &order in &args.order {
        for &cache in &args.cache {
            wanted.extend((0..workloads.len()).map(|trace| (Rules { order, cache }, trace)));
        }
    }
    let one = |&(rules, trace): &(Rules, usize)| {
        let mut means = OverTime::default();
        let ran = simulate(&workloads[trace], rules, |moment| means.add(&workloads[trace], moment))?;
        Ok(sum_up(traces[trace].trace.clone(), rules, &workloads[trace], &ran, means))
    };
    let runs = in_parallel(&wanted, one).into_iter().collect::<Result<_>>()?;
    let Resources { cache_bytes, bandwidth_bytes_per_s } = resources;
    let &JobsArgs { gpus, gpu_speed, scored, shared, seed, .. } = args;
    Ok(Report { gpus, gpu_speed, cache_bytes, bandwidth_bytes_per_s, scored, shared, seed, assumed, traces, runs })
}

fn sum_up(trace: String, rules: Rules, workload: &Workload, ran: &[Ran], means: OverTime) -> Run {
    let jobs = workload.jobs();
    let completion: f64 = jobs.iter().zip(ran).map(|(job, ran)| ran.ended_s - job.arrives_s).sum();
    let first = jobs.iter().map(|job| job.arrives_s).fold(f64::INFINITY, f64::min);
    Run {
        trace,
        order: rules.order,
        cache: rules.cache,
        jobs: jobs.len(),
        mean_completion_s: completion / jobs.len() as f64,
        makespan_s: ran.iter().map(|ran| ran.ended_s).fold(0.0, f64::max) - first,
        read_bytes: ran.iter().map(|ran| ran.read_bytes).sum(),
        fetched_bytes: ran.iter().map(|ran| ran.fetched_bytes).sum(),
        fairness: means.fairness(),
        effective: (rules.cache != CacheSystem::Lru).then(|| means.effective()),
    }
}

fn assumed(args: &JobsArgs) -> String {
    let reading = |reading: &Reading| {
        format!("{} ({:.2} TB, {:.0} MB/s a GPU)", reading.name, reading.bytes / 1e12, reading.bytes_per_s_a_gpu / 1e6)
    };
    let readings: Vec<_> = READINGS.iter().map(reading).collect();
    let (part, hits) = SCORED_HITS;
    format!(
        "Traces do not say what a job reads. Drawn by seed: {}. {:.0} % of the jobs share one copy of their dataset. \
         {:.0} % choose samples by scores: with {:.0} % of the dataset cached they hit {:.0} % (lossfeed's cost-aware \
         sampler on CIFAR-10), but LRU as on plain epochs. A job's first epoch hits nothing.",
        readings.join(", "),
        100.0 * args.shared,
        100.0 * args.scored,
        100.0 * part,
        100.0 * hits
    )
}

fn print(report: &Report, args: &JobsArgs, out: &mut impl Write) -> io::Result<i32> {
    if args.json {
        term::document(report, out)?;
        out.flush()?;
        return Ok(0);
    }
    let (cache, link) = (report.cache_bytes / 1e12, report.bandwidth_bytes_per_s / 1e9);
    writeln!(out, "{} GPUs, {cache:.2} TB of cache, {link:.2} GB/s, {} traces", report.gpus, args.trace.len())?;
    let [completion, makespan, fetched, hit] = ["completion h", "makespan h", "fetched TB", "hit%"];
    let [fairness, effective] = ["fairness", "effective%"];
    let (order, cache) = ("order", "cache");
    writeln!(
        out,
        "{order:<8} {cache:<14} {completion:>13} {makespan:>11} {fetched:>11} {hit:>6} {fairness:>9} {effective:>10}"
    )?;
    for runs in report.runs.chunks(args.trace.len().max(1)) {
        let Some(first) = runs.first() else { continue };
        let sum = |of: fn(&Run) -> f64| runs.iter().map(of).sum::<f64>();
        let all = sum_up_all(first, runs);
        let completion = all.completion_s / 3600.0;
        let makespan = sum(|run| run.makespan_s) / runs.len() as f64 / 3600.0;
        let (read, fetched) = (sum(|run| run.read_bytes), sum(|run| run.fetched_bytes));
        let hit = if read > 0.0 { 100.0 * (1.0 - fetched / read) } else { 0.0 };
        let (order, cache) = (first.order.name(), first.cache.name());
        let (fetched, fairness) = (fetched / 1e12, all.fairness);
        let effective = all.effective.map_or("-".to_owned(), |part| format!("{:.1}", 100.0 * part));
        writeln!(
            out,
            "{order:<8} {cache:<14} {completion:>13.2} {makespan:>11.1} {fetched:>11.1} {hit:>6.1} {fairness:>9.3} \
             {effective:>10}"
        )?;
    }
    writeln!(
        out,
        "completion: mean over all jobs, from arrival to end. makespan: mean over traces. fairness: the rate of \
         the job that is worst off over its rate under an equal split, mean over time. effective: the part of the \
         allocated cache that can be hit."
    )?;
    writeln!(out, "{}", report.assumed)?;
    out.flush()?;
    Ok(0)
}

#[cfg(test)]
mod tests;
