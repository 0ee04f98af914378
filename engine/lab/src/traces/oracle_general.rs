//! libCacheSim's oracleGeneral traces: what block stores, object caches and content networks were asked for.
//!
//! Binary, plain or gzip: records of 24 bytes, little-endian, without gaps: the time in seconds (u32), an object (u64),
//! its size in bytes (u32), and when it is asked for next (i64). There are no epochs, steps or losses in it.

use std::io::{BufRead, BufReader, ErrorKind, Read};

use flate2::bufread::MultiGzDecoder;

use lossfeed_control::sim::Trace;
use lossfeed_control::{Error, Result};

use super::object_requests::{ObjectRequests, Taken};

const RECORD_BYTES: usize = 24;

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
    let mut requests = ObjectRequests::new(rows_max);
    let mut record = [0; RECORD_BYTES];
    while next(&mut reader, &mut record, requests.len() + 1)? {
        let object = u64::from_le_bytes(std::array::from_fn(|k| record[4 + k]));
        let size = u32::from_le_bytes(std::array::from_fn(|k| record[12 + k]));
        requests.add(object, size)?;
    }
    requests.trace(true)
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
