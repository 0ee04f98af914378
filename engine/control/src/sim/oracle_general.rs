//! libCacheSim's oracleGeneral traces: what block stores, object caches and content networks were asked for.
//!
//! Binary, plain or gzip: records of 24 bytes, little-endian, without gaps: the time in seconds (u32), an object (u64),
//! its size in bytes (u32), and when it is asked for next (i64). There are no epochs, steps or losses in it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Read};

use flate2::bufread::MultiGzDecoder;

use super::Trace;
use super::trace::{Rows, dense};
use crate::error::{Error, Result};

const RECORD_BYTES: usize = 24;
/// Requests that are decided together. No request brings a score, so it makes no difference to what is counted.
const BATCH: usize = 256;

/// What a trace of this kind does not say, and how often it was taken as something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Requests with another size than their object's first one, which counts.
    pub other_sizes: u64,
    /// Requests of size 0, which counts as 1.
    pub empty: u64,
}

/// Reads such a trace of at most `rows_max` requests (never more than 2³² − 2), as one epoch without scores.
///
/// # Errors
/// `Source`, with the record, if it cannot be read, ends within a record, holds none, or is longer than that.
pub fn read_oracle_general(reader: impl Read, rows_max: usize) -> Result<(Trace, Taken)> {
    let mut reader = BufReader::with_capacity(1 << 16, reader);
    let head = reader.fill_buf().map_err(|e| Error::unreadable("cannot read it").because(e))?;
    // With the third byte, which says deflate: the first two alone may as well be a time.
    if head.starts_with(&[0x1f, 0x8b, 8]) {
        parse(BufReader::new(MultiGzDecoder::new(reader)), rows_max)
    } else {
        parse(reader, rows_max)
    }
}

fn parse(mut reader: impl BufRead, rows_max: usize) -> Result<(Trace, Taken)> {
    let rows_max = rows_max.min(u32::MAX as usize - 1);
    let mut objects: Vec<u64> = Vec::new();
    let mut sizes: HashMap<u64, u32> = HashMap::new();
    let mut taken = Taken::default();
    let mut record = [0; RECORD_BYTES];
    while next(&mut reader, &mut record, objects.len() + 1)? {
        if objects.len() == rows_max {
            return Err(Error::unreadable(format!("it has more than {rows_max} requests: replay a part of it")));
        }
        let object = u64::from_le_bytes(std::array::from_fn(|k| record[4 + k]));
        let size = u32::from_le_bytes(std::array::from_fn(|k| record[12 + k]));
        taken.empty += u64::from(size == 0);
        let size = size.max(1);
        taken.other_sizes += u64::from(*sizes.entry(object).or_insert(size) != size);
        objects.push(object);
    }
    if objects.is_empty() {
        return Err(Error::unreadable("it is empty: there is nothing to replay"));
    }
    let (ids, distinct) = dense(&objects);
    drop(objects);
    let rows = Rows {
        starts: (0..ids.len()).step_by(BATCH).map(|row| row as u32).collect(),
        epochs: vec![0],
        losses: vec![f32::NAN; ids.len()],
        bytes: Some(distinct.iter().map(|object| sizes.get(object).copied().unwrap_or(1)).collect()),
        samples: distinct.len(),
        ids,
    };
    Ok((Trace::of(rows), taken))
}

/// The next record, which is number `number`; `false` at the end.
fn next(reader: &mut impl BufRead, record: &mut [u8; RECORD_BYTES], number: usize) -> Result<bool> {
    let cut = |e: std::io::Error| {
        Error::unreadable(format!("record {number}: cannot read on (is the file cut short?)")).because(e)
    };
    if reader.fill_buf().map_err(cut)?.is_empty() {
        return Ok(false);
    }
    reader.read_exact(record).map(|()| true).map_err(|e| match e.kind() {
        ErrorKind::UnexpectedEof => Error::unreadable(format!(
            "record {number}: it ends within it: an oracleGeneral trace has {RECORD_BYTES} bytes a request, uncompressed or gzip"
        )),
        _ => cut(e),
    })
}
