//! `lossfeed-lab jobs` on small files.

use std::path::Path;

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
    let given = ["lossfeed-lab", "jobs", "--trace", &trace, "--throughputs", &rates, "--gpus", "4"];
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
    let share = |run: &serde_json::Value| run["effective"].as_f64().is_some_and(|part| (0.0..=1.0).contains(&part));
    assert!(runs.iter().all(|run| run["fairness"].as_f64().unwrap() > 0.0 && share(run) == (run["cache"] != "lru")));
    assert!(runs.iter().all(|run| run["jobs"] == 3 && run["makespan_s"].as_f64().unwrap() >= 90_000.0 / 1.6));
    assert_eq!(told(&["--seed", "4"]), told(&["--seed", "4"]));
    assert_ne!(told(&["--seed", "4"]), told(&["--seed", "5"]));
    let one = told(&["--order", "sjf", "--cache", "ours", "--cache-bytes", "1TB", "--bandwidth", "200MB"]);
    assert!(one.starts_with("4 GPUs, 1.00 TB of cache, 0.20 GB/s, 1 traces\n"), "{one}");
    assert!(one.contains("sjf      ours") && one.contains("BERT on WebSearch (22.98 TB, 2 MB/s a GPU)"), "{one}");
}

#[test]
fn the_order_in_which_traces_are_named_does_not_count() {
    let folder = folder(TRACE, RATES);
    for (name, steps) in [("b.trace", "70000"), ("c.trace", "110000")] {
        std::fs::write(folder.path().join(name), TRACE.replace("90000", steps)).unwrap();
    }
    let told = |order: [&str; 3]| {
        let mut args = args(folder.path(), &["--order", "sjf", "--cache", "ours,lru", "--json"]);
        args.trace = order.map(|name| folder.path().join(name)).into();
        let mut out = Vec::new();
        print(&report(&args).unwrap(), &args, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let sorted = told(["a.trace", "b.trace", "c.trace"]);
    assert_eq!(told(["c.trace", "a.trace", "b.trace"]), sorted);
    // What is drawn differs by trace: else the order could not have counted.
    let same = told(["a.trace", "a.trace", "a.trace"]);
    let same: serde_json::Value = serde_json::from_str(&same).unwrap();
    assert_ne!(same["runs"][0]["fetched_bytes"], same["runs"][1]["fetched_bytes"]);
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

#[test]
fn faster_gpus_ask_for_more_and_shared_datasets_are_cached_once() {
    let folder = folder(&TRACE.replace("idle\tpython3 b.py\t--steps\t0", "idle\tpython3 b.py\t--steps\t1"), RATES);
    let of = |more: &[&str]| {
        let common = ["--order", "max-min", "--cache", "silod", "--bandwidth", "10TB"];
        let report = report(&args(folder.path(), &[&common[..], more].concat())).unwrap();
        (report.runs[0].makespan_s, report.runs[0].fetched_bytes)
    };
    let (usual, faster) = (of(&[]), of(&["--gpu-speed", "2"]));
    assert!(faster.0 < usual.0 && faster.0 > 0.4 * usual.0, "{usual:?} {faster:?}");
    // With some seed two of the three jobs read the same.
    let all = |shared: &str| (0..20).map(|seed| of(&["--shared", shared, "--seed", &seed.to_string()]).1).sum::<f64>();
    assert!(all("1") < all("0"));
}

#[test]
fn only_the_first_jobs_are_taken_if_so_many_are_asked_for() {
    let folder = folder(TRACE, RATES);
    let report = report(&args(folder.path(), &["--first", "2"])).unwrap();
    assert_eq!(report.traces[0].jobs, 2);
}
