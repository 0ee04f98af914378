//! `lossfeed replay`: a recorded run through cache policies, on the same ledger the live cache uses.

use std::fs::File;
use std::io::{self, Seek, Write};

use lossfeed_control::sim::{ROWS_MAX, Replay, Trace, replay};
use lossfeed_control::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::args::ReplayArgs;
use crate::journal::{self, Run};
use crate::term;

/// The JSON document. Its keys are a contract: `{"requests","samples","results":[{"policy","capacity_fraction","hits",
/// "misses","hit_ratio"}…]}`. A journal has `run` before them: what was recorded, and the same replayed.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<Run>,
    requests: usize,
    samples: usize,
    results: Vec<Replay>,
}

/// Runs the command and returns its exit code.
pub(crate) fn run(args: &ReplayArgs) -> i32 {
    match results(args) {
        Ok(report) => term::exit_code(print(&report, args.json, &mut io::stdout().lock())),
        Err(e) => {
            term::complain(&e.to_string());
            if e.kind() == ErrorKind::Settings { 2 } else { 1 }
        }
    }
}

/// Every policy at every size, in the order asked for.
fn results(args: &ReplayArgs) -> Result<Report> {
    let told = |e: Error| Error::unreadable(format!("trace {}", args.trace.display())).because(e);
    let mut file = File::open(&args.trace).map_err(|e| told(Error::unreadable("cannot open it").because(e)))?;
    // A pipe cannot be looked at twice; it is read as a trace.
    if file.stream_position().is_ok() && lossfeed_journal::is_journal(&file) {
        file.rewind().map_err(|e| told(Error::unreadable("cannot read it twice").because(e)))?;
        let told = |e: Error| if e.kind() == ErrorKind::Settings { e } else { told(e) };
        let found = journal::read(file, &args.policy, &args.capacity_fraction).map_err(told)?;
        return Ok(Report {
            run: Some(found.run),
            requests: found.requests,
            samples: found.samples,
            results: found.results,
        });
    }
    if file.stream_position().is_ok() {
        file.rewind().map_err(|e| told(Error::unreadable("cannot read it twice").because(e)))?;
    }
    let trace = Trace::read(file, ROWS_MAX).map_err(told)?;
    let mut results = Vec::with_capacity(args.policy.len() * args.capacity_fraction.len());
    for policy in &args.policy {
        for &fraction in &args.capacity_fraction {
            results.push(replay(&trace, policy, fraction)?);
        }
    }
    Ok(Report { run: None, requests: trace.requests(), samples: trace.samples(), results })
}

#[cfg(test)]
pub(crate) fn report(args: &ReplayArgs, out: &mut impl Write) -> Result<i32> {
    print(&results(args)?, args.json, out).map_err(|e| Error::internal("cannot print").because(e))
}

fn print(report: &Report, json: bool, out: &mut impl Write) -> io::Result<i32> {
    if json {
        serde_json::to_writer(&mut *out, report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        if let Some(run) = &report.run {
            run.print(out)?;
        }
        // A replay delivers exactly the recorded samples whatever the policy, so the coverage is the trace's own.
        writeln!(out, "{} requests of {} samples, every one delivered", report.requests, report.samples)?;
        writeln!(out, "{:<12} {:>8} {:>12} {:>12} {:>7}", "policy", "capacity", "hits", "misses", "hit%")?;
        for r in &report.results {
            let (capacity, hit) = (format!("{}%", r.capacity_fraction * 100.0), 100.0 * r.hit_ratio);
            writeln!(out, "{:<12} {capacity:>8} {:>12} {:>12} {hit:>7.2}", r.policy, r.hits, r.misses)?;
        }
    }
    out.flush()?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two epochs over four samples in batches of two, second epoch reversed.
    const TRACE: &str = "epoch,step,id,loss\n0,0,0,1\n0,0,1,2\n0,1,2,3\n0,1,3,4\n1,2,3,1\n1,2,2,2\n1,3,1,3\n1,3,0,4\n";

    fn args(policy: &[&str], json: bool) -> (tempfile::NamedTempFile, ReplayArgs) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), TRACE).unwrap();
        let policy = policy.iter().map(|&p| p.to_owned()).collect();
        let args = ReplayArgs { trace: file.path().to_owned(), policy, capacity_fraction: vec![0.5], json };
        (file, args)
    }

    #[test]
    fn the_document_has_exactly_the_promised_keys_in_the_asked_order() {
        let (_file, args) = args(&["lru", "minio"], true);
        let mut out = Vec::new();
        print(&results(&args).unwrap(), true, &mut out).unwrap();
        // By hand: lru holds {2,3} when the second epoch asks 3, 2, 1, 0; minio kept {0,1}.
        let golden = "{\"requests\":8,\"samples\":4,\"results\":[\
            {\"policy\":\"lru\",\"capacity_fraction\":0.5,\"hits\":2,\"misses\":6,\"hit_ratio\":0.25},\
            {\"policy\":\"minio\",\"capacity_fraction\":0.5,\"hits\":2,\"misses\":6,\"hit_ratio\":0.25}]}\n";
        assert_eq!(String::from_utf8(out).unwrap(), golden);
    }

    #[test]
    fn an_unknown_policy_is_a_wrong_argument_and_a_missing_file_a_failure() {
        let (_file, wrong) = args(&["lru", "magic"], true);
        assert_eq!(run(&wrong), 2);
        let missing = ReplayArgs { trace: "/nonexistent/trace.csv".into(), ..wrong };
        assert!(results(&missing).unwrap_err().to_string().contains("/nonexistent/trace.csv"));
        assert_eq!(run(&missing), 1);
    }
}
