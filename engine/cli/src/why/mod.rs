//! `lossfeed why -- COMMAND`: runs a training program unchanged, with a probe in its Python processes, and says at its
//! end why it waits.
//!
//! | file | job |
//! | --- | --- |
//! | `probe` | the Python files, written into a folder of this run |
//! | `child` | the program: started, signals passed on, awaited |
//! | `records` | the numbers that its processes left |
//! | `times` | those numbers as the counters of a stats page: pure |
//! | `others` | the processors that other programs had meanwhile |
//! | `pages` | the live ones, published for `lossfeed smi` |
//! | `report` | the verdict on a screen and as JSON |
//!
//! The probe only adds to numbers in shared memory. All judging is done here, so a program that is killed has a report
//! too, and a Python without lossfeed can be measured.

mod child;
mod others;
mod pages;
mod probe;
mod records;
mod report;
mod times;

use std::io::{self, IsTerminal};
use std::time::Instant;

use crate::args::WhyArgs;
use crate::term::{self, Environment};
use report::{Ended, Report};

/// The shell's codes for a command that is not found, and for one that cannot be run.
const NOT_FOUND: i32 = 127;
const NOT_RUN: i32 = 126;

/// Runs the command and returns the program's exit code.
pub(crate) fn run(args: &WhyArgs) -> i32 {
    let folder = match probe::Folder::make() {
        Ok(folder) => folder,
        Err(why) => {
            term::complain(&format!("no folder for the measurements: {why}; TMPDIR=DIR names one that can be written"));
            return 1;
        }
    };
    let (began, before) = (Instant::now(), others::Ticks::now());
    let mut live = pages::Pages::default();
    let ended = child::run(&args.command, &folder, &mut || {
        records::join_ended(folder.records());
        live.refresh(&records::read(folder.records()));
    });
    drop(live);
    let code = match ended {
        Ok(code) => code,
        Err(error) => {
            let program = args.command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            term::complain(&format!("{program:?} cannot be run: {error}"));
            return if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN };
        }
    };
    let taken = others::taken(before, others::Ticks::now());
    let ended = Ended { command: &args.command, code, seconds: began.elapsed().as_secs_f64(), taken };
    let report = Report::of(&records::read(folder.records()), &ended);
    let environment = Environment { tty: io::stderr().is_terminal(), ..Environment::of_stdout() };
    report.show(&mut io::stderr().lock(), term::Color::Auto.decide(environment));
    if let Some(file) = &args.json
        && let Err(error) = report.write(file)
    {
        term::complain(&format!("--json {}: cannot be written: {error}", file.display()));
        return if code == 0 { 1 } else { code };
    }
    code
}
