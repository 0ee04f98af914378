//! `lossfeed index`: walks the shards of a dataset once, so that training opens it without reading headers.

use std::io::{self, Write};
use std::time::Instant;

use lossfeed::Result;
use lossfeed::source::{self, OpenOptions};
use serde::Serialize;

use crate::args::IndexArgs;
use crate::term;

/// The JSON document.
#[derive(Debug, Serialize)]
struct Report {
    source: String,
    samples: usize,
    classes: usize,
    bytes: u64,
    seconds: f64,
    /// How long it takes to open it with the index.
    again_s: f64,
}

/// Runs the command and returns its exit code.
pub(crate) fn run(args: &IndexArgs) -> i32 {
    match index(args) {
        Ok(report) => term::exit_code(print(&report, args, &mut io::stdout().lock())),
        Err(e) => term::failed(&e),
    }
}

fn index(args: &IndexArgs) -> Result<Report> {
    let options =
        OpenOptions { index_cache: Some(args.cache.clone()), checksums: args.checksums, ..OpenOptions::default() };
    let started = Instant::now();
    let source = source::open(&args.source, &options)?;
    let seconds = started.elapsed().as_secs_f64();
    let started = Instant::now();
    source::open(&args.source, &options)?;
    let again_s = started.elapsed().as_secs_f64();
    let samples = source.len();
    let bytes = (0..samples as u32).map(|id| source.payload_bytes(id)).sum();
    Ok(Report { source: source.describe(), samples, classes: source.classes().len(), bytes, seconds, again_s })
}

fn print(report: &Report, args: &IndexArgs, out: &mut impl Write) -> io::Result<i32> {
    if args.json {
        term::document(report, out)?;
        return Ok(0);
    }
    let Report { source, seconds, again_s, .. } = report;
    writeln!(out, "{source}")?;
    writeln!(out, "Walked in {seconds:.2} s, opened again in {again_s:.2} s.")?;
    writeln!(out, "Open it: lf.open({:?}, index_cache={:?})", args.source, args.cache.display().to_string())?;
    Ok(0)
}
