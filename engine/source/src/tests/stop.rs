//! Truths about an opening that is stopped: it says so, wherever it was, and leaves nothing behind.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::error::ErrorKind;
use crate::tests::{archive, class_folders, png};
use crate::*;

fn interrupted(path: &str, options: &OpenOptions) {
    let refused = open(path, options).err().expect("it was stopped");
    assert_eq!(refused.kind(), ErrorKind::Interrupted, "{path}: {refused}");
}

#[test]
fn what_was_stopped_before_it_began_reads_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, shards, index) = (dir.path().join("folder"), dir.path().join("shards"), dir.path().join("index"));
    class_folders(&folder);
    fs::create_dir(&shards).unwrap();
    fs::write(shards.join("0.tar"), archive(&[("c/a.png", &png(1))])).unwrap();
    let far = Some(Throttle { latency: Duration::from_millis(1), bandwidth_bytes_per_s: None });
    for (throttle, checksums) in [(None, false), (None, true), (far, false), (far, true)] {
        let options = OpenOptions { throttle, checksums, index_cache: Some(index.clone()), ..OpenOptions::default() };
        options.stop.ask();
        for path in [folder.to_str().unwrap(), shards.to_str().unwrap(), &format!("{}/*.tar", shards.display())] {
            interrupted(path, &options);
        }
    }
    assert!(!index.exists(), "nothing is kept of it");
}

#[test]
fn shards_that_were_not_begun_are_left_and_those_that_were_are_kept_whole() {
    let (dir, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for n in 0..60 {
        fs::write(dir.path().join(format!("{n:02}.tar")), archive(&[("c/a.png", &png(n))])).unwrap();
    }
    let (stop, told, index) = (Stop::default(), Arc::new(AtomicUsize::new(0)), kept.path().join("index"));
    let (asked, counted) = (stop.clone(), told.clone());
    let on_shard = OnShard(Arc::new(move |done, _| {
        counted.store(done, Relaxed);
        if done == 5 {
            asked.ask();
        }
    }));
    let options =
        OpenOptions { on_shard: Some(on_shard), index_cache: Some(index.clone()), stop, ..OpenOptions::default() };
    let path = dir.path().to_str().unwrap().to_owned();
    interrupted(&path, &options);
    let begun = 5 + std::thread::available_parallelism().map_or(1, usize::from);
    assert!((5..=begun).contains(&told.load(Relaxed)), "{} of 60", told.load(Relaxed));
    let names: Vec<_> = fs::read_dir(&index).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| name.to_str().unwrap().ends_with(".idx")), "{names:?}");
    let whole = OpenOptions { index_cache: Some(index), ..OpenOptions::default() };
    assert_eq!(open(&path, &whole).unwrap().len(), 60);
}

#[test]
fn a_request_that_waits_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    class_folders(dir.path());
    let far = Some(Throttle { latency: Duration::from_secs(600), bandwidth_bytes_per_s: None });
    let options = OpenOptions { throttle: far, timeout: None, checksums: true, ..OpenOptions::default() };
    let stop = options.stop.clone();
    let path = dir.path().to_str().unwrap().to_owned();
    let opening = std::thread::spawn(move || interrupted(&path, &options));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!opening.is_finished());
    stop.ask();
    opening.join().unwrap();
}
