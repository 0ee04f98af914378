//! A recorded run: who was delivered when, and at what loss.
//!
//! CSV, plain or gzip, header `epoch,step,id,loss` or `epoch,step,id,loss,bytes`; one row a delivered sample, in order.
//! Empty lines mean nothing. The rows of one (epoch, step) are a batch and stand together; (epoch, step) never goes
//! back. `bytes` (1 to 4294967295) is the sample's size, the same in every row of an id. A loss is a finite number; left
//! empty, the row is an access without a score.
//!
//! A trace comes from anywhere, so reading one is bounded in every direction: by rows, by bytes a line, and ids are
//! numbered densely (in their own order), so that one huge id costs nothing.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;

use flate2::bufread::MultiGzDecoder;
use lossfeed_kernels::rank;

use super::ShortLines;
use super::population::{Ages, Population};
use crate::error::{Error, Result};
use crate::types::SampleId;

/// Rows worth reading from an unknown file. A row takes 12 bytes once it is read, 4 more where it begins a batch, and
/// 16 while rows are read and ids numbered; a size takes another 20 or so for each distinct sample meanwhile. So 3 to
/// 4 GiB, 6 on the way, and 10 on the way if every row is another sample with a size.
pub const ROWS_MAX: usize = 1 << 28;
const COLUMNS: [&str; 5] = ["epoch", "step", "id", "loss", "bytes"];
const HEADERS: &str = "epoch,step,id,loss or epoch,step,id,loss,bytes";
/// The longest row with every number at its widest is well below this.
const LINE_BYTES_MAX: usize = 256;

/// The offset of SHADE Eq. 6 in its authors' code; the paper leaves it open.
pub(super) const B0: f32 = 10.0;

/// A recorded run in memory: 12 bytes a row, 4 a batch, and 4 a distinct sample where it has sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    pub(super) ids: Vec<SampleId>,
    /// By row; NaN where the row has none.
    pub(super) losses: Vec<f32>,
    /// What the losses make of their samples, by row; NaN where a loss has no rank. Empty if no row has one. Ranked
    /// once, for every replay.
    pub(super) scores: Vec<f32>,
    /// The first row of each batch.
    starts: Vec<u32>,
    /// The first batch of each epoch.
    epochs: Vec<u32>,
    samples: usize,
    /// Samples of the dataset that no row names.
    unnamed: usize,
    /// By dense id; `None` without a bytes column.
    bytes: Option<Vec<u32>>,
}

/// What a trace is made of.
pub(super) struct Rows {
    /// Dense, by row.
    pub(super) ids: Vec<SampleId>,
    pub(super) losses: Vec<f32>,
    /// The first row of each batch.
    pub(super) starts: Vec<u32>,
    /// The first batch of each epoch.
    pub(super) epochs: Vec<u32>,
    pub(super) samples: usize,
    /// By dense id.
    pub(super) bytes: Option<Vec<u32>>,
}

/// A batch of a recorded run.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedBatch {
    /// Of the run. Where it is another one than the batch's before, an epoch begins.
    pub epoch: u64,
    /// Who was delivered, at what loss; NaN where there is none.
    pub rows: Vec<(SampleId, f32)>,
}

/// `ids` numbered densely and in their own order, because ties are broken by id; and the distinct ones, ascending.
pub(super) fn dense<T: Copy + Ord>(ids: &[T]) -> (Vec<SampleId>, Vec<T>) {
    let mut distinct = ids.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    (ids.iter().map(|id| distinct.partition_point(|d| d < id) as u32).collect(), distinct)
}

impl Trace {
    pub(super) fn of(rows: Rows) -> Self {
        let Rows { ids, losses, starts, epochs, samples, bytes } = rows;
        let mut scores = Vec::new();
        if losses.iter().any(|loss| loss.is_finite()) {
            scores.reserve_exact(losses.len());
            for (batch, &start) in starts.iter().enumerate() {
                let end = starts.get(batch + 1).map_or(losses.len(), |&end| end as usize);
                scores.extend(rank::scores(&rank::counts(&losses[start as usize..end]), B0));
            }
        }
        Self { ids, losses, scores, starts, epochs, samples, unnamed: 0, bytes }
    }
    /// Reads a trace, gzip or not (told by its first bytes, not by a name), of at most `rows_max` rows (never more than
    /// 2³² − 2).
    ///
    /// # Errors
    /// `Source`, with the line, if it cannot be read or a row is not as the format says.
    pub fn read(reader: impl Read, rows_max: usize) -> Result<Self> {
        let mut reader = BufReader::with_capacity(1 << 16, reader);
        let head = reader.fill_buf().map_err(|e| Error::unreadable("cannot read it").because(e))?;
        if head.starts_with(&[0x1f, 0x8b]) {
            parse(MultiGzDecoder::new(reader), rows_max)
        } else {
            parse(reader, rows_max)
        }
    }
    /// A run of these batches, in their order, and of samples of these sizes.
    ///
    /// # Errors
    /// `Settings` if there are no rows or more than 2³² − 2, a sample has no size, or one of 0 or 2³² and more.
    pub fn of_batches(batches: &[RecordedBatch], sizes: Option<&HashMap<SampleId, u64>>) -> Result<Self> {
        let rows: usize = batches.iter().map(|batch| batch.rows.len()).sum();
        if rows == 0 || rows > u32::MAX as usize - 1 {
            return Err(Error::settings(format!("the run has {rows} rows: 1 to {} can be replayed", u32::MAX - 1)));
        }
        let (mut starts, mut epochs, mut at, mut before) = (vec![], vec![], 0, None);
        for batch in batches.iter().filter(|batch| !batch.rows.is_empty()) {
            if before.replace(batch.epoch) != Some(batch.epoch) {
                epochs.push(starts.len() as u32);
            }
            starts.push(at);
            at += batch.rows.len() as u32;
        }
        let (named, losses): (Vec<_>, Vec<_>) = batches.iter().flat_map(|batch| batch.rows.iter().copied()).unzip();
        let (ids, distinct) = dense(&named);
        let size = |sizes: &HashMap<SampleId, u64>, id: &SampleId| {
            let bytes = sizes.get(id).copied().unwrap_or(0);
            u32::try_from(bytes).ok().filter(|&bytes| bytes > 0).ok_or_else(|| {
                Error::settings(format!("sample {id} takes {bytes} bytes: 1 to {} can be replayed", u32::MAX))
            })
        };
        let bytes = sizes.map(|sizes| distinct.iter().map(|id| size(sizes, id)).collect::<Result<_>>()).transpose()?;
        Ok(Self::of(Rows { ids, losses, starts, epochs, samples: distinct.len(), bytes }))
    }
    /// Accesses, all epochs together.
    pub fn requests(&self) -> usize {
        self.ids.len()
    }
    /// Distinct samples.
    pub fn samples(&self) -> usize {
        self.samples
    }
    /// Batches, all epochs together.
    pub fn batches(&self) -> usize {
        self.starts.len()
    }
    /// Epochs.
    pub fn epoch_count(&self) -> usize {
        self.epochs.len()
    }
    /// The same recorded run, of a dataset of `samples`: those that no row names were not delivered, but are parts of
    /// it.
    ///
    /// # Errors
    /// `Settings` if the trace names more.
    pub fn of_dataset(self, samples: usize) -> Result<Self> {
        match samples.checked_sub(self.samples) {
            Some(unnamed) => Ok(Self { unnamed, ..self }),
            None => Err(Error::settings(format!(
                "the dataset is said to have {samples} samples, and the trace names {}: give at least as many",
                self.samples
            ))),
        }
    }
    /// Samples of the dataset that no row names.
    pub fn unnamed(&self) -> usize {
        self.unnamed
    }
    /// Whether the trace has sizes.
    pub fn has_sizes(&self) -> bool {
        self.bytes.is_some()
    }
    /// Bytes of the dataset, or its samples if the trace has no sizes: every sample then counts as 1. A sample that no
    /// row names is taken to have the mean size of those that are named.
    pub fn total_bytes(&self) -> u64 {
        let Some(bytes) = &self.bytes else { return (self.samples + self.unnamed) as u64 };
        let named: u64 = bytes.iter().map(|&b| u64::from(b)).sum();
        named + (named as f64 / self.samples as f64 * self.unnamed as f64).round() as u64
    }
    /// ⌊fraction × [`Trace::total_bytes`]⌋.
    ///
    /// # Errors
    /// `Settings` if the fraction is not between 0 and 1.
    pub fn capacity(&self, fraction: f64) -> Result<u64> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::settings(format!(
                "the capacity fraction is {fraction}: give a part of the dataset from 0 to 1"
            )));
        }
        Ok((fraction * self.total_bytes() as f64).floor() as u64)
    }
    /// The samples as the trace leaves them: their last scores, and how long ago they were delivered.
    pub fn population(&self) -> Population {
        let mut last = vec![f32::NAN; self.samples];
        for (&id, &score) in self.ids.iter().zip(&self.scores).filter(|(_, score)| score.is_finite()) {
            last[id as usize] = score;
        }
        let mut ages = Ages::new(self.samples);
        self.ids.iter().for_each(|&id| ages.meet(id));
        Population::new(&last, &ages)
    }
    #[inline]
    pub(super) fn bytes(&self, id: SampleId) -> u64 {
        self.bytes.as_ref().map_or(1, |b| u64::from(b[id as usize]))
    }
    /// The rows of each batch, epoch by epoch.
    pub(super) fn epochs(&self) -> impl Iterator<Item = Vec<Range<usize>>> + '_ {
        let edge = |starts: &[u32], k: usize, end: usize| starts.get(k).map_or(end, |&s| s as usize);
        (0..self.epochs.len()).map(move |epoch| {
            (self.epochs[epoch] as usize..edge(&self.epochs, epoch + 1, self.starts.len()))
                .map(|batch| self.starts[batch] as usize..edge(&self.starts, batch + 1, self.ids.len()))
                .collect()
        })
    }
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
    if !next(&mut lines, &mut record)? {
        return Err(Error::unreadable(format!("it is empty: the first line must be {HEADERS}")));
    }
    let columns = record.len();
    if record != COLUMNS[..4] && record != COLUMNS[..] {
        let found = record.iter().collect::<Vec<_>>().join(",");
        return Err(Error::unreadable(format!("line 1: the header is {found:?}: it must be {HEADERS}")));
    }
    let mut trace = Rows { ids: vec![], losses: vec![], starts: vec![], epochs: vec![], samples: 0, bytes: None };
    let mut sizes: HashMap<u32, u32> = HashMap::new();
    let mut at: Option<(u32, u32)> = None;
    while next(&mut lines, &mut record)? {
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
pub(super) fn next(lines: &mut csv::Reader<ShortLines<impl Read>>, record: &mut csv::StringRecord) -> Result<bool> {
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
