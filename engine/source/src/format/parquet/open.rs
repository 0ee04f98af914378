//! Parquet files looked at: their descriptions, where rows lie, and all labels.

use std::io::{Read, Seek};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::file::metadata::ParquetMetaData;

use super::schema::{Column, Schema};
use super::units::{self, Far, Unit};
use super::{decode, pages};
use crate::error::{Error, Result};
use crate::format::catalog::Shard;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What one file holds.
pub(crate) struct Looked {
    pub(super) shard: Shard,
    pub(super) schema: Schema,
    pub(super) rows: u64,
    /// Of each column that is kept, in their order.
    pub(super) units: Vec<Vec<Unit>>,
    pub(super) labels: Vec<i64>,
    /// What the kept columns take, about, once they are decompressed.
    pub(super) bytes: u64,
}

/// Looks at the file `shard` through `file`, for the columns `fields` or, if there are none, for what it is made of.
///
/// # Errors
/// `Source` for a file that is no whole Parquet; `Settings` for columns that cannot be delivered; `Sample` for a missing
/// label.
pub(crate) fn look<F: Read + Seek + Send>(file: F, shard: Shard, fields: &[String]) -> Result<Looked> {
    let what = shard.path.clone();
    // The library is held to be sound, but files are not, and a panic of it must not end the process.
    let looked = catch_unwind(AssertUnwindSafe(|| look_at(file, shard, fields)));
    looked.unwrap_or_else(|_| Err(unreadable(&what, "its description makes the decoder fail")))
}

fn look_at<F: Read + Seek + Send>(file: F, shard: Shard, fields: &[String]) -> Result<Looked> {
    let file = Arc::new(Far::new(file, shard.bytes));
    let unread = |why: &str| match pages::is_encrypted(&file) {
        true => Error::unreadable(format!(
            "{}: encrypted Parquet is not read: write it without encryption, or name columns that are not encrypted with fields=",
            shard.path
        )),
        false => unreadable(&shard.path, why),
    };
    let broken = |e: parquet::errors::ParquetError| unread(&e.to_string());
    let metadata = units::metadata(&file).map_err(broken)?;
    let rows: u64 = metadata
        .row_groups()
        .iter()
        .map(|group| u64::try_from(group.num_rows()).unwrap_or(0))
        .fold(0, u64::saturating_add);
    pages::check_rows(rows, shard.bytes).map_err(broken)?;
    let schema = Schema::of(metadata.file_metadata(), fields, &shard.path)?;
    for column in schema.kept.iter().chain(&schema.label) {
        let mut codecs =
            metadata.row_groups().iter().filter_map(|group| Some(group.columns().get(column.leaf)?.compression()));
        if let Some(codec) = codecs.find(|codec| matches!(codec, Compression::BROTLI(_) | Compression::LZO)) {
            let codec = if codec == Compression::LZO { "LZO" } else { "Brotli" };
            return Err(Error::unreadable(format!(
                "{}: column {:?} is compressed by {codec}, which is not read: write it with Zstandard, Snappy or gzip, or name other columns with fields=",
                shard.path, column.name
            )));
        }
    }
    let units_of = |column: &Column| units::units(&file, &metadata, column.leaf).map_err(broken);
    let units = schema.kept.iter().map(units_of).collect::<Result<Vec<_>>>()?;
    let mut labels = Vec::new();
    if let Some(column) = &schema.label {
        // Pages behind one dictionary are read together: each alone would read all before it again.
        let mut units = units_of(column)?;
        units.dedup_by(|next, first| {
            let together = next.offset == first.offset;
            if together {
                first.bytes = next.bytes;
                first.rows = next.skip.saturating_add(next.rows);
            }
            together
        });
        for unit in units {
            let read = file.range(unit.offset, unit.bytes).map_err(broken)?;
            if !decode::labels(column, &unit, read, &mut labels).map_err(|e| unread(&e))? {
                return Err(Error::sample(format!(
                    "row {} of {} has no {}: give every row a class number, or name other columns with fields=",
                    labels.len(),
                    shard.path,
                    column.name
                )));
            }
        }
    }
    let bytes = schema.kept.iter().map(|column| uncompressed(&metadata, column.leaf)).sum();
    Ok(Looked { rows, units, labels, bytes, schema, shard })
}

fn uncompressed(metadata: &ParquetMetaData, leaf: usize) -> u64 {
    let chunks = metadata.row_groups().iter().filter_map(|group| group.columns().get(leaf));
    chunks.map(|chunk| u64::try_from(chunk.uncompressed_size()).unwrap_or(0)).fold(0, u64::saturating_add)
}

fn unreadable(what: &str, why: &str) -> Error {
    Error::unreadable(format!("{what} cannot be read as a Parquet file: {why}; make or download it again"))
}
