//! `lossfeed jobs`: a cluster's trace of jobs under several schedulers and cache systems.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use lossfeed_control::jobs::{
    CacheSystem, GavelJob, Order, READINGS, Ran, Resources, Rules, SCORED_HITS, Throughputs, Workload, assign,
    parse_gavel, simulate,
};
use lossfeed_control::{Error, Result};
use serde::Serialize;

use crate::args::JobsArgs;
use crate::parallel::in_parallel;
use crate::term;

/// A larger file is no trace of jobs.
const BYTES_MAX: u64 = 256 << 20;

/// What SiloD's small cluster has for each of its eight GPUs: 2 TB and 200 MB/s.
const CACHE_BYTES_A_GPU: f64 = 250e9;
const BANDWIDTH_A_GPU: f64 = 25e6;

/// The JSON document: `{"gpus", "cache_bytes", "bandwidth_bytes_per_s", "scored", "seed", "assumed", "runs": [{"trace",
/// "order", "cache", "jobs", "mean_completion_s", "makespan_s", "read_bytes", "fetched_bytes"}…]}`.
#[derive(Debug, Serialize)]
struct Report {
    gpus: u32,
    cache_bytes: f64,
    bandwidth_bytes_per_s: f64,
    scored: f64,
    seed: u64,
    /// What no trace says.
    assumed: String,
    runs: Vec<Run>,
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
}

/// Runs the command and returns its exit code.
pub(crate) fn run(args: &JobsArgs) -> i32 {
    match report(args) {
        Ok(report) => term::exit_code(print(&report, args, &mut io::stdout().lock())),
        Err(e) => term::failed(&e),
    }
}

fn report(args: &JobsArgs) -> Result<Report> {
    let gpus = f64::from(args.gpus);
    let resources = Resources {
        cache_bytes: args.cache_bytes.map_or(CACHE_BYTES_A_GPU * gpus, |bytes| bytes as f64),
        bandwidth_bytes_per_s: args.bandwidth.map_or(BANDWIDTH_A_GPU * gpus, |bytes| bytes as f64),
    };
    let told = |path: &Path, e: Error| Error::new(e.kind(), path.display().to_string()).because(e);
    let throughputs = text(&args.throughputs)
        .and_then(|text| throughputs(&text, &args.gpu))
        .map_err(|e| told(&args.throughputs, e))?;
    let workload = |(number, path): (usize, &std::path::PathBuf)| {
        let of = |jobs: Vec<GavelJob>| {
            let (datasets, jobs) = assign(&jobs, &throughputs, args.scored, args.seed.wrapping_add(number as u64))?;
            Workload::new(args.gpus, resources, datasets, jobs)
        };
        text(path).and_then(|text| of(parse_gavel(&text)?)).map_err(|e| told(path, e))
    };
    let workloads = args.trace.iter().enumerate().map(workload).collect::<Result<Vec<_>>>()?;
    let mut wanted = Vec::new();
    for &order in &args.order {
        for &cache in &args.cache {
            wanted.extend((0..workloads.len()).map(|trace| (Rules { order, cache }, trace)));
        }
    }
    let one = |&(rules, trace): &(Rules, usize)| {
        let ran = simulate(&workloads[trace], rules, |_| {})?;
        Ok(sum_up(args.trace[trace].display().to_string(), rules, &workloads[trace], &ran))
    };
    let runs = in_parallel(&wanted, one).into_iter().collect::<Result<_>>()?;
    let Resources { cache_bytes, bandwidth_bytes_per_s } = resources;
    let (scored, seed, assumed) = (args.scored, args.seed, assumed(args.scored));
    Ok(Report { gpus: args.gpus, cache_bytes, bandwidth_bytes_per_s, scored, seed, assumed, runs })
}

fn text(path: &Path) -> Result<String> {
    let file = File::open(path).map_err(|e| Error::unreadable("cannot open it").because(e))?;
    let mut text = String::new();
    file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(|e| Error::unreadable("cannot read it").because(e))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(Error::settings(format!("it is longer than {BYTES_MAX} bytes, so it is no trace of jobs")));
    }
    Ok(text)
}

/// Of Gavel's file: by GPU, by `('job type', GPUs)`, steps a second alone under the key "null".
fn throughputs(text: &str, gpu: &str) -> Result<Throughputs> {
    let document: serde_json::Value =
        serde_json::from_str(text).map_err(|e| Error::settings("it is no JSON").because(e))?;
    let Some(kinds) = document.get(gpu).and_then(serde_json::Value::as_object) else {
        let known = document.as_object().map(|all| all.keys().cloned().collect::<Vec<_>>().join(", "));
        return Err(Error::settings(format!("it has no GPU {gpu:?}, but: {}", known.unwrap_or_default())));
    };
    let mut found = Throughputs::default();
    for (name, rates) in kinds {
        let parts = name.strip_prefix("('").and_then(|rest| rest.strip_suffix(')')?.rsplit_once("', "));
        let parsed = parts.and_then(|(kind, gpus)| Some((kind, gpus.parse::<u32>().ok()?)));
        let (Some((kind, gpus)), Some(rate)) = (parsed, rates.get("null").and_then(serde_json::Value::as_f64)) else {
            return Err(Error::settings(format!(
                "{gpu} {name:?} is not ('job type', GPUs) with a rate under \"null\""
            )));
        };
        // Gavel writes 0 where a job did not fit.
        if rate > 0.0 {
            found.insert(kind, gpus, rate)?;
        }
    }
    Ok(found)
}

fn sum_up(trace: String, rules: Rules, workload: &Workload, ran: &[Ran]) -> Run {
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
    }
}

fn assumed(scored: f64) -> String {
    let reading = |reading: &lossfeed_control::jobs::Reading| {
        format!("{} ({:.2} TB, {:.0} MB/s a GPU)", reading.name, reading.bytes / 1e12, reading.bytes_per_s_a_gpu / 1e6)
    };
    let readings: Vec<_> = READINGS.iter().map(reading).collect();
    let (part, hits) = SCORED_HITS;
    format!(
        "Traces do not say what a job reads. Drawn by seed, a dataset for each job: {}. {:.0} % of the jobs choose \
         samples by scores: with {:.0} % of the dataset cached they hit {:.0} % (lossfeed's cost-aware sampler on \
         CIFAR-10), but LRU as on plain epochs. A job's first epoch hits nothing.",
        readings.join(", "),
        100.0 * scored,
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
    let heads = ["completion h", "makespan h", "fetched TB", "hit%"];
    writeln!(out, "{:<8} {:<7} {:>13} {:>11} {:>11} {:>6}", "order", "cache", heads[0], heads[1], heads[2], heads[3])?;
    for runs in report.runs.chunks(args.trace.len().max(1)) {
        let Some(first) = runs.first() else { continue };
        let jobs: usize = runs.iter().map(|run| run.jobs).sum();
        let sum = |of: fn(&Run) -> f64| runs.iter().map(of).sum::<f64>();
        let completion = sum(|run| run.mean_completion_s * run.jobs as f64) / jobs as f64 / 3600.0;
        let makespan = sum(|run| run.makespan_s) / runs.len() as f64 / 3600.0;
        let (read, fetched) = (sum(|run| run.read_bytes), sum(|run| run.fetched_bytes));
        let hit = if read > 0.0 { 100.0 * (1.0 - fetched / read) } else { 0.0 };
        let (order, cache) = (first.order.name(), first.cache.name());
        writeln!(out, "{order:<8} {cache:<7} {completion:>13.2} {makespan:>11.1} {:>11.1} {hit:>6.1}", fetched / 1e12)?;
    }
    writeln!(out, "completion: mean over all jobs, from arrival to end. makespan: mean over traces.")?;
    writeln!(out, "{}", report.assumed)?;
    out.flush()?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    const TRACE: &str = "small (batch size 1)\tpython3 a.py\t--steps\t1\t40000\t60.0\t2\n\
                         \n\
                         idle\tpython3 b.py\t--steps\t0\t500\t0.0\t1\n\
                         small (batch size 1)\tpython3 a.py\t--steps\t1\t90000\t30.5\t4\n";
    const RATES: &str = r#"{"v100": {"('small (batch size 1)', 1)": {"null": 0.5, "('idle', 1)": [0.1, 0.2]},
        "('small (batch size 1)', 2)": {"null": 0.8}, "('idle', 1)": {"null": 0.25}, "('idle', 8)": {"null": 0.0}}}"#;

    fn args(folder: &Path, more: &[&str]) -> JobsArgs {
        let path = |name: &str| folder.join(name).display().to_string();
        let (trace, rates) = (path("a.trace"), path("rates.json"));
        let given = ["lossfeed", "jobs", "--trace", &trace, "--throughputs", &rates, "--gpus", "4"];
        match crate::args::Cli::parse_from(given.iter().chain(more)).command {
            crate::args::Command::Jobs(args) => args,
            other => panic!("{other:?}"),
        }
    }

    fn folder(trace: &str, rates: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.trace"), trace).unwrap();
        std::fs::write(folder.path().join("rates.json"), rates).unwrap();
        folder
    }

    #[test]
    fn every_system_runs_and_the_same_seed_gives_the_same() {
        let folder = folder(TRACE, RATES);
        let told = |more: &[&str]| {
            let args = args(folder.path(), more);
            let mut out = Vec::new();
            print(&report(&args).unwrap(), &args, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let json: serde_json::Value = serde_json::from_str(&told(&["--json", "--seed", "4"])).unwrap();
        let runs = json["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 15);
        assert!(runs.iter().all(|run| run["jobs"] == 3 && run["makespan_s"].as_f64().unwrap() >= 90_000.0 / 1.6));
        assert_eq!(told(&["--seed", "4"]), told(&["--seed", "4"]));
        assert_ne!(told(&["--seed", "4"]), told(&["--seed", "5"]));
        let one = told(&["--order", "sjf", "--cache", "ours", "--cache-bytes", "1TB", "--bandwidth", "200MB"]);
        assert!(one.starts_with("4 GPUs, 1.00 TB of cache, 0.20 GB/s, 1 traces\n"), "{one}");
        assert!(one.contains("sjf      ours") && one.contains("BERT on WebSearch (22.98 TB, 2 MB/s a GPU)"), "{one}");
    }

    #[test]
    fn bad_files_are_refused_with_the_line() {
        for (trace, rates, says) in [
            ("", RATES, "no jobs"),
            (&TRACE.replace("idle", "busy"), RATES, "\"busy\" on 1 GPUs is not known"),
            (&TRACE.replace("\t0\t500", "\t2\t500"), RATES, "line 3"),
            (&TRACE.replace("90000", "9e4"), RATES, "line 4"),
            (&TRACE.replace("90000", "0"), RATES, "line 4"),
            (&TRACE.replace("30.5", "NaN"), RATES, "line 4"),
            (&TRACE.replace("30.5", "-1"), RATES, "line 4"),
            (&TRACE.replace("\t2\n", "\n"), RATES, "line 1"),
            (&TRACE.replace("\t4\n", "\t400\n"), RATES, "needs 400 GPUs of 4"),
            (TRACE, "{", "no JSON"),
            (TRACE, "{\"k80\": {}}", "no GPU \"v100\", but: k80"),
            (TRACE, &RATES.replace("', 2)", ", 2)"), "is not ('job type', GPUs)"),
        ] {
            let folder = folder(trace, rates);
            let error = report(&args(folder.path(), &[])).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(run(&args(folder.path(), &[])), 2, "{error}");
        }
        let folder = folder(TRACE, RATES);
        let mut missing = args(folder.path(), &[]);
        missing.trace = vec!["/nonexistent/a.trace".into()];
        assert!(report(&missing).unwrap_err().to_string().contains("/nonexistent/a.trace"));
        assert_eq!(run(&missing), 1);
    }
}
