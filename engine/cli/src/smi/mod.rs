//! `lossfeed smi`: gather, judge, show. One table and exit, again and again with `--watch`, or a form for programs.
//!
//! | file | job |
//! | --- | --- |
//! | `gather`, `nvml` | stats pages and NVML into a snapshot |
//! | `snapshot` | the snapshot: the JSON form |
//! | `judged`, `held` | the verdict on each job; GPUs that are held and idle |
//! | `fields` | the table of an engine's fields: `-q`, `-L`, CSV |
//! | `draw`, `job`, `layout`, `numbers`, `print` | a snapshot as a screen, as text |
//! | `view`, `watch` | keys; the live screen and repeated output |
//! | `dmon` | a line a second |
//! | `demo` | a made-up snapshot |

mod demo;
mod dmon;
mod draw;
pub(crate) mod fields;
mod gather;
mod held;
mod job;
mod judged;
mod layout;
mod numbers;
mod nvml;
mod print;
pub mod snapshot;
mod view;
mod watch;

use std::io::{self, IsTerminal};
use std::time::Instant;

use crate::args::{SmiArgs, SmiMode};
use crate::term::{self, Environment};

pub(crate) use draw::legend;
use draw::{Look, draw};
use snapshot::{NvmlStatus, Snapshot};
use view::Page;
pub(crate) use watch::rounds;

/// The line of every form where nothing runs.
const NO_ENGINE: &str = "no engine runs; start one with `lossfeed why -- COMMAND`";

/// No engine by the asked-for pid or job.
const NOT_FOUND: i32 = 6;

/// Takes snapshots and remembers what a verdict on the last minute needs.
struct Taker<'a> {
    args: &'a SmiArgs,
    started: Instant,
    window: judged::Window,
    idle: held::IdleSince,
}

/// NVML's answer, for `doctor`.
#[cfg(feature = "engine")]
pub(crate) fn devices() -> (snapshot::Nvml, Vec<snapshot::Gpu>) {
    nvml::read()
}

/// Runs the command and returns its exit code.
pub fn run(args: &SmiArgs) -> i32 {
    let live = args.demo && !args.json && !args.list && !args.query && args.query_engine.is_none();
    let watch = args.watch.or((live && io::stdout().is_terminal()).then_some(1.0));
    term::exit_code(match (&args.mode, watch) {
        _ if args.help_query_engine => print::text(&fields::help()).map(|()| 0),
        (Some(SmiMode::Dmon { delay, count }), _) => monitor(args, *delay, *count),
        (None, Some(every_s)) => watch::run(args, every_s),
        (None, None) => once(args, &mut io::stdout().lock()),
    })
}

fn monitor(args: &SmiArgs, delay: f64, count: Option<u64>) -> io::Result<i32> {
    let (mut taker, mut monitor, mut last) = (Taker::new(args), dmon::Monitor::default(), 0);
    watch::rounds(delay, count, |round| {
        let snapshot = taker.take();
        last = exit(&snapshot, args, round == 0);
        if round == 0 && !snapshot.engines.iter().any(|engine| engine.alive) {
            term::complain("no engine runs yet: dmon waits for one");
        }
        print::text(&monitor.round(snapshot))
    })?;
    Ok(last)
}

/// One document or one table.
fn once(args: &SmiArgs, out: &mut impl io::Write) -> io::Result<i32> {
    let snapshot = Taker::new(args).take();
    show(&snapshot, args, true, out)?;
    Ok(exit(&snapshot, args, true))
}

/// Prints one snapshot as the options say; `first` is false when it follows others.
fn show(snapshot: &Snapshot, args: &SmiArgs, first: bool, out: &mut impl io::Write) -> io::Result<()> {
    if args.json {
        term::document(snapshot, out)?;
        return out.flush();
    }
    if let Some(names) = &args.query_engine {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        if first && args.format.header {
            writeln!(out, "{}", fields::csv_head(&names))?;
        }
        for engine in &snapshot.engines {
            writeln!(out, "{}", fields::csv_line(engine, &names, args.format.units))?;
        }
        return out.flush();
    }
    if args.list || args.query {
        for engine in &snapshot.engines {
            writeln!(out, "{}", if args.list { fields::line(engine) } else { fields::full(engine) })?;
        }
        return out.flush();
    }
    let look = Look { width: term::width(), ascii: args.ascii || term::ascii(), footer: "", page: Page::Jobs };
    print::print(out, &draw(snapshot, look), args.color.decide(Environment::of_stdout()))
}

/// The exit code: what was demanded and is not there, with one line saying so the first time.
fn exit(snapshot: &Snapshot, args: &SmiArgs, first: bool) -> i32 {
    let complain = |message: String| {
        if first {
            term::complain(&message);
        }
    };
    if let Some(job) = args.job.as_ref().filter(|_| snapshot.engines.is_empty()) {
        complain(format!("no engine has pid or job {job:?}; `lossfeed smi` lists those there are"));
        return NOT_FOUND;
    }
    let lines = args.list || args.query || args.query_engine.is_some();
    if lines && snapshot.engines.is_empty() {
        complain(NO_ENGINE.to_owned());
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
    complain(format!("--require-gpu: {detail}"));
    code
}

#[cfg(test)]
mod tests;
