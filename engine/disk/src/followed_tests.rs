//! What one process writes the others of the machine read before its segment is complete.

use super::tests::{bytes_of, key, offer, reads, small};
use super::*;
use crate::tests::plain;
use std::fs;

/// Fills a segment of its own, so that the tier looks around when it begins the next.
fn look(disk: &Disk, from: u64) {
    for n in from..from + 12 {
        offer(disk, key(n));
    }
    disk.settle();
}

#[test]
fn what_another_process_is_writing_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let large = |path| Disk::open_with(&tests::settings(path, 1 << 22), 1 << 20, plain()).unwrap();
    let writer = large(folder.path());
    (0..10).for_each(|n| offer(&writer, key(n)));
    writer.settle();
    // Opened while the segment is under way.
    let reader = small(folder.path(), 1 << 22);
    assert!((0..10).all(|n| reads(&reader, key(n))));
    (10..20).for_each(|n| offer(&writer, key(n)));
    writer.settle();
    look(&reader, 1000);
    assert!((0..20).all(|n| reads(&reader, key(n))));
    // Complete now, and it goes on to be read.
    (20..30).for_each(|n| offer(&writer, key(n)));
    drop(writer);
    look(&reader, 2000);
    assert!((0..30).all(|n| reads(&reader, key(n))));
    assert!((0..30).all(|n| bytes_of(key(n)).len() < 1 << 20));
    assert_eq!(reader.numbers().damaged, 0);
    let again = small(folder.path(), 1 << 22);
    assert!((0..30).all(|n| reads(&again, key(n))));
}

#[test]
fn a_record_that_is_not_whole_yet_is_none_and_comes_later() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Disk::open_with(&tests::settings(folder.path(), 1 << 22), 1 << 20, plain()).unwrap();
    (0..10).for_each(|n| offer(&writer, key(n)));
    writer.settle();
    let open = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path());
    let open = open.into_iter().find(|path| path.extension().is_some_and(|e| e == "open")).unwrap();
    let whole = fs::read(&open).unwrap();
    for (k, cut) in [whole.len() - 1, whole.len() / 2, 40, 3].into_iter().enumerate() {
        fs::write(&open, &whole[..cut]).unwrap();
        let reader = small(folder.path(), 1 << 22);
        let before = (0..10).filter(|&n| reads(&reader, key(n))).count();
        assert!(before < 10);
        fs::write(&open, &whole).unwrap();
        look(&reader, 1000 * (k as u64 + 1));
        assert!((0..10).all(|n| reads(&reader, key(n))), "cut at {cut}");
        assert_eq!(reader.numbers().damaged, 0);
    }
}

#[test]
fn a_segment_that_is_gone_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Disk::open_with(&tests::settings(folder.path(), 1 << 22), 1 << 20, plain()).unwrap();
    (0..10).for_each(|n| offer(&writer, key(n)));
    writer.settle();
    let reader = small(folder.path(), 1 << 22);
    for path in fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()) {
        if path.extension().is_some_and(|e| e == "open") {
            fs::remove_file(path).unwrap();
        }
    }
    look(&reader, 1000);
    assert!(!(0..10).any(|n| reads(&reader, key(n))));
    assert!((1000..1012).any(|n| reads(&reader, key(n))));
}

#[test]
fn a_segment_whose_writer_has_died_is_ended_by_who_followed_it() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Disk::open_with(&tests::settings(folder.path(), 1 << 22), 1 << 20, plain()).unwrap();
    (0..10).for_each(|n| offer(&writer, key(n)));
    writer.settle();
    let named = |ends: &str| {
        let all = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.extension().is_some_and(|e| e == ends)).collect::<Vec<_>>()
    };
    // What it had written is left without its lock, once another process lets go of that: this test.
    let open = named("open").remove(0);
    let whole = fs::read(&open).unwrap();
    drop(writer);
    fs::remove_file(named("seg").remove(0)).unwrap();
    fs::write(&open, &whole).unwrap();
    fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let held = fs::File::open(&open).unwrap();
    assert!(crate::folder::own(&held));
    let reader = small(folder.path(), 1 << 22);
    assert!((0..10).all(|n| reads(&reader, key(n))) && open.exists(), "it is followed, and left alone");
    drop(held);
    look(&reader, 1000);
    assert!((0..10).all(|n| reads(&reader, key(n))) && !open.exists(), "it is complete");
    drop(reader);
    let again = small(folder.path(), 1 << 22);
    assert!((0..10).all(|n| reads(&again, key(n))));
    assert_eq!(again.numbers().damaged, 0);
}
