//! `lossfeed allocate`: one cache and one link to the store, divided among several jobs.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};

use lossfeed_control::jobs::{
    Allocation, Cluster, Dataset, HitCurve, Job, Resources, benefit, by_aiv, equal_split, expected_benefits, in_order,
    max_min,
};
use lossfeed_control::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::args::{AllocateArgs, Sharing};
use crate::term;

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

/// The JSON document: `{"sharing", "datasets": [{"name", "bytes", "cache_bytes"}…], "jobs": [{"name", "dataset",
/// "bandwidth_bytes_per_s", "hit_ratio", "rate_bytes_per_s", "share_of_ideal", "equal_split_share_of_ideal"}…]}`.
#[derive(Debug, Serialize)]
struct Report {
    sharing: Sharing,
    datasets: Vec<DatasetRow>,
    jobs: Vec<JobRow>,
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
}

/// Runs the command and returns its exit code.
pub(crate) fn run(args: &AllocateArgs) -> i32 {
    match divide(args) {
        Ok(report) => term::exit_code(print(&report, args.json, &mut io::stdout().lock())),
        Err(e) => term::failed(&e),
    }
}

fn divide(args: &AllocateArgs) -> Result<Report> {
    let told = |e: Error| Error::unreadable(format!("jobs {}", args.jobs.display())).because(e);
    let file = File::open(&args.jobs).map_err(|e| told(Error::unreadable("cannot open it").because(e)))?;
    let mut text = Vec::new();
    let limited = BufReader::new(file).take(BYTES_MAX + 1).read_to_end(&mut text);
    limited.map_err(|e| told(Error::unreadable("cannot read it").because(e)))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(told(Error::settings(format!("it is longer than {BYTES_MAX} bytes, so it is no list of jobs"))));
    }
    let asked: Asked = serde_json::from_slice(&text).map_err(|e| {
        Error::settings(format!("jobs {}: {e}; `lossfeed allocate --help` shows one", args.jobs.display()))
    })?;
    let measured = |job: &AskedJob| job.benefit().map_err(|e| Error::settings(format!("job {}", job.name)).because(e));
    let measured = asked.jobs.iter().map(measured).collect::<Result<Vec<_>>>()?;
    let cluster = cluster(asked)?;
    let allocation = match args.sharing {
        Sharing::Aiv => {
            let expected = expected_benefits(&cluster);
            let benefits: Vec<f64> =
                measured.iter().zip(expected).map(|(found, other)| found.unwrap_or(other)).collect();
            by_aiv(&cluster, &benefits)?
        }
        Sharing::MaxMin => max_min(&cluster),
        Sharing::InOrder => in_order(&cluster),
        Sharing::EqualSplit => equal_split(&cluster),
    };
    Ok(report(args.sharing, &cluster, &allocation))
}

fn cluster(asked: Asked) -> Result<Cluster> {
    let Asked { cache_bytes, bandwidth_bytes_per_s, datasets, jobs } = asked;
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
    Cluster::new(Resources { cache_bytes, bandwidth_bytes_per_s }, datasets, jobs)
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
    };
    let dataset =
        |(of, &cache_bytes): (&Dataset, &f64)| DatasetRow { name: of.name.clone(), bytes: of.bytes, cache_bytes };
    Report {
        sharing,
        datasets: cluster.datasets().iter().zip(&allocation.cache_bytes).map(dataset).collect(),
        jobs: cluster.jobs().iter().enumerate().map(job).collect(),
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
    out.flush()?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOBS: &str = r#"{"cache_bytes": 300, "bandwidth_bytes_per_s": 60,
        "datasets": [{"name": "large", "bytes": 1000}, {"name": "small", "bytes": 250}],
        "jobs": [{"name": "a", "dataset": "large", "ideal_bytes_per_s": 100},
                 {"name": "b", "dataset": "small", "ideal_bytes_per_s": 100, "hits": [[125, 0.5], [250, 1]]}]}"#;

    fn args(text: &str, sharing: Sharing) -> (tempfile::NamedTempFile, AllocateArgs) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let jobs = file.path().to_owned();
        (file, AllocateArgs { jobs, sharing, json: false })
    }

    #[test]
    fn the_document_says_what_was_counted_by_hand() {
        let (_file, args) = args(JOBS, Sharing::InOrder);
        let mut out = Vec::new();
        print(&divide(&args).unwrap(), true, &mut out).unwrap();
        let found: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(found["sharing"], "in-order");
        assert_eq!([&found["datasets"][0]["cache_bytes"], &found["datasets"][1]["cache_bytes"]], [50.0, 250.0]);
        let of = |job: usize, what: &str| found["jobs"][job][what].as_f64().unwrap();
        assert_eq!((of(0, "bandwidth_bytes_per_s"), of(1, "bandwidth_bytes_per_s")), (60.0, 0.0));
        assert_eq!((of(1, "hit_ratio"), of(1, "share_of_ideal")), (1.0, 1.0));
        assert!((of(0, "rate_bytes_per_s") - 60.0 / 0.95).abs() < 1e-9);
        assert!((of(1, "equal_split_share_of_ideal") - 0.75).abs() < 1e-9);
    }

    #[test]
    fn the_table_names_everybody() {
        for sharing in [Sharing::MaxMin, Sharing::InOrder, Sharing::EqualSplit, Sharing::Aiv] {
            let (_file, args) = args(JOBS, sharing);
            let mut out = Vec::new();
            print(&divide(&args).unwrap(), false, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(["large", "small", "\na ", "\nb "].iter().all(|name| text.contains(name)), "{text}");
        }
    }

    #[test]
    fn benefits_that_were_measured_count_before_those_that_are_expected() {
        // An equal split makes a 1.18 times as fast, and b 2.5 times: only b takes part.
        let cached = |text: &str| {
            let (_file, args) = args(text, Sharing::Aiv);
            divide(&args).unwrap().datasets.iter().map(|row| row.cache_bytes).collect::<Vec<_>>()
        };
        assert_eq!(cached(JOBS), [0.0, 250.0]);
        let times = |seconds: &str| vec![seconds; 20].join(",");
        let with = format!(r#""name": "a", "batch_s_without": [{}], "batch_s_with": [{}],"#, times("4"), times("1"));
        let measured = cached(&JOBS.replacen(r#""name": "a","#, &with, 1));
        assert!(measured[0] > 200.0 && (measured.iter().sum::<f64>() - 300.0).abs() < 1e-9, "{measured:?}");
        let (_file, args) =
            args(&JOBS.replacen(r#""name": "a","#, r#""name": "a", "batch_s_with": [1],"#, 1), Sharing::Aiv);
        assert!(divide(&args).unwrap_err().to_string().contains("job a: give both"));
    }

    #[test]
    fn what_cannot_be_divided_is_refused_with_the_place() {
        for (from, to, says) in [
            ("300", "\"300\"", "line 1"),
            ("\"cache_bytes\"", "\"cash\"", "unknown field `cash`"),
            ("\"dataset\": \"small\"", "\"dataset\": \"tiny\"", "\"tiny\", which is not listed"),
            ("\"name\": \"small\"", "\"name\": \"large\"", "two datasets are called \"large\""),
            ("\"bytes\": 250", "\"bytes\": -2", "dataset small has -2 bytes"),
            ("[125, 0.5]", "[125, 5]", "a hit ratio of 5 with 125 bytes"),
            ("\"ideal_bytes_per_s\": 100}", "\"ideal_bytes_per_s\": 0}", "job a has 0 bytes a second"),
        ] {
            let (_file, args) = args(&JOBS.replacen(from, to, 1), Sharing::MaxMin);
            let error = divide(&args).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(run(&args), 2, "{error}");
        }
        let missing = AllocateArgs { jobs: "/nonexistent/jobs.json".into(), sharing: Sharing::MaxMin, json: true };
        assert!(divide(&missing).unwrap_err().to_string().contains("/nonexistent/jobs.json"));
        assert_eq!(run(&missing), 1);
    }
}
