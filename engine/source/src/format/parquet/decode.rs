//! Values of a column, from the bytes of its pages.

use bytes::Bytes;
use parquet::basic::Type as Physical;
use parquet::column::reader::{ColumnReaderImpl, get_column_reader, get_typed_column_reader};
use parquet::data_type::{BoolType, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::pages::{self, Checked};
use super::schema::Column;
use super::units::Unit;

/// A row's value: its bytes, and how many elements they are where that differs from row to row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) bytes: Vec<u8>,
    pub(super) length: Option<u64>,
}

/// The most rows that are decoded at a time; of these the wanted ones are kept.
const BLOCK_ROWS: u64 = 1024;

/// The values of the rows `wanted` of a unit, ascending, from what was read of it; `None` for what is null.
///
/// # Errors
/// What is wrong with the pages, in words. A library that panics on them says so too.
pub(super) fn cells(column: &Column, unit: &Unit, read: Bytes, wanted: &[u32]) -> Result<Vec<Option<Cell>>, String> {
    let (mut cells, mut total, stored) = (Vec::with_capacity(wanted.len()), 0, read.len() as u64);
    each(column, unit, read, &mut wanted.iter().copied(), &mut |cell| {
        total += cell.as_ref().map_or(0, |cell| cell.bytes.len() as u64);
        pages::within(Some(total), stored)?;
        cells.push(cell);
        Ok(())
    })?;
    Ok(cells)
}

/// Adds the numbers of a column of labels to `labels`. False if a row has none: it is the one behind the last added.
pub(super) fn labels(column: &Column, unit: &Unit, read: Bytes, labels: &mut Vec<i64>) -> Result<bool, String> {
    let number = |cell: Cell| match cell.bytes.as_slice() {
        bytes if bytes.len() == 4 => bytes.try_into().ok().map(i32::from_ne_bytes).map(i64::from),
        bytes => bytes.try_into().ok().map(i64::from_ne_bytes),
    };
    let mut all = true;
    each(column, unit, read, &mut (0..unit.rows), &mut |cell| {
        match cell.and_then(number) {
            Some(label) if all => labels.push(label),
            _ => all = false,
        }
        Ok(())
    })?;
    Ok(all)
}

/// The numbers of the rows that are wanted, ascending.
type Rows<'a> = &'a mut dyn Iterator<Item = u32>;
/// Is called with the value of each of them.
type Each<'a> = &'a mut dyn FnMut(Option<Cell>) -> Result<(), ParquetError>;

fn each(column: &Column, unit: &Unit, read: Bytes, wanted: Rows<'_>, each: Each<'_>) -> Result<(), String> {
    let decoded = catch_unwind(AssertUnwindSafe(|| decode(column, unit, read, wanted, each)));
    match decoded {
        Ok(decoded) => decoded.map_err(|e| e.to_string()),
        Err(_) => Err("its pages make their decoder fail".to_owned()),
    }
}

fn decode(column: &Column, unit: &Unit, read: Bytes, wanted: Rows<'_>, each: Each<'_>) -> Result<(), ParquetError> {
    let largest = pages::check(&read, unit, &column.descr)?;
    // Texts that go on from the one before are each made whole, up to a page's size.
    let at_once = (pages::FREE_BYTES / largest.max(1)).clamp(1, BLOCK_ROWS) as usize;
    let block = &Block { unit, rows: at_once };
    // As if what was read were a whole column.
    let chunk = ColumnChunkMetaData::builder(column.descr.clone())
        .set_compression(unit.codec)
        .set_data_page_offset(0)
        .set_total_compressed_size(read.len() as i64)
        .build()?;
    let pages = Checked::new(SerializedPageReader::new(Arc::new(read), &chunk, 0, None)?, &column.descr);
    let reader = get_column_reader(column.descr.clone(), Box::new(pages));
    match column.descr.physical_type() {
        Physical::BYTE_ARRAY => {
            let copied = |values: &[parquet::data_type::ByteArray], into: &mut Vec<u8>| {
                values.iter().for_each(|value| into.extend_from_slice(value.data()));
            };
            rows::<ByteArrayType>(get_typed_column_reader(reader), column, block, wanted, copied, each)
        }
        Physical::BOOLEAN => {
            let copied = |values: &[bool], into: &mut Vec<u8>| into.extend(values.iter().map(|&value| u8::from(value)));
            rows::<BoolType>(get_typed_column_reader(reader), column, block, wanted, copied, each)
        }
        Physical::INT32 => numbers::<Int32Type>(get_typed_column_reader(reader), column, block, wanted, each),
        Physical::INT64 => numbers::<Int64Type>(get_typed_column_reader(reader), column, block, wanted, each),
        Physical::FLOAT => numbers::<FloatType>(get_typed_column_reader(reader), column, block, wanted, each),
        Physical::DOUBLE => numbers::<DoubleType>(get_typed_column_reader(reader), column, block, wanted, each),
        other => Err(ParquetError::General(format!("columns of {other} are not delivered"))),
    }
}

/// A unit, and how many of its rows are decoded at a time.
struct Block<'a> {
    unit: &'a Unit,
    rows: usize,
}

fn numbers<T: DataType<T: bytemuck::Pod>>(
    reader: ColumnReaderImpl<T>,
    column: &Column,
    block: &Block<'_>,
    wanted: Rows<'_>,
    each: Each<'_>,
) -> Result<(), ParquetError> {
    let copied = |values: &[T::T], into: &mut Vec<u8>| into.extend_from_slice(bytemuck::cast_slice(values));
    rows(reader, column, block, wanted, copied, each)
}

fn rows<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    column: &Column,
    block: &Block<'_>,
    wanted: Rows<'_>,
    copy: impl Fn(&[T::T], &mut Vec<u8>),
    each: Each<'_>,
) -> Result<(), ParquetError> {
    let general = |what: &str| ParquetError::General(what.to_owned());
    let (most, listed) = (column.descr.max_def_level(), column.descr.max_rep_level() > 0);
    let skip = block.unit.skip as usize;
    let all = skip + block.unit.rows as usize;
    let mut wanted = wanted.map(|row| row as usize + skip).peekable();
    let (mut defined, mut repeated, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let mut found = 0;
    while found < all {
        defined.clear();
        repeated.clear();
        values.clear();
        let block = block.rows.min(all - found);
        let (records, ..) = reader.read_records(block, Some(&mut defined), Some(&mut repeated), &mut values)?;
        if records == 0 {
            return Err(general("its pages end before their last row"));
        }
        if most == 0 {
            defined.resize(records.max(values.len()), 0);
        }
        let (mut level, mut value) = (0, 0);
        for row in found..found + records {
            let (first_level, first_value) = (level, value);
            // The levels of one row: all that repeat.
            while level < defined.len()
                && (level == first_level || (listed && repeated.get(level).is_some_and(|&r| r > 0)))
            {
                value += usize::from(defined[level] == most);
                level += 1;
            }
            if wanted.next_if_eq(&row).is_none() {
                continue;
            }
            let own =
                values.get(first_value..value).ok_or_else(|| general("its pages have fewer values than they say"))?;
            let mut bytes = Vec::new();
            copy(own, &mut bytes);
            if !listed {
                let length = column.kind.dtype().is_none().then_some(bytes.len() as u64);
                each((!own.is_empty()).then_some(Cell { bytes, length }))?;
                continue;
            }
            // A list without elements has one level, a null a lower one, and an element that is null one between.
            let levels = defined.get(first_level..level).unwrap_or_default();
            if levels.is_empty() {
                return Err(general("its pages have fewer rows than they say"));
            }
            let whole = levels.iter().all(|&level| level == most || level == column.empty);
            each(whole.then_some(Cell { bytes, length: Some(own.len() as u64) }))?;
        }
        found += records;
    }
    Ok(())
}
