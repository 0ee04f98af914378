//! The guard against forks: threads, locks, connections and device memory belong to the process that made them.
#![allow(unsafe_code)]

use std::cell::{Cell, OnceCell};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::error::{Error, Result};

/// A process, as a mark on what it has made. A fork of it is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The calling one. Cheap enough for hot paths.
    pub fn current() -> Self {
        Self(pid())
    }

    /// Whether it is the calling one.
    pub fn is_current(self) -> bool {
        self == Self::current()
    }

    /// Refuses what a fork of it must not do. `why` is given the ids of this process and of its fork.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Usage`] with `why`, unless this is the calling process.
    pub fn check(self, why: impl FnOnce(u32, u32) -> String) -> Result<()> {
        let Self(fork) = Self::current();
        if self.0 == fork { Ok(()) } else { Err(Error::usage(why(self.0, fork))) }
    }
}

/// This process's id, cheap enough for the hot path and right after a fork: it is kept in a page that the kernel zeroes
/// in every child (`MADV_WIPEONFORK`, Linux 4.14); where that is refused, it is asked for each time.
pub fn pid() -> u32 {
    static WORD: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();
    let Some(word) = WORD.get_or_init(fork_word) else { return std::process::id() };
    // Relaxed: the value says nothing about other memory, and every thread would compute the same one.
    match word.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            word.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

/// Asked on a thread that waits for a source itself: the error that ends its wait, as of a signal.
pub type Interrupted = fn() -> Option<Error>;

static INTERRUPTED: OnceLock<Interrupted> = OnceLock::new();

/// Has `interrupted` asked from now on. The first call counts.
pub fn interrupted_by(interrupted: Interrupted) {
    let _ = INTERRUPTED.set(interrupted);
}

/// A wait on the calling thread that [`interrupted_by`] may end.
pub(crate) struct Wait {
    asked: Cell<Instant>,
    ended: OnceCell<Error>,
}

/// How often it is asked whether a wait ends.
const ASKED_EVERY: Duration = Duration::from_millis(50);

impl Wait {
    /// One that begins now.
    pub(crate) fn begin() -> Self {
        Self { asked: Cell::new(Instant::now()), ended: OnceCell::new() }
    }

    /// Whether it has to end.
    pub(crate) fn ends(&self) -> bool {
        if self.ended.get().is_none()
            && self.asked.get().elapsed() >= ASKED_EVERY
            && let Some(interrupted) = INTERRUPTED.get()
        {
            self.asked.set(Instant::now());
            if let Some(error) = interrupted() {
                let _ = self.ended.set(error);
            }
        }
        self.ended.get().is_some()
    }

    /// Why it has ended.
    pub(crate) fn error(self) -> Option<Error> {
        self.ended.into_inner()
    }
}

/// The remedy where a limit on threads is reached and nothing else can be asked for fewer.
pub(crate) const LIMIT_REMEDY: &str = "raise the limit of processes (ulimit -u, or the container's limit of PIDs)";

/// The message for a thread that could not be started for `what`: `remedy` helps against a limit, and against nothing
/// else.
pub(crate) fn no_thread(what: &str, remedy: &str, e: &std::io::Error) -> String {
    if e.raw_os_error() == Some(Errno::PERM.raw_os_error()) {
        return format!(
            "threads for {what} may not be started: the container's seccomp profile refuses clone3 with EPERM; update the \
             container runtime (Docker 20.10.10 or later), or have the profile allow clone3 or answer it with ENOSYS"
        );
    }
    format!("a thread for {what} could not be started: {remedy}")
}

fn fork_word() -> Option<&'static AtomicU32> {
    let len = 4096;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice aliases nothing.
    let page =
        unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }
            .ok()?;
    // SAFETY: the range is the private anonymous mapping just made.
    if unsafe { madvise(page, len, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above; nobody has its address.
        let _ = unsafe { munmap(page, len) };
        return None;
    }
    // SAFETY: the page is aligned, zeroed (a valid atomic), never unmapped, and only ever used as this atomic.
    Some(unsafe { &*page.cast::<AtomicU32>() })
}
