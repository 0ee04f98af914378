//! A journal read back. It may come from anywhere, so nothing in it is trusted: lines, rows and ids are bounded.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;
use lossfeed_control::sim::ShortLines;
use lossfeed_control::{Error, Result, SampleId};

use crate::line::{self, COLUMNS, END, Line};
use crate::{Event, Meta};

const GZIP: [u8; 2] = [0x1f, 0x8b];
/// How the first line begins.
const MARK: &str = "# {\"lossfeed-journal\"";
/// The longest line with every number at its widest is well below this.
const LINE_BYTES_MAX: usize = 512;
/// The first line may hold all settings of a run.
const META_BYTES_MAX: usize = 1 << 20;

/// What is worth reading from an unknown file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Rows of all events together. One takes up to 32 bytes.
    pub rows: u64,
    /// Samples of the dataset. The books of a replay take up to 32 bytes for one.
    pub samples: u64,
}

impl Default for Limits {
    /// 134 million rows and 268 million samples: up to 12 GiB.
    fn default() -> Self {
        Self { rows: 1 << 27, samples: 1 << 28 }
    }
}

/// How a journal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The run closed it.
    Closed,
    /// The run was killed, or still writes. The last event may be incomplete and is left out.
    Cut,
}

/// Whether this is a journal, by its first bytes. Reads no more than it must, and the error of a file that cannot be
/// read comes when it is read.
pub fn is_journal(head: impl Read) -> bool {
    let mut head = BufReader::with_capacity(1 << 12, head);
    let mut found = [0; MARK.len()];
    let read = match head.fill_buf() {
        Ok(bytes) if bytes.starts_with(&GZIP) => MultiGzDecoder::new(head).read_exact(&mut found),
        Ok(_) => head.read_exact(&mut found),
        Err(e) => Err(e),
    };
    read.is_ok() && found == MARK.as_bytes()
}

/// Events, one after the other.
pub struct Reader<'a> {
    meta: Meta,
    lines: csv::Reader<ShortLines<Box<dyn Read + 'a>>>,
    record: csv::StringRecord,
    /// The event at hand, as far as it is read.
    event: Option<Building>,
    rows: u64,
    limits: Limits,
    ending: Option<Ending>,
}

/// An event whose rows are being read.
struct Building {
    event: Event,
    /// The rows of a `begin`, whose event holds them shared.
    plan: Vec<SampleId>,
}

impl<'a> Reader<'a> {
    /// Reads what is true of the whole run. Gzip or not is told by the first bytes, not by a name.
    ///
    /// # Errors
    /// `Source` if it cannot be read, is no journal, or has more samples than `limits` allow.
    pub fn new(reader: impl Read + 'a, limits: Limits) -> Result<Self> {
        let mut reader = BufReader::with_capacity(1 << 16, reader);
        let head = reader.fill_buf().map_err(|e| Error::unreadable("cannot read it").because(e))?;
        let mut text: Box<dyn BufRead + 'a> = if head.starts_with(&GZIP) {
            Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(reader)))
        } else {
            Box::new(reader)
        };
        let meta = read_meta(&mut text)?;
        if meta.samples > limits.samples {
            return Err(Error::unreadable(format!(
                "line 1: the dataset has {} samples; replays take at most {}",
                meta.samples, limits.samples
            )));
        }
        let mut lines = csv::ReaderBuilder::new()
            .from_reader(ShortLines::new(Box::new(text) as Box<dyn Read + 'a>, LINE_BYTES_MAX));
        let columns = lines.headers().map_err(|e| broken(2, e))?;
        if columns != COLUMNS[..] {
            return Err(Error::unreadable(format!("line 2: the columns must be {}", COLUMNS.join(","))));
        }
        Ok(Self { meta, lines, record: csv::StringRecord::new(), event: None, rows: 0, limits, ending: None })
    }

    /// What is true of the whole run.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// How it ended, once [`Reader::next_event`] has answered `None`.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// The next event; `None` at the end.
    ///
    /// # Errors
    /// `Source`, with the line, if it cannot be read or a line is not as the format says. A file that stops in the
    /// middle of an event is no error: see [`Ending::Cut`].
    pub fn next_event(&mut self) -> Result<Option<Event>> {
        loop {
            if self.ending.is_some() {
                return Ok(None);
            }
            // The first line of the file is the description.
            let number = self.lines.position().line() + 1;
            let wrong = |what: String| Error::unreadable(format!("line {number}: {what}"));
            let read = self.lines.read_record(&mut self.record);
            let line: Line<'_> = match read {
                Ok(true) => match self.record.deserialize(None) {
                    // Its last field may have been cut, and a number cut short is another number.
                    _ if self.lines.get_ref().stopped_short() => {
                        self.ending = Some(Ending::Cut);
                        continue;
                    }
                    Ok(line) => line,
                    Err(e) => return Err(broken(number, e)),
                },
                Err(e) if !self.stops_short(&e) => return Err(broken(number, e)),
                // The file ends here, without a last event.
                Ok(false) | Err(_) => {
                    self.ending = Some(Ending::Cut);
                    continue;
                }
            };
            if line.event == END {
                self.ending = Some(Ending::Closed);
                return Ok(self.event.take().map(Building::done));
            }
            if line.event == "lost" {
                let lost = line::begun(&line).map_err(wrong)?;
                let before = self.event.replace(Building { event: lost, plan: Vec::new() });
                if let Some(before) = before {
                    return Ok(Some(before.done()));
                }
                continue;
            }
            if line.row.is_some_and(|row| row > 0) {
                let building =
                    self.event.as_mut().ok_or_else(|| wrong("it begins in the middle of an event".into()))?;
                building.continues(&line).map_err(wrong)?;
            }
            // An event without rows takes memory, too.
            self.rows += 1;
            if self.rows > self.limits.rows {
                return Err(wrong(format!("it has more than {} rows: replay a part of it", self.limits.rows)));
            }
            match line.row {
                Some(row) if row > 0 => {
                    if let Some(building) = &mut self.event {
                        building.add(&line, self.meta.samples).map_err(wrong)?;
                    }
                }
                row => {
                    let mut next = Building { event: line::begun(&line).map_err(wrong)?, plan: Vec::new() };
                    if row.is_some() {
                        next.add(&line, self.meta.samples).map_err(wrong)?;
                    }
                    if let Some(before) = self.event.replace(next) {
                        return Ok(Some(before.done()));
                    }
                }
            }
        }
    }
}

impl Reader<'_> {
    /// Whether the file merely stops in the middle: gzip says so by the kind of the error.
    fn stops_short(&self, error: &csv::Error) -> bool {
        let packed = matches!(error.kind(), csv::ErrorKind::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof);
        packed || self.lines.get_ref().stopped_short()
    }
}

impl Building {
    /// Whether `line` is the next row of this event.
    fn continues(&self, line: &Line<'_>) -> Result<(), String> {
        let rows = if let Event::Begin { .. } = self.event { self.plan.len() } else { self.event.rows() };
        let same = match &self.event {
            Event::Begin { epoch, step, .. } | Event::Decide { epoch, step, .. } | Event::Learn { epoch, step, .. } => {
                line.epoch == Some(*epoch) && line.step == Some(*step)
            }
            _ => true,
        };
        if same && line.event == self.event.name() && rows > 0 && line.row == Some(rows as u64) {
            return Ok(());
        }
        Err(format!(
            "row {} of {:?} follows {rows} rows of {:?}: the rows of an event must stand together and in order",
            line.row.unwrap_or(0),
            line.event.chars().take(40).collect::<String>(),
            self.event.name()
        ))
    }

    fn add(&mut self, line: &Line<'_>, samples: u64) -> Result<(), String> {
        let row = line::row(line)?;
        for (column, id) in [("id", line.id), ("drawn", line.drawn)] {
            if let Some(id) = id.filter(|&id| u64::from(id) >= samples) {
                return Err(format!("{column} is {id}: the dataset has {samples} samples"));
            }
        }
        match (&mut self.event, row) {
            (Event::Begin { .. }, line::Read::Id(id)) => self.plan.push(id),
            (Event::Decide { rows, .. }, line::Read::Decided(row)) => rows.push(row),
            (Event::Learn { rows, .. }, line::Read::Scored(row)) => rows.push(row),
            (Event::Cancel(ids) | Event::Tried(ids), line::Read::Id(id)) => ids.push(id),
            (Event::Read(rows), line::Read::Told(id, read)) => rows.push((id, read)),
            (Event::Believe(rows), line::Read::Believed(id, score)) => rows.push((id, score)),
            (event, _) => return Err(format!("a row of another event than {:?}", event.name())),
        }
        Ok(())
    }

    fn done(self) -> Event {
        match self.event {
            Event::Begin { epoch, step, .. } => Event::Begin { epoch, step, plan: Arc::from(self.plan) },
            event => event,
        }
    }
}

fn read_meta(text: &mut dyn BufRead) -> Result<Meta> {
    let mut line = Vec::new();
    let limit = META_BYTES_MAX as u64 + 1;
    text.take(limit).read_until(b'\n', &mut line).map_err(|e| broken(1, e.into()))?;
    if line.len() > META_BYTES_MAX {
        return Err(Error::unreadable(format!("line 1: it is longer than {META_BYTES_MAX} bytes")));
    }
    let json = line.strip_prefix(b"# ").ok_or_else(|| {
        Error::unreadable("line 1: not a journal: it must begin with \"# \" and the run's description in JSON")
    })?;
    // The version first: another one may have other keys.
    #[derive(serde::Deserialize)]
    struct Version {
        #[serde(rename = "lossfeed-journal")]
        format: u32,
    }
    let told = |e: serde_json::Error| Error::unreadable("line 1: the run's description").because(e);
    let version: Version = serde_json::from_slice(json).map_err(told)?;
    if !(1..=Meta::FORMAT).contains(&version.format) {
        return Err(Error::unreadable(format!(
            "line 1: it is a journal of version {}, this program reads versions 1 to {}",
            version.format,
            Meta::FORMAT
        )));
    }
    let meta: Meta = serde_json::from_slice(json).map_err(told)?;
    if !(0.0..1.0).contains(&meta.smoothing) {
        return Err(Error::unreadable(format!("line 1: smoothing is {}: it is from 0 to below 1", meta.smoothing)));
    }
    Ok(meta)
}

fn broken(number: u64, error: csv::Error) -> Error {
    Error::unreadable(format!("line {number}: not a journal's line")).because(error)
}
