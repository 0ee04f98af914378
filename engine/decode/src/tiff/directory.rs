//! The tags of a TIFF's first page, of the classic form and of BigTIFF, in either byte order.

/// Place and form of a tag's values.
struct Entry {
    tag: u64,
    /// Bytes of one value; 0 for types that are no whole numbers.
    size: usize,
    count: usize,
    at: usize,
}

pub(super) struct Directory<'a> {
    file: &'a [u8],
    pub(super) little: bool,
    entries: Vec<Entry>,
}

impl<'a> Directory<'a> {
    /// `None` where the file ends before its tags do.
    pub(super) fn read(file: &'a [u8]) -> Option<Self> {
        let mut directory = Self { file, little: file.starts_with(b"II"), entries: Vec::new() };
        let big = directory.number(2, 2)? == 43;
        // The file's header, then: the number of entries, the length of one, and of its number of values.
        let (first, counted, long, word) = if big { (8, 8, 20, 8) } else { (4, 2, 12, 4) };
        let at = usize::try_from(directory.number(first, word)?).ok()?;
        let entries = usize::try_from(directory.number(at, counted)?).ok()?;
        let start = at.checked_add(counted)?;
        file.get(start..start.checked_add(entries.checked_mul(long)?)?)?;
        for place in (start..).step_by(long).take(entries) {
            let (tag, kind) = (directory.number(place, 2)?, directory.number(place + 2, 2)?);
            let count = usize::try_from(directory.number(place + 4, word)?).ok()?;
            let size = match kind {
                1 | 7 => 1,
                3 => 2,
                4 | 13 => 4,
                16 | 18 => 8,
                _ => 0,
            };
            let value = place + 4 + word;
            let at = if count.checked_mul(size)? <= word {
                value
            } else {
                usize::try_from(directory.number(value, word)?).ok()?
            };
            directory.entries.push(Entry { tag, size, count, at });
        }
        Some(directory)
    }

    fn number(&self, at: usize, bytes: usize) -> Option<u64> {
        let raw = self.file.get(at..at.checked_add(bytes)?)?;
        let add = |sum: u64, &byte: &u8| sum << 8 | u64::from(byte);
        Some(if self.little { raw.iter().rev().fold(0, add) } else { raw.iter().fold(0, add) })
    }

    /// The values of a tag, none where it is not there; `None` where the file ends before they do.
    pub(super) fn values(&self, tag: u64) -> Option<Vec<u64>> {
        let Some(entry) = self.entries.iter().find(|entry| entry.tag == tag && entry.size > 0) else {
            return Some(Vec::new());
        };
        self.file.get(entry.at..entry.at.checked_add(entry.count.checked_mul(entry.size)?)?)?;
        (0..entry.count).map(|k| self.number(entry.at + k * entry.size, entry.size)).collect()
    }

    /// The first value of a tag, or `or` where there is none.
    pub(super) fn value(&self, tag: u64, or: u64) -> Option<u64> {
        Some(self.values(tag)?.first().copied().unwrap_or(or))
    }
}
