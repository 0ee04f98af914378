//! The reader of stats pages: who runs, who ran. It trusts nothing it reads.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use rustix::io::Errno;

use super::directory::{Directory, candidates, is_locked, read_exact};
use super::numbers::Numbers;
use super::others;
use super::page::{self, Contents, Identity, PAGE_BYTES_MAX, SEQUENCE_AT, Sample};
use super::process::is_gone;
use super::sweep;

/// Where every version has its magic and its version.
const HEAD_BYTES: usize = 12;
/// Attempts to catch a page between two updates (one takes microseconds, and there is one a second).
const ATTEMPTS: usize = 20;

/// An engine, as its page tells.
#[derive(Debug, Clone)]
pub struct JobPage {
    /// The page's file.
    pub path: PathBuf,
    /// What the engine says about itself.
    pub identity: Identity,
    /// The user whose page it is.
    pub uid: u32,
    /// Its process, in its own pid namespace.
    pub pid: u32,
    /// That process's start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Version of the program that wrote the page.
    pub version: String,
    /// When the engine started, in milliseconds since 1970 UTC.
    pub started_unix_ms: u64,
    /// When the page was last written. More than a few seconds ago on a live engine: the process is stopped.
    pub updated_unix_ms: u64,
    /// False when the process has ended and left its page behind.
    pub alive: bool,
    /// The counters at the last update.
    pub snapshot: Numbers,
    /// Up to 100 samples, one a second, oldest first.
    pub history: Vec<Sample>,
}

/// A file that looks like a stats page and cannot be read as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// The file, or the directory if that itself cannot be trusted.
    pub path: PathBuf,
    /// Why, in one line.
    pub reason: String,
}

/// All that was found.
#[derive(Debug, Clone, Default)]
pub struct Discovery {
    /// Pages, by process and start.
    pub jobs: Vec<JobPage>,
    /// What could not be read, and why.
    pub unreadable: Vec<Unreadable>,
    /// Engines of other users, whose pages only root may read.
    pub hidden: usize,
}

/// The engines of this user on this machine, alive or lately ended, by pid and start; for root those of all users.
pub fn discover() -> Vec<JobPage> {
    discover_all().jobs
}

/// As [`discover`], with what could not be read.
pub fn discover_all() -> Discovery {
    let own = candidates();
    if std::env::var_os("LOSSFEED_RUNTIME_DIR").is_some_and(|named| !named.is_empty()) {
        return discover_in(&own);
    }
    let homes = others::homes();
    if rustix::process::geteuid().is_root() {
        let all: Vec<PathBuf> = own.into_iter().chain(homes.into_iter().map(|home| home.pages)).collect();
        return discover_in(&all);
    }
    Discovery { hidden: others::count(&homes), ..discover_in(&own) }
}

/// As [`discover_all`], in `directories`. Removes the pages of dead engines, but for the last few of the last quarter
/// of an hour, as every engine that starts does.
pub fn discover_in(directories: &[PathBuf]) -> Discovery {
    let mut found = Discovery::default();
    let mut seen: Vec<(u64, u64)> = Vec::new();
    for path in directories {
        let directory = match Directory::open(path) {
            Ok(Some(directory)) => directory,
            Ok(None) => continue,
            Err(reason) => {
                found.unreadable.push(Unreadable { path: path.clone(), reason });
                continue;
            }
        };
        // Two candidates may be one directory.
        let inode = rustix::fs::fstat(&directory.fd).map(|s| (s.st_dev, s.st_ino)).unwrap_or_default();
        if seen.contains(&inode) {
            continue;
        }
        seen.push(inode);
        if directory.is_own() {
            sweep::sweep(&directory);
        }
        let names = match directory.pages() {
            Ok(names) => names,
            Err(reason) => {
                found.unreadable.push(Unreadable { path: path.clone(), reason });
                continue;
            }
        };
        for name in names.into_iter().filter(|name| name.ends_with(".page")) {
            match read(&directory, &name) {
                Ok(Some(job)) => found.jobs.push(job),
                Ok(None) => {}
                Err(reason) => found.unreadable.push(Unreadable { path: path.join(name), reason }),
            }
        }
    }
    found.jobs.sort_by(|a, b| (a.pid, a.started_unix_ms, &a.path).cmp(&(b.pid, b.started_unix_ms, &b.path)));
    found
}

/// One page; `None` if it vanished meanwhile.
fn read(directory: &Directory, name: &str) -> Result<Option<JobPage>, String> {
    let (file, stat) = match directory.read(name) {
        Ok(opened) => opened,
        Err(reason) if reason == Errno::NOENT.to_string() => return Ok(None),
        Err(reason) => return Err(reason),
    };
    let bytes = usize::try_from(stat.st_size).unwrap_or(0);
    if bytes > PAGE_BYTES_MAX {
        page::check_head(&head(&file)?)?;
        return Err(format!("{bytes} bytes long: stats pages have at most {PAGE_BYTES_MAX}"));
    }
    // Before reading: a page that is read after its engine was seen dead cannot change any more.
    let locked = is_locked(&file);
    let Contents { identity, process, version, started_unix_ms, updated_unix_ms, numbers, history } =
        contents(&file, bytes)?;
    Ok(Some(JobPage {
        path: directory.path.join(name),
        identity,
        uid: directory.uid,
        pid: process.pid,
        start_ticks: process.start_ticks,
        version,
        started_unix_ms,
        updated_unix_ms,
        alive: locked && !is_gone(process),
        snapshot: numbers,
        history,
    }))
}

/// The beginning of a file that is too long for a page.
fn head(file: &OwnedFd) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; HEAD_BYTES];
    read_exact(file, &mut bytes, 0)?;
    Ok(bytes)
}

/// A page of so many bytes, between two updates.
fn contents(file: &OwnedFd, bytes: usize) -> Result<Contents, String> {
    let mut bytes = vec![0; bytes];
    if bytes.len() < SEQUENCE_AT + 8 {
        read_exact(file, &mut bytes, 0)?;
        return page::parse(&bytes);
    }
    let mut last = String::new();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut before = [0; 8];
        read_exact(file, &mut before, SEQUENCE_AT as u64)?;
        // The three reads must happen in this order; a system call alone does not promise it on every machine.
        fence(Ordering::SeqCst);
        read_exact(file, &mut bytes, 0)?;
        fence(Ordering::SeqCst);
        let mut after = [0; 8];
        read_exact(file, &mut after, SEQUENCE_AT as u64)?;
        let same = before == after && page::sequence(&bytes) == Some(u64::from_ne_bytes(before));
        match page::parse(&bytes) {
            Ok(contents) if same => return Ok(contents),
            Ok(_) => last = "changes faster than it can be read".to_owned(),
            // A head that is wrong stays wrong; only an update under way passes.
            Err(reason) if !reason.starts_with("half-written") => return Err(reason),
            Err(reason) => last = reason,
        }
    }
    Err(last)
}
