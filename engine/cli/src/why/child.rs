//! The program: started with the probe, awaited, and told of every signal that this process gets.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use super::probe::Folder;

/// Times between two looks at the program, and between two publications of its numbers.
const LOOK: Duration = Duration::from_millis(20);
const PUBLISH: Duration = Duration::from_secs(1);
/// A Ctrl-C that was sent to all processes of a group reaches the program by itself, within this time.
const GRACE: Duration = Duration::from_millis(300);

const PASSED_ON: [(i32, Signal); 6] = [
    (SIGINT, Signal::INT),
    (SIGTERM, Signal::TERM),
    (SIGHUP, Signal::HUP),
    (SIGQUIT, Signal::QUIT),
    (SIGUSR1, Signal::USR1),
    (SIGUSR2, Signal::USR2),
];

/// Runs the program to its end and returns its exit code, 128 + N for one that signal N ended. `each_second` is called
/// about once a second meanwhile.
///
/// # Errors
/// The program cannot be started, or not be awaited.
pub(super) fn run(command: &[OsString], folder: &Folder, each_second: &mut dyn FnMut()) -> io::Result<i32> {
    let flags = PASSED_ON.map(|(number, signal)| (Arc::new(AtomicBool::new(false)), number, signal));
    // Before the program runs: a signal in between must not end this process alone.
    let mut registered = Vec::new();
    let ignored = ignored();
    // The program inherits what this process ignores, as under `nohup`, but no handlers.
    for (flag, number, _) in flags.iter().filter(|(_, number, _)| ignored >> (number - 1) & 1 == 0) {
        registered.push(signal_hook::flag::register(*number, Arc::clone(flag))?);
    }
    // Else the system would forget the program's end where a parent ignores its children's.
    registered.push(signal_hook::flag::register(SIGCHLD, Arc::default())?);
    let ended = start(command, folder).and_then(|child| {
        let arrived =
            || flags.iter().find(|(flag, ..)| flag.swap(false, Ordering::Relaxed)).map(|&(_, _, signal)| signal);
        wait(child, &arrived, each_second)
    });
    for id in registered {
        signal_hook::low_level::unregister(id);
    }
    ended.map(code)
}

/// The signals that this process ignores, one bit each from the first on.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn start(command: &[OsString], folder: &Folder) -> io::Result<Child> {
    let [program, arguments @ ..] = command else {
        return Err(io::ErrorKind::NotFound.into());
    };
    Command::new(program).args(arguments).envs(folder.environment()).spawn()
}

fn wait(
    mut child: Child,
    arrived: &dyn Fn() -> Option<Signal>,
    each_second: &mut dyn FnMut(),
) -> io::Result<ExitStatus> {
    let mut published = Instant::now();
    let mut interrupted: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match arrived() {
            // The terminal sends it to the whole group in the foreground, the program included.
            Some(Signal::INT | Signal::QUIT) if is_in_foreground() => {}
            Some(Signal::INT) => interrupted = interrupted.or_else(|| Some(Instant::now())),
            Some(signal) => send(&child, signal),
            None => {}
        }
        if interrupted.is_some_and(|since| since.elapsed() >= GRACE) {
            interrupted = None;
            send(&child, Signal::INT);
        }
        if published.elapsed() >= PUBLISH {
            published = Instant::now();
            each_second();
        }
        std::thread::sleep(LOOK);
    }
}

fn send(child: &Child, signal: Signal) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// True if this process's group is the one that its terminal sends Ctrl-C to.
fn is_in_foreground() -> bool {
    std::fs::read_to_string("/proc/self/stat").ok().and_then(|stat| foreground(&stat)).unwrap_or(false)
}

/// Read from the fields pgrp, tty_nr and tpgid of `/proc/PID/stat`.
fn foreground(stat: &str) -> Option<bool> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let (group, terminal, front) = (fields.get(2)?, fields.get(4)?, fields.get(5)?);
    Some(*terminal != "0" && group == front)
}

fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_in_front_when_its_terminal_says_so() {
        assert_eq!(foreground("7 (a (b) c) S 1 7 7 34816 7 0 0"), Some(true));
        assert_eq!(foreground("7 (sh) S 1 7 7 34816 9 0 0"), Some(false));
        assert_eq!(foreground("7 (sh) S 1 7 7 0 -1 0 0"), Some(false));
        assert_eq!(foreground("nonsense"), None);
    }

    #[test]
    fn the_code_is_the_programs_and_a_signal_is_128_more() {
        let folder = Folder::make().unwrap();
        let run = |command: &[&str]| {
            let command: Vec<OsString> = command.iter().map(OsString::from).collect();
            run(&command, &folder, &mut || {}).map_err(|error| error.kind())
        };
        assert_eq!(run(&["sh", "-c", "exit 7"]), Ok(7));
        assert_eq!(run(&["sh", "-c", "kill -9 $$"]), Ok(137));
        assert_eq!(run(&["sh", "-c", "case $PYTHONPATH in *lossfeed-why*) exit 0;; esac; exit 1"]), Ok(0));
        assert_eq!(run(&["./no such program"]), Err(io::ErrorKind::NotFound));
        assert_eq!(run(&[]), Err(io::ErrorKind::NotFound));
    }
}
