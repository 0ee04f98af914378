//! PAX records of a member, and of all members after them.

use std::io;

use super::fields::{invalid, unsupported};
use super::sparse::Map;

/// What the records say of the next member.
#[derive(Debug, Clone, Default)]
pub(super) struct Extended {
    path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    sparse: Sparse,
}

/// GNU's records of a sparse file, of formats 0.0, 0.1 and 1.0.
#[derive(Debug, Clone, Default)]
struct Sparse {
    /// The header's is another one then.
    name: Option<Vec<u8>>,
    bytes: Option<u64>,
    /// 0.0: an offset and a length, over and over. 0.1: all of them in one.
    numbers: Option<Vec<u64>>,
    /// 1.0: the map lies before the bytes.
    version: [Option<u64>; 2],
}

impl Extended {
    /// Adds records: `LENGTH KEY=VALUE` and a line's end, one after the other.
    pub(super) fn add(&mut self, records: &[u8]) -> io::Result<()> {
        let mut rest = records;
        while rest.first().is_some_and(|&byte| byte != 0) {
            let (key, value, after) = record(rest).ok_or_else(|| invalid("its PAX records make no sense"))?;
            rest = after;
            let text = || Some(value.to_vec()).filter(|value| !value.is_empty());
            let number = || {
                let text = std::str::from_utf8(value).ok();
                let number = text.and_then(|text| text.trim().parse().ok());
                number.map(Some).ok_or_else(|| invalid("a PAX record that should hold a number holds none"))
            };
            match key {
                b"path" => self.path = text(),
                b"linkpath" => self.link = text(),
                b"size" => self.size = number()?,
                b"GNU.sparse.name" => self.sparse.name = text(),
                b"GNU.sparse.size" | b"GNU.sparse.realsize" => self.sparse.bytes = number()?,
                b"GNU.sparse.major" => self.sparse.version[0] = number()?,
                b"GNU.sparse.minor" => self.sparse.version[1] = number()?,
                b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                    self.sparse.numbers.get_or_insert_default().extend(number()?);
                }
                b"GNU.sparse.map" => {
                    let numbers = std::str::from_utf8(value).unwrap_or_default().split(',').map(|n| n.trim().parse());
                    let numbers: Result<Vec<u64>, _> = numbers.collect();
                    self.sparse.numbers = Some(numbers.map_err(|_| invalid("a sparse map is malformed"))?);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Global records describe no sparse file: the numbers of several would add up without a bound.
    pub(super) fn forget_sparse(&mut self) {
        self.sparse = Sparse::default();
    }

    pub(super) fn name(&self) -> Option<Vec<u8>> {
        self.sparse.name.clone().or_else(|| self.path.clone())
    }

    /// The map of a sparse file, where the records hold it.
    pub(super) fn map(&self) -> io::Result<Option<Map>> {
        match (&self.sparse.numbers, self.sparse.version) {
            (_, [Some(1), Some(0)]) => Ok(None),
            (_, [Some(major), minor]) if major > 0 => Err(unsupported(format!(
                "a sparse file of format {major}.{}: write the archive without --sparse",
                minor.unwrap_or(0)
            ))),
            (Some(numbers), _) => {
                let parts = numbers.as_chunks::<2>();
                let bytes = self.sparse.bytes.ok_or_else(|| invalid("a sparse file does not say how long it is"))?;
                parts.1.is_empty().then_some(()).ok_or_else(|| invalid("a sparse map is malformed"))?;
                Ok(Some(Map { bytes, parts: parts.0.iter().map(|&[at, bytes]| (at, bytes)).collect() }))
            }
            _ => Ok(None),
        }
    }

    /// Whether the map of a sparse file lies before its bytes.
    pub(super) fn is_mapped_within(&self) -> bool {
        self.sparse.version == [Some(1), Some(0)]
    }

    /// The length of a sparse file of which `stored` bytes are in the archive.
    pub(super) fn real_bytes(&self, stored: u64) -> u64 {
        self.sparse.bytes.unwrap_or(stored)
    }
}

/// Key and value of the first record, and what comes after it.
fn record(records: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = records.iter().position(|&byte| byte == b' ')?;
    let length: usize = std::str::from_utf8(records.get(..space)?).ok()?.parse().ok()?;
    let (record, after) = records.split_at_checked(length)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|&byte| byte == b'=')?;
    Some((record.get(..equals)?, record.get(equals + 1..)?, after))
}
