//! The command on small traces.

use super::*;
use crate::report::Row;

/// Two epochs over four samples in batches of two, second epoch reversed.
const TRACE: &str = "epoch,step,id,loss\n0,0,0,1\n0,0,1,2\n0,1,2,3\n0,1,3,4\n1,2,3,1\n1,2,2,2\n1,3,1,3\n1,3,0,4\n";

fn args(options: &[&str]) -> (tempfile::NamedTempFile, ReplayArgs) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), TRACE).unwrap();
    let trace = format!("--trace={}", file.path().display());
    let args = ReplayArgs::of(&[&[&trace[..]], options].concat());
    (file, args)
}

fn ours(args: &ReplayArgs) -> Result<Report> {
    results(args, &OURS)
}

fn hits(rows: &[Row]) -> Vec<(&str, u64)> {
    rows.iter().map(|row| (&row.found.policy[..], row.found.hits)).collect()
}

#[test]
fn the_document_has_exactly_the_promised_keys_in_the_asked_order() {
    let (_file, args) = args(&["--json", "--policy=lru,minio", "--capacity-fraction=0.5"]);
    let mut out = Vec::new();
    report(&args, &mut out).unwrap();
    // By hand: lru holds {2,3} when the second epoch asks 3, 2, 1, 0; minio kept {0,1}. Scores rank 0, 1, 0, 1 for the
    // samples 3, 2, 1, 0 at last, so 1 and 3 are in the lowest tenth, and 0 and 2 have half of the scores below them.
    // Ages are 3 for sample 3, then 2, 1, 0.
    let epochs = "\"epochs\":[{\"hits\":0,\"misses\":4,\"fetched_bytes\":4,\"distinct\":4},\
        {\"hits\":2,\"misses\":2,\"fetched_bytes\":2,\"distinct\":4}]";
    let residents = "\"residents\":{\"score_deciles\":[1,0,0,0,0,1,0,0,0,0],\"unscored\":0,\"ages\":[1,1,0]}";
    let golden = format!(
        "\"results\":[\
        {{\"policy\":\"lru\",\"capacity_fraction\":0.5,\"capacity_bytes\":2,\"hits\":2,\"misses\":6,\"hit_ratio\":0.25,{epochs},{residents}}},\
        {{\"policy\":\"minio\",\"capacity_fraction\":0.5,\"capacity_bytes\":2,\"hits\":2,\"misses\":6,\"hit_ratio\":0.25,{epochs},{residents}}}]}}\n"
    );
    let said = String::from_utf8(out).unwrap();
    let begin = "{\"requests\":8,\"samples\":4,\"assumed\":[\
        \"the dataset is the 4 samples that the trace names (--samples N says otherwise)\",\
        \"every sample takes 1: capacities are numbers of samples\",\
        \"a score is SHADE's rank in its batch, and the newest one is believed\"],\"population\":{\"scores\":{";
    assert!(said.starts_with(begin), "{said}");
    assert!(said.ends_with(&golden), "{said}");
    let ages = "\"ages\":{\"borders\":[0.0,1.0,2.0,4.0],\"counts\":[1,1,2]},\"unscored\":0},";
    assert!(said.contains(ages), "{said}");
}

#[test]
fn a_capacity_in_bytes_and_a_larger_dataset_are_taken_at_their_word() {
    let (_file, mut args) = args(&["--policy=lru,minio", "--capacity-fraction=0.5", "--capacity=2", "--samples=40"]);
    let report = ours(&args).unwrap();
    let found = report.results.iter().map(|row| &row.found);
    let found: Vec<_> = found.map(|found| (found.capacity_bytes, found.capacity_fraction, found.hits)).collect();
    // Half of 40 samples hold all that the trace names; 2 samples are a twentieth of the dataset.
    assert_eq!(found, [(20, 0.5, 4), (2, 0.05, 2), (20, 0.5, 4), (2, 0.05, 2)]);
    assert!(!report.assumed.iter().any(|what| what.contains("--samples")));
    args.samples = Some(3);
    let error = ours(&args).unwrap_err();
    assert!(error.kind() == ErrorKind::Settings && error.to_string().contains("names 4"), "{error}");
    (args.samples, args.capacity, args.capacity_fraction) = (None, vec![], vec![]);
    assert_eq!(ours(&args).unwrap().results.len(), 2 * FRACTIONS.len());
    args.policy.clear();
    assert_eq!(ours(&args).unwrap().results.len(), policy::ALL.len() * FRACTIONS.len());
}

#[test]
fn whoever_looks_at_scores_has_a_control_unless_it_is_left_out() {
    let (_file, mut args) = args(&["--policy=lru,shade,importance", "--capacity=2"]);
    let controls = |args: &ReplayArgs| -> Vec<bool> {
        ours(args).unwrap().results.iter().map(|row| row.random_scores.is_some()).collect()
    };
    assert_eq!(controls(&args), [false, true, true]);
    args.no_control = true;
    assert_eq!(controls(&args), [false, false, false]);
}

#[test]
fn time_is_told_if_anything_was_said_of_it() {
    let (_file, untold) = args(&["--policy=lru", "--capacity=2"]);
    assert_eq!(ours(&untold).unwrap().results[0].found.time, None);
    let (_file, args) =
        args(&["--policy=lru", "--capacity=2", "--latency=1s", "--step-time=0", "--in-flight=1", "--ahead=1"]);
    let found = ours(&args).unwrap().results.remove(0).found;
    // Six misses, one after the other; nothing else takes time.
    let time = found.time.unwrap();
    assert!((time.total_s - 6.0).abs() < 1e-9 && (time.stall_s - 6.0).abs() < 1e-9, "{time:?}");
    let wrong = ReplayArgs { latency: None, step_time: None, ..args };
    assert!(ours(&wrong).unwrap_err().to_string().contains("--in-flight"));
}

#[test]
fn samplers_draw_anew_over_a_model_or_a_trace() {
    let modelled = ["--samples=400", "--epochs=3", "--batch-size=16", "--capacity-fraction=0.2"];
    let report = |sampler: &str| {
        let sampler = format!("--sampler={sampler}");
        ours(&ReplayArgs::of(&[&[&sampler[..]], &modelled[..]].concat())).unwrap()
    };
    let all = report("uniform,importance,cost-aware,pads,echo,replay");
    let policies = ["minio", "importance", "importance", "shade", "fifo", "fifo"];
    assert_eq!(hits(&all.results).iter().map(|row| row.0).collect::<Vec<_>>(), policies);
    assert_eq!((all.requests, all.samples), (1200, 400));
    let controls: Vec<bool> = all.results.iter().map(|row| row.random_scores.is_some()).collect();
    assert_eq!(controls, [false, true, true, true, false, true]);
    // A cache that evicts nobody, on shuffled epochs: a fifth from the second epoch on.
    assert_eq!(hits(&all.results)[0].1, 2 * 80);
    assert!(all.results.iter().all(|row| row.population.is_some() && row.found.epochs.len() == 3));
    let (_file, args) = args(&["--sampler=uniform", "--policy=lru,minio", "--capacity=2"]);
    let found = ours(&args).unwrap();
    assert_eq!((found.requests, found.results.len()), (8, 2));
    let told = report("replay,replay:lag=3");
    assert_ne!(told.results[0].found.epochs, told.results[1].found.epochs);
    assert_eq!(told.results[1].sampler.as_deref(), Some("replay:lag=3"));
    // 75 batches are more than the 64 of the default.
    assert!(!told.assumed.iter().any(|what| what.contains("none counts")));
    let told = report("replay:lag=75");
    assert!(told.assumed.iter().any(|what| what.contains("replay:lag=75 counts scores after 75 batches")));
    let refused = |args: ReplayArgs, said: &str| {
        let error = ours(&args).unwrap_err();
        assert!(error.kind() == ErrorKind::Settings && error.to_string().contains(said), "{error}");
    };
    refused(ReplayArgs { samples: Some(9), ..args.clone() }, "if there is no trace");
    refused(ReplayArgs { policy: vec!["nopfs".to_owned()], ..args.clone() }, "in the program lossfeed-lab");
    let typed = |sampler: &str| ReplayArgs { sampler: vec![sampler.to_owned()], ..args.clone() };
    refused(typed("magic"), "no sampler");
    refused(typed("cost-aware:kappa"), "give key=value");
    refused(typed("cost-aware:kapa=3"), "unknown field `kapa`");
    refused(typed("cost-aware:kappa=0"), "kappa is 0");
    refused(ReplayArgs { trace: None, ..args }, "no dataset");
}

#[test]
fn an_unknown_policy_is_a_wrong_argument_and_a_missing_file_a_failure() {
    let (_file, wrong) = args(&["--policy=lru,magic"]);
    assert_eq!(run(&wrong), 2);
    let missing = ReplayArgs { trace: Some("/nonexistent/trace.csv".into()), policy: vec!["lru".to_owned()], ..wrong };
    assert!(ours(&missing).unwrap_err().to_string().contains("/nonexistent/trace.csv"));
    assert_eq!(run(&missing), 1);
}

#[test]
fn a_file_that_is_read_is_not_written_and_none_is_written_twice() {
    let (file, args) = args(&["--policy=lru", "--capacity-fraction=0.5"]);
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link.csv");
    std::os::unix::fs::symlink(file.path(), &link).unwrap();
    let before = std::fs::read(file.path()).unwrap();
    let refused = |args: ReplayArgs, says: &[&str]| {
        let error = report(&args, &mut Vec::new()).unwrap_err().to_string();
        assert!(says.iter().all(|says| error.contains(says)), "{error}");
    };
    for path in [file.path().to_owned(), link] {
        refused(ReplayArgs { csv: Some(path), ..args.clone() }, &["--csv and --trace", "another name"]);
    }
    assert!(std::fs::read(file.path()).unwrap() == before);
    report(&ReplayArgs { csv: Some("/dev/null".into()), ..args }, &mut Vec::new()).unwrap();
}

#[test]
fn what_the_lab_reads_and_compares_is_refused_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w01.oracleGeneral.bin");
    std::fs::write(&path, [0; 24]).unwrap();
    let trace = ReplayArgs::of(&["--trace", path.to_str().unwrap()]);
    let (_file, sieve) = args(&["--policy=sieve"]);
    for (args, says) in
        [(trace, "traces of libCacheSim are read by the program lossfeed-lab"), (sieve, "policy sieve is in")]
    {
        let error = ours(&args).err().unwrap();
        assert!(error.kind() == ErrorKind::Settings && error.to_string().contains(says), "{error}");
        assert!(error.to_string().contains("`lossfeed-lab replay`"), "{error}");
        assert_eq!(run(&args), 2);
    }
}
