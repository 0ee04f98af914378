//! Beliefs in a file, for the process after this one: as bytes, and on a disk.
//!
//! A file is trusted by nobody: it must be a regular file of this user that nobody else may touch, and no link; its
//! checksum must hold, and every sample and belief be one of the dataset. It is written under another name and renamed,
//! so a reader sees the old one or the new one, whenever the writer is killed.
//!
//! ```text
//! 0   8  "lfscores"           little endian throughout
//! 8   4  version
//! 12  4  length of the head
//! 16  -  head: JSON, see [`Head`]
//!     -  pieces: u32 count, then count times (id u32, belief f32, stamp u32), ids ascending; an empty piece ends them
//!     4  CRC-32 of everything before
//! ```
//!
//! A belief that is NaN is none: its stamp says why, as in the table of scores.

use crate::control::PIECE;
use crate::error::{Error, Result};
use crate::types::SampleId;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const MAGIC: &[u8; 8] = b"lfscores";
const VERSION: u32 = 1;
/// No head is longer.
const HEAD_BYTES_MAX: usize = 1 << 16;
const ENTRY_BYTES: usize = 12;
/// What comes before a temporary file's own ending.
const TEMPORARY: &str = ".tmp";

/// What is known of a sample: its id, the belief (NaN: none) and the stamp, as [`crate::index::ScoreTable`] has them.
pub type Entry = (SampleId, f32, u32);

/// What a file of beliefs is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Fingerprint of the dataset.
    pub dataset: String,
    /// Its samples.
    pub samples: usize,
    /// The measurement that the beliefs are on, by name; `None` before the first scores.
    pub measured: Option<String>,
    /// Batches scored so far.
    pub step: u32,
    /// When the loader was made that writes it, in nanoseconds since 1970: of two, the newer one has the file.
    pub made_ns: u64,
}

/// What a file turned out to be.
#[derive(Debug, PartialEq)]
pub enum Found {
    /// There is none.
    Nothing,
    /// It is whole: its head.
    Whole(Head),
    /// It is a file of beliefs, and damaged, in words.
    Damaged(String),
}

/// Counts and checks bytes as they are read.
struct Checked<R> {
    from: R,
    sum: crc32fast::Hasher,
}

impl<R: Read> Checked<R> {
    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.from.read_exact(bytes)?;
        self.sum.update(bytes);
        Ok(())
    }
}

/// Why bytes are no beliefs.
enum Wrong {
    /// Damaged, in words.
    Damaged(String),
    /// They never were.
    Foreign(String),
    Read(io::Error),
}

impl From<io::Error> for Wrong {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            ErrorKind::UnexpectedEof => Self::Damaged("it is cut off".into()),
            _ => Self::Read(e),
        }
    }
}

/// Reads what [`encode`] wrote: hands each piece to `known`, in order. Nothing of it may be believed unless all of it
/// is whole.
fn decode(from: impl Read, mut known: impl FnMut(&[Entry])) -> Result<Head, Wrong> {
    let damaged = |what: String| Wrong::Damaged(what);
    let mut from = Checked { from, sum: crc32fast::Hasher::new() };
    let magic: [u8; 8] = from.take()?;
    if magic != *MAGIC {
        return Err(Wrong::Foreign("is not a score file".into()));
    }
    let version = u32::from_le_bytes(from.take()?);
    if version != VERSION {
        return Err(Wrong::Foreign(format!("has version {version}, this lossfeed reads {VERSION}")));
    }
    let length = u32::from_le_bytes(from.take()?) as usize;
    if length > HEAD_BYTES_MAX {
        return Err(damaged(format!("its head has {length} bytes, of {HEAD_BYTES_MAX} at most")));
    }
    let mut head = vec![0; length];
    from.fill(&mut head)?;
    let head: Head = serde_json::from_slice(&head).map_err(|e| damaged(format!("its head: {e}")))?;
    let (mut next, mut entries) = (0u64, Vec::with_capacity(PIECE));
    let mut bytes = vec![0; PIECE * ENTRY_BYTES];
    loop {
        let count = u32::from_le_bytes(from.take()?) as usize;
        let piece = bytes.get_mut(..count.saturating_mul(ENTRY_BYTES));
        let Some(piece) = piece else { return Err(damaged(format!("a piece of {count} beliefs, of {PIECE} at most"))) };
        if count == 0 {
            break;
        }
        from.fill(piece)?;
        entries.clear();
        for &[a, b, c, d, e, f, g, h, i, j, k, l] in piece.as_chunks::<ENTRY_BYTES>().0 {
            let (id, stamp) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([i, j, k, l]));
            let belief = f32::from_le_bytes([e, f, g, h]);
            if u64::from(id) < next || id as usize >= head.samples {
                return Err(damaged(format!("sample {id} of {} comes where {next} or a later one does", head.samples)));
            }
            next = u64::from(id) + 1;
            if belief.is_infinite() || (belief.is_nan() && !(1..=2).contains(&stamp)) {
                return Err(damaged(format!("its belief about sample {id} is {belief} with stamp {stamp}")));
            }
            entries.push((id, belief, stamp));
        }
        known(&entries);
    }
    let sum = from.sum.clone().finalize();
    if u32::from_le_bytes(from.take()?) != sum {
        return Err(damaged("its checksum does not match".into()));
    }
    match from.from.read(&mut [0])? {
        0 => Ok(head),
        _ => Err(damaged("something follows its checksum".into())),
    }
}

/// Sums bytes as they are written.
struct Summed<W> {
    to: W,
    sum: crc32fast::Hasher,
}

impl<W: Write> Summed<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.to.write_all(bytes)
    }
}

/// Writes a file's bytes. `pieces` fills its argument with the next [`PIECE`] entries at most, ids ascending, and
/// answers whether there may be more; a piece may be empty.
fn encode<W: Write>(to: W, head: &Head, mut pieces: impl FnMut(&mut Vec<Entry>) -> bool) -> io::Result<W> {
    let text = serde_json::to_vec(head)?;
    let mut to = Summed { to, sum: crc32fast::Hasher::new() };
    to.put(MAGIC)?;
    to.put(&VERSION.to_le_bytes())?;
    to.put(&(text.len() as u32).to_le_bytes())?;
    to.put(&text)?;
    let (mut entries, mut bytes) = (Vec::with_capacity(PIECE), Vec::with_capacity(PIECE * ENTRY_BYTES));
    let mut more = true;
    while more {
        entries.clear();
        more = pieces(&mut entries);
        if entries.is_empty() {
            continue;
        }
        bytes.clear();
        for (id, belief, stamp) in &entries {
            bytes.extend([id.to_le_bytes(), belief.to_le_bytes(), stamp.to_le_bytes()].concat());
        }
        to.put(&(entries.len() as u32).to_le_bytes())?;
        to.put(&bytes)?;
    }
    to.put(&0u32.to_le_bytes())?;
    let sum = to.sum.clone().finalize();
    to.to.write_all(&sum.to_le_bytes())?;
    Ok(to.to)
}

/// Opens a file of beliefs without following a link. `None` if there is none.
///
/// # Errors
/// `Settings` for what is no regular file of this user's alone.
fn open(path: &Path) -> Result<Option<File>> {
    let refused = |why: &str| Error::settings(format!("score_file {}: {why}", path.display()));
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Err(refused("is a link: name the file itself"));
        }
        Err(e) => return Err(refused("cannot be read: choose a file of your own").because(e)),
    };
    let meta = file.metadata().map_err(|e| refused("cannot be looked at").because(e))?;
    if !meta.is_file() {
        return Err(refused("is not a file: name one, which need not exist"));
    }
    if meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o077 != 0 {
        return Err(refused(&format!(
            "belongs to user {} with mode {:04o}, so others could change the scores: chmod 600 it, or choose another",
            meta.uid(),
            meta.mode() & 0o7777
        )));
    }
    Ok(Some(file))
}

/// Reads the beliefs in a file of this process's user. `accept` looks at its head once all of it was found to be whole;
/// then `known` gets the beliefs piece by piece.
///
/// # Errors
/// `Settings` for what is no file of beliefs, or of another version: it would be written over. `Source` if it cannot be
/// read. What `accept` answers.
pub fn read(path: &Path, accept: impl FnOnce(&Head) -> Result<()>, mut known: impl FnMut(&[Entry])) -> Result<Found> {
    let Some(file) = open(path)? else { return Ok(Found::Nothing) };
    let mut file = BufReader::with_capacity(1 << 18, file);
    let mut through = |known: &mut dyn FnMut(&[Entry])| {
        file.rewind().map_err(Wrong::Read)?;
        decode(&mut file, known)
    };
    let whole = match through(&mut |_| ()) {
        Ok(head) => {
            accept(&head)?;
            through(&mut known)
        }
        wrong => wrong,
    };
    match whole {
        Ok(head) => Ok(Found::Whole(head)),
        Err(Wrong::Damaged(what)) => Ok(Found::Damaged(what)),
        Err(Wrong::Foreign(what)) => {
            Err(Error::settings(format!("score_file {} {what}: choose another file, or remove it", path.display())))
        }
        Err(Wrong::Read(e)) => {
            Err(Error::unreadable(format!("score_file {} could not be read: try again", path.display())).because(e))
        }
    }
}

/// Whether a loader that was made after `made_ns` writes the file at `path`.
///
/// # Errors
/// For what is no file of beliefs, and for what nobody but its owner may change: it is not written over.
fn newer_has_it(path: &Path, made_ns: u64) -> io::Result<bool> {
    let Some(file) = open(path).map_err(|e| io::Error::other(e.to_string()))? else { return Ok(false) };
    let mut from = BufReader::new(file);
    let mut start = [0; 16];
    if from.read_exact(&mut start).is_err() {
        return Ok(false); // cut off: whoever wrote it did not end
    }
    if !start.starts_with(MAGIC) {
        return Err(io::Error::other("what is there now is not a score file"));
    }
    let length = start.last_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize);
    let mut head = vec![0; length.min(HEAD_BYTES_MAX)];
    let read = from.read_exact(&mut head).is_ok();
    Ok(read && serde_json::from_slice::<Head>(&head).is_ok_and(|head| head.made_ns > made_ns))
}

/// What became of a file that was to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It holds what was given.
    Done,
    /// A loader that was made later writes it.
    Another,
}

/// Writes beliefs to `path`, whole or not at all. `pieces` as for [`encode`].
///
/// # Errors
/// What the disk says.
pub fn write(path: &Path, head: &Head, pieces: impl FnMut(&mut Vec<Entry>) -> bool) -> io::Result<Written> {
    if newer_has_it(path, head.made_ns)? {
        return Ok(Written::Another);
    }
    let (file, temporary) = create(path)?;
    let written = encode(BufWriter::with_capacity(1 << 18, &file), head, pieces)
        .and_then(|mut to| to.flush())
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| File::open(folder(path))?.sync_all());
    if written.is_err() {
        // The first error is the one worth telling.
        let _ = fs::remove_file(&temporary);
    }
    written.map(|()| Written::Done)
}

/// A new file beside `path`, locked as long as it is open.
fn create(path: &Path) -> io::Result<(File, PathBuf)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?.to_string_lossy().into_owned();
    let own = format!(".{name}.{}-{}{TEMPORARY}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
    let temporary = folder(path).join(own);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
    Ok((file, temporary))
}

/// The folder that a file lies in.
pub fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Finds out that `path` can be written, and removes what killed processes left of their attempts.
///
/// # Errors
/// `Settings` if no file can be made there.
pub fn prepare(path: &Path) -> Result<()> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    for entry in fs::read_dir(folder(path)).into_iter().flatten().flatten() {
        let own = entry.file_name().to_string_lossy().into_owned();
        let rest = own.strip_prefix(&format!(".{name}.")).and_then(|rest| rest.strip_suffix(TEMPORARY));
        let numbers = rest.and_then(|rest| rest.split_once('-')).is_some_and(|(process, number)| {
            [process, number].iter().all(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()))
        });
        // Whoever writes one holds its lock.
        let left = || {
            let file = open(&entry.path()).ok().flatten()?;
            rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).ok()
        };
        if numbers && left().is_some() {
            let _ = fs::remove_file(entry.path());
        }
    }
    let made = create(path).and_then(|(_file, temporary)| fs::remove_file(temporary));
    made.map_err(|e| {
        Error::settings(format!(
            "score_file {}: it cannot be created: choose an existing folder that you can write to",
            path.display()
        ))
        .because(e)
    })
}

#[cfg(test)]
mod tests;
