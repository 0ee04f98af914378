//! Resources that a tier shares: open files, room on the disk, segments that are not full. And clocks that are set.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use crate::open_files::OPEN_MAX;
use crate::tests::{key, offer, plain, reads, settings, small};
use crate::writer::WriteAt;
use crate::{Disk, Policy, Settings};

fn named(folder: &Path, ends: &str) -> usize {
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|e| e == ends)).count()
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn few_files_are_open_however_many_datasets_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let before = open_files();
    let disk = small(folder.path(), 1 << 20);
    (0..1000).for_each(|n| offer(&disk, key(n)));
    disk.settle();
    assert!(named(folder.path(), "seg") > 2 * OPEN_MAX);
    let disks: Vec<Disk> = (0..8).map(|_| small(folder.path(), 1 << 20)).collect();
    for n in 0..1000 {
        assert!(reads(&disk, key(n)) && disks.iter().all(|disk| reads(disk, key(n))), "{n}");
    }
    // Beside them each has its folder's and the segment it writes.
    let open = open_files() - before;
    assert!(open <= OPEN_MAX + 3 * (disks.len() + 1), "{open}");
    drop((disk, disks));
    assert!(open_files() <= before + 2, "and none when the tiers are gone");
}

#[test]
fn a_segment_that_another_process_has_dropped_is_a_miss_and_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let disk = small(folder.path(), 1 << 20);
    (0..1000).for_each(|n| offer(&disk, key(n)));
    disk.settle();
    for path in fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()) {
        fs::remove_file(path).unwrap();
    }
    let there = (0..1000).filter(|&n| reads(&disk, key(n))).count();
    let numbers = disk.numbers();
    assert!(there > 0 && there < 1000, "{there} of files that were open");
    assert_eq!((numbers.failed, numbers.damaged, numbers.misses), (0, 0, 1000 - there as u64));
}

#[test]
fn short_runs_go_on_in_one_segment_and_others_read_along() {
    let folder = tempfile::tempdir().unwrap();
    let large = || Disk::open_with(&settings(folder.path(), 1 << 22), 1 << 16, plain()).unwrap();
    let watcher = large();
    for run in 0..100 {
        let disk = large();
        (10 * run..10 * run + 3).for_each(|n| offer(&disk, key(n)));
        drop(disk);
        if run % 10 == 9 {
            // It looks around when it begins a segment, or when its time has come.
            watcher.look();
            assert!((0..=run).all(|run| (10 * run..10 * run + 3).all(|n| reads(&watcher, key(n)))), "{run}");
        }
    }
    let segments = named(folder.path(), "seg");
    assert!((1..6).contains(&segments), "{segments} segments of 100 runs");
    let again = large();
    assert!((0..100).all(|run| (10 * run..10 * run + 3).all(|n| reads(&again, key(n)))));
    assert_eq!((again.numbers().damaged, watcher.numbers().damaged), (0, 0));
}

/// What was written to a short segment again and never ended is recovered with what was there before.
#[test]
fn a_segment_that_was_begun_again_and_cut_keeps_all_its_records() {
    let folder = tempfile::tempdir().unwrap();
    let large = || Disk::open_with(&settings(folder.path(), 1 << 22), 1 << 16, plain()).unwrap();
    (0..2).for_each(|run| {
        let disk = large();
        (10 * run..10 * run + 5).for_each(|n| offer(&disk, key(n)));
        disk.settle();
        if run == 1 {
            let open = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
            let open = open.into_iter().find(|path| path.extension().is_some_and(|e| e == "open")).unwrap();
            let cut = fs::read(&open).unwrap();
            drop(disk);
            fs::remove_file(open.with_extension("seg")).unwrap();
            fs::write(&open, cut).unwrap();
            fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        }
    });
    let disk = large();
    assert!([0, 1, 2, 3, 4, 10, 11, 12, 13, 14].iter().all(|&n| reads(&disk, key(n))));
    assert_eq!((named(folder.path(), "open"), disk.numbers().damaged), (0, 0));
}

#[test]
fn what_must_stay_free_stays_free_and_writing_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let disk = small(folder.path(), 1 << 20);
    let round = |from: u64| {
        (from..from + 40).for_each(|n| {
            offer(&disk, key(n));
            disk.settle();
        });
        disk.numbers()
    };
    disk.shared.spare.store(0, Relaxed);
    assert_eq!((round(0).written, round(0).dropped, named(folder.path(), "seg")), (0, 0, 0));
    // The pause is over for none of these unless there is room.
    disk.shared.declined_until_ms.store(0, Relaxed);
    disk.shared.spare.store(u64::MAX, Relaxed);
    assert_eq!(round(100).written, 40);
    // In the middle of a segment too.
    disk.shared.spare.store(10, Relaxed);
    let numbers = round(200);
    assert_eq!((numbers.written, numbers.dropped), (40, 0));
    disk.shared.declined_until_ms.store(0, Relaxed);
    disk.shared.spare.store(u64::MAX, Relaxed);
    assert_eq!(round(300).written, 80);
    assert!((100..140).chain(300..340).all(|n| reads(&disk, key(n))));
    assert!(disk.shared.folder.spare(u64::MAX).unwrap() < 1 << 60);
}

#[test]
fn a_disk_that_was_full_is_written_to_again() {
    let folder = tempfile::tempdir().unwrap();
    let left = Arc::new(AtomicU64::new(3000));
    let counted = Arc::clone(&left);
    let quota: WriteAt = Box::new(move |file: &File, bytes: &[u8], at| {
        let fits = bytes.len().min(counted.load(Relaxed) as usize);
        file.write_all_at(&bytes[..fits], at)?;
        counted.fetch_sub(fits as u64, Relaxed);
        if fits < bytes.len() { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    });
    let disk = Disk::open_with(&settings(folder.path(), 1 << 20), 2048, quota).unwrap();
    let write = |keys: std::ops::Range<u64>| {
        keys.for_each(|n| {
            offer(&disk, key(n));
            disk.settle();
        });
    };
    write(0..50);
    let before = disk.numbers().written;
    left.store(u64::MAX, Relaxed);
    disk.shared.declined_until_ms.store(0, Relaxed);
    write(50..100);
    assert_eq!(disk.numbers().written, before + 50);
    assert!((50..100).all(|n| reads(&disk, key(n))));
    assert_eq!(disk.numbers().damaged, 0);
}

/// Segments that were read by a clock that has been set back since count as read when they are seen, and give way once
/// nobody has read them for long by the clock of today.
#[test]
fn what_was_read_tomorrow_gives_way_like_all_else() {
    let folder = tempfile::tempdir().unwrap();
    let set = |when: SystemTime| {
        for entry in fs::read_dir(folder.path()).unwrap() {
            File::options().write(true).open(entry.unwrap().path()).unwrap().set_modified(when).unwrap();
        }
    };
    let limit = 40 << 10;
    let open = || Disk::open_with(&Settings { policy: Policy::Worth, ..settings(folder.path(), limit) }, 2048, plain());
    let disk = open().unwrap();
    (0..80).for_each(|n| disk.offer(key(n), Duration::from_millis(1), &[1; 400]));
    drop(disk);
    let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
    set(now + 24 * hour);
    let disk = open().unwrap();
    let read_at = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let segments =
        || fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()).filter(|p| p.extension().is_some());
    assert!(segments().all(|path| read_at(&path) < now + hour));
    drop(disk);
    set(now - hour);
    let disk = open().unwrap();
    (2000..2040).for_each(|n| disk.offer(key(n), Duration::from_millis(1), &[1; 400]));
    disk.settle();
    assert_eq!((2000..2040).filter(|&n| disk.read(key(n), &mut [0; 400])).count(), 40, "{:?}", disk.numbers());
}
