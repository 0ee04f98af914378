//! Processes that share a folder fetch a sample once, and none waits for another for ever.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::claims::{Claims, SLOTS};
use crate::folder::Folder;
use crate::tests::{key, offer, plain, reads, settings};
use crate::{Disk, Flight, Key, Whose};

const FOLDER: &str = "LOSSFEED_TEST_FLIGHT_FOLDER";

fn large(folder: &Path) -> Disk {
    Disk::open_with(&settings(folder, 1 << 24), 1 << 20, plain()).unwrap()
}

fn keys(numbers: std::ops::Range<u64>) -> Vec<Option<Key>> {
    numbers.map(|n| Some(key(n))).collect()
}

fn claim(flight: &mut Flight, keys: &[Option<Key>]) -> Vec<Whose> {
    flight.claim(keys, &|| false)
}

/// Claims that the others know of: a process that is alone does not wait for its answer.
fn claimed(disk: &Disk, keys: &[Option<Key>]) -> Flight {
    let mut flight = disk.flight().unwrap();
    assert!(claim(&mut flight, keys).iter().all(|&whose| whose == Whose::Ours));
    disk.settle();
    flight
}

#[test]
fn what_one_fetches_the_others_wait_for_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (large(folder.path()), large(folder.path()));
    let fetched = claimed(&one, &keys(0..10));
    let mut waits = other.flight().unwrap();
    let wanted = [keys(5..15), vec![None]].concat();
    assert_eq!(claim(&mut waits, &wanted), [[Whose::Theirs; 5].as_slice(), &[Whose::Ours; 6]].concat());
    // Those that it claimed meanwhile are its own, for the first one too.
    assert_eq!(claim(&mut one.flight().unwrap(), &keys(10..15)), [Whose::Theirs; 5]);
    (0..8).for_each(|n| offer(&one, key(n)));
    // A record can be read as soon as it is written, and what was not written is free when the call is over.
    let mut left: HashSet<u64> = (5..8).collect();
    while !left.is_empty() {
        let wanted: Vec<u64> = left.iter().copied().collect();
        let whose = claim(&mut waits, &wanted.iter().map(|&n| Some(key(n))).collect::<Vec<_>>());
        for (n, whose) in wanted.into_iter().zip(whose) {
            assert_ne!(whose, Whose::Ours);
            if whose == Whose::There {
                assert!(reads(&other, key(n)));
                left.remove(&n);
            }
        }
    }
    drop(fetched);
    assert_eq!(claim(&mut waits, &keys(8..10)), [Whose::Ours; 2]);
    drop(waits);
    one.settle();
    other.settle();
    assert_eq!(claim(&mut one.flight().unwrap(), &keys(10..15)), [Whose::Ours; 5]);
    assert_eq!(claim(&mut other.flight().unwrap(), &keys(0..8)), [Whose::There; 8]);
}

/// Four processes' threads over the same samples, each in an order of its own.
#[test]
fn each_sample_is_fetched_once_by_all_together() {
    const SAMPLES: u64 = 1500;
    let folder = tempfile::tempdir().unwrap();
    let disks: Vec<Disk> = (0..4).map(|_| large(folder.path())).collect();
    let fetches = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (k, disk) in (0..8).zip(disks.iter().cycle()) {
            let fetches = &fetches;
            scope.spawn(move || {
                let mut order: Vec<u64> = (0..SAMPLES).collect();
                order.sort_by_key(|&n| key(n + 10_000 * (k as u64 / 4)) as u64);
                for wanted in order.chunks(20) {
                    let mut left: Vec<u64> = wanted.iter().copied().filter(|&n| !reads(disk, key(n))).collect();
                    let mut flight = disk.flight().unwrap();
                    while !left.is_empty() {
                        let whose = claim(&mut flight, &left.iter().map(|&n| Some(key(n))).collect::<Vec<_>>());
                        left = left
                            .into_iter()
                            .zip(whose)
                            .filter_map(|(n, whose)| {
                                match whose {
                                    Whose::Ours => {
                                        fetches.fetch_add(1, Relaxed);
                                        offer(disk, key(n));
                                    }
                                    Whose::There => assert!(reads(disk, key(n))),
                                    Whose::Theirs => return Some(n),
                                }
                                None
                            })
                            .collect();
                    }
                }
            });
        }
    });
    // A thread that a busy machine holds up in the middle of its claims may cost a few more.
    let (fetches, samples) = (fetches.load(Relaxed), SAMPLES as usize);
    assert!((samples..=samples * 102 / 100).contains(&fetches), "{fetches} fetches of {samples}");
    assert!(disks.iter().all(|disk| disk.numbers().damaged == 0));
}

/// The other process: it claims, says so, and never fetches.
#[test]
#[ignore = "only as a process that another test ends"]
fn claim_and_wait() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let disk = large(&folder);
    let _flight = claimed(&disk, &keys(0..10));
    fs::write(folder.join("claimed"), "").unwrap();
    std::thread::sleep(Duration::from_secs(600));
}

fn claimant(folder: &Path) -> Child {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "flight_tests::claim_and_wait", "--ignored"])
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !folder.join("claimed").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn a_process_that_was_killed_claims_nothing_and_one_that_was_stopped_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let disk = large(folder.path());
    let theirs = || claim(&mut disk.flight().unwrap(), &keys(0..10)).iter().filter(|w| **w == Whose::Theirs).count();
    let mut child = claimant(folder.path());
    assert_eq!(theirs(), 10);
    child.kill().unwrap();
    child.wait().unwrap();
    disk.settle();
    assert_eq!(theirs(), 0);
    fs::remove_file(folder.path().join("claimed")).unwrap();
    disk.settle();

    let mut child = claimant(folder.path());
    assert_eq!(theirs(), 10);
    kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
    let mut flight = disk.flight().unwrap();
    assert_eq!(claim(&mut flight, &keys(0..10)), [Whose::Theirs; 10]);
    // A caller that is stopped waits for nothing.
    let asked = AtomicUsize::new(0);
    flight.claim(&keys(0..10), &|| asked.fetch_add(1, Relaxed) > 2);
    assert_eq!(claim(&mut flight, &keys(0..10)), [Whose::Ours; 10]);
    drop(flight);
    disk.settle();
    assert_eq!(theirs(), 0, "it is not waited for again");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_process_that_was_stopped_while_it_claims_keeps_the_others_from_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Claims::open(&Folder::open(folder.path()).unwrap()).unwrap();
    let (mut stopped, mut one, mut other) = (open(), open(), open());
    let now = Instant::now();
    let claim = |claims: &mut Claims, keys: &[Option<Key>]| {
        let others = claims.look(now);
        let whose = claims.claim(&others, 1, keys, None, now);
        claims.looked();
        whose
    };
    stopped.look(now);
    assert_eq!(claim(&mut one, &keys(0..2)), [Whose::Ours; 2]);
    assert_eq!(claim(&mut other, &keys(1..3)), [Whose::Theirs, Whose::Ours]);
    one.end(1);
    one.write();
    assert_eq!(claim(&mut other, &keys(1..2)), [Whose::Ours]);
    // It goes on, and knows what they have claimed.
    stopped.looked();
    assert_eq!(claim(&mut stopped, &keys(1..2)), [Whose::Theirs]);
}

#[test]
fn what_a_stopped_process_claimed_is_fetched_once_by_those_who_give_it_up() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Claims::open(&Folder::open(folder.path()).unwrap()).unwrap();
    // In any order of their blocks.
    for stopped in 0..3 {
        let mut all = [open(), open(), open()];
        let begun = Instant::now();
        let mut claim = |who: usize, since: Option<Instant>, now| {
            let others = all[who].look(now);
            let whose = all[who].claim(&others, 1, &keys(0..4), since, now);
            all[who].looked();
            whose
        };
        let [one, other] = [(stopped + 1) % 3, (stopped + 2) % 3];
        assert_eq!(claim(stopped, None, begun), [Whose::Ours; 4]);
        assert_eq!(claim(one, None, begun), [Whose::Theirs; 4]);
        assert_eq!(claim(other, None, begun), [Whose::Theirs; 4]);
        let (since, later) = (Some(begun), begun + Duration::from_secs(4));
        assert_eq!(claim(one, since, later), [Whose::Ours; 4]);
        assert_eq!(claim(other, since, later), [Whose::Theirs; 4], "{stopped} was stopped");
    }
}

#[test]
fn a_slow_process_is_waited_for_while_it_lives_and_no_longer_than_that() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Claims::open(&Folder::open(folder.path()).unwrap()).unwrap();
    let (mut slow, mut waits) = (open(), open());
    let now = Instant::now();
    let claim = |claims: &mut Claims, ticket, since: Option<u64>, seconds| {
        let now = now + Duration::from_secs(seconds);
        let others = claims.look(now);
        let since = since.map(|since| now - Duration::from_secs(since));
        let whose = claims.claim(&others, ticket, &keys(0..1), since, now);
        claims.looked();
        whose[0]
    };
    assert_eq!(claim(&mut slow, 1, None, 0), Whose::Ours);
    assert_eq!(claim(&mut slow, 2, None, 0), Whose::Theirs, "another call of the same process");
    assert_eq!(claim(&mut waits, 1, None, 0), Whose::Theirs);
    for second in 1..15 {
        slow.step();
        slow.write();
        assert_eq!(claim(&mut waits, 1, Some(second), second), Whose::Theirs, "{second}");
    }
    slow.step();
    slow.write();
    assert_eq!(claim(&mut waits, 1, Some(15), 15), Whose::Ours);
    waits.end(1);
    assert_eq!(claim(&mut waits, 2, None, 16), Whose::Ours, "it is ignored for a minute");
    waits.end(2);
    assert_eq!(claim(&mut waits, 3, None, 80), Whose::Theirs);
    assert_eq!(claim(&mut waits, 3, Some(2), 82), Whose::Theirs);
    assert_eq!(claim(&mut waits, 3, Some(3), 83), Whose::Ours, "it gave no sign of life");
    drop(slow);
    waits.end(3);
    assert_eq!(claim(&mut waits, 4, None, 300), Whose::Ours);
}

#[test]
fn what_finds_no_room_in_the_file_is_fetched_by_each() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (large(folder.path()), large(folder.path()));
    let many = keys(0..SLOTS as u64 + 10);
    let flight = claimed(&one, &many);
    let whose = claim(&mut other.flight().unwrap(), &many);
    assert_eq!(whose.iter().filter(|w| **w == Whose::Theirs).count(), SLOTS);
    drop(flight);
    one.settle();
    other.settle();
    assert_eq!(claim(&mut other.flight().unwrap(), &many), vec![Whose::Ours; many.len()]);
    // And there are so many blocks.
    let more: Vec<Disk> = (0..63).map(|_| large(folder.path())).collect();
    let without = more.iter().filter(|disk| disk.flight().is_none()).count();
    assert_eq!(without, 1);
    drop(more);
    assert!(large(folder.path()).flight().is_some());
}

#[test]
fn a_file_that_cannot_be_used_costs_the_sharing_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let elsewhere = root.path().join("elsewhere");
    fs::write(&elsewhere, "untouched").unwrap();
    for (k, kind) in ["link", "folder", "others", "fifo"].iter().enumerate() {
        let folder = root.path().join(k.to_string());
        drop(large(&folder));
        let file = folder.join("claims");
        fs::remove_file(&file).unwrap();
        match *kind {
            "link" => symlink(&elsewhere, &file).unwrap(),
            "folder" => fs::create_dir(&file).unwrap(),
            "fifo" => rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::RUSR).unwrap(),
            _ => {
                fs::write(&file, "").unwrap();
                fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
            }
        }
        let disk = large(&folder);
        assert!(disk.flight().is_none(), "{kind}");
        offer(&disk, key(1));
        disk.settle();
        assert!(reads(&disk, key(1)));
    }
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "untouched");
}

/// Its own block it writes again, and the others' are advice.
#[test]
fn any_bytes_in_the_file_are_taken_for_claims_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (large(folder.path()), large(folder.path()));
    let file = fs::File::options().write(true).open(folder.path().join("claims")).unwrap();
    for round in 0..200u64 {
        let noise: Vec<u8> = (0..2000).map(|n| (key(round * 2000 + n) >> 7) as u8).collect();
        let at = key(round) as u64 % (600 << 10);
        file.write_all_at(&noise[..(at % 2000) as usize], at).unwrap();
        if round % 50 == 49 {
            file.set_len(at).unwrap();
        }
        for disk in [&one, &other] {
            let mut flight = disk.flight().unwrap();
            let whose = claim(&mut flight, &keys(round * 10..round * 10 + 10));
            assert!(whose.iter().all(|&whose| whose != Whose::There), "{round}: {whose:?}");
        }
    }
    // Claims that are no slots, of a process that lives: as many as there is room for.
    let mut head = b"lfclaim\x01".to_vec();
    head.extend([u64::MAX; 3].iter().flat_map(|n| n.to_le_bytes()));
    (0..2).for_each(|block| file.write_all_at(&head, block * 8192).unwrap());
    offer(&one, key(5));
    one.settle();
    assert!(reads(&one, key(5)));
    assert_eq!(claim(&mut one.flight().unwrap(), &keys(6..7)), [Whose::Ours]);
}
