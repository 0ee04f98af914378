//! `lossfeed replay`: a recorded run through cache policies, on the same ledger the live cache uses.

use std::fs::File;
use std::io::{self, Write};

use lossfeed_control::sim::{ROWS_MAX, Replay, Trace, replay, replay_bytes};
use lossfeed_control::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::args::ReplayArgs;
use crate::term;

/// Cache sizes if none is asked for.
const FRACTIONS: [f64; 3] = [0.1, 0.2, 0.5];

/// The JSON document. Its keys are a contract: `{"requests","samples","assumed":[…],"results":[{"policy",
/// "capacity_fraction","capacity_bytes","hits","misses","hit_ratio"}…]}`.
#[derive(Debug, Serialize)]
struct Report {
    requests: usize,
    samples: usize,
    /// What the trace does not tell and the replay had to take as given.
    assumed: Vec<String>,
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
    let file = File::open(&args.trace).map_err(|e| told(Error::unreadable("cannot open it").because(e)))?;
    let trace = Trace::read(file, ROWS_MAX).map_err(told)?;
    let trace = match args.samples {
        Some(samples) => trace.of_dataset(samples as usize)?,
        None => trace,
    };
    let none_asked = args.capacity_fraction.is_empty() && args.capacity.is_empty();
    let fractions = if none_asked { &FRACTIONS[..] } else { &args.capacity_fraction };
    let mut results = Vec::with_capacity(args.policy.len() * (fractions.len() + args.capacity.len()));
    for policy in &args.policy {
        for &fraction in fractions {
            results.push(replay(&trace, policy, fraction)?);
        }
        for &capacity in &args.capacity {
            results.push(replay_bytes(&trace, policy, capacity)?);
        }
    }
    let assumed = assumed(&trace, args.samples.is_some());
    Ok(Report { requests: trace.requests(), samples: trace.samples(), assumed, results })
}

/// What a reader of the numbers has to know, in sentences.
fn assumed(trace: &Trace, dataset_known: bool) -> Vec<String> {
    let mut assumed = Vec::new();
    if !dataset_known {
        let named = trace.samples();
        assumed.push(format!("the dataset is the {named} samples that the trace names (--samples N says otherwise)"));
    }
    match (trace.has_sizes(), trace.unnamed()) {
        (false, _) => assumed.push("every sample takes 1: capacities are numbers of samples".to_owned()),
        (true, 0) => {}
        (true, unnamed) => {
            assumed.push(format!("{unnamed} samples that no row names have the mean size of the others"))
        }
    }
    assumed.push("a score is SHADE's rank in its batch, and the newest one is believed".to_owned());
    assumed
}

fn print(report: &Report, json: bool, out: &mut impl Write) -> io::Result<i32> {
    if json {
        serde_json::to_writer(&mut *out, report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        // A replay delivers exactly the recorded samples whatever the policy, so the coverage is the trace's own.
        writeln!(out, "{} requests of {} samples, every one delivered", report.requests, report.samples)?;
        report.assumed.iter().try_for_each(|what| writeln!(out, "assumed: {what}"))?;
        writeln!(out, "{:<12} {:>8} {:>12} {:>12} {:>7}", "policy", "capacity", "hits", "misses", "hit%")?;
        for r in &report.results {
            // Fractions that were asked for are shown in full, and those that follow from bytes to a hundredth.
            let percent = (r.capacity_fraction * 1e10).round() / 1e8;
            let exact = format!("{percent}%");
            let capacity = if exact.len() <= 8 { exact } else { format!("{percent:.2}%") };
            let hit = 100.0 * r.hit_ratio;
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
        let trace = file.path().to_owned();
        let args = ReplayArgs { trace, policy, capacity_fraction: vec![0.5], capacity: vec![], samples: None, json };
        (file, args)
    }

    #[test]
    fn the_document_has_exactly_the_promised_keys_in_the_asked_order() {
        let (_file, args) = args(&["lru", "minio"], true);
        let mut out = Vec::new();
        print(&results(&args).unwrap(), true, &mut out).unwrap();
        // By hand: lru holds {2,3} when the second epoch asks 3, 2, 1, 0; minio kept {0,1}.
        let golden = "{\"requests\":8,\"samples\":4,\"assumed\":[\
            \"the dataset is the 4 samples that the trace names (--samples N says otherwise)\",\
            \"every sample takes 1: capacities are numbers of samples\",\
            \"a score is SHADE's rank in its batch, and the newest one is believed\"],\"results\":[\
            {\"policy\":\"lru\",\"capacity_fraction\":0.5,\"capacity_bytes\":2,\"hits\":2,\"misses\":6,\"hit_ratio\":0.25},\
            {\"policy\":\"minio\",\"capacity_fraction\":0.5,\"capacity_bytes\":2,\"hits\":2,\"misses\":6,\"hit_ratio\":0.25}]}\n";
        assert_eq!(String::from_utf8(out).unwrap(), golden);
    }

    #[test]
    fn a_capacity_in_bytes_and_a_larger_dataset_are_taken_at_their_word() {
        let (_file, mut args) = args(&["lru", "minio"], true);
        args.capacity = vec![2];
        args.samples = Some(40);
        let report = results(&args).unwrap();
        let found: Vec<_> = report.results.iter().map(|r| (r.capacity_bytes, r.capacity_fraction, r.hits)).collect();
        // Half of 40 samples hold all that the trace names; 2 samples are a twentieth of the dataset.
        assert_eq!(found, [(20, 0.5, 4), (2, 0.05, 2), (20, 0.5, 4), (2, 0.05, 2)]);
        assert!(!report.assumed.iter().any(|what| what.contains("--samples")));
        args.samples = Some(3);
        let error = results(&args).unwrap_err();
        assert!(error.kind() == ErrorKind::Settings && error.to_string().contains("names 4"), "{error}");
        (args.samples, args.capacity, args.capacity_fraction) = (None, vec![], vec![]);
        assert_eq!(results(&args).unwrap().results.len(), 2 * FRACTIONS.len());
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
