//! A piece of address space, known to a device, and the process that it belongs to.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::human;
use crate::device::nearby::keep_to;
use crate::device::{Device, Registration};
use crate::error::{Error, Result};
use crate::process::Process;

/// From this size on the system is asked for huge pages: random rows of a large cache miss the TLB on small ones.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Threads that touch pages before they are page-locked; more bring nothing (cuDF pull request 23457: flat beyond 4).
const PREFAULT_THREADS: usize = 4;

/// An anonymous, page-aligned, zeroed mapping, registered with a device for as long as it lives.
///
/// It hands out its base address and no references: the rooms that cut it up (the arena, the staging pool) prove that
/// the pieces do not overlap.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// `Some` while registered; ended before the pages go.
    registration: Option<Registration>,
    made_by: Process,
}

// SAFETY: the mapping is plain memory owned by this value alone; every method takes `&self` and touches no content.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` (0 maps nothing) for `purpose` ("the cache"), and registers them with `device`; a failure names
    /// `remedy`.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Memory`] if the system refuses, [`crate::ErrorKind::Device`] if the device does.
    pub fn new(bytes: u64, device: &dyn Device, purpose: &str, remedy: &str) -> Result<Self> {
        let made_by = Process::current();
        let too_much = |cause: Option<rustix::io::Errno>| {
            let error = Error::memory(format!("cannot allocate {} for {purpose}: {remedy}", human(bytes)));
            match cause {
                Some(errno) => error.because(errno),
                None => error,
            }
        };
        if bytes == 0 {
            return Ok(Self { base: NonNull::dangling(), len: 0, registration: None, made_by });
        }
        let len = usize::try_from(bytes).ok().filter(|&n| n <= isize::MAX as usize).ok_or_else(|| too_much(None))?;
        // Shared if the device locks pages: after a fork, the parent's first write to a private page would move it to a
        // new frame while the device goes on reading the old one.
        let flags = if device.pins() { MapFlags::SHARED } else { MapFlags::PRIVATE };
        // SAFETY: a new anonymous mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }
            .map_err(|errno| too_much(Some(errno)))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| too_much(None))?;
        // From here on Drop unmaps.
        let mut mapping = Self { base, len, registration: None, made_by };
        if len >= HUGE_PAGE_BYTES {
            // SAFETY: the range is the mapping just made; the advice changes no content. Refusal only costs speed.
            let _ = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxHugepage) };
        }
        if device.pins() {
            mapping.prefault(device.near_processors()).map_err(|errno| too_much(Some(errno)))?;
            // SAFETY: the mapping is `len` readable and writable bytes, zeroed by the kernel, and nobody else has its
            // address yet.
            let memory = unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), len) };
            mapping.registration = Some(device.register(memory)?);
        }
        Ok(mapping)
    }

    /// The first byte. Dangling if [`Self::len`] is 0.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Bytes page-locked by the device.
    pub fn pinned_bytes(&self) -> u64 {
        self.registration.as_ref().map_or(0, Registration::pinned_bytes)
    }
    /// Whether this process is a child of the one that made the mapping.
    pub fn forked(&self) -> bool {
        !self.made_by.is_current()
    }

    /// Gives the pages that lie in `range` as a whole back to the system; answers their bytes. None if a device has locked
    /// them, or the system will not have them. Nobody may use the range meanwhile; what is read there later is zeros.
    pub(super) fn discard(&self, range: std::ops::Range<u64>) -> u64 {
        let page = rustix::param::page_size() as u64;
        let (start, end) = (range.start.next_multiple_of(page), range.end.min(self.len as u64) / page * page);
        if self.registration.is_some() || self.forked() || start >= end {
            return 0;
        }
        // SAFETY: the range lies inside the mapping, which is private and nobody's but ours; as said above, nobody has
        // a reference to its bytes.
        let done = unsafe {
            madvise(self.base.as_ptr().add(start as usize).cast(), (end - start) as usize, Advice::LinuxDontNeed)
        };
        if done.is_ok() { end - start } else { 0 }
    }

    /// Gives every page its frame before they are locked: five times faster than letting the driver fault them in one
    /// by one (cuDF pull request 23457). Frames come from the memory of the processor that touches the page first: one
    /// near the device, so that copies do not cross the machine.
    fn prefault(&self, near: &[usize]) -> std::result::Result<(), rustix::io::Errno> {
        let piece = self.len.div_ceil(PREFAULT_THREADS).next_multiple_of(HUGE_PAGE_BYTES);
        let address = self.base.as_ptr() as usize;
        let populate = |at: usize| {
            let len = piece.min(self.len - at);
            // SAFETY: the range lies inside the mapping; populating writes no content.
            match unsafe { madvise((address + at) as *mut _, len, Advice::LinuxPopulateWrite) } {
                // Before Linux 5.14: the driver faults the pages in itself, more slowly.
                Err(rustix::io::Errno::INVAL) => Ok(()),
                other => other,
            }
        };
        std::thread::scope(|scope| {
            let near_it = |at: usize| {
                keep_to(near);
                populate(at)
            };
            let start = |at| std::thread::Builder::new().spawn_scoped(scope, move || near_it(at)).map_err(|_| at);
            let threads: Vec<_> = (0..self.len).step_by(piece).map(start).collect();
            threads.into_iter().try_for_each(|started| match started {
                Ok(thread) => thread.join().unwrap_or(Err(rustix::io::Errno::NOMEM)),
                // Where no thread may be started.
                Err(at) => populate(at),
            })
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        if self.forked() {
            // The device's context did not survive the fork; the child's copy of the mapping dies with the child.
            std::mem::forget(self.registration.take());
            return;
        }
        drop(self.registration.take());
        // SAFETY: the range was mapped in `new`, is unmapped only here, and whoever cut pieces from it keeps the
        // mapping alive as long as a piece exists (`Arc<Arena>` in slots, pins and the shelf, `Arc` of the pool in each
        // batch slot).
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("len", &self.len).field("pinned_bytes", &self.pinned_bytes()).finish()
    }
}

/// Runs `f` in a forked child; what it returned, or an error if the child hung or died.
#[cfg(test)]
pub(crate) fn in_forked_child(f: impl FnOnce() -> bool) -> std::result::Result<bool, &'static str> {
    unsafe extern "C" {
        fn fork() -> i32;
        fn _exit(status: i32) -> !;
    }
    // SAFETY: the child runs `f`, which tests keep to code that must be fit for this (that is what they test), and
    // leaves without running anybody's destructors.
    let child = unsafe { fork() };
    if child == 0 {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        // SAFETY: ends this process only.
        unsafe { _exit(outcome.map_or(2, |passed| if passed { 0 } else { 1 })) }
    }
    let child = rustix::process::Pid::from_raw(child).ok_or("no child")?;
    for _ in 0..1000 {
        let status = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::NOHANG).map_err(|_| "lost")?;
        if let Some((_, status)) = status {
            return match status.exit_status() {
                Some(0) => Ok(true),
                Some(1) => Ok(false),
                _ => Err("the child panicked or was killed"),
            };
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
    let _ = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
    Err("the child hung")
}
