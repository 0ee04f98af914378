//! `lossfeed jobs` on small files.

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
fn other_clusters_logs_need_no_throughputs_and_tell_what_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let helios = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n\
        1,u,v,4,1,1,COMPLETED,2020-06-09 00:00:00,2020-06-09 00:00:00,2020-06-09 01:00:00,3600,0\n\
        2,u,v,0,1,1,COMPLETED,2020-06-09 00:00:00,2020-06-09 00:00:00,2020-06-09 01:00:00,3600,0\n\
        3,u,v,1,1,1,FAILED,2020-06-09 00:00:10,2020-06-09 00:00:00,2020-06-09 01:00:00,7200,0\n";
    let pai = "b,worker,2.0,Terminated,100.0,4000.0,,,50.0,T4\nc,worker,2.0,Failed,90.0,95.0,,,200.0,T4\n";
    let philly = r#"[{"status": "Pass", "vc": "v", "jobid": "p", "user": "u", "submitted_time": "2017-10-07 01:00:00",
        "attempts": [{"start_time": "2017-10-07 01:10:00", "end_time": "2017-10-07 02:10:00",
        "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}]}]}]"#;
    let path = |name: &str| folder.path().join(name);
    for (name, text) in [("cluster_log.csv", helios), ("cluster_job_log", philly), ("pai_task_table.csv", pai)] {
        std::fs::write(path(name), text).unwrap();
    }
    std::fs::write(path("pai_job_table.csv"), "b,i,u,Terminated,50.0,\nc,i,u,Failed,,\n").unwrap();
    let given = |more: &[&str]| {
        let traces =
            ["cluster_log.csv", "pai_task_table.csv", "cluster_job_log"].map(|name| path(name).display().to_string());
        let given =
            ["lossfeed", "jobs", "--trace", &traces.join(","), "--gpus", "4", "--order", "fifo", "--cache", "ours"];
        match crate::args::Cli::parse_from(given.iter().chain(more)).command {
            crate::args::Command::Jobs(args) => args,
            other => panic!("{other:?}"),
        }
    };
    let told = |args: JobsArgs| {
        let mut out = Vec::new();
        print(&report(&args).unwrap(), &args, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let text = told(given(&[]));
    assert!(text.contains("cluster_log.csv: 1 without a GPU."), "{text}");
    assert!(text.contains("PAI's parts of GPUs are rounded up."), "{text}");
    let json: serde_json::Value = serde_json::from_str(&told(given(&["--json"]))).unwrap();
    let rows: Vec<_> =
        json["traces"].as_array().unwrap().iter().map(|t| (t["format"].clone(), t["jobs"].clone())).collect();
    assert_eq!(rows, [("philly".into(), 1.into()), ("helios".into(), 2.into()), ("pai".into(), 2.into())]);
    assert!(json["runs"][1]["makespan_s"].as_f64().unwrap() >= 7200.0);
    let first: serde_json::Value = serde_json::from_str(&told(given(&["--json", "--first", "1"]))).unwrap();
    assert_eq!(first["traces"][1]["jobs"], 1);
    let table = path("pai_job_table.csv").display().to_string();
    let text = told(given(&["--pai-jobs", &table]));
    assert!(text.contains("pai_task_table.csv: 1 not in the table of jobs"), "{text}");
    let tables = Some(path("pai_task_table.csv"));
    let error = report(&JobsArgs { pai_jobs: tables, ..given(&[]) }).unwrap_err().to_string();
    assert!(error.contains("line 1: 10 columns"), "{error}");
    std::fs::write(path("cluster_log.csv"), TRACE).unwrap();
    let error = report(&given(&[])).unwrap_err().to_string();
    assert!(error.contains("cluster_log.csv") && error.contains("give --throughputs"), "{error}");
}
