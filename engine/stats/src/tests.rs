//! Pages from writer to reader, and files that try to hurt the reader.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::*;

struct Place {
    root: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }
    fn dir(&self) -> PathBuf {
        self.root.path().join("pages")
    }
    fn dirs(&self) -> [PathBuf; 1] {
        [self.dir()]
    }
    fn start(&self, job: &str) -> (Publisher, Arc<Counters>) {
        let counters = Arc::new(Counters::default());
        (Publisher::start_in(&self.dirs(), identity(job), counters.clone()).unwrap(), counters)
    }
    /// The bytes of a real page, under another name and without its lock: what a dead engine leaves behind.
    fn leave_behind(&self, name: &str) -> PathBuf {
        let (publisher, counters) = self.start("dead");
        Counters::set(&counters.hits_total, 99);
        publisher.publish();
        let path = self.dir().join(name);
        std::fs::copy(publisher.path(), &path).unwrap();
        path
    }
    fn discover(&self) -> Discovery {
        discover_in(&self.dirs())
    }
}

fn identity(job: &str) -> Identity {
    Identity {
        job: job.to_owned(),
        rank: 1,
        world_size: 2,
        policy: "importance".to_owned(),
        sampler: "cost-aware".to_owned(),
        source: "file:///data/train-{000..146}.tar".to_owned(),
        device: "CPU".to_owned(),
        gpu_uuid: Some("GPU-0123".to_owned()),
    }
}

/// Root sees the pages of a directory given to user 4321, and removes none of them; anyone else is refused.
#[test]
fn root_reads_the_pages_of_all_users_and_removes_only_its_own() {
    if !rustix::process::geteuid().is_root() {
        let refused = discover_in(&[PathBuf::from("/usr")]);
        assert!(refused.unreadable[0].reason.contains("belongs to user 0"), "{refused:?}");
        return;
    }
    let place = Place::new();
    let (old, planted) = (place.leave_behind("old.page"), place.leave_behind("planted.page"));
    age(&old, 60);
    for path in [&old, &place.dir()] {
        std::os::unix::fs::chown(path, Some(4321), Some(4321)).unwrap();
    }
    symlink(&old, place.dir().join("link.page")).unwrap();
    let found = place.discover();
    assert_eq!(found.jobs.iter().map(|job| job.uid).collect::<Vec<_>>(), [4321], "{found:?}");
    let reasons: Vec<&str> = found.unreadable.iter().map(|page| page.reason.as_str()).collect();
    assert!(reasons.contains(&"a link"), "{reasons:?}");
    assert!(reasons.contains(&"belongs to user 0, its directory to user 4321"), "{reasons:?}");
    assert!(old.exists() && planted.exists(), "a dead page of an hour ago is its owner's to remove");
    let refused = Publisher::start_in(&place.dirs(), identity("mine"), Arc::default()).unwrap_err();
    assert!(refused.to_string().contains("belongs to user 4321"), "{refused}");
}

fn age(path: &Path, minutes: u64) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(60 * minutes)).unwrap();
}

#[test]
fn a_reader_sees_who_runs_with_its_numbers_and_history_until_it_ends() {
    let place = Place::new();
    let (publisher, counters) = place.start("resnet");
    Counters::add(&counters.requests_total, 10);
    Counters::add(&counters.hits_total, 6);
    Counters::add(&counters.samples_total, 4);
    publisher.publish();
    Counters::add(&counters.samples_total, 2);
    publisher.publish();

    let found = place.discover();
    assert_eq!(found.unreadable, []);
    let [job] = &found.jobs[..] else { panic!("{found:?}") };
    assert_eq!(job.identity, identity("resnet"));
    assert_eq!((job.pid, job.alive, job.version.as_str()), (std::process::id(), true, env!("CARGO_PKG_VERSION")));
    assert_ne!(job.start_ticks, 0);
    assert_eq!(job.snapshot.get("hits_total"), Some(6));
    assert_eq!(HIT_RATIO.of(&|name| job.snapshot.get(name)), Some(0.6));
    let samples: Vec<_> = job.history.iter().map(|s| s.get("samples_total").unwrap()).collect();
    assert!(samples.starts_with(&[0, 4, 6]), "{samples:?}");
    assert_eq!(job.history[0].get("hits_total"), None, "only some counters have a history");
    assert!(job.history.windows(2).all(|w| w[0].unix_ms <= w[1].unix_ms));
    assert!(job.started_unix_ms <= job.updated_unix_ms);

    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&place.dir()), mode(&publisher.path())), (0o700, 0o600));
    let path = publisher.path();
    drop(publisher);
    assert!(!path.exists() && place.discover().jobs.is_empty());
}

#[test]
fn the_thread_publishes_without_being_asked() {
    let place = Place::new();
    let (_publisher, counters) = place.start("watched");
    Counters::set(&counters.epoch, 7);
    // No upper bound on time is asserted: it just has to happen.
    while place.discover().jobs[0].snapshot.get("epoch") != Some(7) {
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn two_engines_in_one_process_have_a_page_each() {
    let place = Place::new();
    let (a, ca) = place.start("a");
    let (b, cb) = place.start("b");
    Counters::set(&ca.epoch, 1);
    Counters::set(&cb.epoch, 2);
    a.publish();
    b.publish();
    let of = |found: Discovery| {
        found.jobs.into_iter().map(|j| (j.identity.job, j.snapshot.get("epoch").unwrap(), j.alive)).collect::<Vec<_>>()
    };
    let mut both = of(place.discover());
    both.sort();
    assert_eq!(both, [("a".to_owned(), 1, true), ("b".to_owned(), 2, true)]);
    drop(a);
    assert_eq!(of(place.discover()), [("b".to_owned(), 2, true)]);
}

#[test]
fn a_dead_engine_is_seen_as_dead_and_its_page_goes_after_a_while() {
    let place = Place::new();
    let dead = place.leave_behind("0-0-1-1-0.page");
    let found = place.discover();
    let [job] = &found.jobs[..] else { panic!("{found:?}") };
    assert_eq!((job.alive, job.snapshot.get("hits_total")), (false, Some(99)), "its last numbers can be read");
    age(&dead, 14);
    assert_eq!(place.discover().jobs.len(), 1);
    age(&dead, 16);
    assert_eq!(place.discover().jobs.len(), 0);
    assert!(!dead.exists());
}

#[test]
fn a_live_engines_page_is_never_swept_however_old() {
    let place = Place::new();
    let (publisher, _counters) = place.start("stopped");
    age(&publisher.path(), 600);
    assert!(place.discover().jobs[0].alive);
    assert!(publisher.path().exists());
}

#[test]
fn a_lock_held_by_the_orphan_of_a_dead_process_does_not_make_it_alive() {
    let place = Place::new();
    let path = place.leave_behind("orphan.page");
    // A child that inherited the lock: the lock is held, but no process with this pid and start exists.
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[40..44].copy_from_slice(&(u32::MAX / 2).to_ne_bytes());
    std::fs::write(&path, bytes).unwrap();
    let holder = std::fs::File::open(&path).unwrap();
    rustix::fs::flock(&holder, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let found = place.discover();
    assert_eq!((found.jobs[0].pid, found.jobs[0].alive), (u32::MAX / 2, false));
    age(&path, 16);
    place.discover();
    assert!(!path.exists(), "nor does it keep the page for ever");
}

/// What 300 killed runs leave in a directory in memory (`/dev/shm` has 64 MiB in a container): by its size at 12 KiB
/// each, and after the next start by what the directory holds.
#[test]
fn the_pages_of_killed_engines_are_small_and_the_next_engine_removes_all_but_the_last_few() {
    let place = Place::new();
    const { assert!(page::PAGE_BYTES <= 12288) };
    for n in 0..300 {
        let path = place.leave_behind("dead.page");
        std::fs::rename(path, place.dir().join(format!("0-0-1-{n}-0.page"))).unwrap();
    }
    let (alive, _counters) = place.start("next");
    let left = std::fs::read_dir(place.dir()).unwrap().count();
    assert_eq!(left, 8 + 1, "the last eight of the dead, and the engine that started");
    assert!(alive.path().exists());
    let found = place.discover();
    assert_eq!((found.jobs.len(), found.jobs.iter().filter(|j| j.alive).count()), (9, 1));
}

#[test]
fn the_dead_that_are_kept_are_the_last_to_have_died() {
    let place = Place::new();
    for n in 0..12u64 {
        let path = place.leave_behind(&format!("{n}.page"));
        age(&path, n);
    }
    place.discover();
    for n in 0..12 {
        assert_eq!(place.dir().join(format!("{n}.page")).exists(), n < 8, "{n} minutes old");
    }
}

/// Nothing but a page is ever removed, however old it is and whatever it is called.
#[test]
fn only_what_begins_as_a_page_is_removed() {
    let place = Place::new();
    let (publisher, _counters) = place.start("good");
    let good = std::fs::read(publisher.path()).unwrap();
    let precious = place.root.path().join("precious");
    std::fs::write(&precious, &good).unwrap();
    age(&precious, 600);
    symlink(&precious, place.dir().join("link.page")).unwrap();
    symlink(place.root.path().join("nowhere"), place.dir().join("dangling.page.new")).unwrap();
    std::fs::create_dir(place.dir().join("folder.page")).unwrap();
    let foreign = ["thesis.page", "thesis.page.new", "empty.page", "empty.page.new", "almost.page"];
    for name in foreign {
        let bytes: &[u8] = match name {
            n if n.starts_with("empty") => b"",
            "almost.page" => b"LOSSFEE",
            _ => b"years of work",
        };
        std::fs::write(place.dir().join(name), bytes).unwrap();
        age(&place.dir().join(name), 600);
    }
    // Pages: cut, of another version, half-made. Dead all of them.
    let pages = ["cut.page", "older.page", "half.page.new"];
    for name in pages {
        let end = if name == "cut.page" { 100 } else { good.len() };
        let mut bytes = good[..end].to_vec();
        if name == "older.page" {
            bytes[8..12].copy_from_slice(&1u32.to_ne_bytes());
        }
        std::fs::write(place.dir().join(name), bytes).unwrap();
        age(&place.dir().join(name), 16);
    }
    place.discover();
    let there = |name: &str| place.dir().join(name).symlink_metadata().is_ok();
    for name in foreign.iter().chain(&["link.page", "dangling.page.new", "folder.page"]) {
        assert!(there(name), "{name} was removed");
    }
    for name in pages {
        assert!(!there(name), "{name} was kept");
    }
    assert!(precious.exists() && publisher.path().exists());
}

/// A page is locked before it has its first byte, so that nobody who sweeps takes it for a dead one.
#[test]
fn a_page_in_the_making_is_not_swept() {
    let place = Place::new();
    let (publisher, _counters) = place.start("first");
    let making = place.dir().join("making.page.new");
    std::fs::copy(publisher.path(), &making).unwrap();
    let holder = std::fs::File::open(&making).unwrap();
    rustix::fs::flock(&holder, rustix::fs::FlockOperation::LockExclusive).unwrap();
    // The bytes name this process, which lives: the lock says that it is at work.
    age(&making, 600);
    place.discover();
    assert!(making.exists());
    drop(holder);
    place.discover();
    assert!(!making.exists());
}

#[test]
fn hostile_files_are_reported_or_skipped_and_the_good_page_is_still_found() {
    let place = Place::new();
    let (publisher, _counters) = place.start("good");
    let good = std::fs::read(publisher.path()).unwrap();
    let put = |name: &str, bytes: &[u8]| std::fs::write(place.dir().join(name), bytes).unwrap();
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    put("empty.page", b"");
    put("short.page", &good[..good.len() - 1]);
    put("older.page", &[&good[..8], &1u32.to_ne_bytes(), &[0; 999]].concat());
    put("long.page", &[&good[..], b"x"].concat());
    put("magic.page", &changed(0, b'X'));
    put("version.page", &changed(8, 200));
    put("half.page", &changed(page::SEQUENCE_AT, 3));
    put("noise.page", &vec![0xa5; good.len()]);
    put("notes.txt", b"not a page at all");
    put("halfmade.page.new", &good[..100]);
    symlink(publisher.path(), place.dir().join("link.page")).unwrap();
    std::fs::create_dir(place.dir().join("folder.page")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        place.dir().join("pipe.page"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();

    let found = place.discover();
    assert_eq!(found.jobs.iter().map(|j| j.identity.job.as_str()).collect::<Vec<_>>(), ["good"]);
    let reason = |name: &str| {
        let path = place.dir().join(name);
        found.unreadable.iter().find(|u| u.path == path).map(|u| u.reason.clone()).unwrap_or_default()
    };
    for (name, says) in [
        ("empty.page", "magic"),
        ("short.page", "bytes long"),
        ("older.page", "an older lossfeed (layout version 1"),
        ("long.page", "bytes long"),
        ("magic.page", "magic"),
        ("version.page", "a newer lossfeed (layout version 200"),
        ("half.page", "half-written"),
        ("noise.page", "magic"),
        ("link.page", "a link"),
        ("folder.page", "no regular file"),
        ("pipe.page", "no regular file"),
    ] {
        assert!(reason(name).contains(says), "{name}: {:?}", reason(name));
    }
    assert_eq!(found.unreadable.len(), 11);
}

#[test]
fn a_directory_that_cannot_be_trusted_is_reported_and_the_next_one_is_used() {
    let place = Place::new();
    let root = place.root.path();
    let (linked, open, last) = (root.join("linked"), root.join("open"), root.join("last"));
    let target = root.join("target");
    std::fs::create_dir(&target).unwrap();
    symlink(&target, &linked).unwrap();
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
    let all = [linked, open, root.join("no/parent"), last.clone()];
    let publisher = Publisher::start_in(&all, identity("x"), Arc::default()).unwrap();
    assert_eq!(publisher.path().parent(), Some(&*last));
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0, "nothing was written through the link");
    let found = discover_in(&all);
    assert_eq!((found.jobs.len(), found.unreadable.len()), (1, 2));
}

#[test]
fn where_nothing_can_be_published_the_error_names_every_place_and_the_failure_is_counted() {
    let place = Place::new();
    let file = place.root.path().join("file");
    std::fs::write(&file, "").unwrap();
    let counters = Arc::new(Counters::default());
    let all = [file.clone(), place.root.path().join("no/parent")];
    let error = Publisher::start_in(&all, identity("x"), counters.clone()).unwrap_err();
    for path in &all {
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
    assert!(error.to_string().contains("LOSSFEED_RUNTIME_DIR"));
    assert_eq!(Counters::get(&counters.stats_failures_total), 1);
}

#[test]
fn readers_that_hammer_a_page_under_constant_update_never_see_a_mixture() {
    let place = Place::new();
    let (publisher, counters) = place.start("busy");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (place, done) = (&place, &done);
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(move || {
                    let mut read = 0;
                    while !done.load(std::sync::atomic::Ordering::Relaxed) || read == 0 {
                        for job in place.discover().jobs {
                            let last = job.history.last().unwrap();
                            for name in HISTORY {
                                assert_eq!(
                                    last.get(name),
                                    job.snapshot.get(name),
                                    "ring and live values of different updates"
                                );
                            }
                            assert_eq!(job.snapshot.get("requests_total"), job.snapshot.get("score_age_steps"));
                            read += 1;
                        }
                    }
                })
            })
            .collect();
        for n in 0..2000 {
            // First and last of the page, and different every time.
            Counters::set(&counters.requests_total, n);
            Counters::set(&counters.score_age_steps, n);
            Counters::set(&counters.samples_total, n);
            publisher.publish();
            if n % 16 == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}
