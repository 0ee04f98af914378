//! One shard: where its images lie, found by walking the archive's headers once.
//!
//! The archive is untrusted: names are only ever compared and shown, never opened; every extent is checked against the
//! file's size; and no header may make the walk hold more than a megabyte.

mod extended;
mod fields;
mod headers;
mod links;
mod sparse;

use std::collections::HashSet;
use std::io::{self, Read, Seek, SeekFrom};

use self::headers::{BLOCK_BYTES, Headers, Kind};
use self::links::{Link, Names};
pub(crate) use self::sparse::Map;
use crate::decode::is_image;
use crate::error::{Error, Result};
use crate::format::catalog::{Ignored, is_hidden};
use crate::sample::PieceKind;

/// A class number in text, with white space around it.
const LABEL_BYTES_MAX: u64 = 64;
/// After the end mark, writers pad to a record: 10 KiB as a rule, up to this much is looked at.
const PADDING_BYTES_MAX: u64 = 64 << 10;

/// An image in a shard, or another file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Of a file of [`ShardIndex::labels`]: the number that it holds, if it holds one. Of an image: that of its label,
    /// once somebody has said which files are labels.
    pub(crate) label: Option<i64>,
    /// CRC-32 of the bytes, once somebody has read them.
    pub(crate) sum: Option<u32>,
    /// Of a sparse file, of which `bytes` are stored.
    pub(crate) map: Option<Map>,
    /// Of a link: where it lies itself. The bytes are its file's.
    pub(crate) linked: Option<u64>,
}

impl Member {
    /// A plain file.
    pub(crate) fn new(name: String, offset: u64, bytes: u64) -> Self {
        Self { name, offset, bytes, label: None, sum: None, map: None, linked: None }
    }

    /// Its place among the archive's members.
    pub(crate) fn at(&self) -> u64 {
        self.linked.unwrap_or(self.offset)
    }

    /// The class number that it holds; `shard` names the archive in errors.
    ///
    /// # Errors
    /// `Sample` if it holds none.
    pub(crate) fn number(&self, shard: &str) -> Result<i64> {
        self.label.ok_or_else(|| {
            Error::sample(format!(
                "{} in {shard} should hold a class number, and its {} bytes are not one: write an integer there, or \
                 name other members with fields=",
                self.name, self.bytes
            ))
        })
    }
}

/// What one walk found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ShardIndex {
    pub(crate) members: Vec<Member>,
    /// Files that are neither images nor class numbers. They are counted among the ignored, until they are asked for.
    pub(crate) others: Vec<Member>,
    /// Files whose names end in `.cls`, whatever is before it and whatever they hold: only whoever opens the dataset
    /// knows which of them are meant.
    pub(crate) labels: Vec<Member>,
    pub(crate) ignored: Ignored,
}

/// Walks an archive of `len` bytes; `what` names it in errors.
///
/// # Errors
/// `Source` when it is no tar, compressed, truncated, or not whole; `Sample` for an image's name that comes twice.
pub(crate) fn walk<R: Read + Seek>(mut reader: R, len: u64, what: &str) -> Result<ShardIndex> {
    refuse_compressed(&mut reader, len, what)?;
    let broken = |after: &str, e: io::Error| {
        if e.kind() == io::ErrorKind::Unsupported {
            return Error::unreadable(format!("{what} is not read: {after} comes {e}"));
        }
        let error = Error::unreadable(format!(
            "{what} ({len} bytes) cannot be read as a tar archive: {after} there is no member header; create or \
             download it again"
        ));
        // Numbers that are none would quote the file's own bytes.
        if e.to_string().contains("numeric field") { error } else { error.because(e) }
    };
    let mut last = "at its beginning".to_owned();
    let mut headers = Headers::new(reader);
    let mut sorted = Sorted { what, seen: HashSet::new(), found: ShardIndex::default(), hidden: Vec::new() };
    let mut links = Vec::new();
    let mut end = 0;
    while let Some(entry) = headers.next().map_err(|e| broken(&last, e))? {
        let (offset, bytes) = (entry.offset, entry.bytes);
        let shown = text(&entry.name);
        last = format!("after {shown}");
        end = offset.checked_add(bytes).filter(|&e| e <= len).ok_or_else(|| {
            Error::unreadable(format!(
                "{what} is truncated: {shown} wants {bytes} bytes at offset {offset}, the file has {len}: download it again"
            ))
        })?;
        let ignored = &mut sorted.found.ignored;
        let name = match (entry.kind, plain(&shown)) {
            (Kind::Directory, _) => continue,
            (_, None) => {
                ignored.escaping += 1;
                continue;
            }
            (Kind::Other, _) => {
                ignored.others += 1;
                continue;
            }
            (_, Some(name)) => name,
        };
        if entry.kind != Kind::File {
            let hard = entry.kind == Kind::HardLink;
            let target = text(&entry.target);
            let from = if hard { "" } else { name.rsplit_once('/').map_or("", |(folder, _)| folder) };
            let target = followed(from, &target);
            // Of a file that was named twice some programs write a second member, which leads to its own name.
            if hard && target.as_ref() == Some(&name) {
                continue;
            }
            links.push(Link { target, name, hard, at: entry.header });
            continue;
        }
        let member = Member { map: entry.map, ..Member::new(name, offset, bytes) };
        sorted.add(member, &mut |member| number(&mut headers, member, what))?;
    }
    let mut reader = sorted.follow(&links, headers, what)?;
    check_end(&mut reader, end, len, what)?;
    Ok(sorted.found)
}

/// Members by what they are.
struct Sorted<'a> {
    what: &'a str,
    /// Names of images.
    seen: HashSet<String>,
    found: ShardIndex,
    /// Files that only links lead to.
    hidden: Vec<Member>,
}

impl Sorted<'_> {
    /// Adds a file; `number` reads the class number that it may hold.
    fn add(&mut self, mut member: Member, number: &mut dyn FnMut(&Member) -> Result<Option<i64>>) -> Result<()> {
        let name = &member.name;
        let found = &mut self.found;
        if is_hidden(name) {
            found.ignored.others += 1;
            self.hidden.push(member);
        } else if is_image(name) {
            if !self.seen.insert(name.clone()) {
                return Err(twice(self.what, name, member.at()));
            }
            found.members.push(member);
        } else if name.contains('.') && PieceKind::of_member(name) == PieceKind::Label {
            member.label = number(&member)?;
            found.labels.push(member);
        } else {
            found.ignored.others += 1;
            found.others.push(member);
        }
        Ok(())
    }

    /// Adds the links that lead to files of the archive, as those files by other names; counts the others.
    fn follow<R: Read + Seek>(&mut self, links: &[Link], mut headers: Headers<R>, what: &str) -> Result<R> {
        if !links.is_empty() {
            let found = &self.found;
            let files = found.members.iter().chain(&found.others).chain(&found.labels).chain(&self.hidden);
            let names = Names::new(files, links);
            let followed: Vec<Option<Member>> = links
                .iter()
                .map(|link| {
                    let file = names.file(link)?.clone();
                    Some(Member { name: link.name.clone(), label: None, linked: Some(link.at), ..file })
                })
                .collect();
            for member in followed {
                match member {
                    Some(member) => self.add(member, &mut |member| number(&mut headers, member, what))?,
                    None => self.found.ignored.links += 1,
                }
            }
            let found = &mut self.found;
            for members in [&mut found.members, &mut found.others, &mut found.labels] {
                members.sort_by_key(Member::at);
            }
        }
        Ok(headers.into_inner())
    }
}

/// A name as text. Bytes that are not UTF-8 are written as `\xe4`, so that different names stay different.
fn text(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

/// A name without `.` components and leading slashes; `None` when it climbs out of the archive.
fn plain(name: &str) -> Option<String> {
    (!name.split('/').any(|part| part == "..")).then(|| followed("", name))?
}

/// Where a path leads from a folder; `None` when it climbs out of the archive.
fn followed(folder: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(path.split('/')).filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop()?;
        } else {
            parts.push(part);
        }
    }
    Some(parts.join("/"))
}

/// The whole number that a file holds as text, if that is what it holds.
fn number<R: Read + Seek>(headers: &mut Headers<R>, member: &Member, what: &str) -> Result<Option<i64>> {
    if member.bytes > LABEL_BYTES_MAX || member.map.is_some() {
        return Ok(None);
    }
    let text = headers
        .read(member.offset, member.bytes)
        .map_err(|e| Error::unreadable(format!("{} in {what} cannot be read", member.name)).because(e))?;
    Ok(std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()))
}

/// A name that means two members, the second of which lies at `offset`.
pub(crate) fn twice(what: &str, name: &str, offset: u64) -> Error {
    Error::sample(format!(
        "{what} holds {name} twice, the second time at offset {offset}: names must be unique: rename or remove one"
    ))
}

/// The first bytes of formats people mistake for tar.
fn refuse_compressed<R: Read + Seek>(reader: &mut R, len: u64, what: &str) -> Result<()> {
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
fn check_end<R: Read + Seek>(reader: &mut R, end: u64, len: u64, what: &str) -> Result<()> {
    let mark = end.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES);
    if mark.saturating_add(BLOCK_BYTES) > len {
        return Err(Error::unreadable(format!(
            "{what} ({len} bytes) has no end mark after its last member at {end}, so it may be truncated: download it again, or, if you know it \
             is whole, append one (head -c 1024 /dev/zero >> FILE)"
        )));
    }
    let broken = |e: io::Error| Error::unreadable(format!("{what} cannot be read")).because(e);
    reader.seek(SeekFrom::Start(mark)).map_err(broken)?;
    let mut rest = vec![0u8; (len - mark).min(PADDING_BYTES_MAX) as usize];
    let got = fill(reader, &mut rest).map_err(broken)?;
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
