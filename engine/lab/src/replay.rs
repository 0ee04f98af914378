//! `lossfeed-lab replay`: the command of `lossfeed` with all policies, libCacheSim's traces and a page of charts.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::path::Path;

use lossfeed_cli::bench::Bench;
use lossfeed_cli::replay::{check_written, results};
use lossfeed_cli::report::{Report, tell, write};
use lossfeed_cli::term;
use lossfeed_control::Result;
use lossfeed_control::sim::Trace;
use lossfeed_journal::ROWS_MAX;

use crate::args::{LabReplayArgs, TraceFormat};
use crate::packages::Packages;
use crate::page::{Trained, page, read_trained};
use crate::policies;
use crate::traces::{Taken, read_object_csv, read_oracle_general};

/// Runs the command and returns its exit code.
pub(crate) fn run(args: &LabReplayArgs) -> i32 {
    report(args, &mut io::stdout().lock()).unwrap_or_else(|e| term::failed(&e))
}

pub(crate) fn report(args: &LabReplayArgs, out: &mut impl io::Write) -> Result<i32> {
    let LabReplayArgs { replay, html, trained, .. } = args;
    let read = [("--trace", replay.trace.as_deref()), ("--trained", trained.as_deref())];
    check_written(&read, &[("--csv", replay.csv.as_deref()), ("--html", html.as_deref())])?;
    let trained = trained.as_deref().map_or(Ok(Trained::default()), read_trained)?;
    let found = replayed(args)?;
    if let Some(path) = html {
        write(path, page(&found, &trained))?;
    }
    tell(&found, replay, out)
}

fn replayed(args: &LabReplayArgs) -> Result<Report> {
    let read = |path: &Path, file: &File| foreign(args, path, file);
    results(&args.replay, &Bench { policies: &policies::ALL, read: &read, watch: Some(Packages::watch) })
}

/// A trace of libCacheSim's, if the file is one.
fn foreign(args: &LabReplayArgs, path: &Path, file: &File) -> Result<Option<(Trace, Vec<String>)>> {
    let (trace, Taken { other_sizes, empty }) = match args.object_csv {
        Some(columns) => read_object_csv(file, columns, ROWS_MAX)?,
        None if is_oracle_general(args.format, path) => read_oracle_general(file, ROWS_MAX)?,
        None => return Ok(None),
    };
    let mut assumed = vec!["the trace is one epoch, and nothing has a score".to_owned()];
    if other_sizes > 0 {
        assumed.push(format!("{other_sizes} requests have another size than their sample's first one, which counts"));
    }
    if empty > 0 {
        assumed.push(format!("{empty} requests have size 0, which counts as 1"));
    }
    Ok(Some((trace, assumed)))
}

/// Whether the file is one of libCacheSim's: nothing in it says so, but its name usually does.
fn is_oracle_general(format: TraceFormat, path: &Path) -> bool {
    match format {
        TraceFormat::OracleGeneral => true,
        TraceFormat::Csv => false,
        TraceFormat::Auto => path.file_name().is_some_and(|name| name.to_string_lossy().contains(".oracleGeneral")),
    }
}
