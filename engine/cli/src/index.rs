//! `lossfeed index`: walks the shards of a dataset once, so that training opens it without reading headers.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use lossfeed::source::{self, OnShard, OpenOptions};
use lossfeed::{Error, Result};
use serde::Serialize;

use crate::args::IndexArgs;
use crate::progress::Progress;
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
    writable(&args.cache)?;
    let progress = Arc::new(Progress::on_stderr("shards indexed", 0));
    let told = progress.clone();
    let options = OpenOptions {
        index_cache: Some(args.cache.clone()),
        checksums: args.checksums,
        fields: args.fields.clone(),
        on_shard: Some(OnShard(Arc::new(move |done, total| told.at(done, total)))),
        ..OpenOptions::default()
    };
    let started = Instant::now();
    let source = source::open(&args.source, &options)?;
    let seconds = started.elapsed().as_secs_f64();
    let options = OpenOptions { on_shard: None, ..options };
    drop(progress);
    let started = Instant::now();
    source::open(&args.source, &options)?;
    let again_s = started.elapsed().as_secs_f64();
    let samples = source.len();
    let bytes = (0..samples as u32).map(|id| source.size(id).expected.unwrap_or(0)).sum();
    Ok(Report {
        source: source.describe().to_owned(),
        samples,
        classes: source.classes().len(),
        bytes,
        seconds,
        again_s,
    })
}

/// Opening a dataset goes on without a folder for its index; here the index is what was asked for.
fn writable(folder: &Path) -> Result<()> {
    let told = |e: io::Error| Error::settings(format!("the folder {} cannot be written", folder.display())).because(e);
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(told)?;
    let probe = folder.join(format!(".probe-{}", std::process::id()));
    File::create_new(&probe).and_then(|_| fs::remove_file(&probe)).map_err(told)
}

fn print(report: &Report, args: &IndexArgs, out: &mut impl Write) -> io::Result<i32> {
    if args.json {
        term::document(report, out)?;
        return Ok(0);
    }
    let Report { source, seconds, again_s, .. } = report;
    writeln!(out, "{source}")?;
    writeln!(out, "Walked in {seconds:.2} s, opened again in {again_s:.2} s.")?;
    let fields = if args.fields.is_empty() { String::new() } else { format!(", fields={:?}", args.fields) };
    writeln!(
        out,
        "Open it: lf.open({:?}, index_cache={:?}{fields})",
        source::without_secrets(&args.source),
        args.cache.display().to_string()
    )?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(source: &Path, cache: &Path) -> IndexArgs {
        let source = source.to_str().unwrap().to_owned();
        IndexArgs { source, cache: cache.to_owned(), checksums: true, fields: Vec::new(), json: true }
    }

    #[test]
    fn an_index_is_kept_for_its_owner_and_found_again() {
        let root = tempfile::tempdir().unwrap();
        let (shard, cache) = (root.path().join("a.tar"), root.path().join("index"));
        let mut archive = tar::Builder::new(File::create(&shard).unwrap());
        for name in ["cat/0.jpg", "dog/1.jpg"] {
            let mut header = tar::Header::new_gnu();
            header.set_size(5);
            archive.append_data(&mut header, name, &b"bytes"[..]).unwrap();
        }
        archive.into_inner().unwrap();
        let report = index(&args(&shard, &cache)).unwrap();
        assert_eq!((report.samples, report.classes, report.bytes), (2, 2, 10));
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 1);
        let file = root.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(index(&args(&shard, &file)).unwrap_err().to_string().contains("cannot be written"));
    }
}
