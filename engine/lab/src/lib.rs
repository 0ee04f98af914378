//! The program `lossfeed-lab`: compares caches, for writers and readers of papers. The product does not depend on it.
//!
//! | module | job |
//! | --- | --- |
//! | `policies` | cache policies beside those of training runs |
//! | `traces` | readers of libCacheSim's traces |
//! | `packages` | what iCACHE's packages would make of a run's requests |
//! | `replay`, `page` | `lossfeed replay` with all of these, and its charts |
//! | `cluster`, `jobs` | a cluster's jobs under several schedulers and cache systems |
//! | `as_coded` | what the public code of papers does |
//! | `papers` | what papers print, computed again |

mod args;
pub mod as_coded;
pub mod cluster;
mod jobs;
pub mod packages;
mod page;
mod papers;
pub mod policies;
mod replay;
pub mod traces;

use std::ffi::OsString;

use clap::FromArgMatches;

/// Runs `args` (without the program's name) and returns the exit code, as `lossfeed` has them: 0 done, 1 it failed, 2
/// wrong arguments.
pub fn run(args: &[OsString]) -> i32 {
    let name = OsString::from("lossfeed-lab");
    let typed = args::command().try_get_matches_from(std::iter::once(&name).chain(args));
    match typed.and_then(|matches| args::Cli::from_arg_matches(&matches)) {
        Ok(cli) => match cli.command {
            args::Command::Replay(options) => replay::run(&options),
            args::Command::Jobs(options) => jobs::run(&options),
            args::Command::Papers(options) => papers::run(&options),
        },
        Err(e) => {
            // `--help` and `--version` arrive here too, with exit code 0. A closed pipe is not an error.
            let _ = e.print();
            e.exit_code()
        }
    }
}
