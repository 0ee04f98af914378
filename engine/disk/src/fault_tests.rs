//! A disk that fails, hangs, goes away or is slow: fewer samples, in a bounded time, and never wrong ones.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use lossfeed_sync::{Condvar, Mutex};
use proptest::prelude::*;

use crate::folder::Folder;
use crate::read_at::{ReadAt, System};
use crate::readers::THREADS;
use crate::shared::Item;
use crate::tests::{bytes_of, key, offer, plain, reads, settings};
use crate::writer::WriteAt;
use crate::{Disk, Key, Reads};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(600);

/// What happens to a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Memory has it.
    None,
    /// It comes from the disk.
    Cold,
    /// It fails.
    Eio,
    /// It fails, and tells so when it is read from memory too.
    Flipped,
    /// It does not come until the disk is let go.
    Hangs,
}

/// A disk with faults by the number of the read, counted from 0 since they were set.
#[derive(Default)]
struct Faulty {
    faults: Mutex<Vec<Fault>>,
    next: AtomicUsize,
    hanging: Mutex<usize>,
    changed: Condvar,
    free: AtomicBool,
    system: System,
    /// Of the read at hand, by where it lies: both ways of one read have one fault.
    at: Mutex<HashMap<u64, Fault>>,
}

impl Faulty {
    fn set(&self, faults: &[Fault]) {
        *self.faults.lock() = faults.to_vec();
        self.next.store(0, Relaxed);
        self.at.lock().clear();
    }
    fn fault(&self, at: u64) -> Fault {
        *self.at.lock().entry(at).or_insert_with(|| {
            let faults = self.faults.lock();
            let next = self.next.fetch_add(1, Relaxed);
            if faults.is_empty() { Fault::None } else { faults[next % faults.len()] }
        })
    }
    fn let_go(&self) {
        self.free.store(true, Relaxed);
        let _hanging = self.hanging.lock();
        self.changed.notify_all();
    }
}

impl ReadAt for Faulty {
    fn cached(&self, file: &File, head: &mut [u8], data: &mut [u8], at: u64) -> bool {
        match self.fault(at) {
            Fault::None => self.system.whole(file, head, data, at).is_ok(),
            Fault::Flipped => self.whole(file, head, data, at).is_ok(),
            _ => false,
        }
    }
    fn whole(&self, file: &File, head: &mut [u8], data: &mut [u8], at: u64) -> io::Result<()> {
        let fault = self.fault(at);
        if fault == Fault::Hangs {
            let mut hanging = self.hanging.lock();
            *hanging += 1;
            self.changed.notify_all();
            while !self.free.load(Relaxed) {
                self.changed.wait(&mut hanging);
            }
            *hanging -= 1;
        }
        if fault == Fault::Eio {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.system.whole(file, head, data, at)?;
        if fault == Fault::Flipped {
            data.iter_mut().chain(head).take(1).for_each(|byte| *byte ^= 4);
        }
        Ok(())
    }
}

/// A tier with these records, over a disk that is sound so far.
fn tier(folder: &std::path::Path, records: std::ops::Range<u64>) -> (Disk, Arc<Faulty>) {
    let faulty = Arc::new(Faulty::default());
    let disk = Disk::start(&settings(folder, 1 << 20), 64 << 10, plain(), faulty.clone(), LONG).unwrap();
    records.for_each(|n| offer(&disk, key(n)));
    disk.settle();
    (disk, faulty)
}

/// The records of `keys` that come, each once, and whether they are right.
fn read(disk: &Disk, keys: &[Key], patience: Duration) -> (Vec<usize>, Reads) {
    let mut came = Vec::new();
    let reads = disk.read_all(wanted(disk, keys), &|_| patience, &|| false, &mut |number, data| {
        assert!(data == bytes_of(keys[number]) && !came.contains(&number), "{number}");
        came.push(number);
        ControlFlow::Continue(())
    });
    assert_eq!(reads.answers as usize, came.len());
    came.sort_unstable();
    (came, reads)
}

fn wanted(disk: &Disk, keys: &[Key]) -> Vec<crate::Wanted> {
    let all: Vec<Option<Key>> = keys.iter().copied().map(Some).collect();
    let found = disk.find(&all).into_iter().enumerate();
    found.filter_map(|(number, found)| Some((number, found?, bytes_of(keys[number]).len()))).collect()
}

#[test]
fn reads_that_fail_are_misses_and_no_damage_and_the_others_come() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, faulty) = tier(folder.path(), 0..6);
    let keys: Vec<Key> = (0..6).map(key).collect();
    faulty.set(&[Fault::None, Fault::Eio, Fault::Cold, Fault::Flipped, Fault::None, Fault::Eio]);
    let (came, reads) = read(&disk, &keys, LONG);
    assert_eq!((came, reads.failures, reads.unfinished), (vec![0, 2, 4], 2, false));
    let numbers = disk.numbers();
    assert_eq!((numbers.failed, numbers.damaged, numbers.hits, numbers.misses), (2, 1, 3, 3));
    // They are forgotten, and may be kept again.
    faulty.set(&[]);
    assert!((0..6).all(|n| disk.has(key(n)) == [0, 2, 4].contains(&n)));
    offer(&disk, key(1));
    disk.settle();
    assert_eq!(read(&disk, &keys, LONG).0, [0, 1, 2, 4]);
}

#[test]
fn a_read_that_hangs_is_left_behind_and_later_ones_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, faulty) = tier(folder.path(), 0..5);
    let keys: Vec<Key> = (0..5).map(key).collect();
    faulty.set(&[Fault::None, Fault::Cold, Fault::Hangs, Fault::Cold, Fault::None]);
    // The one behind it waits for it too: it is one thread that reads for a call.
    let (came, reads) = read(&disk, &keys, Duration::from_millis(300));
    assert!(reads.unfinished && reads.took >= Duration::from_millis(300), "{reads:?}");
    assert!(came.starts_with(&[0]) && came.contains(&4) && !came.contains(&2), "{came:?}");
    faulty.set(&[Fault::Cold]);
    assert_eq!(read(&disk, &[keys[0], keys[4]], LONG).0, [0, 1]);
    let late = disk.numbers().late;
    assert!((2..=3).contains(&late), "{late}");
    // Dropping the tier does not wait for it, and letting it go hurts nobody.
    drop(disk);
    faulty.let_go();
}

#[test]
fn when_every_thread_hangs_nobody_else_does() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, faulty) = tier(folder.path(), 0..THREADS as u64 + 4);
    faulty.set(&[Fault::Hangs]);
    for n in 0..THREADS as u64 {
        // Its caller stops as soon as it hangs.
        let hangs = || *faulty.hanging.lock() > n as usize;
        let reads = disk.read_all(wanted(&disk, &[key(n)]), &|_| LONG, &hangs, &mut |_, _| unreachable!());
        assert_eq!((reads.answers, reads.unfinished), (0, false));
    }
    faulty.set(&[Fault::Cold]);
    let keys = [key(THREADS as u64), key(THREADS as u64 + 1)];
    let (came, reads) = read(&disk, &keys, Duration::from_millis(20));
    assert!(came.is_empty() && reads.unfinished && reads.failures == 0, "{reads:?}");
    // Nobody waits for what that call wanted: it is not read once the threads are free.
    faulty.set(&[Fault::None]);
    assert_eq!(read(&disk, &keys, Duration::ZERO).0, [0, 1], "what memory has needs no thread");
    faulty.let_go();
    faulty.set(&[Fault::Cold]);
    assert_eq!(read(&disk, &keys, LONG).0, [0, 1]);
}

#[test]
fn who_has_enough_or_stops_is_not_answered_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, faulty) = tier(folder.path(), 0..20);
    let keys: Vec<Key> = (0..20).map(key).collect();
    for (fault, most) in [(Fault::None, 1), (Fault::Cold, 1), (Fault::Cold, 7)] {
        faulty.set(&[fault]);
        let mut answers = 0;
        let reads = disk.read_all(wanted(&disk, &keys), &|_| LONG, &|| false, &mut |_, _| {
            answers += 1;
            if answers == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!((answers, reads.answers, reads.unfinished), (most, most, false));
    }
    faulty.set(&[Fault::Hangs]);
    let reads = disk.read_all(wanted(&disk, &keys), &|_| LONG, &|| true, &mut |_, _| ControlFlow::Continue(()));
    assert_eq!((reads.answers, reads.unfinished), (0, false));
    faulty.let_go();
}

#[test]
fn a_folder_that_vanishes_is_read_on_and_ends_the_writing() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("tier");
    let (disk, _) = tier(&folder, 0..10);
    fs::remove_dir_all(&folder).unwrap();
    let keys: Vec<Key> = (0..10).map(key).collect();
    assert_eq!(read(&disk, &keys, LONG).0.len(), 10, "open files stay");
    // More than the segment under way can hold: the next cannot be begun.
    (100..400).for_each(|n| {
        offer(&disk, key(n));
        disk.settle();
    });
    let numbers = disk.numbers();
    assert!(numbers.dropped > 0 && numbers.damaged + numbers.failed == 0, "{numbers:?}");
    let (came, reads) = read(&disk, &keys, LONG);
    assert_eq!((came.len() as u64, reads.failures), (reads.answers, 0));
    drop(disk);
    assert!(!folder.exists());
}

#[test]
fn a_write_that_hangs_does_not_hold_up_whoever_drops_the_tier() {
    let folder = tempfile::tempdir().unwrap();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let begun = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&begun);
    let hangs: WriteAt = Box::new(move |_, _, _| {
        seen.store(true, Relaxed);
        let _ = wait.recv();
        Ok(())
    });
    let read = Arc::new(System::default());
    let disk =
        Disk::start(&settings(folder.path(), 1 << 20), 64 << 10, hangs, read, Duration::from_millis(50)).unwrap();
    offer(&disk, key(1));
    while !begun.load(Relaxed) {
        std::thread::yield_now();
    }
    drop(disk);
    drop(go);
}

/// A segment is tried once for a queue, not once for each sample in it: a drop of the tier waits for that.
#[test]
fn what_is_queued_behind_a_segment_that_could_not_be_begun_is_declined_with_it() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("tier");
    let (disk, _) = tier(&path, 0..0);
    let shared = &disk.shared;
    let queue = |keys: std::ops::Range<u64>| {
        let keep = |n| Item::Keep { key: key(n), cost_us: 1, data: bytes_of(key(n)).into() };
        shared.queue.lock().items.extend(keys.map(keep));
        shared.news.notify_one();
        disk.settle();
    };
    let spare = shared.spare.swap(0, Relaxed);
    queue(0..1);
    shared.spare.store(spare, Relaxed);
    assert_eq!((disk.numbers().declined, disk.numbers().written), (1, 0));
    assert!(shared.declined_until_ms.swap(u64::MAX, Relaxed) > 0, "and for ten seconds from then");
    // The time is up for none of these, however long this machine takes. Each would be written if it tried.
    queue(1..6);
    assert_eq!((disk.numbers().declined, disk.numbers().written), (6, 0));
    shared.declined_until_ms.store(0, Relaxed);
    queue(6..8);
    assert_eq!((disk.numbers().declined, disk.numbers().written), (6, 2));
}

#[test]
fn a_process_that_was_stopped_with_the_folders_lock_keeps_the_others_from_dropping_segments_only() {
    let folder = tempfile::tempdir().unwrap();
    let other = Disk::open_with(&settings(folder.path(), 200 << 10), 64 << 10, plain()).unwrap();
    let held = Folder::open(folder.path()).unwrap().lock().unwrap();
    let disk = Disk::open_with(&settings(folder.path(), 200 << 10), 64 << 10, plain()).unwrap();
    (0..4).for_each(|n| offer(&disk, key(n)));
    disk.settle();
    other.look();
    assert!((0..4).all(|n| reads(&disk, key(n)) && reads(&other, key(n))));
    // Three segments fit in. The fourth would have another one dropped.
    let large = vec![7; 40 << 10];
    for n in 10..20 {
        disk.offer(key(n), Duration::from_millis(1), &large);
        disk.settle();
    }
    let numbers = disk.numbers();
    assert_eq!((numbers.evicted_segments, numbers.written + numbers.declined), (0, 14), "{numbers:?}");
    assert!(numbers.bytes <= 200 << 10 && numbers.declined > 0 && numbers.written > 4, "{numbers:?}");
    drop(held);
}

#[test]
fn what_fetches_had_cost_is_known_when_the_folder_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, _) = tier(folder.path(), 0..8);
    assert_eq!(disk.fetched_in_us(), None);
    drop(disk);
    let (disk, _) = tier(folder.path(), 0..0);
    assert_eq!(disk.fetched_in_us(), Some(1000.0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_disk_does_an_answer_is_right_and_comes_once(
        faults in prop::collection::vec(
            prop::sample::select(&[Fault::None, Fault::Cold, Fault::Eio, Fault::Flipped][..]), 1..40,
        ),
        asked in prop::collection::btree_set(0u64..50, 1..40),
        threads in 1usize..4,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (disk, faulty) = tier(folder.path(), 0..40);
        let keys: Vec<Key> = asked.into_iter().map(key).collect();
        faulty.set(&faults);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let (came, reads) = read(&disk, &keys, LONG);
                    assert!(!reads.unfinished && came.len() + reads.failures as usize <= keys.len());
                });
            }
        });
        let numbers = disk.numbers();
        prop_assert_eq!(numbers.hits + numbers.misses, (keys.len() * threads) as u64);
    }
}

/// What is on the shelf while its forgetting is still queued will be gone: what is offered then must not be taken for
/// there already.
#[test]
fn an_offer_behind_a_forgetting_counts() {
    let folder = tempfile::tempdir().unwrap();
    let held = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&held);
    let waits: WriteAt = Box::new(move |file, bytes, at| {
        while gate.load(Relaxed) {
            std::thread::yield_now();
        }
        file.write_all_at(bytes, at)
    });
    let disk = Disk::open_with(&settings(folder.path(), 1 << 20), 64 << 10, waits).unwrap();
    offer(&disk, key(1));
    disk.settle();
    held.store(true, Relaxed);
    offer(&disk, key(2));
    // As `forget` does it where a record comes to the shelf just after it has looked there.
    disk.shared.begin_forgetting(key(1));
    disk.shared.queue.lock().items.push_back(Item::Forget { key: key(1) });
    offer(&disk, key(1));
    held.store(false, Relaxed);
    disk.settle();
    assert!(reads(&disk, key(1)) && reads(&disk, key(2)));
}

/// A forgetting that ends while an offer looks: the offer must not count what the forgetting took away as kept. The
/// pause only gives a wrong order the time to show itself: a right one passes whatever the machine does.
#[test]
fn a_forgetting_that_ends_while_an_offer_looks_takes_nothing_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, _) = tier(folder.path(), 1..2);
    let shared = &disk.shared;
    shared.begin_forgetting(key(1));
    // The offering thread cannot see that the forgetting goes on or is over before this lets it.
    let mut forgetting = shared.forgetting.lock();
    std::thread::scope(|scope| {
        let offers = scope.spawn(|| shared.keeps(key(1)));
        std::thread::sleep(Duration::from_millis(100));
        // What the writing thread does.
        let (segment, at) = shared.shelf.find(key(1)).unwrap();
        assert!(shared.shelf.forget(key(1), segment.number, at));
        forgetting.remove(&key(1));
        drop(forgetting);
        assert!(!offers.join().unwrap(), "what is gone is not kept");
    });
}
