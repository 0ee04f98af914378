//! The bytes of a segment, little endian throughout.
//!
//! ```text
//! head     8  "lfdisk\0", version (1)
//! record   4  "LFR1"      4  length of the data    16 key    4  cost, µs    4  CRC-32 of all these and the data
//!          -  data, and zeros up to a multiple of 8
//! ...
//! footer   16 key, 4 position / 8, 4 length: each record
//! tail     8  "lfdiskft"  8  records    8  position of the footer    8  cost of all, µs
//!          4  zero        4  CRC-32 of footer and tail
//! ```

use crate::Key;

pub(crate) const HEAD: &[u8; 8] = b"lfdisk\0\x01";
pub(crate) const RECORD_HEAD: usize = 32;
pub(crate) const ENTRY: usize = 24;
pub(crate) const TAIL: usize = 40;
const RECORD_MAGIC: &[u8; 4] = b"LFR1";
const TAIL_MAGIC: &[u8; 8] = b"lfdiskft";
/// Positions are counted in this many bytes, so that four bytes reach 32 GiB.
pub(crate) const ALIGNMENT: u64 = 8;

/// Where a record lies in its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    /// Position of its head, in units of [`ALIGNMENT`].
    pub(crate) at: u32,
    /// Length of its data.
    pub(crate) bytes: u32,
}

/// What the tail of a complete segment says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) records: u64,
    pub(crate) footer_at: u64,
    pub(crate) cost_us: u64,
}

/// What the head of a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHead {
    pub(crate) bytes: u32,
    pub(crate) key: Key,
    pub(crate) cost_us: u32,
    pub(crate) sum: u32,
}

/// Bytes that a record of so much data takes in a segment, its place in the footer included.
pub(crate) fn record_bytes(data: usize) -> u64 {
    padded(data) + ENTRY as u64
}

/// Bytes from a record's head to the next one's.
pub(crate) fn padded(data: usize) -> u64 {
    (RECORD_HEAD as u64 + data as u64).next_multiple_of(ALIGNMENT)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}
fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}
fn key_at(bytes: &[u8], at: usize) -> Option<Key> {
    bytes.get(at..at + 16)?.try_into().ok().map(Key::from_le_bytes)
}

/// Appends a record.
pub(crate) fn put_record(out: &mut Vec<u8>, key: Key, cost_us: u32, data: &[u8]) {
    let start = out.len();
    out.extend_from_slice(RECORD_MAGIC);
    out.extend_from_slice(&(data.len() as u32).to_le_bytes());
    out.extend_from_slice(&key.to_le_bytes());
    out.extend_from_slice(&cost_us.to_le_bytes());
    let sum = sum(out.get(start..).unwrap_or_default(), data);
    out.extend_from_slice(&sum.to_le_bytes());
    out.extend_from_slice(data);
    out.resize(start + padded(data.len()) as usize, 0);
}

/// The checksum of a record: over its head up to the sum, and its data.
fn sum(head: &[u8], data: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(head);
    sum.update(data);
    sum.finalize()
}

/// Reads a record's head; `None` if it is none.
pub(crate) fn record_head(head: &[u8; RECORD_HEAD]) -> Option<RecordHead> {
    if !head.starts_with(RECORD_MAGIC) {
        return None;
    }
    Some(RecordHead {
        bytes: u32_at(head, 4)?,
        key: key_at(head, 8)?,
        cost_us: u32_at(head, 24)?,
        sum: u32_at(head, 28)?,
    })
}

/// Whether `data` is what the record with this head was written with.
pub(crate) fn is_sound(head: &[u8; RECORD_HEAD], said: &RecordHead, data: &[u8]) -> bool {
    said.bytes as usize == data.len() && sum(head.get(..28).unwrap_or_default(), data) == said.sum
}

/// Footer and tail of a segment whose records end at `footer_at`.
pub(crate) fn footer(entries: &[Entry], footer_at: u64, cost_us: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(entries.len() * ENTRY + TAIL);
    for entry in entries {
        out.extend_from_slice(&entry.key.to_le_bytes());
        out.extend_from_slice(&entry.at.to_le_bytes());
        out.extend_from_slice(&entry.bytes.to_le_bytes());
    }
    out.extend_from_slice(TAIL_MAGIC);
    for number in [entries.len() as u64, footer_at, cost_us] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&[0; 4]);
    let sum = crc32fast::hash(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

/// Reads a tail, from the last bytes of a file of `file_bytes`; `None` if footer and tail do not fill its end exactly.
pub(crate) fn tail(tail: &[u8; TAIL], file_bytes: u64) -> Option<Tail> {
    if !tail.starts_with(TAIL_MAGIC) {
        return None;
    }
    let said = Tail { records: u64_at(tail, 8)?, footer_at: u64_at(tail, 16)?, cost_us: u64_at(tail, 24)? };
    let footer = said.records.checked_mul(ENTRY as u64)?.checked_add(TAIL as u64)?;
    (said.footer_at.checked_add(footer)? == file_bytes).then_some(said)
}

/// The entries of a whole footer, its tail included; `None` if its checksum or an entry is wrong.
pub(crate) fn entries(footer: &[u8], footer_at: u64) -> Option<Vec<Entry>> {
    let (body, sum) = footer.split_at_checked(footer.len().checked_sub(4)?)?;
    if u32_at(sum, 0)? != crc32fast::hash(body) {
        return None;
    }
    let listed = footer.get(..footer.len().checked_sub(TAIL)?)?;
    let mut entries = Vec::with_capacity(listed.len() / ENTRY);
    for entry in listed.chunks_exact(ENTRY) {
        let entry = Entry { key: key_at(entry, 0)?, at: u32_at(entry, 16)?, bytes: u32_at(entry, 20)? };
        if u64::from(entry.at) * ALIGNMENT + padded(entry.bytes as usize) > footer_at {
            return None;
        }
        entries.push(entry);
    }
    Some(entries)
}
