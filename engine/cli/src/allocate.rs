//! `lossfeed allocate`: one cache and one link to the store, divided among several jobs.

mod apply;
mod live;
mod placement;

use std::fs::File;
use std::io::{self, BufReader, Read, Write};

use lossfeed_control::jobs::{
    Allocation, Cluster, Dataset, HitCurve, Job, Resources, benefit, by_aiv, equal_split, expected_benefits, fifo,
    in_order, max_min, sjf,
};
use lossfeed_control::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::args::{AllocateArgs, Sharing};
use crate::term;
use placement::{AskedLoading, AskedNode, PlacementRow, placed};

/// A larger file is no list of jobs.
const BYTES_MAX: u64 = 64 << 20;

/// What the file says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    cache_bytes: f64,
    bandwidth_bytes_per_s: f64,
    datasets: Vec<Dataset>,
    jobs: Vec<AskedJob>,
    /// For DLCache's placement.
    #[serde(default)]
    nodes: Vec<AskedNode>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedJob {
    name: String,
    /// By name.
    dataset: String,
    ideal_bytes_per_s: f64,
    /// Measured: [bytes cached, hit ratio] each. Left out: plain epochs, cached / dataset.
    hits: Option<HitCurve>,
    /// Measured: seconds of batches without the cache, and with it.
    batch_s_without: Option<Vec<f64>>,
    batch_s_with: Option<Vec<f64>>,
    /// Seconds that it would still run if it never waited: for SJF.
    left_s: Option<f64>,
    /// GPUs that it needs, all on one node. Left out: one.
    gpus: Option<u32>,
    loading: Option<AskedLoading>,
}

impl AskedJob {
    /// iCACHE's quotient, if it was measured.
    fn benefit(&self) -> Result<Option<f64>> {
        match (&self.batch_s_without, &self.batch_s_with) {
            (None, None) => Ok(None),
            (Some(without), Some(with)) => benefit(without, with).map(Some),
            _ => Err(Error::settings("give both batch_s_without and batch_s_with, or neither")),
        }
    }
}

/// The JSON document: `{"sharing", "unused_cache_bytes", "datasets": [{"name", "bytes", "cache_bytes"}…], "jobs":
/// [{"name", "dataset", "bandwidth_bytes_per_s", "hit_ratio", "rate_bytes_per_s", "share_of_ideal",
/// "equal_split_share_of_ideal"}…]}`. Where loaders were measured, jobs have "workers" too; where there are nodes,
/// "placement" is there: `[{"job", "runs_on", "nodes": [{"node", "score", "fetch_bytes"}…], "homeless_bytes"}…]`.
#[derive(Debug, Serialize)]
struct Report {
    sharing: Sharing,
    /// Bytes that some dataset would have use for.
    unused_cache_bytes: f64,
    datasets: Vec<DatasetRow>,
    jobs: Vec<JobRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    placement: Vec<PlacementRow>,
}

#[derive(Debug, Serialize)]
struct DatasetRow {
    name: String,
    bytes: f64,
    cache_bytes: f64,
}

#[derive(Debug, Serialize)]
struct JobRow {
    name: String,
    dataset: String,
    bandwidth_bytes_per_s: f64,
    hit_ratio: f64,
    rate_bytes_per_s: f64,
    share_of_ideal: f64,
    equal_split_share_of_ideal: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    workers: Option<u32>,
}

/// Runs the command and returns its exit code.
pub(crate) fn run(args: &AllocateArgs) -> i32 {
    if args.apply {
        return apply::run(args);
    }
    match divide(args) {
        Ok(report) => term::exit_code(print(&report, args.json, &mut io::stdout().lock())),
        Err(e) => term::failed(&e),
    }
}

fn divide(args: &AllocateArgs) -> Result<Report> {
    let path = args.jobs.as_deref().ok_or_else(|| Error::settings("give a FILE of jobs, or --apply"))?;
    let told = |e: Error| Error::unreadable(format!("jobs {}", path.display())).because(e);
    let file = File::open(path).map_err(|e| told(Error::unreadable("cannot open it").because(e)))?;
    let mut text = Vec::new();
    let limited = BufReader::new(file).take(BYTES_MAX + 1).read_to_end(&mut text);
    limited.map_err(|e| told(Error::unreadable("cannot read it").because(e)))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(told(Error::settings(format!("it is longer than {BYTES_MAX} bytes, too long for a list of jobs"))));
    }
    let asked: Asked = serde_json::from_slice(&text)
        .map_err(|e| Error::settings(format!("jobs {}: {e}; `lossfeed allocate --help` shows one", path.display())))?;
    let of_job = |job: &AskedJob, e: Error| Error::settings(format!("job {}", job.name)).because(e);
    let measured = |job: &AskedJob| job.benefit().map_err(|e| of_job(job, e));
    let measured = asked.jobs.iter().map(measured).collect::<Result<Vec<_>>>()?;
    let loaded =
        |job: &AskedJob| job.loading.as_ref().map(AskedLoading::workers).transpose().map_err(|e| of_job(job, e));
    let workers = asked.jobs.iter().map(loaded).collect::<Result<Vec<_>>>()?;
    let left_s: Vec<Option<f64>> = asked.jobs.iter().map(|job| job.left_s).collect();
    let gpus: Vec<u32> = asked.jobs.iter().map(|job| job.gpus.unwrap_or(1)).collect();
    let (cluster, nodes) = cluster(asked)?;
    let placement = if nodes.is_empty() { Vec::new() } else { placed(&nodes, &cluster, &gpus)? };
    let allocation = match args.sharing {
        Sharing::Aiv => {
            let expected = expected_benefits(&cluster);
            let benefits: Vec<f64> =
                measured.iter().zip(expected).map(|(found, other)| found.unwrap_or(other)).collect();
            by_aiv(&cluster, &benefits)?
        }
        Sharing::MaxMin => max_min(&cluster),
        Sharing::Fifo => fifo(&cluster),
        Sharing::Sjf => sjf(&cluster, &seconds_left(&cluster, &left_s)?),
        Sharing::InOrder => in_order(&cluster),
        Sharing::EqualSplit => equal_split(&cluster),
    };
    let mut report = report(args.sharing, &cluster, &allocation);
    report.jobs.iter_mut().zip(workers).for_each(|(row, workers)| row.workers = workers);
    report.placement = placement;
    Ok(report)
}

/// The seconds left of every job, for SJF.
fn seconds_left(cluster: &Cluster, left_s: &[Option<f64>]) -> Result<Vec<f64>> {
    let one = |(job, left_s): (&Job, &Option<f64>)| {
        let given = left_s.filter(|left_s| left_s.is_finite() && *left_s >= 0.0);
        given.ok_or_else(|| {
            Error::settings(format!("job {}: --sharing sjf needs \"left_s\", the seconds it would still run", job.name))
        })
    };
    cluster.jobs().iter().zip(left_s).map(one).collect()
}

fn cluster(asked: Asked) -> Result<(Cluster, Vec<AskedNode>)> {
    let Asked { cache_bytes, bandwidth_bytes_per_s, datasets, jobs, nodes } = asked;
    let find = |job: &AskedJob| {
        let mut found = (0..datasets.len()).filter(|&number| datasets[number].name == job.dataset);
        let one = found.next().ok_or_else(|| {
            Error::settings(format!("job {} reads the dataset {:?}, which is not listed", job.name, job.dataset))
        })?;
        match found.next() {
            Some(_) => Err(Error::settings(format!("two datasets are called {:?}", job.dataset))),
            None => Ok(one),
        }
    };
    let placed = jobs.into_iter().map(|job| {
        let dataset = find(&job)?;
        let AskedJob { name, ideal_bytes_per_s, hits, .. } = job;
        // A dataset whose size means nothing is refused by name below.
        let hits = hits.map_or_else(|| HitCurve::uniform(datasets[dataset].bytes.max(f64::MIN_POSITIVE)), Ok)?;
        Ok(Job { name, dataset, ideal_bytes_per_s, hits })
    });
    let jobs = placed.collect::<Result<Vec<_>>>()?;
    Ok((Cluster::new(Resources { cache_bytes, bandwidth_bytes_per_s }, datasets, jobs)?, nodes))
}

fn report(sharing: Sharing, cluster: &Cluster, allocation: &Allocation) -> Report {
    let equal = equal_split(cluster).rates(cluster);
    let rates = allocation.rates(cluster);
    let job = |(number, job): (usize, &Job)| JobRow {
        name: job.name.clone(),
        dataset: cluster.datasets()[job.dataset].name.clone(),
        bandwidth_bytes_per_s: allocation.bandwidth_bytes_per_s[number],
        hit_ratio: job.hits.at(allocation.cache_bytes[job.dataset]),
        rate_bytes_per_s: rates[number],
        share_of_ideal: rates[number] / job.ideal_bytes_per_s,
        equal_split_share_of_ideal: equal[number] / job.ideal_bytes_per_s,
        workers: None,
    };
    let dataset =
        |(of, &cache_bytes): (&Dataset, &f64)| DatasetRow { name: of.name.clone(), bytes: of.bytes, cache_bytes };
    Report {
        sharing,
        unused_cache_bytes: allocation.unused(cluster),
        datasets: cluster.datasets().iter().zip(&allocation.cache_bytes).map(dataset).collect(),
        jobs: cluster.jobs().iter().enumerate().map(job).collect(),
        placement: Vec::new(),
    }
}

fn print(report: &Report, json: bool, out: &mut impl Write) -> io::Result<i32> {
    if json {
        term::document(report, out)?;
        out.flush()?;
        return Ok(0);
    }
    writeln!(out, "{:<24} {:>10} {:>10} {:>8}", "dataset", "size GB", "cached GB", "cached%")?;
    for DatasetRow { name, bytes, cache_bytes } in &report.datasets {
        let name = lossfeed_control::printable(name);
        let percent = 100.0 * cache_bytes / bytes;
        writeln!(out, "{name:<24} {:>10.2} {:>10.2} {percent:>8.1}", bytes / 1e9, cache_bytes / 1e9)?;
    }
    writeln!(out)?;
    let heads = ["link MB/s", "hit%", "rate MB/s", "ideal%", "equal%"];
    writeln!(out, "{:<24} {:>10} {:>7} {:>10} {:>7} {:>7}", "job", heads[0], heads[1], heads[2], heads[3], heads[4])?;
    for row in &report.jobs {
        let name = lossfeed_control::printable(&row.name);
        let (link, rate) = (row.bandwidth_bytes_per_s / 1e6, row.rate_bytes_per_s / 1e6);
        let [hit, ideal, equal] =
            [row.hit_ratio, row.share_of_ideal, row.equal_split_share_of_ideal].map(|share| 100.0 * share);
        writeln!(out, "{name:<24} {link:>10.1} {hit:>7.1} {rate:>10.1} {ideal:>7.1} {equal:>7.1}")?;
    }
    writeln!(out, "ideal%: of the rate of a job that never waits. equal%: the same under an equal split.")?;
    if report.unused_cache_bytes > 0.01 * cached(report) {
        writeln!(
            out,
            "{:.2} GB of the cache stay unused, though datasets have use for them.",
            report.unused_cache_bytes / 1e9
        )?;
    }
    for row in &report.jobs {
        let Some(workers) = row.workers else { continue };
        writeln!(out, "{}: {workers} workers", lossfeed_control::printable(&row.name))?;
    }
    placement::print(&report.placement, out)?;
    out.flush()?;
    Ok(0)
}

fn cached(report: &Report) -> f64 {
    report.datasets.iter().map(|row| row.cache_bytes).sum()
}

#[cfg(test)]
mod tests;
