//! Recorded runs as CSV.
//!
//! Plain or gzip, header `epoch,step,id,loss` or `epoch,step,id,loss,bytes`; one row a delivered sample, in order.
//! Empty lines mean nothing. The rows of one (epoch, step) are a batch and stand together; (epoch, step) never goes
//! back. `bytes` (1 to 4294967295) is the sample's size, the same in every row of an id. A loss is a finite number; left
//! empty, the row is an access without a score.
//!
//! A trace comes from anywhere, so reading one is bounded in every direction: by rows, by bytes a line, and ids are
//! numbered densely (in their own order), so that one huge id costs nothing.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use lossfeed_control::sim::{Rows, Trace, dense};
use lossfeed_control::{Error, Result};

use crate::ShortLines;

/// Rows worth reading from an unknown file. A row takes 12 bytes once it is read, 4 more where it begins a batch, and
/// 16 while rows are read and ids numbered; a size takes another 20 or so for each distinct sample meanwhile. So 3 to
/// 4 GiB, 6 on the way, and 10 on the way if every row is another sample with a size.
pub const ROWS_MAX: usize = 1 << 28;
const COLUMNS: [&str; 5] = ["epoch", "step", "id", "loss", "bytes"];
const HEADERS: &str = "epoch,step,id,loss or epoch,step,id,loss,bytes";
/// The longest row with every number at its widest is well below this.
const LINE_BYTES_MAX: usize = 256;

/// Reads a trace, gzip or not (told by its first bytes, not by a name), of at most `rows_max` rows (never more than
/// 2³² − 2).
///
/// # Errors
/// `Source`, with the line, if it cannot be read or a row is not as the format says.
pub fn read_trace(reader: impl Read, rows_max: usize) -> Result<Trace> {
    let mut reader = BufReader::with_capacity(1 << 16, reader);
    let head = reader.fill_buf().map_err(|e| Error::unreadable("cannot read it").because(e))?;
    if head.starts_with(&[0x1f, 0x8b]) { parse(MultiGzDecoder::new(reader), rows_max) } else { parse(reader, rows_max) }
}

fn parse(reader: impl Read, rows_max: usize) -> Result<Trace> {
    let rows_max = rows_max.min(u32::MAX as usize - 1);
    let reader = ShortLines::new(reader, LINE_BYTES_MAX);
    // Ended by line feeds alone, so that lines are numbered right; a carriage return before one is trimmed.
    let mut lines = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .quoting(false)
        .terminator(csv::Terminator::Any(b'\n'))
        .trim(csv::Trim::All)
        .from_reader(reader);
    let mut record = csv::StringRecord::new();
    if !next_line(&mut lines, &mut record)? {
        return Err(Error::unreadable(format!("it is empty: the first line must be {HEADERS}")));
    }
    let columns = record.len();
    if record != COLUMNS[..4] && record != COLUMNS[..] {
        let found = record.iter().collect::<Vec<_>>().join(",");
        return Err(Error::unreadable(format!("line 1: the header is {found:?}: it must be {HEADERS}")));
    }
    let mut trace = Rows::default();
    let mut sizes: HashMap<u32, u32> = HashMap::new();
    let mut at: Option<(u32, u32)> = None;
    while next_line(&mut lines, &mut record)? {
        let number = record.position().map_or(0, csv::Position::line);
        if trace.ids.len() == rows_max {
            return Err(Error::unreadable(format!(
                "line {number}: it has more than {rows_max} rows: replay a part of it"
            )));
        }
        let row = Row::parse(&record, columns).map_err(|what| Error::unreadable(format!("line {number}: {what}")))?;
        let here = (row.epoch, row.step);
        if at != Some(here) {
            if let Some(before) = at.filter(|&before| before > here) {
                return Err(Error::unreadable(format!(
                    "line {number}: epoch {} step {} comes after epoch {} step {}: a batch's rows must stand together and in order",
                    here.0, here.1, before.0, before.1
                )));
            }
            if at.is_none_or(|before| before.0 != here.0) {
                trace.epochs.push(trace.starts.len() as u32);
            }
            trace.starts.push(trace.ids.len() as u32);
            at = Some(here);
        }
        if let Some(bytes) = row.bytes {
            let before = *sizes.entry(row.id).or_insert(bytes);
            if before != bytes {
                return Err(Error::unreadable(format!(
                    "line {number}: sample {} takes {bytes} bytes here and {before} before: a sample has one size",
                    row.id
                )));
            }
        }
        trace.ids.push(row.id);
        trace.losses.push(row.loss);
    }
    if trace.ids.is_empty() {
        return Err(Error::unreadable("it has a header and no rows: there is nothing to replay"));
    }
    let distinct;
    (trace.ids, distinct) = dense(&trace.ids);
    trace.samples = distinct.len();
    if columns == 5 {
        trace.bytes = Some(distinct.iter().map(|id| sizes.get(id).copied().unwrap_or(1)).collect());
    }
    Ok(Trace::of(trace))
}

/// The next line that is not empty; `false` at the end of the file.
///
/// # Errors
/// `Source`, with the line, if it is too long, no text, or cannot be read.
pub fn next_line(lines: &mut csv::Reader<ShortLines<impl Read>>, record: &mut csv::StringRecord) -> Result<bool> {
    loop {
        let number = lines.position().line();
        match lines.read_record(record) {
            Ok(true) if record.len() == 1 && record[0].is_empty() => {}
            Ok(more) => return Ok(more),
            Err(e) => {
                return Err(match (lines.get_ref().too_long(), e.is_io_error()) {
                    (Some(number), _) => Error::unreadable(format!(
                        "line {number}: it is longer than {} bytes",
                        lines.get_ref().longest()
                    )),
                    (None, true) => {
                        Error::unreadable(format!("line {number}: cannot read on (is the file cut short?)")).because(e)
                    }
                    (None, false) => Error::unreadable(format!("line {number}: it is not text")),
                });
            }
        }
    }
}

struct Row {
    epoch: u32,
    step: u32,
    id: u32,
    loss: f32,
    bytes: Option<u32>,
}

impl Row {
    fn parse(record: &csv::StringRecord, columns: usize) -> Result<Self, String> {
        if record.len() != columns {
            let line = record.iter().collect::<Vec<_>>().join(",");
            return Err(format!("{} columns where the header has {columns}: {line:?}", record.len()));
        }
        let mut fields = record.iter();
        let mut next = || fields.next().unwrap_or_default();
        let row = Self {
            epoch: whole("epoch", next())?,
            step: whole("step", next())?,
            id: whole("id", next())?,
            loss: loss(next())?,
            bytes: if columns == 5 { Some(whole("bytes", next())?) } else { None },
        };
        if row.bytes == Some(0) {
            return Err("bytes is 0: a sample takes at least 1".into());
        }
        Ok(row)
    }
}

fn whole(name: &str, text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{name} is {text:?}: a whole number from 0 to {} is needed", u32::MAX))
}

/// NaN where there is none.
fn loss(text: &str) -> Result<f32, String> {
    if text.is_empty() {
        return Ok(f32::NAN);
    }
    let wrong = || format!("loss is {text:?}: a finite number is needed, or nothing where the row has no loss");
    text.parse().ok().filter(|loss: &f32| loss.is_finite()).ok_or_else(wrong)
}
