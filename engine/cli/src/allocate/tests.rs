//! `lossfeed allocate` on small files.

use super::*;

const JOBS: &str = r#"{"cache_bytes": 300, "bandwidth_bytes_per_s": 60,
    "datasets": [{"name": "large", "bytes": 1000}, {"name": "small", "bytes": 250}],
    "jobs": [{"name": "a", "dataset": "large", "ideal_bytes_per_s": 100},
             {"name": "b", "dataset": "small", "ideal_bytes_per_s": 100, "hits": [[125, 0.5], [250, 1]]}]}"#;

fn args(text: &str, sharing: Sharing) -> (tempfile::NamedTempFile, AllocateArgs) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let jobs = Some(file.path().to_owned());
    (
        file,
        AllocateArgs {
            jobs,
            sharing,
            apply: false,
            watch: false,
            cache: None,
            bandwidth: None,
            epochs: Vec::new(),
            json: false,
        },
    )
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
    for sharing in [Sharing::MaxMin, Sharing::Fifo, Sharing::InOrder, Sharing::EqualSplit, Sharing::Aiv] {
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
    let (_file, args) = args(JOBS, Sharing::MaxMin);
    let missing = AllocateArgs { jobs: Some("/nonexistent/jobs.json".into()), json: true, ..args };
    assert!(divide(&missing).unwrap_err().to_string().contains("/nonexistent/jobs.json"));
    assert_eq!(run(&missing), 1);
}

/// m1 has a tenth of `large`; nobody has any of `small`.
const NODES: &str = r#""nodes": [{"name": "m1", "gpus": 4, "free_bytes": 900, "holds": {"large": 100}},
    {"name": "m2", "gpus": 8, "free_bytes": 100}],"#;

#[test]
fn jobs_are_placed_on_nodes_one_after_the_other() {
    let text = JOBS.replacen("\"datasets\"", &format!("{NODES} \"datasets\""), 1);
    let text = text.replacen("\"name\": \"a\",", "\"name\": \"a\", \"gpus\": 8,", 1);
    let found = |text: &str| {
        let (_file, args) = args(text, Sharing::MaxMin);
        let mut out = Vec::new();
        print(&divide(&args).unwrap(), true, &mut out).unwrap();
        serde_json::from_slice::<serde_json::Value>(&out).unwrap()
    };
    let json = found(&text);
    let [a, b] = [&json["placement"][0], &json["placement"][1]];
    // 1 + 0.1 × 900 / 1000 on m2, 100 / 1000 + 0.9 × 900 / 1000 on m1: a runs on m2, whose room is full then.
    assert_eq!(
        (&a["runs_on"], &a["nodes"][0]["node"], &a["nodes"][1]["node"]),
        (&"m2".into(), &"m2".into(), &"m1".into())
    );
    assert!((a["nodes"][0]["score"].as_f64().unwrap() - 1.09).abs() < 1e-12);
    assert!((a["nodes"][1]["score"].as_f64().unwrap() - 0.91).abs() < 1e-12);
    assert_eq!([&a["nodes"][0]["fetch_bytes"], &a["nodes"][1]["fetch_bytes"]], [100.0, 800.0]);
    // m1 has 100 bytes left for 250.
    assert_eq!(
        (&b["runs_on"], &b["nodes"][0]["fetch_bytes"], &b["homeless_bytes"]),
        (&"m1".into(), &100.0.into(), &150.0.into())
    );
    assert!(found(JOBS).get("placement").is_none());

    let (_file, asked) = args(&text, Sharing::MaxMin);
    let mut out = Vec::new();
    print(&divide(&asked).unwrap(), false, &mut out).unwrap();
    let told = String::from_utf8(out).unwrap();
    assert!(told.contains("no room  nodes by score") && told.contains("m2 1.090 0.00, m1 0.910 0.00"), "{told}");
    for (from, to, says) in [
        ("{\"large\": 100}", "{\"huge\": 100}", "node m1 holds the dataset \"huge\", which is not listed"),
        ("{\"large\": 100}", "{\"large\": 1001}", "job a: the nodes have 1001 bytes of a dataset of 1000"),
        ("\"free_bytes\": 900", "\"free_bytes\": -9", "job a: node 0 has -9 free bytes"),
        ("\"gpus\": 4", "\"gpus\": -4", "line 2"),
    ] {
        let bad = text.replacen(from, to, 1);
        assert_ne!(bad, text, "{from}");
        let (_file, args) = args(&bad, Sharing::MaxMin);
        let error = divide(&args).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn a_loader_that_was_measured_gets_its_number_of_workers() {
    let loading = r#""loading": {"fetch_s": [0.3, 0.5, 0.4], "request_s": [0.1], "workers": 2, "cores": 8, "memory": 0.2, "memory_max": 0.5},"#;
    let text = JOBS.replacen("\"name\": \"b\",", &format!("\"name\": \"b\", {loading}"), 1);
    let told = |json: bool| {
        let (_file, args) = args(&text, Sharing::MaxMin);
        let mut out = Vec::new();
        print(&divide(&args).unwrap(), json, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let json: serde_json::Value = serde_json::from_str(&told(true)).unwrap();
    assert_eq!((json["jobs"][0].get("workers"), &json["jobs"][1]["workers"]), (None, &4.into()));
    assert!(told(false).contains("\nb: 4 workers\n"));
    let (_file, args) = args(&text.replacen("\"workers\": 2", "\"workers\": 0", 1), Sharing::MaxMin);
    assert!(divide(&args).unwrap_err().to_string().contains("job b: 0 workers on 8 processors"));
}
