//! What the CSV says.

use crate::args::ReplayArgs;

fn trace(name: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let mut text = String::from("epoch,step,id,loss\n");
    for access in 0..240u32 {
        text += &format!("{},{},{},{}\n", access / 60, access / 10, (access * 7 + access / 60) % 60, access % 13);
    }
    std::fs::write(&path, text).unwrap();
    (folder, path.to_str().unwrap().to_owned())
}

#[test]
fn the_csv_has_a_line_an_epoch_and_adds_up() {
    let (_folder, path) = trace("run.csv");
    let csv = tempfile::NamedTempFile::new().unwrap();
    let mut args = ReplayArgs::of(&["--trace", &path, "--policy=lru,shade", "--capacity=6", "--latency=1ms"]);
    args.csv = Some(csv.path().to_owned());
    crate::replay::report(&args, &mut Vec::new()).unwrap();
    let csv = std::fs::read_to_string(csv.path()).unwrap();
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 1 + 3 * 4);
    assert!(lines.iter().all(|line| line.len() == lines[0].len()));
    let column = |name: &str| lines[0].iter().position(|&head| head == name).unwrap();
    for line in &lines[1..] {
        let number = |name: &str| line[column(name)].parse::<f64>().unwrap();
        assert_eq!(number("hits") + number("misses"), 60.0);
        assert_eq!((number("misses"), number("distinct")), (number("fetched_bytes"), 60.0));
        assert!(number("total_s") >= number("stall_s"));
    }
    let scores: Vec<_> = lines[1..].iter().map(|line| (line[column("policy")], line[column("scores")])).collect();
    assert_eq!([scores[0], scores[4], scores[8]], [("lru", "own"), ("shade", "own"), ("shade", "noise")]);
}

#[test]
fn a_file_that_cannot_be_written_is_said() {
    let (_folder, path) = trace("run.csv");
    let args = ReplayArgs::of(&["--trace", &path, "--policy=lru", "--csv=/nonexistent/rows.csv"]);
    let error = crate::replay::report(&args, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("cannot write /nonexistent/rows.csv"), "{error}");
}
