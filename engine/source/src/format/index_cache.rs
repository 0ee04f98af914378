//! Shard indexes kept on disk, so that opening a dataset again reads no headers. A cache: whatever is wrong with a
//! file of it, the shard is walked instead, and nobody is told.
//!
//! Processes that open a shard at one time walk it once: the first has a lock, and the others wait for its index. A
//! process that waited for [`WAIT`] walks too, and so does one that can have no lock there.
//!
//! A file is trusted by nobody: it must belong to this user, be open to nobody else and be no link, its key must be
//! the shard's, its checksum must hold, and every extent must lie within the shard. It is written under another name
//! and renamed, so readers see whole files only.
//!
//! The key says which shard is meant, and as it is now. Of a local one: its path from the root without links, device
//! and inode, size, both times, and a digest of its first and last bytes; of a remote one: endpoint, bucket and key,
//! size, and entity tag or date.
//!
//! ```text
//! 0   8  "lfindex\0"          little endian throughout
//! 8   4  version (6: links and sparse files are members; 5: files that end in `.cls` have a list of their own, and a
//!        label is theirs, not an image's; which endings are images' decides what is a member and what another file)
//! 12  4  CRC-32 of everything after it
//! 16  -  key: u32 length, UTF-8
//!        ignored: links, escaping, others (u64 each)
//!        u32 members, then each: offset u64, bytes u64, flags u8 (1: labelled, 2: with a checksum, 4: sparse,
//!        8: a link), label i64, CRC-32 u32, name u32 length + UTF-8; where sparse, the file's bytes u64 and u32 parts,
//!        then each: offset u64, bytes u64; of a link, its place u64
//!        u32 other files, each likewise
//!        u32 files that end in `.cls`, each likewise
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::error::Result;
use crate::format::catalog::{Ignored, Shard};
use crate::format::local;
use crate::format::tar::{Map, Member, ShardIndex};
use crate::request::file;
use crate::request::identity::hash;
use crate::stop::Stop;

const MAGIC: &[u8; 8] = b"lfindex\0";
const VERSION: u32 = 6;
/// No index is larger: a hundred million members of a shard would be.
const FILE_BYTES_MAX: u64 = 4 << 30;
/// The fixed part of a member, for bounding a declared count by the bytes that are there.
const MEMBER_BYTES_MIN: usize = 8 + 8 + 1 + 8 + 4 + 4;

/// Of a shard's two ends, as much as the key's digest covers.
const END_BYTES: u64 = 4 << 10;

/// The longest wait for the walk of another process.
const WAIT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// The index of `shard` with its `key`: from `directory` if it is there and whole, otherwise from `walk`, whose
/// result is kept there. `sum` adds the checksums, if they are wanted; an index without them is then completed.
///
/// # Errors
/// Those of `walk` and `sum`; `Interrupted` once `stop` was asked.
pub(crate) fn through(
    directory: Option<&Path>,
    key: impl FnOnce() -> Option<String>,
    shard: &Shard,
    walk: impl FnOnce() -> Result<(Shard, ShardIndex)>,
    sum: Option<&dyn Fn(&mut ShardIndex) -> Result<()>>,
    stop: &Stop,
) -> Result<(Shard, ShardIndex)> {
    let place = directory.and_then(|directory| Some((directory, key()?)));
    let find = || place.as_ref().and_then(|(directory, key)| read(&path(directory, key), key, shard.bytes));
    let lacks_sums = |index: &ShardIndex| sum.is_some() && index.members.iter().any(|m| m.sum.is_none());
    let whole = |found: &Option<ShardIndex>| found.as_ref().is_some_and(|index| !lacks_sums(index));
    let mut found = find();
    let mut walking = None;
    if let Some((directory, key)) = place.as_ref().filter(|_| !whole(&found)) {
        walking = alone(directory, key, stop)?;
        found = find();
    }
    let (is, mut index) = match found {
        Some(index) if !lacks_sums(&index) => return Ok((shard.clone(), index)),
        Some(index) => (shard.clone(), index),
        None => walk()?,
    };
    if let Some(sum) = sum {
        sum(&mut index)?;
    }
    // The walk may have seen a newer file than the key describes: keep only what belongs to it.
    if let Some((directory, key)) = place
        && is == *shard
    {
        let kept = keep(directory, &key, &index);
        tracing::debug!(shard = shard.path, kept = kept.is_ok(), "indexed a shard");
    }
    drop(walking);
    Ok((is, index))
}

/// The lock of a process that walks a shard. Its file is removed before the lock is let go.
struct Walking {
    path: PathBuf,
    _file: File,
}

impl Drop for Walking {
    fn drop(&mut self) {
        // One that stays is locked again.
        let _ = fs::remove_file(&self.path);
    }
}

/// The lock under which the shard is walked; `None` where there is none to be had.
fn alone(directory: &Path, key: &str, stop: &Stop) -> Result<Option<Walking>> {
    let path = path(directory, key).with_extension("lock");
    let until = Instant::now() + WAIT;
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let mut how = OpenOptions::new();
    how.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags.bits() as i32);
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    let Ok(mut file) = made.and_then(|()| how.open(&path)) else { return Ok(None) };
    loop {
        let locked = file.try_lock();
        // The one that had it has removed its file.
        let there = fs::symlink_metadata(&path).and_then(|there| Ok(there.ino() == file.metadata()?.ino()));
        match locked {
            Ok(()) if there.is_ok_and(|is_this| is_this) => return Ok(Some(Walking { path, _file: file })),
            Ok(()) => match how.open(&path) {
                Ok(next) if Instant::now() < until => file = next,
                _ => return Ok(None),
            },
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOOK),
            Err(_) => return Ok(None),
        }
        stop.check()?;
    }
}

/// Writes the index of the shard with `key`.
pub(crate) fn keep(directory: &Path, key: &str, index: &ShardIndex) -> std::io::Result<()> {
    write(directory, &path(directory, key), &encode(key, index))
}

fn path(directory: &Path, key: &str) -> PathBuf {
    directory.join(format!("{:016x}{:016x}.idx", hash(key.bytes(), 0), hash(key.bytes(), 1)))
}

/// The key of a shard in this machine's files; `None` when it cannot be looked at, or changes meanwhile.
pub(crate) fn local_key(shard: &Shard) -> Option<String> {
    let file = File::open(&shard.path).ok()?;
    let mut digest = Sha256::new();
    for start in [0, shard.bytes.saturating_sub(END_BYTES)] {
        let mut end = vec![0; END_BYTES.min(shard.bytes) as usize];
        let got = file::read_at(&file, &mut end, start).ok()?;
        digest.update(end.get(..got)?);
    }
    local::unchanged(shard, &file).ok()?;
    let (path, meta) = (fs::canonicalize(&shard.path).ok()?, file.metadata().ok()?);
    Some(format!(
        "file {}\n{} {}\n{}\n{} {}\n{:x}",
        file::utf8(&path).ok()?,
        meta.dev(),
        meta.ino(),
        shard.bytes,
        shard.stamp.modified_ns,
        shard.stamp.changed_ns,
        digest.finalize()
    ))
}

/// The key of a shard in the store at `place`; `None` when the store says nothing to recognise it by.
#[cfg(any(feature = "cloud", test))]
pub(crate) fn remote_key(place: &str, shard: &Shard) -> Option<String> {
    let stamp = Some(&shard.stamp).filter(|s| s.is_proof())?;
    let (path, tag) = (&shard.path, stamp.etag.as_deref().unwrap_or(""));
    Some(format!("store {place}\n{path}\n{tag}\n{}\n{}", shard.bytes, stamp.modified_ns))
}

/// The bytes of an index file.
pub(crate) fn encode(key: &str, index: &ShardIndex) -> Vec<u8> {
    let mut body = Vec::new();
    let text = |body: &mut Vec<u8>, t: &str| {
        body.extend_from_slice(&(t.len() as u32).to_le_bytes());
        body.extend_from_slice(t.as_bytes());
    };
    text(&mut body, key);
    for count in [index.ignored.links, index.ignored.escaping, index.ignored.others] {
        body.extend_from_slice(&count.to_le_bytes());
    }
    for members in [&index.members, &index.others, &index.labels] {
        body.extend_from_slice(&(members.len() as u32).to_le_bytes());
        for m in members {
            body.extend_from_slice(&m.offset.to_le_bytes());
            body.extend_from_slice(&m.bytes.to_le_bytes());
            let flags = [m.label.is_some(), m.sum.is_some(), m.map.is_some(), m.linked.is_some()];
            body.push(flags.iter().rev().fold(0, |all, &flag| all << 1 | u8::from(flag)));
            body.extend_from_slice(&m.label.unwrap_or(0).to_le_bytes());
            body.extend_from_slice(&m.sum.unwrap_or(0).to_le_bytes());
            text(&mut body, &m.name);
            if let Some(map) = &m.map {
                body.extend_from_slice(&map.bytes.to_le_bytes());
                body.extend_from_slice(&(map.parts.len() as u32).to_le_bytes());
                map.parts
                    .iter()
                    .flat_map(|&(at, bytes)| [at, bytes])
                    .for_each(|n| body.extend_from_slice(&n.to_le_bytes()));
            }
            m.linked.iter().for_each(|at| body.extend_from_slice(&at.to_le_bytes()));
        }
    }
    let mut file = Vec::with_capacity(16 + body.len());
    file.extend_from_slice(MAGIC);
    file.extend_from_slice(&VERSION.to_le_bytes());
    file.extend_from_slice(&[0; 4]);
    file.extend_from_slice(&body);
    seal(&mut file);
    file
}

/// Writes the checksum of what follows it.
pub(crate) fn seal(file: &mut [u8]) {
    if let Some((head, body)) = file.split_at_mut_checked(16)
        && let Some(sum) = head.get_mut(12..)
    {
        sum.copy_from_slice(&crc(body).to_le_bytes());
    }
}

fn crc(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// The index in `file` if it is whole, is for `key`, and fits a shard of `shard_bytes`.
pub(crate) fn decode(file: &[u8], key: &str, shard_bytes: u64) -> Option<ShardIndex> {
    let mut at = Cursor(file);
    if at.take(8)? != MAGIC || at.u32()? != VERSION || at.u32()? != crc(at.0) || at.text()? != key {
        return None;
    }
    let ignored = Ignored { links: at.u64()?, escaping: at.u64()?, others: at.u64()? };
    let (members, others, labels) = (at.members(shard_bytes)?, at.members(shard_bytes)?, at.members(shard_bytes)?);
    at.0.is_empty().then_some(ShardIndex { members, others, labels, ignored })
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }
    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }
    fn text(&mut self) -> Option<&'a str> {
        let n = self.u32()?;
        std::str::from_utf8(self.take(n as usize)?).ok()
    }
    /// Where the stored bytes of a sparse file belong.
    fn map(&mut self, stored: u64) -> Option<Map> {
        let (bytes, count) = (self.u64()?, self.u32()? as usize);
        let mut numbers = Cursor(self.take(count.checked_mul(16)?)?);
        let parts = (0..count).map(|_| Some((numbers.u64()?, numbers.u64()?))).collect::<Option<_>>()?;
        let map = Map { bytes, parts };
        map.check(stored).ok().map(|()| map)
    }
    /// A list of members of a shard of so many bytes.
    fn members(&mut self, shard_bytes: u64) -> Option<Vec<Member>> {
        let count = self.u32()? as usize;
        if count.checked_mul(MEMBER_BYTES_MIN)? > self.0.len() {
            return None;
        }
        let mut members = Vec::with_capacity(count);
        for _ in 0..count {
            let (offset, bytes, flags) = (self.u64()?, self.u64()?, *self.take(1)?.first()?);
            let (label, sum) = (self.u64()? as i64, self.u32()?);
            let name = self.text()?.to_owned();
            offset.checked_add(bytes).filter(|&end| end <= shard_bytes)?;
            if flags > 15 {
                return None;
            }
            let (label, sum) = ((flags & 1 != 0).then_some(label), (flags & 2 != 0).then_some(sum));
            let map = if flags & 4 != 0 { Some(self.map(bytes)?) } else { None };
            let linked = if flags & 8 != 0 { Some(self.u64()?) } else { None };
            members.push(Member { name, offset, bytes, label, sum, map, linked });
        }
        Some(members)
    }
}

fn read(path: &Path, key: &str, shard_bytes: u64) -> Option<ShardIndex> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let mut file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path).ok()?;
    let meta = file.metadata().ok()?;
    let ours = meta.is_file() && meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o077 == 0;
    if !ours || meta.len() > FILE_BYTES_MAX {
        return None;
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    Read::by_ref(&mut file).take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    decode(&bytes, key, shard_bytes)
}

fn write(directory: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let unique = format!(".{}.{}.tmp", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let temporary: PathBuf = directory.join(unique);
    let written = create(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one worth telling.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn create(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}
