//! One shard: where its images lie, found by walking the archive's headers once.
//!
//! The archive is untrusted: names are only ever compared and shown, never opened; every extent is checked against the
//! file's size; and no header may make the walk hold more than [`HEADER_BYTES_MAX`].

use std::collections::HashSet;
use std::io::{self, Read, Seek, SeekFrom};

use super::catalog::{Ignored, is_hidden, is_image};
use super::pieces::PieceKind;
use crate::error::{Error, Result};

const BLOCK_BYTES: u64 = 512;
/// Long names and PAX records of one member; Linux allows paths of 4 KiB, PAX writers add a few hundred bytes.
const HEADER_BYTES_MAX: u64 = 1 << 20;
/// A class number in text, with white space around it.
const LABEL_BYTES_MAX: u64 = 64;
/// After the end mark, writers pad to a record: 10 KiB as a rule, up to this much is looked at.
const PADDING_BYTES_MAX: u64 = 64 << 10;

/// An image in a shard, or another file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Of a file of [`ShardIndex::labels`]: the number that it holds, if it holds one. Of an image: that of its label,
    /// once somebody has said which files are labels.
    pub(super) label: Option<i64>,
    /// CRC-32 of the bytes, once somebody has read them.
    pub(super) sum: Option<u32>,
}

impl Member {
    /// The class number that it holds; `shard` names the archive in errors.
    ///
    /// # Errors
    /// `Sample` if it holds none.
    pub(super) fn number(&self, shard: &str) -> Result<i64> {
        self.label.ok_or_else(|| {
            Error::sample(format!(
                "{} in {shard} should hold a class number, and its {} bytes are none: write an integer there, or name the members that are \
                 meant with fields=",
                self.name, self.bytes
            ))
        })
    }
}

/// What one walk found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ShardIndex {
    pub(super) members: Vec<Member>,
    /// Files that are neither images nor class numbers. They are counted among the ignored, until they are asked for.
    pub(super) others: Vec<Member>,
    /// Files whose names end in `.cls`, whatever is before it and whatever they hold: only whoever opens the dataset
    /// knows which of them are meant.
    pub(super) labels: Vec<Member>,
    pub(super) ignored: Ignored,
}

/// Walks an archive of `len` bytes; `what` names it in errors.
///
/// # Errors
/// `Source` when it is no tar, compressed, truncated, or not whole; `Sample` for an image's name that comes twice.
pub(super) fn walk<R: Read + Seek>(reader: R, len: u64, what: &str) -> Result<ShardIndex> {
    let mut reader = Budgeted { inner: reader, left: HEADER_BYTES_MAX };
    refuse_compressed(&mut reader, len, what)?;
    let broken = |after: &str, e: io::Error| {
        let error = Error::unreadable(format!(
            "{what} ({len} bytes) cannot be read as a tar archive: {after} lies no header of a member; re-create or download it again"
        ));
        // What the reader says of numbers that are none quotes the file's own bytes.
        if e.to_string().contains("numeric field") { error } else { error.because(e) }
    };
    let mut last = "at its beginning".to_owned();
    let mut archive = ::tar::Archive::new(reader);
    let mut found = ShardIndex::default();
    let mut seen = HashSet::new();
    let mut end = 0;
    for entry in archive.entries_with_seek().map_err(|e| broken(&last, e))? {
        let mut entry = entry.map_err(|e| broken(&last, e))?;
        let (offset, bytes) = (entry.raw_file_position(), entry.size());
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        last = format!("after {name}");
        let kind = entry.header().entry_type();
        end = offset.checked_add(bytes).filter(|&e| e <= len).ok_or_else(|| {
            Error::unreadable(format!(
                "{what} is truncated: {name} wants {bytes} bytes at offset {offset}, the file has {len}: download it again"
            ))
        })?;
        if kind.is_symlink() || kind.is_hard_link() {
            found.ignored.links += 1;
            continue;
        }
        if kind.is_dir() {
            continue;
        }
        let Some(name) = plain(&name) else {
            found.ignored.escaping += 1;
            continue;
        };
        if !kind.is_file() || is_hidden(&name) {
            found.ignored.others += 1;
        } else if is_image(&name) {
            if !seen.insert(name.clone()) {
                return Err(twice(what, &name, offset));
            }
            found.members.push(Member { name, offset, bytes, label: None, sum: None });
        } else if name.contains('.') && PieceKind::of_member(&name) == PieceKind::Label {
            let label = number(&mut entry, bytes, what, &name)?;
            found.labels.push(Member { name, offset, bytes, label, sum: None });
        } else {
            found.ignored.others += 1;
            found.others.push(Member { name, offset, bytes, label: None, sum: None });
        }
    }
    check_end(archive.into_inner(), end, len, what)?;
    Ok(found)
}

/// A name without `.` components and leading slashes; `None` when it climbs out of the archive.
fn plain(name: &str) -> Option<String> {
    let mut plain = String::with_capacity(name.len());
    for part in name.split('/').filter(|p| !p.is_empty() && *p != ".") {
        if part == ".." {
            return None;
        }
        if !plain.is_empty() {
            plain.push('/');
        }
        plain.push_str(part);
    }
    Some(plain)
}

/// The whole number that a file holds as text, if that is what it holds.
fn number(entry: &mut impl Read, bytes: u64, what: &str, name: &str) -> Result<Option<i64>> {
    if bytes > LABEL_BYTES_MAX {
        return Ok(None);
    }
    let mut text = Vec::new();
    entry
        .read_to_end(&mut text)
        .map_err(|e| Error::unreadable(format!("{name} in {what} cannot be read")).because(e))?;
    Ok(std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()))
}

/// A name that means two members, the second of which lies at `offset`.
pub(super) fn twice(what: &str, name: &str, offset: u64) -> Error {
    Error::sample(format!(
        "{what} holds {name} twice, the second time at offset {offset}: a name must mean one sample, rename or remove one"
    ))
}

/// The first bytes of formats people mistake for tar.
fn refuse_compressed<R: Read + Seek>(reader: &mut Budgeted<R>, len: u64, what: &str) -> Result<()> {
    let mut head = [0u8; 6];
    let broken = |e: io::Error| Error::unreadable(format!("{what} cannot be read")).because(e);
    let got = fill(reader, &mut head).map_err(broken)?;
    reader.seek(SeekFrom::Start(0)).map_err(broken)?;
    let known: [(&[u8], &str, &str); 5] = [
        (&[0x1f, 0x8b], "gzip", "gunzip"),
        (&[0x28, 0xb5, 0x2f, 0xfd], "zstd", "unzstd"),
        (&[0xfd, b'7', b'z', b'X', b'Z'], "xz", "unxz"),
        (b"BZh", "bzip2", "bunzip2"),
        (b"PK\x03\x04", "zip", "unzip, then tar -cf"),
    ];
    for (magic, format, tool) in known {
        if head.get(..got).is_some_and(|h| h.starts_with(magic)) {
            return Err(Error::unreadable(format!(
                "{what} ({len} bytes) is a {format} file, which cannot be read at random: unpack it first ({tool})"
            )));
        }
    }
    if got == 0 {
        return Err(Error::unreadable(format!("{what} is empty (0 bytes): download it again")));
    }
    Ok(())
}

/// An archive ends with two zero blocks, then padding. Without the first the file may have been cut between two
/// members; with other data after it, archives were concatenated and readers stop at the first one's end. Both would
/// lose samples silently.
fn check_end<R: Read + Seek>(mut reader: Budgeted<R>, end: u64, len: u64, what: &str) -> Result<()> {
    let mark = end.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES);
    if mark.saturating_add(BLOCK_BYTES) > len {
        return Err(Error::unreadable(format!(
            "{what} ({len} bytes) has no end mark after its last member at {end}, so it may be truncated: download it again, or, if you know it \
             is whole, append one (head -c 1024 /dev/zero >> FILE)"
        )));
    }
    let broken = |e: io::Error| Error::unreadable(format!("{what} cannot be read")).because(e);
    reader.left = HEADER_BYTES_MAX;
    reader.seek(SeekFrom::Start(mark)).map_err(broken)?;
    let mut rest = vec![0u8; (len - mark).min(PADDING_BYTES_MAX) as usize];
    let got = fill(&mut reader, &mut rest).map_err(broken)?;
    match rest.iter().take(got).position(|&b| b != 0) {
        None => Ok(()),
        Some(at) => Err(Error::unreadable(format!(
            "{what} goes on after its end mark, at offset {}: concatenated archives hide what follows, keep them as separate shards",
            mark + at as u64
        ))),
    }
}

fn fill(reader: &mut impl Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut at = 0;
    while let Some(rest) = buf.get_mut(at..).filter(|r| !r.is_empty()) {
        match reader.read(rest) {
            Ok(0) => break,
            Ok(n) => at += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(at)
}

/// A reader that refuses to deliver more than [`HEADER_BYTES_MAX`] without a seek between: the archive library reads
/// extension headers whole, and one may claim gigabytes. It seeks before every header, so members are not affected.
struct Budgeted<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Budgeted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.left = self.left.checked_sub(n as u64).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("a header is larger than {HEADER_BYTES_MAX} bytes"))
        })?;
        Ok(n)
    }
}

impl<R: Seek> Seek for Budgeted<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.left = HEADER_BYTES_MAX;
        self.inner.seek(to)
    }
}
