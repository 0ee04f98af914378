//! The guard against forks: threads, locks, connections and device memory belong to the process that made them.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

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

    /// Refuses what a fork of it must not do. `refusal` is given the ids of this process and of its fork.
    ///
    /// # Errors
    /// `refusal`'s, unless this is the calling process.
    pub fn check<E>(self, refusal: impl FnOnce(u32, u32) -> E) -> Result<(), E> {
        let Self(fork) = Self::current();
        if self.0 == fork { Ok(()) } else { Err(refusal(self.0, fork)) }
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

/// The remedy where a limit on threads is reached and nothing else can be asked for fewer.
pub const LIMIT_REMEDY: &str = "raise the limit of processes (ulimit -u, or the container's limit of PIDs)";

/// The message for a thread that could not be started for `what`: `remedy` helps against a limit, and against nothing
/// else.
pub fn no_thread(what: &str, remedy: &str, e: &std::io::Error) -> String {
    if e.raw_os_error() == Some(Errno::PERM.raw_os_error()) {
        return format!(
            "threads for {what} cannot be started: the container's seccomp profile refuses clone3 with EPERM; update \
             the container runtime (Docker 20.10.10 or later), or let the profile allow clone3 or return ENOSYS"
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
