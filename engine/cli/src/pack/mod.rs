//! `lossfeed pack`: a dataset of images, or of samples with several parts, becomes tar shards of a good size, mixed.
//!
//! A store answers a request a sample for class folders, and one for many samples of a shard. What lies near each
//! other there is then read together, so samples are mixed once, when they are packed: see `block` in
//! `pybind/docs/samplers.md`.
//!
//! A shard gets its name when it is whole, and all are opened and compared with the source at the end. Images are
//! copied byte by byte, never decoded.

mod plan;
mod write;

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use lossfeed::source::{self, Form, OpenOptions, Piece, PieceKind, SIZE_UNKNOWN, Source};
use lossfeed::{Error, Result, SampleId};
use serde::Serialize;

use crate::args::PackArgs;
use crate::parallel::in_parallel;
use crate::progress::Progress;
use crate::term;
use plan::Order;

/// The JSON document.
#[derive(Debug, Serialize)]
struct Report {
    source: String,
    /// What opens the packed samples as those of the source are; empty for images and their labels.
    fields: Vec<String>,
    folder: String,
    samples: usize,
    shards: usize,
    /// Shards that lay there already, with `--resume`.
    kept: usize,
    bytes: u64,
    seconds: f64,
}

/// What tells a sample's label.
#[derive(Debug)]
enum Labels<'a> {
    /// The folder it lies in.
    Names { classes: &'a [String], labels: &'a [i64] },
    /// A number in a member beside it.
    Numbers(&'a [i64]),
    /// Nothing: samples have none.
    None,
}

impl<'a> Labels<'a> {
    fn of(source: &'a dyn Source) -> Result<Self> {
        let Some(labels) = source.labels() else {
            return match source.pieces() {
                [] => Err(Error::settings(format!("{} has no labels to pack with its images", source.describe()))),
                _ => Ok(Self::None),
            };
        };
        let classes = source.classes();
        // Opened again, classes are the folders that are there: one without samples would shift the numbers.
        let used: HashSet<i64> = labels.iter().copied().collect();
        let all = !classes.is_empty() && used == (0..classes.len() as i64).collect();
        // Of samples of several members the class is one of these.
        Ok(if all && classes.is_sorted() && !source.form().tailed() {
            Self::Names { classes, labels }
        } else {
            Self::Numbers(labels)
        })
    }
    /// The number to write beside sample `id`, if one is.
    fn beside(&self, id: SampleId) -> Option<i64> {
        match self {
            Self::Names { .. } | Self::None => None,
            Self::Numbers(labels) => labels.get(id as usize).copied(),
        }
    }
    fn all(&self) -> &[i64] {
        match self {
            Self::Names { labels, .. } | Self::Numbers(labels) => labels,
            Self::None => &[],
        }
    }
}

/// Runs the command and returns its exit code.
pub(crate) fn run(args: &PackArgs) -> i32 {
    match pack(args) {
        Ok(report) => term::exit_code(print(&report, args.json, &mut io::stdout().lock())),
        Err(e) => term::failed(&e),
    }
}

fn pack(args: &PackArgs) -> Result<Report> {
    let started = Instant::now();
    if args.shard_size == 0 {
        return Err(Error::settings("--shard-size is 0: give a size such as 256MB"));
    }
    check_apart(&args.source, &args.folder)?;
    let source = source::open(&args.source, &OpenOptions { fields: args.fields.clone(), ..OpenOptions::default() })?;
    let source = source.as_ref();
    if source.form() != &(Form::Images { tailed: false }) && source.pieces().is_empty() {
        return Err(Error::settings(format!("{} holds no images: only images are packed", source.describe())));
    }
    let labels = Labels::of(source)?;
    let beside = source.pieces().iter().filter(|piece| piece.kind.in_tail()).count() as u64;
    let order = if args.keep_order { Order::Kept } else { Order::Shuffled(args.seed) };
    let shards =
        plan::shards(source.len(), order, &labels, args.shard_size, |id| source.size(id).expected.unwrap_or(0), beside);
    let there = prepare(&args.folder, args.resume)?;

    let progress = Progress::on_stderr("shards", shards.len());
    let failed = AtomicBool::new(false);
    let numbered: Vec<(usize, &[SampleId])> = shards.iter().map(Vec::as_slice).enumerate().collect();
    let kept = in_parallel(&numbered, |&(number, ids)| {
        let name = plan::shard_name(number, shards.len());
        if failed.load(Ordering::Relaxed) {
            return Ok(false); // another's failure is what the caller gets
        }
        let known = there.contains(&name);
        let wrote = if known { Ok(()) } else { write::shard(source, ids, &labels, &args.folder, &name) };
        failed.fetch_or(wrote.is_err(), Ordering::Relaxed);
        progress.step();
        wrote.map(|()| known)
    });
    drop(progress);
    let kept = kept.into_iter().collect::<Result<Vec<_>>>()?.into_iter().filter(|&known| known).count();
    let bytes = check(source, &labels, &shards, &args.folder)?;
    Ok(Report {
        source: source.describe().to_owned(),
        fields: fields(source),
        folder: args.folder.display().to_string(),
        samples: source.len(),
        shards: shards.len(),
        kept,
        bytes,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// The folder of shards may not be a part of the folder that is packed: its class folders are all that lies in it.
fn check_apart(source: &str, folder: &Path) -> Result<()> {
    let source = Path::new(source);
    let (Ok(packed), Ok(mut target)) = (source.canonicalize(), std::path::absolute(folder)) else { return Ok(()) };
    if !packed.is_dir() {
        return Ok(());
    }
    // As much of it as is there already may be reached by links.
    for parent in folder.ancestors() {
        if let (Ok(real), Ok(rest)) = (parent.canonicalize(), folder.strip_prefix(parent)) {
            target = real.join(rest);
            break;
        }
    }
    match target.starts_with(&packed) {
        true => Err(Error::settings(format!(
            "{} is inside {}, the folder to be packed: give a folder outside of it",
            folder.display(),
            source.display()
        ))),
        false => Ok(()),
    }
}

/// Makes the folder, and says which shards are in it already.
fn prepare(folder: &Path, resume: bool) -> Result<HashSet<String>> {
    let told = |e: io::Error| Error::settings(format!("the folder {} cannot be written", folder.display())).because(e);
    fs::create_dir_all(folder).map_err(told)?;
    let mut there = HashSet::new();
    for entry in fs::read_dir(folder).map_err(told)? {
        let name = entry.map_err(told)?.file_name().to_string_lossy().into_owned();
        if write::is_partial(&name) {
            fs::remove_file(folder.join(&name)).map_err(told)?;
        } else if resume && name.starts_with("shard-") && name.ends_with(".tar") {
            there.insert(name);
        } else {
            return Err(Error::settings(format!(
                "{} is not empty, it holds {name}: give a new folder, or --resume to continue packing there",
                folder.display()
            )));
        }
    }
    Ok(there)
}

/// What opens the packed samples as those of `source` are: members of shards; none for images and labels alone.
fn fields(source: &dyn Source) -> Vec<String> {
    if !source.form().tailed() {
        return Vec::new();
    }
    let named = |piece: &Piece| match piece.kind {
        PieceKind::Picture => source::endings().collect::<Vec<_>>().join(";"),
        PieceKind::Label => "cls".to_owned(),
        _ => plan::member(piece),
    };
    source.pieces().iter().map(named).collect()
}

/// Opens what was written, and holds names, labels and sizes against the source. The bytes of all shards.
fn check(source: &dyn Source, labels: &Labels<'_>, shards: &[Vec<SampleId>], folder: &Path) -> Result<u64> {
    let other = |what: String| {
        Error::unreadable(format!(
            "{} does not hold this packing's result: {what}; if it was started with other options or another source, \
             give a new folder",
            folder.display()
        ))
    };
    let path = folder.to_str().ok_or_else(|| other("its name is not UTF-8".to_owned()))?;
    let packed = source::open(path, &OpenOptions { fields: fields(source), ..OpenOptions::default() })?;
    let ids = shards.concat();
    if packed.len() != ids.len() {
        return Err(other(format!("{} samples instead of {}", packed.len(), ids.len())));
    }
    let found = packed.labels().unwrap_or_default();
    for (at, &id) in (0..).zip(&ids) {
        let (name, key) = (packed.name(at), plan::key(id, labels)?);
        // Numbers become files of an array; and a source that does not say how large samples are knows it of those that
        // were read now.
        let bytes = source.payload_bytes(id);
        let sized = bytes != SIZE_UNKNOWN && source.pieces().iter().all(|piece| piece.kind.dtype().is_none());
        let alike = name.contains(&key)
            && (!sized || packed.payload_bytes(at) == bytes)
            && found.get(at as usize) == labels.all().get(id as usize);
        if !alike {
            return Err(other(format!(
                "{name} ({} bytes) is in the place of {}",
                packed.payload_bytes(at),
                source.name(id)
            )));
        }
    }
    let bytes = |name| fs::metadata(folder.join(name)).map(|of| of.len());
    let told = |e: io::Error| Error::unreadable(format!("{} cannot be read", folder.display())).because(e);
    (0..shards.len()).map(|n| bytes(plan::shard_name(n, shards.len())).map_err(told)).sum()
}

fn print(report: &Report, json: bool, out: &mut impl Write) -> io::Result<i32> {
    if json {
        term::document(report, out)?;
        return Ok(0);
    }
    let Report { source, fields, folder, samples, shards, kept, bytes, seconds } = report;
    writeln!(out, "{source}")?;
    let kept = if *kept > 0 { format!(" ({kept} of them were there)") } else { String::new() };
    writeln!(
        out,
        "→ {folder}: {samples} samples in {shards} shards{kept}, {:.1} MB, {seconds:.1} s",
        *bytes as f64 / 1e6
    )?;
    let fields = if fields.is_empty() { String::new() } else { format!(", fields={fields:?}") };
    writeln!(out, "Names, labels and sizes were compared. Open it: lf.open({folder:?}{fields})")?;
    Ok(0)
}

#[cfg(test)]
mod tests;
