//! Where a column's rows lie: what must be read to have some of them.
//!
//! A column chunk is cut into pages, each compressed by itself; a page is the least that can be read. Where a chunk
//! begins with a dictionary, its first pages need that too, and are read with it and with all between. The file's page
//! index says where pages lie, or, without one, a walk over their headers.

use bytes::Bytes;
use lossfeed_sync::Mutex;
use parquet::basic::{Compression, Encoding, PageType};
use parquet::column::page::PageReader;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaDataOptions, ParquetMetaDataReader};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Rows of one column that are read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Rows that are read before those that are meant.
    pub(super) skip: u32,
    /// Those that are meant.
    pub(super) rows: u32,
    pub(super) codec: Compression,
}

/// A page of data: where it lies and how many rows it has.
#[derive(Debug, Clone, Copy)]
struct DataPage {
    start: u64,
    end: u64,
    rows: u64,
}

pub(super) type Parsed<T> = Result<T, ParquetError>;

pub(super) fn broken(what: &str) -> ParquetError {
    ParquetError::General(what.to_owned())
}

/// A file as the Parquet library reads it.
pub(super) struct Far<F> {
    file: Arc<Mutex<F>>,
    pub(super) bytes: u64,
    /// Where the last header was asked for: the library's page reader tells no offsets.
    asked: AtomicU64,
}

impl<F: Read + Seek + Send> Far<F> {
    pub(super) fn new(file: F, bytes: u64) -> Self {
        Self { file: Arc::new(Mutex::new(file)), bytes, asked: AtomicU64::new(0) }
    }

    /// All bytes of a range.
    pub(super) fn range(&self, start: u64, bytes: u64) -> Parsed<Bytes> {
        if start.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(broken(&format!("{bytes} bytes at {start} lie beyond its end")));
        }
        let mut read = vec![0; bytes as usize];
        let mut file = self.file.lock();
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut read)?;
        Ok(read.into())
    }
}

impl<F: Send> Length for Far<F> {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl<F: Read + Seek + Send> ChunkReader for Far<F> {
    type T = Onward<F>;

    fn get_read(&self, start: u64) -> Parsed<Onward<F>> {
        self.asked.store(start, Relaxed);
        Ok(Onward { file: self.file.clone(), at: start })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Parsed<Bytes> {
        self.range(start, length as u64)
    }
}

/// The file from somewhere on.
pub(super) struct Onward<F> {
    file: Arc<Mutex<F>>,
    at: u64,
}

impl<F: Read + Seek> Read for Onward<F> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let mut file = self.file.lock();
        file.seek(SeekFrom::Start(self.at))?;
        let got = file.read(buf)?;
        self.at += got as u64;
        Ok(got)
    }
}

/// The file's description of itself, page index included.
pub(super) fn metadata<F: Read + Seek + Send>(file: &Far<F>) -> Parsed<ParquetMetaData> {
    // How many pages have which encoding says which of them need the dictionary.
    let options = ParquetMetaDataOptions::new().with_encoding_stats_as_mask(false);
    ParquetMetaDataReader::new()
        .with_offset_index_policy(PageIndexPolicy::Optional)
        .with_metadata_options(Some(options))
        .parse_and_finish(file)
}

/// What is read of the column `leaf`, in the order of rows, row group after row group.
pub(super) fn units<F: Read + Seek + Send>(
    file: &Arc<Far<F>>,
    metadata: &ParquetMetaData,
    leaf: usize,
) -> Parsed<Vec<Unit>> {
    let mut units = Vec::new();
    for (number, group) in metadata.row_groups().iter().enumerate() {
        let rows = u64::try_from(group.num_rows()).map_err(|_| broken("a row group has less than no rows"))?;
        let chunk = group.columns().get(leaf).ok_or_else(|| broken("a row group lacks a column"))?;
        if chunk.compressed_size() < 0
            || chunk.data_page_offset() < 0
            || chunk.dictionary_page_offset().is_some_and(|o| o < 0)
        {
            return Err(broken("a column begins before the file's start"));
        }
        if rows == 0 {
            continue;
        }
        let index = metadata.page_index_for_row_group(number);
        let located = index.offset_index(leaf).map(|index| index.page_locations().as_slice());
        units.extend(of_chunk(file, chunk, located, rows)?);
    }
    Ok(units)
}

fn of_chunk<F: Read + Seek + Send>(
    file: &Arc<Far<F>>,
    chunk: &ColumnChunkMetaData,
    located: Option<&[PageLocation]>,
    rows: u64,
) -> Parsed<Vec<Unit>> {
    let (start, bytes) = chunk.byte_range();
    let end = start
        .checked_add(bytes)
        .filter(|&end| end <= file.len())
        .ok_or_else(|| broken("a column ends beyond the file"))?;
    let (pages, dictionary) = match located {
        Some(locations) if !locations.is_empty() => located_pages(locations, start, end, rows)?,
        // Rows of lists may go on from page to page, and headers do not count them.
        _ if chunk.column_descr().max_rep_level() > 0 => (vec![DataPage { start, end, rows }], true),
        _ => walked_pages(file, chunk, end)?,
    };
    if pages.iter().map(|page| page.rows).sum::<u64>() != rows {
        return Err(broken("its pages have other rows than their row group"));
    }
    let encoded = if dictionary { pages_of_dictionary(chunk).unwrap_or(pages.len()) } else { 0 };
    let mut before = 0;
    let unit = |(number, page): (usize, &DataPage)| {
        let from = if number < encoded { start } else { page.start };
        let skip = if number < encoded { before } else { 0 };
        before += page.rows;
        let counted =
            |rows: u64| u32::try_from(rows).map_err(|_| broken("a row group has more than four billion rows"));
        Ok(Unit {
            offset: from,
            bytes: page.end - from,
            skip: counted(skip)?,
            rows: counted(page.rows)?,
            codec: chunk.compression(),
        })
    };
    pages.iter().enumerate().map(unit).collect()
}

fn located_pages(locations: &[PageLocation], start: u64, end: u64, rows: u64) -> Parsed<(Vec<DataPage>, bool)> {
    let mut pages = Vec::with_capacity(locations.len());
    for (number, location) in locations.iter().enumerate() {
        let next = locations.get(number + 1).map_or(Ok(rows), |next| u64::try_from(next.first_row_index));
        let page = u64::try_from(location.offset).ok().zip(u64::try_from(location.compressed_page_size).ok());
        let first = u64::try_from(location.first_row_index).ok();
        let (Some((from, bytes)), Some(first), Ok(next)) = (page, first, next) else {
            return Err(broken("its page index counts below zero"));
        };
        let until = from.checked_add(bytes).filter(|&until| from >= start && until <= end);
        let (Some(until), Some(rows)) = (until, next.checked_sub(first)) else {
            return Err(broken("its page index names pages outside of their column"));
        };
        pages.push(DataPage { start: from, end: until, rows });
    }
    let dictionary = pages.first().is_some_and(|first| first.start > start);
    Ok((pages, dictionary))
}

/// Looks at the header of every page.
fn walked_pages<F: Read + Seek + Send>(
    file: &Arc<Far<F>>,
    chunk: &ColumnChunkMetaData,
    end: u64,
) -> Parsed<(Vec<DataPage>, bool)> {
    let mut reader = SerializedPageReader::new(file.clone(), chunk, 0, None)?;
    let (mut pages, mut dictionary): (Vec<DataPage>, bool) = (Vec::new(), false);
    while let Some(page) = reader.peek_next_page()? {
        let start = file.asked.load(Relaxed);
        if let Some(last) = pages.last_mut() {
            last.end = start;
        }
        if page.is_dict {
            dictionary = true;
        } else {
            let rows =
                page.num_rows.or(page.num_levels).ok_or_else(|| broken("a page does not say how many rows it has"))?;
            pages.push(DataPage { start, end, rows: rows as u64 });
        }
        reader.skip_next_page()?;
    }
    Ok((pages, dictionary))
}

/// How many pages of a chunk are encoded by its dictionary: they come first. `None` where nothing says so.
fn pages_of_dictionary(chunk: &ColumnChunkMetaData) -> Option<usize> {
    let stats = chunk.page_encoding_stats()?;
    #[allow(deprecated)] // written by older programs
    let encoded = stats.iter().filter(|stats| {
        matches!(stats.page_type, PageType::DATA_PAGE | PageType::DATA_PAGE_V2)
            && matches!(stats.encoding, Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY)
    });
    encoded.map(|stats| usize::try_from(stats.count).ok()).sum()
}
