//! Sparse files: what is stored of them, and where it belongs.

use std::io;

use super::fields::{invalid, number};
use crate::types::SIZE_UNKNOWN;

/// What a sparse file may become in memory, however few of its bytes are stored, and for each of those.
const FREE_BYTES: u64 = 64 << 20;
const BYTES_OF_ONE: u64 = 2048;

/// Where the stored bytes of a sparse file belong; between them are zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Map {
    /// Of the whole file.
    pub(crate) bytes: u64,
    /// Offset and length of each part, in the order in which they are stored.
    pub(crate) parts: Vec<(u64, u64)>,
}

/// Offsets and lengths as GNU's own headers have them, until the first that is none.
pub(super) fn structs(field: &[u8]) -> Vec<(u64, u64)> {
    let pair = |pair: &[u8; 24]| {
        let (at, bytes) = pair.split_at(12);
        // An empty field ends the list; a number 0 is "0".
        at.first().filter(|&&first| first != 0)?;
        Some((number(at)?, number(bytes)?))
    };
    field.as_chunks::<24>().0.iter().map_while(pair).collect()
}

impl Map {
    /// The map at the beginning of a file of format 1.0: the number of parts, then both numbers of each, a line each.
    /// `None` where the text ends before it does.
    pub(super) fn of_text(text: &[u8], bytes: u64) -> Option<Self> {
        let mut lines = text.split_inclusive(|&byte| byte == b'\n').map_while(|line| line.strip_suffix(b"\n"));
        let mut next = || lines.next().and_then(|line| std::str::from_utf8(line).ok()).map(str::parse::<u64>);
        let count = next()?.unwrap_or(u64::MAX);
        if count > text.len() as u64 {
            // As many lines as the text has not, or no number.
            return (count == u64::MAX).then(|| Self { bytes, parts: vec![(u64::MAX, u64::MAX)] });
        }
        let mut parts = Vec::new();
        for _ in 0..count {
            parts.push((next()?.unwrap_or(u64::MAX), next()?.unwrap_or(u64::MAX)));
        }
        Some(Self { bytes, parts })
    }

    /// Parts in their order, within the file, and as many bytes as are stored.
    pub(crate) fn check(&self, stored: u64) -> io::Result<()> {
        let mut until = 0u64;
        for &(at, bytes) in &self.parts {
            let end = at.checked_add(bytes).filter(|&end| at >= until && end <= self.bytes);
            until = end.ok_or_else(|| invalid("a sparse map is malformed"))?;
        }
        if self.parts.iter().map(|&(_, bytes)| bytes).sum::<u64>() != stored {
            return Err(invalid("a sparse map has other bytes than are stored"));
        }
        Ok(())
    }

    /// Whether so much memory is taken for a sample of which so few bytes are stored.
    pub(crate) fn is_bearable(&self, stored: u64) -> bool {
        self.bytes < SIZE_UNKNOWN && self.bytes <= FREE_BYTES.saturating_add(stored.saturating_mul(BYTES_OF_ONE))
    }

    /// Whether it has no holes.
    pub(super) fn is_whole(&self) -> bool {
        self.parts.iter().map(|&(_, bytes)| bytes).sum::<u64>() == self.bytes
    }

    /// The map as bytes of a digest.
    pub(crate) fn proof(&self) -> Vec<u8> {
        let parts = self.parts.iter().flat_map(|&(at, bytes)| [at, bytes]);
        parts.chain([self.bytes]).flat_map(u64::to_le_bytes).collect()
    }

    /// The file, of what is stored of it.
    pub(crate) fn spread(&self, mut stored: &[u8], into: &mut Vec<u8>) {
        into.clear();
        into.resize(self.bytes as usize, 0);
        for &(at, bytes) in &self.parts {
            let Some((part, rest)) = stored.split_at_checked(bytes as usize) else { return };
            stored = rest;
            if let Some(into) = into.get_mut(at as usize..(at + bytes) as usize) {
                into.copy_from_slice(part);
            }
        }
    }
}
