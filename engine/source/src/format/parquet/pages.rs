//! Pages looked at before room is made for them. Their headers say how many bytes and values they become; a kilobyte can
//! say billions. So what they say is held against what is stored: [`FREE_BYTES`], and [`BYTES_OF_ONE`] for each byte.

use std::io::{Read, Seek};
use std::mem::size_of;

use parquet::basic::{Encoding, Type as Physical};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::schema::types::ColumnDescriptor;

use super::units::{Far, Parsed, Unit, broken};

/// What the pages of one read may take in memory, however few bytes they have.
pub(super) const FREE_BYTES: u64 = 64 << 20;
/// What each stored byte may become beside that. Deflate makes at most 1,032 of one.
const BYTES_OF_ONE: u64 = 2048;
/// Rows that a file may have, however few bytes it has, and for each of its bytes: a row takes 16 bytes of memory.
const FREE_ROWS: u64 = 4 << 20;
const ROWS_OF_ONE: u64 = 64;
/// No header nests deeper.
const DEPTH_MAX: usize = 16;

/// # Errors
/// More rows than a file of so many bytes may have.
pub(super) fn check_rows(rows: u64, bytes: u64) -> Parsed<()> {
    let most = FREE_ROWS.saturating_add(bytes.saturating_mul(ROWS_OF_ONE));
    if rows <= most {
        return Ok(());
    }
    Err(broken(&format!(
        "it says that it has {rows} rows in {bytes} bytes, and {most} are the most that are believed of so few"
    )))
}

pub(super) fn within(takes: Option<u64>, stored: u64) -> Parsed<()> {
    let limit = FREE_BYTES.saturating_add(stored.saturating_mul(BYTES_OF_ONE));
    match takes {
        Some(takes) if takes <= limit => Ok(()),
        takes => Err(broken(&format!(
            "pages of {stored} bytes say that they become {} bytes, and {limit} are the most that are read of so few: write \
             smaller row groups",
            takes.map_or("2^64".to_owned(), |takes| takes.to_string())
        ))),
    }
}

/// What a page's header says.
struct Header {
    kind: i64,
    unpacked: u64,
    stored: u64,
    values: u64,
    /// Its own bytes.
    bytes: usize,
}

const DICTIONARY: i64 = 2;
const DATA: [i64; 2] = [0, 3];

/// Holds what the pages in `read` say against their bytes and the rows of `unit`. Answers what the largest becomes.
///
/// # Errors
/// Pages that say they become more than the limit, or that contradict themselves.
pub(super) fn check(read: &[u8], unit: &Unit, descr: &ColumnDescriptor) -> Parsed<u64> {
    let (value, least) = match descr.physical_type() {
        Physical::BYTE_ARRAY => (size_of::<ByteArray>() as u64, 4),
        Physical::INT64 | Physical::DOUBLE => (8, 8),
        Physical::BOOLEAN => (1, 1),
        _ => (4, 4),
    };
    let listed = descr.max_rep_level() > 0;
    let rows = u64::from(unit.skip) + u64::from(unit.rows);
    let (mut rest, mut values, mut stored, mut largest) = (read, 0u64, 0u64, 0);
    // Behind the last row there may be anything. Of lists nobody knows where that is.
    while !rest.is_empty() && (listed || values < rows) {
        let header = Header::of(rest).ok_or_else(|| broken("a page's header makes no sense"))?;
        let end = usize::try_from(header.stored).ok().and_then(|stored| stored.checked_add(header.bytes));
        let next = end.and_then(|end| rest.get(end..)).ok_or_else(|| broken("a page ends beyond its column"))?;
        within(Some(header.unpacked), header.stored)?;
        largest = header.unpacked.max(largest);
        if header.kind == DICTIONARY {
            if header.values.checked_mul(least).is_none_or(|least| least > header.unpacked) {
                let Header { values, unpacked, .. } = header;
                return Err(broken(&format!("a dictionary of {unpacked} bytes says that it has {values} values")));
            }
            within(
                header.values.checked_mul(value).and_then(|bytes| bytes.checked_add(header.unpacked)),
                header.stored,
            )?;
        } else if DATA.contains(&header.kind) {
            values = values.saturating_add(header.values);
            stored += header.stored + header.bytes as u64;
            if !listed && values > rows {
                return Err(broken(&format!("its pages have {values} values for {rows} rows")));
            }
            if listed {
                // Each has two levels of two bytes.
                within(values.checked_mul(value + 4), stored)?;
            }
        }
        rest = next;
    }
    Ok(largest)
}

impl Header {
    /// The header at the start of `bytes`; `None` for what is none.
    fn of(bytes: &[u8]) -> Option<Self> {
        let mut thrift = Thrift(bytes);
        let (mut kind, mut unpacked, mut stored, mut values) = (None, None, None, 0);
        thrift.fields(0, &mut |thrift, id, is| {
            match (id, is) {
                (1, 5) => kind = Some(thrift.int()?),
                (2, 5) => unpacked = Some(thrift.int()?),
                (3, 5) => stored = Some(thrift.int()?),
                // Of all kinds of pages the first field is the number of values.
                (5 | 7 | 8, 12) => thrift.fields(1, &mut |thrift, id, is| match (id, is) {
                    (1, 5) => {
                        values = thrift.int()?;
                        Some(())
                    }
                    _ => thrift.skip(is, 2),
                })?,
                _ => thrift.skip(is, 1)?,
            }
            Some(())
        })?;
        let count = |value: i64| u64::try_from(value).ok();
        Some(Self {
            kind: kind?,
            unpacked: count(unpacked?)?,
            stored: count(stored?)?,
            values: count(values)?,
            bytes: bytes.len() - thrift.0.len(),
        })
    }
}

/// Thrift's compact protocol.
struct Thrift<'a>(&'a [u8]);

impl Thrift<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn over(&mut self, bytes: u64) -> Option<()> {
        self.0 = self.0.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }

    fn count(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn int(&mut self) -> Option<i64> {
        let value = self.count()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Calls `each` with the number and the type of every field of a struct; it takes the field's value.
    fn fields(&mut self, depth: usize, each: &mut dyn FnMut(&mut Self, i64, u8) -> Option<()>) -> Option<()> {
        let mut id = 0i64;
        (depth <= DEPTH_MAX).then_some(())?;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            id = if head >> 4 == 0 { self.int()? } else { id.checked_add(i64::from(head >> 4))? };
            each(self, id, head & 15)?;
        }
    }

    fn skip(&mut self, is: u8, depth: usize) -> Option<()> {
        match is {
            1 | 2 => Some(()),
            3 => self.over(1),
            4..=6 => self.count().map(drop),
            7 => self.over(8),
            8 => {
                let bytes = self.count()?;
                self.over(bytes)
            }
            9 | 10 if depth <= DEPTH_MAX => {
                let head = self.byte()?;
                let elements = if head >> 4 == 15 { self.count()? } else { u64::from(head >> 4) };
                // A truth in a list is a byte, as are those of one byte.
                let of = if head & 15 <= 2 { 3 } else { head & 15 };
                (elements <= self.0.len() as u64).then_some(())?;
                (0..elements).try_for_each(|_| self.skip(of, depth + 1))
            }
            12 => self.fields(depth, &mut |thrift, _, is| thrift.skip(is, depth + 1)),
            // No header has maps.
            _ => None,
        }
    }
}

/// Whether a file that cannot be read says that it is encrypted, as a whole or some columns of it.
pub(super) fn is_encrypted<F: Read + Seek + Send>(file: &Far<F>) -> bool {
    let end = file.bytes.checked_sub(8).and_then(|start| Some((start, file.range(start, 8).ok()?)));
    let Some((start, end)) = end else { return false };
    let (length, magic) = end.split_at(4);
    let length = length.try_into().map_or(0, u32::from_le_bytes).into();
    let description = || start.checked_sub(length).and_then(|from| file.range(from, length).ok());
    match magic {
        b"PARE" => true,
        b"PAR1" => description().is_some_and(|description| names_encryption(&description)),
        _ => false,
    }
}

/// Whether a file's description names the algorithm that encrypts it or some of its columns: its field 8.
fn names_encryption(description: &[u8]) -> bool {
    let mut named = false;
    let mut thrift = Thrift(description);
    thrift.fields(0, &mut |thrift, id, is| {
        named |= id == 8;
        thrift.skip(is, 1)
    });
    named
}

/// Pages whose lists of lengths are as long as their header says: a decoder makes room for as many as they say. Those
/// without a value are passed over: some writers leave one, which decoders of lists take for the end.
pub(super) struct Checked<R> {
    pages: R,
    levels: [i16; 2],
}

impl<R: PageReader> Checked<R> {
    pub(super) fn new(pages: R, descr: &ColumnDescriptor) -> Self {
        Self { pages, levels: [descr.max_rep_level(), descr.max_def_level()] }
    }

    fn check(&self, page: &Page) -> Option<()> {
        let (body, encoding, values) = match page {
            Page::DataPage { buf, encoding, num_values, def_level_encoding, rep_level_encoding, .. } => {
                let mut body = Thrift(buf);
                for (most, encoded) in self.levels.into_iter().zip([rep_level_encoding, def_level_encoding]) {
                    let width = u64::from(i16::BITS - most.leading_zeros());
                    #[allow(deprecated)] // written by older programs
                    let bytes = match encoded {
                        _ if most == 0 => continue,
                        Encoding::BIT_PACKED => (u64::from(*num_values) * width).div_ceil(8),
                        _ => {
                            let bytes = body.0.first_chunk().copied().map(u32::from_le_bytes)?;
                            body.over(4)?;
                            u64::from(bytes)
                        }
                    };
                    body.over(bytes)?;
                }
                (body, encoding, *num_values)
            }
            Page::DataPageV2 { buf, encoding, num_values, def_levels_byte_len, rep_levels_byte_len, .. } => {
                let mut body = Thrift(buf);
                body.over(u64::from(*def_levels_byte_len) + u64::from(*rep_levels_byte_len))?;
                (body, encoding, *num_values)
            }
            Page::DictionaryPage { .. } => return Some(()),
        };
        let mut body = body;
        match encoding {
            // Without a value there may be no list either.
            _ if body.0.is_empty() => Some(()),
            Encoding::DELTA_LENGTH_BYTE_ARRAY => body.deltas(values.into()),
            Encoding::DELTA_BYTE_ARRAY => body.deltas(values.into()).and_then(|()| body.deltas(values.into())),
            _ => Some(()),
        }
    }
}

impl Thrift<'_> {
    /// Over a list of at most so many numbers, DELTA_BINARY_PACKED.
    fn deltas(&mut self, most: u64) -> Option<()> {
        let (block, parts, numbers) = (self.count()?, self.count()?, self.count()?);
        self.count()?;
        (numbers <= most).then_some(())?;
        let of_part = block.checked_div(parts).filter(|&of_part| of_part > 0)?;
        let mut left = numbers.saturating_sub(1);
        while left > 0 {
            self.count()?;
            let mut widths = self.0.get(..usize::try_from(parts).ok()?)?.iter();
            self.over(parts)?;
            while left > 0
                && let Some(&width) = widths.next()
            {
                self.over(of_part.checked_mul(u64::from(width))? / 8)?;
                left = left.saturating_sub(of_part);
            }
        }
        Some(())
    }
}

impl<R: PageReader> PageReader for Checked<R> {
    fn get_next_page(&mut self) -> Parsed<Option<Page>> {
        self.peek_next_page()?;
        let page = self.pages.get_next_page()?;
        if page.as_ref().is_some_and(|page| self.check(page).is_none()) {
            return Err(broken("a page has other lengths of its values than it has values"));
        }
        Ok(page)
    }
    fn peek_next_page(&mut self) -> Parsed<Option<PageMetadata>> {
        let empty = |page: &PageMetadata| !page.is_dict && (page.num_levels == Some(0) || page.num_rows == Some(0));
        while self.pages.peek_next_page()?.is_some_and(|page| empty(&page)) {
            self.pages.skip_next_page()?;
        }
        self.pages.peek_next_page()
    }
    fn skip_next_page(&mut self) -> Parsed<()> {
        self.pages.skip_next_page()
    }
    fn at_record_boundary(&mut self) -> Parsed<bool> {
        self.peek_next_page()?;
        self.pages.at_record_boundary()
    }
}

impl<R: PageReader> Iterator for Checked<R> {
    type Item = Result<Page, ParquetError>;
    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}
