//! Truths about the tier: it is a map that forgets.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use lossfeed_control::ErrorKind;
use proptest::prelude::*;

use super::*;
use crate::writer::WriteAt;

pub(crate) fn plain() -> WriteAt {
    Box::new(|file, bytes, at| file.write_all_at(bytes, at))
}

pub(crate) fn settings(folder: &Path, limit_bytes: u64) -> Settings {
    Settings { folder: folder.into(), limit_bytes, dataset_bytes: limit_bytes, policy: Policy::Worth }
}

/// A tier of segments of 2 KB.
pub(crate) fn small(folder: &Path, limit_bytes: u64) -> Disk {
    Disk::open_with(&settings(folder, limit_bytes), 2048, plain()).unwrap()
}

/// The bytes that belong to a key: whoever reads others has read wrong ones.
pub(crate) fn bytes_of(key: Key) -> Vec<u8> {
    let mut state = (key as u64) | 1;
    (0..key % 701)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// A key as good as random.
pub(crate) fn key(n: u64) -> Key {
    let half = |n: u64| {
        (n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (n << 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    Key::from(half(n)) << 64 | Key::from(half(!n))
}

pub(crate) fn offer(disk: &Disk, key: Key) {
    disk.offer(key, Duration::from_millis(1), &bytes_of(key));
}

/// Reads a record; whatever comes must be right.
pub(crate) fn reads(disk: &Disk, key: Key) -> bool {
    let right = bytes_of(key);
    let mut into = vec![0xaa; right.len()];
    let found = disk.read(key, &mut into);
    assert!(!found || into == right, "wrong bytes of {key:x}");
    found
}

fn folder_bytes(folder: &Path) -> u64 {
    let segments = fs::read_dir(folder).unwrap().map(|e| e.unwrap());
    segments.filter(|e| e.path().extension().is_some()).map(|e| e.metadata().unwrap().len()).sum()
}

#[derive(Debug, Clone)]
enum Step {
    Offer(u64),
    Read(u64),
    Forget(u64),
    Reopen,
    Another,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..60u64).prop_map(Step::Offer),
        8 => (0..60u64).prop_map(Step::Read),
        1 => (0..60u64).prop_map(Step::Forget),
        1 => Just(Step::Reopen),
        1 => Just(Step::Another),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn with_room_it_is_a_map(steps in steps()) {
        let folder = tempfile::tempdir().unwrap();
        let mut disk = small(folder.path(), 1 << 20);
        let (mut there, mut forgotten) = (HashSet::new(), HashSet::new());
        for step in steps {
            match step {
                Step::Offer(n) => { offer(&disk, key(n)); there.insert(n); forgotten.remove(&n); }
                Step::Read(n) => {
                    disk.settle();
                    prop_assert_eq!(reads(&disk, key(n)), there.contains(&n), "{}", n);
                }
                Step::Forget(n) => {
                    disk.forget(key(n));
                    // Whatever the thread is writing meanwhile.
                    prop_assert!(!reads(&disk, key(n)), "{}", n);
                    if there.remove(&n) {
                        forgotten.insert(n);
                    }
                }
                Step::Reopen => {
                    drop(disk);
                    disk = small(folder.path(), 1 << 20);
                    // What is forgotten is forgotten by one process: its record still lies there.
                    there.extend(forgotten.drain());
                }
                Step::Another => {
                    // Another process at the same time, with samples of its own, then gone.
                    let other = small(folder.path(), 1 << 20);
                    offer(&other, key(1000 + there.len() as u64));
                }
            }
        }
        disk.settle();
        prop_assert!(there.iter().all(|&n| reads(&disk, key(n))));
        prop_assert_eq!(disk.numbers().damaged, 0);
    }

    #[test]
    fn without_room_it_forgets_and_never_lies_nor_exceeds_its_limit(
        steps in steps(), limit in 6_000u64..30_000, oldest in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let policy = if oldest { Policy::Oldest } else { Policy::Worth };
        let open = || Disk::open_with(&Settings { policy, ..settings(folder.path(), limit) }, 2048, plain()).unwrap();
        let (mut disk, mut offered) = (open(), HashSet::new());
        for step in steps {
            match step {
                Step::Offer(n) => { offer(&disk, key(n)); offered.insert(n); }
                Step::Read(n) => prop_assert!(!reads(&disk, key(n)) || offered.contains(&n)),
                Step::Forget(n) => disk.forget(key(n)),
                Step::Reopen => { drop(disk); disk = open(); }
                Step::Another => { let other = open(); (0..60).for_each(|n| offer(&other, key(2000 + n))); }
            }
            // While it writes, files come and go under a listing.
            disk.settle();
            prop_assert!(folder_bytes(folder.path()) <= limit);
        }
        prop_assert_eq!(disk.numbers().damaged, 0);
    }
}

#[test]
fn two_keys_with_one_low_half_are_never_taken_for_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let disk = small(folder.path(), 1 << 20);
    let (one, other) = (701 * 5 + 300, (701u128 << 64) + 701 * 5 + 300);
    assert_eq!((one as u64, bytes_of(one).len()), (other as u64, bytes_of(other).len()));
    disk.offer(one, Duration::ZERO, &[1; 300]);
    disk.settle();
    let mut into = [0; 300];
    assert!(!disk.read(other, &mut into));
    // Forgotten, as nothing tells it from damage.
    assert!(!disk.read(one, &mut into));
    assert!(!disk.read(one, &mut [0; 299]));
}

#[test]
fn two_datasets_share_one_limit_and_each_finds_its_own_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let limit = 64 << 10;
    let (one, other) = (small(folder.path(), limit), small(folder.path(), limit));
    for n in 0..400 {
        offer(&one, key(n));
        offer(&other, key(10_000 + n));
        one.settle();
        other.settle();
        assert!(folder_bytes(folder.path()) <= limit);
    }
    let count = |disk: &Disk, from: u64| (from..from + 400).filter(|&n| reads(disk, key(n))).count();
    let before = (count(&one, 0), count(&other, 10_000));
    assert!(before.0 > 20 && before.1 > 20, "{before:?}");
    drop((one, other));
    let again = small(folder.path(), limit);
    assert_eq!((count(&again, 0), count(&again, 10_000)), before);
    assert_eq!(again.numbers().damaged, 0);
}

/// Hits of five epochs in random order over a dataset twice as large as the limit, and what was written for them.
fn epochs(policy: Policy) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let (samples, limit) = (600u64, 132 << 10);
    let settings = Settings { policy, dataset_bytes: samples * 400, ..settings(folder.path(), limit) };
    let disk = Disk::open_with(&settings, 4096, plain()).unwrap();
    for epoch in 0..5u64 {
        let mut order: Vec<u64> = (0..samples).collect();
        order.sort_by_key(|&n| key(n + 100_000 * (epoch + 1)));
        for n in order {
            let mut into = [0; 400];
            if !disk.read(key(n), &mut into) {
                disk.offer(key(n), Duration::from_millis(1), &[n as u8; 400]);
                disk.settle();
            } else {
                assert_eq!(into, [n as u8; 400]);
            }
        }
    }
    (disk.numbers().hits, disk.numbers().written)
}

#[test]
fn epochs_in_random_order_hit_more_and_write_less_than_with_the_oldest_dropped() {
    let (worth, oldest) = (epochs(Policy::Worth), epochs(Policy::Oldest));
    // Half of the samples fit: four epochs may hit half.
    assert!(worth.0 > 1000 && worth.0 > oldest.0 * 5 / 4, "{worth:?} {oldest:?}");
    assert!(worth.1 < oldest.1 / 2, "{worth:?} {oldest:?}");
}

#[test]
fn what_nobody_has_read_for_long_gives_way_and_what_was_dear_to_fetch_last() {
    let folder = tempfile::tempdir().unwrap();
    let limit = 40 << 10;
    for (from, cost) in [(0, 50), (1000, 1)] {
        let disk = small(folder.path(), limit);
        (from..from + 40).for_each(|n| disk.offer(key(n), Duration::from_millis(cost), &[1; 400]));
    }
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    for entry in fs::read_dir(folder.path()).unwrap() {
        fs::File::options().write(true).open(entry.unwrap().path()).unwrap().set_modified(long_ago).unwrap();
    }
    let disk = small(folder.path(), limit);
    let count = |from: u64| (from..from + 40).filter(|&n| disk.read(key(n), &mut [0; 400])).count();
    // As many as fit without a look at the old ones, which would put them to use.
    (2000..2040).for_each(|n| disk.offer(key(n), Duration::from_millis(1), &[1; 400]));
    disk.settle();
    assert_eq!((count(0), count(2000)), (40, 40), "{:?}", disk.numbers());
    assert!(count(1000) < 20);
}

#[test]
fn folders_and_files_of_doubtful_origin_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let refused = |name: &str, word: &str| {
        let error = Disk::open(&settings(&at(name), LIMIT_MIN)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Settings);
        assert!(error.to_string().contains(word), "{error}");
    };
    drop(Disk::open(&settings(&at("deep/made"), LIMIT_MIN)).unwrap());
    assert_eq!(fs::metadata(at("deep/made")).unwrap().permissions().mode() & 0o777, 0o700);
    symlink(at("deep/made"), at("link")).unwrap();
    refused("link", "a link");
    fs::write(at("file"), "").unwrap();
    refused("file", "file");
    fs::create_dir(at("open")).unwrap();
    fs::set_permissions(at("open"), fs::Permissions::from_mode(0o777)).unwrap();
    refused("open", "0777");
    for limit in [0, LIMIT_MIN - 1, LIMIT_MAX + 1] {
        assert_eq!(Disk::open(&settings(&at("x"), limit)).err().unwrap().kind(), ErrorKind::Settings);
    }

    // A segment of others, or a link to one, is not there.
    let disk = small(&at("tier"), 1 << 20);
    (0..30).for_each(|n| offer(&disk, key(n)));
    drop(disk);
    let segments: Vec<_> =
        fs::read_dir(at("tier")).unwrap().map(|e| e.unwrap().path()).filter(|p| p.extension().is_some()).collect();
    assert!(segments.len() > 3);
    for segment in &segments {
        assert_eq!(fs::metadata(segment).unwrap().permissions().mode() & 0o777, 0o600);
    }
    fs::set_permissions(&segments[0], fs::Permissions::from_mode(0o644)).unwrap();
    let elsewhere = at("elsewhere.seg");
    fs::rename(&segments[1], &elsewhere).unwrap();
    symlink(&elsewhere, &segments[1]).unwrap();
    let disk = small(&at("tier"), 1 << 20);
    let found = (0..30).filter(|&n| reads(&disk, key(n))).count();
    assert!(found > 0 && found < 30, "{found}");
    assert_eq!(disk.numbers().damaged, 0);
}

#[test]
fn a_lock_that_is_a_link_is_not_followed_and_reading_goes_on() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("tier");
    let disk = small(&folder, 1 << 20);
    offer(&disk, key(1));
    drop(disk);
    fs::remove_file(folder.join("lock")).unwrap();
    symlink(root.path().join("precious"), folder.join("lock")).unwrap();
    let disk = small(&folder, 1 << 20);
    assert!(reads(&disk, key(1)));
    offer(&disk, key(2));
    disk.settle();
    assert!(!root.path().join("precious").exists() && !disk.has(key(2)));
}

#[test]
fn a_full_disk_ends_the_writing_for_a_while_and_nothing_else() {
    for room in [0, 5, 700, 5000, 9000] {
        let folder = tempfile::tempdir().unwrap();
        let written = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&written);
        let quota: WriteAt = Box::new(move |file, bytes, at| {
            // As a full disk does: a part is written, and then nothing.
            let left = room - counted.load(Relaxed).min(room);
            let fits = bytes.len().min(left as usize);
            file.write_all_at(&bytes[..fits], at)?;
            counted.fetch_add(fits as u64, Relaxed);
            if fits < bytes.len() { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        });
        let disk = Disk::open_with(&settings(folder.path(), 1 << 20), 2048, quota).unwrap();
        for n in 0..100 {
            offer(&disk, key(n));
            disk.settle();
        }
        let there = (0..100).filter(|&n| reads(&disk, key(n))).count() as u64;
        let numbers = disk.numbers();
        assert_eq!((numbers.written, numbers.damaged), (there, 0), "{room}");
        assert_eq!(numbers.written + numbers.dropped + numbers.declined, 100, "{room}: {numbers:?}");
        drop(disk);
        // With room again all of it is there, and more comes.
        let again = small(folder.path(), 1 << 20);
        assert_eq!((0..100).filter(|&n| reads(&again, key(n))).count() as u64, there, "{room}");
        offer(&again, key(500));
        again.settle();
        assert!(reads(&again, key(500)));
    }
}

#[test]
fn a_queue_that_is_full_drops_and_counts() {
    let folder = tempfile::tempdir().unwrap();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let slow: WriteAt = Box::new(move |file, bytes, at| {
        let _ = wait.recv();
        file.write_all_at(bytes, at)
    });
    let disk = Disk::open_with(&settings(folder.path(), 4 << 30), 256 << 20, slow).unwrap();
    let sample = vec![7; 8 << 20];
    for n in 0..40 {
        disk.offer(key(n), Duration::ZERO, &sample);
    }
    let dropped = disk.numbers().dropped;
    assert!((20..=32).contains(&dropped), "{dropped}");
    drop(go);
    disk.settle();
    assert_eq!(disk.numbers().written + disk.numbers().dropped, 40);
    // One that no segment can hold is dropped at once.
    disk.offer(key(99), Duration::ZERO, &vec![0; 256 << 20]);
    assert_eq!(disk.numbers().dropped, dropped + 1);
}

#[test]
fn another_process_s_segment_under_way_is_read_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let writer = small(folder.path(), 1 << 20);
    offer(&writer, key(3));
    writer.settle();
    let other = small(folder.path(), 1 << 20);
    assert!(other.has(key(3)), "it is whole, though its segment is not");
    offer(&writer, key(4));
    writer.settle();
    assert!(reads(&writer, key(3)) && reads(&writer, key(4)));
    drop(writer);
    drop(other);
    let after = small(folder.path(), 1 << 20);
    assert!(reads(&after, key(3)) && reads(&after, key(4)));
}

#[test]
fn a_smaller_limit_at_the_next_opening_is_kept_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let disk = small(folder.path(), 1 << 20);
    (0..400).for_each(|n| offer(&disk, key(n)));
    drop(disk);
    assert!(folder_bytes(folder.path()) > 100_000);
    let disk = small(folder.path(), 50_000);
    let bytes = folder_bytes(folder.path());
    assert!((40_000..=50_000).contains(&bytes), "{bytes}");
    let there: HashMap<u64, bool> = (0..400).map(|n| (n, reads(&disk, key(n)))).collect();
    assert!(there.values().filter(|&&found| found).count() > 50);
    assert_eq!(disk.numbers().damaged, 0);
}
