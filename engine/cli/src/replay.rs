//! `lossfeed replay`: a recorded run through cache policies, on the same ledger the live cache uses.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::Path;

use lossfeed_control::sim::{ROWS_MAX, Replay, Taken, Trace, read_oracle_general, replay, replay_bytes};
use lossfeed_control::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::args::{ReplayArgs, TraceFormat};
use crate::journal::{self, Run};
use crate::parallel::in_parallel;
use crate::term;

/// Cache sizes if none is asked for.
const FRACTIONS: [f64; 3] = [0.1, 0.2, 0.5];

/// The JSON document. Its keys are a contract: `{"requests","samples","assumed":[…],"results":[{"policy",
/// "capacity_fraction","capacity_bytes","hits","misses","hit_ratio"}…]}`, and "substituted" of policies that do that. A journal has `run` before them: what was
/// recorded, and the same replayed.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<Run>,
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
        Err(e) => term::failed(&e),
    }
}

/// Every policy at every size, in the order asked for.
fn results(args: &ReplayArgs) -> Result<Report> {
    let told = |e: Error| Error::unreadable(format!("trace {}", args.trace.display())).because(e);
    let mut file = File::open(&args.trace).map_err(|e| told(Error::unreadable("cannot open it").because(e)))?;
    let none_asked = args.capacity_fraction.is_empty() && args.capacity.is_empty();
    let fractions = if none_asked { &FRACTIONS[..] } else { &args.capacity_fraction };
    if is_oracle_general(args.format, &args.trace) {
        let (trace, taken) = read_oracle_general(file, ROWS_MAX).map_err(told)?;
        return replays(args, trace, fractions, Some(taken));
    }
    // A pipe cannot be looked at twice; it is read as a trace.
    if args.format == TraceFormat::Auto && file.stream_position().is_ok() && lossfeed_journal::is_journal(&file) {
        file.rewind().map_err(|e| told(Error::unreadable("cannot read it twice").because(e)))?;
        let told = |e: Error| if e.kind() == ErrorKind::Settings { e } else { told(e) };
        if args.samples.is_some() {
            return Err(Error::settings("--samples is for traces: a journal knows how large its dataset is"));
        }
        let found = journal::read(file, &args.policy, fractions, &args.capacity).map_err(told)?;
        return Ok(Report {
            run: Some(found.run),
            requests: found.requests,
            samples: found.samples,
            assumed: vec![
                "a capacity in percent is of the delivered samples' bytes".to_owned(),
                "samples come as the run delivered them: no policy substitutes".to_owned(),
            ],
            results: found.results,
        });
    }
    if file.stream_position().is_ok() {
        file.rewind().map_err(|e| told(Error::unreadable("cannot read it twice").because(e)))?;
    }
    replays(args, Trace::read(file, ROWS_MAX).map_err(told)?, fractions, None)
}

/// Whether the file is one of libCacheSim's: nothing in it says so, but its name usually does.
fn is_oracle_general(format: TraceFormat, path: &Path) -> bool {
    match format {
        TraceFormat::OracleGeneral => true,
        TraceFormat::Csv => false,
        TraceFormat::Auto => path.file_name().is_some_and(|name| name.to_string_lossy().contains(".oracleGeneral")),
    }
}

/// Every policy at every size, as many at once as there are processors.
fn replays(args: &ReplayArgs, trace: Trace, fractions: &[f64], taken: Option<Taken>) -> Result<Report> {
    let trace = match args.samples {
        Some(samples) => trace.of_dataset(samples as usize)?,
        None => trace,
    };
    enum Size {
        Fraction(f64),
        Bytes(u64),
    }
    let one = |(policy, size): &(&String, Size)| match *size {
        Size::Fraction(fraction) => replay(&trace, policy, fraction),
        Size::Bytes(bytes) => replay_bytes(&trace, policy, bytes),
    };
    let sizes = || fractions.iter().map(|&f| Size::Fraction(f)).chain(args.capacity.iter().map(|&c| Size::Bytes(c)));
    let asked: Vec<_> = args.policy.iter().flat_map(|policy| sizes().map(move |size| (policy, size))).collect();
    let results: Vec<Replay> = in_parallel(&asked, one).into_iter().collect::<Result<_>>()?;
    let mut assumed = assumed(&trace, args.samples.is_some(), taken);
    if results.iter().any(|r| r.substituted.is_some()) {
        assumed.push(
            "policies that substitute deliver an epoch in another order, and their hits are of that order".to_owned(),
        );
    }
    Ok(Report { run: None, requests: trace.requests(), samples: trace.samples(), assumed, results })
}

/// What a reader of the numbers has to know, in sentences.
fn assumed(trace: &Trace, dataset_known: bool, taken: Option<Taken>) -> Vec<String> {
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
    let Some(Taken { other_sizes, empty }) = taken else {
        assumed.push("a score is SHADE's rank in its batch, and the newest one is believed".to_owned());
        return assumed;
    };
    assumed.push("the trace is one epoch, and nothing has a score".to_owned());
    if other_sizes > 0 {
        assumed.push(format!("{other_sizes} requests have another size than their sample's first one, which counts"));
    }
    if empty > 0 {
        assumed.push(format!("{empty} requests have size 0, which counts as 1"));
    }
    assumed
}

#[cfg(test)]
pub(crate) fn report(args: &ReplayArgs, out: &mut impl Write) -> Result<i32> {
    print(&results(args)?, args.json, out).map_err(|e| Error::internal("cannot print").because(e))
}

fn print(report: &Report, json: bool, out: &mut impl Write) -> io::Result<i32> {
    if json {
        term::document(report, out)?;
    } else {
        if let Some(run) = &report.run {
            run.print(out)?;
        }
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
            let substituted = r.substituted.map(|n| format!("  {n} substituted")).unwrap_or_default();
            writeln!(out, "{:<12} {capacity:>8} {:>12} {:>12} {hit:>7.2}{substituted}", r.policy, r.hits, r.misses)?;
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
        let args = ReplayArgs {
            trace,
            policy,
            capacity_fraction: vec![0.5],
            capacity: vec![],
            samples: None,
            format: TraceFormat::Auto,
            json,
        };
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

    /// The same accesses as libCacheSim writes them, one step each in CSV.
    #[test]
    fn an_oracle_general_trace_gives_the_hits_of_the_same_accesses_in_csv() {
        let (mut csv, mut binary) = (String::from("epoch,step,id,loss,bytes\n"), Vec::new());
        for step in 0..3000u64 {
            let id = step.wrapping_mul(step).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57;
            let size = 1 + id as u32 % 9;
            csv += &format!("0,{step},{id},nan,{size}\n");
            binary.extend_from_slice(&(step as u32).to_le_bytes());
            // Objects have 64 bits there.
            binary.extend_from_slice(&(id << 40).to_le_bytes());
            binary.extend_from_slice(&(if step == 2999 { size + 1 } else { size }).to_le_bytes());
            binary.extend_from_slice(&(-1i64).to_le_bytes());
        }
        let all: Vec<_> = lossfeed_control::policy::NAMES.to_vec();
        let (file, mut args) = args(&all, true);
        args.capacity = vec![40, 300];
        std::fs::write(file.path(), csv).unwrap();
        let expected = results(&args).unwrap();
        std::fs::write(file.path(), &binary).unwrap();
        args.format = TraceFormat::OracleGeneral;
        let found = results(&args).unwrap();
        assert_eq!(found.results, expected.results);
        assert_eq!((found.requests, found.samples), (3000, expected.samples));
        assert!(found.assumed.iter().any(|what| what.starts_with("1 requests have another size")));
        std::fs::write(file.path(), &binary[..binary.len() - 1]).unwrap();
        assert!(results(&args).unwrap_err().to_string().contains("record 3000: it ends within it"));
        std::fs::write(file.path(), "").unwrap();
        assert!(results(&args).unwrap_err().to_string().contains("it is empty"));
        assert!(is_oracle_general(TraceFormat::Auto, Path::new("/x/w01.oracleGeneral.bin")));
        assert!(!is_oracle_general(TraceFormat::Auto, Path::new("/oracleGeneral/run.csv")));
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
