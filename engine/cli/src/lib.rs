//! The `lossfeed` command line as one library function, behind both the cargo binary and the Python wheel's entry
//! point.
//!
//! [`run`] parses the arguments, does what they say and returns the exit code. Training is PyTorch's business, so the
//! caller hands in how to start it: the wheel calls back into Python, the plain binary looks for a Python that has
//! lossfeed. Nothing else here touches Python.
//!
//! Exit codes: 0 done (a broken pipe counts as done, and so does a table without rows) · 1 it failed · 2 wrong
//! arguments · 6 the job asked for was not found · 9 the NVIDIA driver is not loaded and 12 NVML is missing, both only
//! under `--require-gpu`. `check`: 0 holds · 1 exceeded · 3 too little data. `why` has its program's.

pub mod args;
pub mod bench;
pub mod journal;
pub mod parallel;
pub mod replay;
pub mod report;
pub mod smi;
pub mod term;
pub mod train;

mod allocate;
mod check;
#[cfg(feature = "engine")]
mod doctor;
#[cfg(feature = "engine")]
mod exporter;
mod forms;
#[cfg(feature = "engine")]
mod index;
mod manual;
mod node;
#[cfg(feature = "engine")]
mod pack;
mod progress;
mod why;

use std::ffi::OsString;

use clap::Parser;
use clap::error::{ContextKind, ContextValue};

pub use args::TrainArgs;

/// Runs `args` (without the program's name) and returns the exit code. `train` starts a training run and returns its
/// exit code; it is called at most once and only by the `train` command.
pub fn run(args: &[OsString], train: &mut dyn FnMut(&TrainArgs) -> i32) -> i32 {
    let name = OsString::from("lossfeed");
    let cli = match args::Cli::try_parse_from(std::iter::once(&name).chain(args)) {
        Ok(cli) => cli,
        Err(e) => {
            if let Some(moved) = moved(&e) {
                term::complain(&moved);
                return e.exit_code();
            }
            // `--help` and `--version` arrive here too, with exit code 0; a closed pipe is nobody's mistake.
            let _ = e.print();
            return e.exit_code();
        }
    };
    match cli.command {
        args::Command::Train(options) => train(&options),
        args::Command::Smi(options) => smi::run(&options),
        #[cfg(feature = "engine")]
        args::Command::Exporter(options) => exporter::run(&options),
        args::Command::Why(options) => why::run(&options),
        args::Command::Check(options) => check::run(&options),
        args::Command::Replay(options) => replay::run(&options),
        args::Command::Allocate(options) => allocate::run(&options),
        args::Command::Node(options) => node::run(&options.command),
        args::Command::Forms(options) => forms::run(&options),
        args::Command::Completions { shell } => manual::completions(shell),
        args::Command::Man { dir } => manual::pages(&dir),
        #[cfg(feature = "engine")]
        args::Command::Pack(options) => pack::run(&options),
        #[cfg(feature = "engine")]
        args::Command::Index(options) => index::run(&options),
        #[cfg(feature = "engine")]
        args::Command::Doctor(options) => doctor::run(&options),
    }
}

/// The new place of a command or option that `lossfeed` had before the lab was split off.
fn moved(error: &clap::Error) -> Option<String> {
    let said = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(&word[..]),
        _ => None,
    };
    let (what, command) = match (said(ContextKind::InvalidSubcommand), said(ContextKind::InvalidArg)) {
        (Some(command @ ("papers" | "jobs")), _) => (command, command),
        (_, Some(option @ ("--html" | "--trained" | "--object-csv" | "--format"))) => (option, "replay"),
        _ => return None,
    };
    Some(format!(
        "{what} is in the program lossfeed-lab: `cargo install --path engine/lab` in lossfeed's source, then `lossfeed-lab {command}`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moved_to_the_lab_is_named_with_its_place() {
        for (typed, says) in [
            (&["jobs", "--trace", "a.trace"][..], Some("jobs is in the program lossfeed-lab")),
            (&["papers"], Some("then `lossfeed-lab papers`")),
            (&["replay", "--trace=a.csv", "--html=page.html"], Some("--html is in the program lossfeed-lab")),
            (&["replay", "--object-csv", "obj-id-col=1"], Some("then `lossfeed-lab replay`")),
            (&["replays"], None),
            (&["smi", "--htm"], None),
        ] {
            let error = args::Cli::try_parse_from(std::iter::once(&"lossfeed").chain(typed)).unwrap_err();
            let found = moved(&error);
            assert_eq!(found.is_some(), says.is_some(), "{typed:?}: {error}");
            assert!(says.is_none_or(|says| found.as_ref().is_some_and(|found| found.contains(says))), "{found:?}");
        }
    }
}
