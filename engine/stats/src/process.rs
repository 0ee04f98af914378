//! Which process a page is of.

use std::time::{SystemTime, UNIX_EPOCH};

/// The process behind a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// Start time in clock ticks since boot: tells a process from a later one with the same pid.
    pub(super) start_ticks: u64,
    pub(super) pid_namespace: u64,
    pub(super) boot: u32,
}

/// Now, in milliseconds since 1970 UTC.
pub(super) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

impl Process {
    /// This process. What the system will not tell is 0.
    pub(super) fn current() -> Self {
        Self::of(std::process::id())
    }

    /// A process of this pid namespace.
    pub(super) fn of(pid: u32) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .ok()
            .and_then(|id| u32::from_str_radix(id.get(..8)?, 16).ok())
            .unwrap_or(0);
        Self { pid, start_ticks: start_ticks(pid).unwrap_or(0), pid_namespace: pid_namespace().unwrap_or(0), boot }
    }
}

/// Field 22 of `/proc/PID/stat`. The second field, the program's name, may hold spaces and parentheses: count from the
/// last one.
pub(super) fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn pid_namespace() -> Option<u64> {
    let link = std::fs::read_link("/proc/self/ns/pid").ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// Whether the process is known to be gone although the lock is held: a forked child inherits the lock of its parent
/// and may outlive it. Only processes of this boot and pid namespace can be looked up.
pub(super) fn is_gone(process: Process) -> bool {
    let here = Process::current();
    let comparable = process.boot == here.boot
        && process.pid_namespace == here.pid_namespace
        && here.pid_namespace != 0
        && process.start_ticks != 0;
    comparable && start_ticks(process.pid) != Some(process.start_ticks)
}
