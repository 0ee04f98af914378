//! `lossfeed smi`: gather, freeze, show. One table and exit, or again and again with `--watch`; `--json` for programs.

mod draw;
mod gather;
mod layout;
mod nvml;
mod print;
pub mod snapshot;
mod watch;

use std::io;

use crate::args::SmiArgs;
use crate::term::{self, Environment};

pub use draw::{Look, draw};
use snapshot::{NvmlStatus, Snapshot};

/// No engine by the asked-for pid or job.
const NOT_FOUND: i32 = 6;

/// What NVML says, for `doctor`.
#[cfg(feature = "engine")]
pub(crate) fn devices() -> (snapshot::Nvml, Vec<snapshot::Gpu>) {
    nvml::read()
}

/// Runs the command and returns its exit code.
pub fn run(args: &SmiArgs) -> i32 {
    term::exit_code(match args.watch {
        None => once(args, &mut io::stdout().lock()),
        Some(every_s) => watch::run(args, every_s),
    })
}

/// Takes a snapshot, narrowed to what was asked for.
fn take(args: &SmiArgs) -> Snapshot {
    let mut snapshot = gather::snapshot();
    if let Some(job) = &args.job {
        snapshot.engines.retain(|e| e.job == *job || e.pid.to_string() == *job);
    }
    snapshot
}

/// One document or one table.
fn once(args: &SmiArgs, out: &mut impl io::Write) -> io::Result<i32> {
    let snapshot = take(args);
    show(&snapshot, args, out)?;
    Ok(verdict(&snapshot, args))
}

/// Prints one snapshot as the options say.
fn show(snapshot: &Snapshot, args: &SmiArgs, out: &mut impl io::Write) -> io::Result<()> {
    if args.json {
        term::document(snapshot, out)?;
        return out.flush();
    }
    let look = Look { width: term::width(), ascii: args.ascii || term::ascii(), footer: "" };
    print::print(out, &draw(snapshot, look), args.color.decide(Environment::of_stdout()))
}

/// The exit code: what was demanded and is not there, with one line saying so.
fn verdict(snapshot: &Snapshot, args: &SmiArgs) -> i32 {
    if let Some(job) = args.job.as_ref().filter(|_| snapshot.engines.is_empty()) {
        term::complain(&format!("no engine has pid or job {job:?}; `lossfeed smi` lists those there are"));
        return NOT_FOUND;
    }
    if !args.require_gpu {
        return 0;
    }
    let detail = snapshot.nvml.detail.as_deref().unwrap_or("no device");
    let code = match snapshot.nvml.status {
        NvmlStatus::Ok if snapshot.gpus.iter().any(|g| g.error.is_none()) => return 0,
        // nvidia-smi's codes: 6 object not found, 15 GPU lost, 9 driver not loaded, 12 NVML not found.
        NvmlStatus::Ok if snapshot.gpus.is_empty() => NOT_FOUND,
        NvmlStatus::Ok => 15,
        NvmlStatus::DriverNotLoaded => 9,
        NvmlStatus::LibraryNotFound => 12,
        NvmlStatus::Failed => 1,
    };
    term::complain(&format!("--require-gpu: {detail}"));
    code
}

#[cfg(test)]
mod tests;
