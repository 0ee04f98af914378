//! The writer of a stats page.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lossfeed_sync::{Condvar, Mutex, MutexGuard};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::counters::Counters;
use super::directory::{Directory, candidates};
use super::limits::{self, Limits, LimitsFile};
use super::page::{self, Identity};
use super::process::{Process, unix_ms};
use super::sweep::sweep;
use lossfeed_control::error::{Error, Result};

/// Publishes an engine's counters once a second until it is dropped.
///
/// The page's file is locked (`flock`) as long as the publisher lives; the kernel lets go when the process dies,
/// however it dies, and so readers know. Dropping publishes once more and removes the page. In a forked child dropping
/// does nothing.
#[derive(Debug)]
pub struct Publisher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    born_in: u32,
}

#[derive(Debug)]
struct Shared {
    directory: Directory,
    name: String,
    file: OwnedFd,
    counters: Arc<Counters>,
    stopped: Mutex<bool>,
    wake: Condvar,
    /// Updates written so far: gives the sequence and the place in the ring.
    seconds: Mutex<u64>,
    /// Puts limits from outside in force.
    obeys: Mutex<Option<Obeys>>,
}

/// Applies limits, or says why it does not.
type Apply = Box<dyn FnMut(Limits) -> std::result::Result<(), String> + Send>;

struct Obeys {
    file: LimitsFile,
    apply: Apply,
}

impl std::fmt::Debug for Obeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.file.fmt(f)
    }
}

/// How often the page is rewritten.
const PERIOD: Duration = Duration::from_secs(1);

impl Publisher {
    /// Publishes in the first of [`candidates`] that works.
    ///
    /// # Errors
    /// [`lossfeed_control::ErrorKind::Usage`] with one line per directory tried, if none works. The caller should warn
    /// and go on: a run that nobody can watch is still a run. The failure is counted in `stats_failures_total`.
    pub fn start(identity: Identity, counters: Arc<Counters>) -> Result<Self> {
        Self::start_in(&candidates(), identity, counters)
    }

    /// Publishes for another process, whose numbers the caller brings: readers see that process, and this one's lock.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_for(pid: u32, identity: Identity, counters: Arc<Counters>) -> Result<Self> {
        Self::start_of(Process::of(pid), &candidates(), identity, counters)
    }

    /// Publishes in the first of `directories` that works.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_in(directories: &[PathBuf], identity: Identity, counters: Arc<Counters>) -> Result<Self> {
        Self::start_of(Process::current(), directories, identity, counters)
    }

    fn start_of(of: Process, directories: &[PathBuf], identity: Identity, counters: Arc<Counters>) -> Result<Self> {
        let mut refused = Vec::new();
        for directory in directories {
            match Self::start_at(of, directory, &identity, &counters) {
                Ok(publisher) => return Ok(publisher),
                Err(why) => refused.push(why),
            }
        }
        Counters::add(&counters.stats_failures_total, 1);
        Err(Error::usage(format!(
            "no directory for the stats page, so `lossfeed smi` will not see this run; set LOSSFEED_RUNTIME_DIR to a private directory ({})",
            refused.join("; ")
        )))
    }

    fn start_at(
        process: Process,
        path: &Path,
        identity: &Identity,
        counters: &Arc<Counters>,
    ) -> std::result::Result<Self, String> {
        let directory = Directory::create(path)?;
        sweep(&directory);
        let (name, file) = make_page(&directory, identity, process)?;
        let shared = Arc::new(Shared {
            directory,
            name,
            file,
            counters: counters.clone(),
            stopped: Mutex::new(false),
            wake: Condvar::new(),
            seconds: Mutex::new(0),
            obeys: Mutex::new(None),
        });
        shared.publish();
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new().name("lossfeed-stats".to_owned()).spawn(move || for_thread.run());
        match thread {
            Ok(thread) => Ok(Self { shared, thread: Some(thread), born_in: std::process::id() }),
            Err(error) => {
                shared.remove();
                Err(format!("{}: no thread for it: {error}", path.display()))
            }
        }
    }

    /// The page's file.
    pub fn path(&self) -> PathBuf {
        self.shared.directory.path.join(&self.shared.name)
    }

    /// Looks for limits from outside once a second from now on, on the publisher's thread, and has `apply` put them in
    /// force: those of `named` if that is a file, else those beside the page. What is refused is logged and counted.
    pub fn obey(
        &self,
        named: Option<PathBuf>,
        apply: impl FnMut(Limits) -> std::result::Result<(), String> + Send + 'static,
    ) {
        *self.shared.obeys.lock() = Some(Obeys { file: LimitsFile::new(named), apply: Box::new(apply) });
    }

    /// Publishes now, besides the regular updates.
    pub fn publish(&self) {
        if self.born_in == std::process::id() {
            self.shared.publish();
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if self.born_in != std::process::id() {
            // A forked child: the thread is not here, a lock may be held by nobody, and the page is the parent's.
            std::mem::forget(self.thread.take());
            return;
        }
        *self.shared.stopped.lock() = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.publish();
        self.shared.remove();
    }
}

impl Shared {
    fn run(&self) {
        let mut stopped = self.stopped.lock();
        while !*stopped {
            if self.wake.wait_for(&mut stopped, PERIOD).timed_out() {
                MutexGuard::unlocked(&mut stopped, || {
                    self.look();
                    self.publish();
                });
            }
        }
    }

    fn look(&self) {
        let mut obeys = self.obeys.lock();
        let Some(Obeys { file, apply }) = &mut *obeys else { return };
        let Some(found) = file.look(&self.directory, &self.name) else { return };
        if let Err(reason) = found.and_then(apply) {
            Counters::add(&self.counters.limits_refused_total, 1);
            let file = file.path(&self.directory, &self.name);
            tracing::warn!(file = %file.display(), reason, "limits from outside are refused; the last ones hold");
        }
    }

    fn publish(&self) {
        let mut seconds = self.seconds.lock();
        // Two writes of the sequence an update, so it is even at 2 × updates.
        let pieces = page::update(2 * *seconds, *seconds, unix_ms(), &self.counters.snapshot());
        let written = pieces.iter().try_for_each(|(at, bytes)| write_all(&self.file, bytes, *at as u64));
        match written {
            Ok(()) => *seconds += 1,
            Err(errno) => {
                // The sequence may be left odd; the next update that succeeds makes it even.
                if self.counters.stats_failures_total.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::warn!(page = self.name, %errno, "the stats page cannot be written; further failures are only counted");
                }
            }
        }
    }

    fn remove(&self) {
        let _ = rustix::fs::unlinkat(&self.directory.fd, limits::name_of(&self.name), AtFlags::empty());
        let _ = rustix::fs::unlinkat(&self.directory.fd, &self.name, AtFlags::empty());
    }
}

/// Makes a page complete and locked under a passing name, then gives it its own: nobody ever sees a part of it.
fn make_page(
    directory: &Directory,
    identity: &Identity,
    process: Process,
) -> std::result::Result<(String, OwnedFd), String> {
    static PAGES: AtomicU64 = AtomicU64::new(0);
    let number = PAGES.fetch_add(1, Ordering::Relaxed);
    let Process { pid, start_ticks, pid_namespace, boot } = process;
    // Unique on the machine, also where containers share the directory and count their pids alike.
    // Another process's page is not numbered among its own.
    let own = std::process::id();
    let number = if pid == own { number.to_string() } else { format!("{number}-by-{own}") };
    let name = format!("{boot:08x}-{pid_namespace}-{pid}-{start_ticks}-{number}.page");
    let passing = format!("{name}.new");
    let path = directory.path.join(&passing);
    let failed = |what: &str, errno: Errno| format!("{}: {what}: {errno}", path.display());
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(directory.fd.as_fd(), &passing, flags, Mode::RUSR | Mode::WUSR);
    let file = open().map_err(|errno| failed("cannot be made", errno))?;
    let filled = (|| {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|errno| failed("cannot be locked", errno))?;
        // All of it at once, its empty part too: a full file system shows here and not in mid-run.
        write_all(&file, &page::fresh(identity, process, unix_ms()), 0)
            .map_err(|errno| failed("cannot be written", errno))?;
        rustix::fs::renameat(&directory.fd, &passing, &directory.fd, &name)
            .map_err(|errno| failed("cannot be renamed", errno))
    })();
    match filled {
        Ok(()) => Ok((name, file)),
        Err(why) => {
            let _ = rustix::fs::unlinkat(&directory.fd, &passing, AtFlags::empty());
            Err(why)
        }
    }
}

pub(super) fn write_all(file: &OwnedFd, mut bytes: &[u8], mut at: u64) -> std::result::Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, at) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(n) => {
                bytes = &bytes[n..];
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
