//! Rows of Parquet files as samples: a picture and its label, texts, numbers, lists of numbers.
//!
//! ```text
//! schema.rs  what columns become     open.rs  files looked at: where rows lie, and all labels
//! units.rs   what is read together   decode.rs  values of its rows
//! pages.rs   what pages may become
//! ```
//!
//! A page of a column is read whole for each of its rows, so what is wanted of one page comes with one read: rows that
//! are near each other in a batch's order, or read ahead together, are cheap. A row's size is not known before it was
//! read. Files are read by the readers of shards, to which a page is what a member of a tar is.

mod decode;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod open;
mod pages;
mod schema;
mod units;

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use bytes::Bytes;

use self::decode::Cell;
pub(crate) use self::open::{Looked, look};
use self::schema::{Column, Schema};
use self::units::Unit;
use crate::error::{Error, Result, printable};
use crate::format::catalog::{Catalog, file_name};
use crate::format::files::out_of_range;
use crate::format::reader::Reader;
use crate::sample::payload::{self, TailPart};
use crate::sample::{
    Counted, Facts, Fields, Fingerprint, Form, LimitBy, Link, News, Payload, SIZE_UNKNOWN, Size, Source, Traffic,
};
use crate::types::{MAX_SAMPLES, SampleId, TensorSpec};

/// The units of one column, in the order of rows.
struct Stored {
    /// As each file has it.
    columns: Vec<Column>,
    units: Vec<Unit>,
    /// The first row of each.
    starts: Vec<SampleId>,
    /// The first one's place in the catalog.
    first: SampleId,
}

/// See the module's head.
pub(crate) struct Parquet<R> {
    /// Of units: what a reader brings.
    catalog: Arc<Catalog>,
    reader: R,
    columns: Vec<Stored>,
    schema: Schema,
    facts: Facts,
    labels: Vec<i64>,
    /// The first row of each file, and what a row of it takes, about.
    files: Vec<(SampleId, u64)>,
    /// The mean size of a row's pages, which are read whole.
    row_bytes: u64,
    /// Payload and tail of each row, once it was delivered.
    sizes: Vec<[AtomicU32; 2]>,
}

impl<R: Reader> Parquet<R> {
    /// The rows of all files, one file after the other; `url` names them for people.
    ///
    /// # Errors
    /// `Source` for files without a row; `Settings` for files of different columns or classes, and for more rows than
    /// ids.
    pub(crate) fn new(url: String, looked: Vec<Looked>, reader: R) -> Result<Self> {
        let mut catalog = Catalog { url, ..Catalog::default() };
        let Some(first) = looked.first() else { return Err(Error::internal("no file to read")) };
        let mut schema = first.schema.clone();
        let rows: u64 = looked.iter().map(|file| file.rows).sum();
        if rows == 0 || rows > MAX_SAMPLES as u64 {
            return Err(Error::unreadable(format!(
                "{} has {rows} rows: a dataset has 1 to {MAX_SAMPLES} samples",
                catalog.url
            )));
        }
        for file in &looked {
            if let Some(difference) = schema.difference(&file.schema) {
                return Err(Error::settings(format!(
                    "{} has other columns than {}: {difference}; open them apart, or name columns of both with fields=",
                    file.shard.path, first.shard.path
                )));
            }
        }
        schema.classes = schema::classes(looked.iter().map(|file| (file.shard.path.as_str(), &file.schema)))?;
        let mut columns = Vec::with_capacity(schema.kept.len());
        for Column { name, .. } in &schema.kept {
            let first = catalog.places.len() as SampleId;
            let mut stored = Stored { columns: Vec::new(), units: Vec::new(), starts: Vec::new(), first };
            let mut row = 0;
            for (shard, file) in (0u32..).zip(&looked) {
                let same = file.schema.kept.iter().zip(&file.units).find(|(column, _)| column.name == *name);
                let (column, units) = same.ok_or_else(|| Error::internal("a column that is not there"))?;
                stored.columns.push(column.clone());
                for unit in units {
                    catalog.push(&format!("{name} of row {row} on"), shard, unit.offset, unit.bytes)?;
                    stored.units.push(*unit);
                    stored.starts.push(row);
                    row += unit.rows;
                }
            }
            columns.push(stored);
        }
        let (mut files, mut labels, mut row) = (Vec::new(), Vec::new(), 0);
        for file in looked {
            files.push((row, file.bytes / file.rows.max(1)));
            row += file.rows as SampleId;
            labels.extend(file.labels);
            catalog.shards.push(file.shard);
        }
        let has_tail = schema.kept.iter().any(|column| column.kind.in_tail());
        let form = match schema.kept.first().is_some_and(|column| !column.kind.in_tail()) {
            true => Form::Images { tailed: has_tail },
            false => Form::Fields(Fields::new(Vec::new(), true)?),
        };
        let target = if schema.label.is_some() { TensorSpec::class_index() } else { TensorSpec::no_target() };
        let sizes = (0..rows).map(|_| [AtomicU32::new(u32::MAX), AtomicU32::new(u32::MAX)]).collect();
        let facts = Facts {
            pieces: schema.pieces.clone(),
            classes: schema.classes.clone(),
            sized: false,
            remote: reader.remote(),
            retry_timeout: reader.retry_timeout(),
            ..Facts::new(rows as usize, described(&catalog, rows, &schema), form, target)
        };
        let page_bytes: u64 = catalog.places.iter().map(|page| u64::from(page.bytes)).sum();
        let row_bytes = page_bytes * columns.len() as u64 / catalog.places.len().max(1) as u64;
        Ok(Self { catalog: Arc::new(catalog), reader, columns, schema, facts, labels, files, row_bytes, sizes })
    }

    /// The unit of a column that has row `id`, and which of its rows that is.
    fn unit(&self, column: usize, id: SampleId) -> Option<(usize, u32)> {
        let starts = &self.columns.get(column)?.starts;
        let at = starts.partition_point(|&start| start <= id).checked_sub(1)?;
        Some((at, id - starts.get(at)?))
    }

    fn target(&self, id: SampleId) -> &[u8] {
        self.labels.get(id as usize).map_or(&[0], bytemuck::bytes_of)
    }

    /// The files' units that hold `ids`, by their place in the catalog: positions and rows of each.
    fn wanted(&self, ids: &[SampleId]) -> Vec<Wanted> {
        let mut found: HashMap<(usize, usize), usize> = HashMap::new();
        let mut all: Vec<Wanted> = Vec::new();
        for (k, &id) in ids.iter().enumerate().filter(|(_, id)| (**id as usize) < self.facts.samples) {
            for column in 0..self.columns.len() {
                let Some((unit, row)) = self.unit(column, id) else { continue };
                let at = *found.entry((column, unit)).or_insert_with(|| {
                    all.push(Wanted { column, unit, rows: Vec::new() });
                    all.len() - 1
                });
                if let Some(wanted) = all.get_mut(at) {
                    wanted.rows.push((row, k));
                }
            }
        }
        all.iter_mut().for_each(|wanted| wanted.rows.sort_unstable());
        all
    }

    fn place(&self, wanted: &Wanted) -> SampleId {
        self.columns.get(wanted.column).map_or(0, |column| column.first + wanted.unit as SampleId)
    }

    fn cells(&self, wanted: &Wanted, read: &[u8]) -> Result<Vec<Option<Cell>>> {
        let gone = || Error::internal("a column that is not there");
        let stored = self.columns.get(wanted.column).ok_or_else(gone)?;
        let unit = stored.units.get(wanted.unit).ok_or_else(gone)?;
        let place = self.catalog.place(self.place(wanted)).ok_or_else(gone)?;
        let column = stored.columns.get(place.shard as usize).ok_or_else(gone)?;
        let rows: Vec<u32> = wanted.rows.iter().map(|&(row, _)| row).collect();
        let cells = decode::cells(column, unit, Bytes::copy_from_slice(read), &rows).map_err(|why| {
            Error::sample(format!("column {} cannot be decoded: {why}; make the file again", column.name))
        })?;
        if cells.len() != rows.len() {
            return Err(Error::sample(format!("column {} has fewer rows than its file says", column.name)));
        }
        Ok(cells)
    }

    /// Makes a payload of a row's cells, in the order of the columns.
    fn payload(&self, cells: &[Option<Cell>], into: &mut Vec<u8>) -> Result<()> {
        let mut parts = Vec::with_capacity(cells.len());
        for (Column { name, .. }, cell) in self.schema.kept.iter().zip(cells) {
            let cell = cell.as_ref().ok_or_else(|| {
                Error::sample(format!(
                    "its {name} is null: leave such rows out, or choose on_error=\"skip\" or \"substitute\""
                ))
            })?;
            parts.push(TailPart { bytes: &cell.bytes, length: cell.length });
        }
        match parts.split_first() {
            Some((picture, tail)) if matches!(self.facts.form, Form::Images { .. }) => {
                payload::join(Some(picture.bytes), tail, into);
            }
            _ => payload::join(None, &parts, into),
        }
        if into.len() as u64 >= SIZE_UNKNOWN {
            return Err(Error::sample("it has four gigabytes or more: split it or leave it out"));
        }
        Ok(())
    }

    /// The size of the payload (`of` 0) or of its tail (1).
    fn known(&self, id: SampleId, of: usize) -> u64 {
        self.sizes.get(id as usize).map_or(0, |sizes| match sizes[of].load(Relaxed) {
            u32::MAX => SIZE_UNKNOWN,
            bytes => u64::from(bytes),
        })
    }
}

/// Rows of one unit that a call wants, ascending, each with its position in the call.
struct Wanted {
    column: usize,
    unit: usize,
    rows: Vec<(u32, usize)>,
}

/// A row on its way: cells that came, and how many are still to come.
struct Coming {
    cells: Vec<Option<Cell>>,
    left: usize,
}

/// The dataset in words for people.
fn described(catalog: &Catalog, rows: u64, schema: &Schema) -> String {
    let files = catalog.shards.len();
    let names: Vec<&str> = schema.pieces.iter().map(|piece| piece.name.as_str()).collect();
    let classes = schema.classes.len();
    format!(
        "{}: {rows} rows of {}, {files} file{}{}",
        printable(&catalog.url),
        printable(&names.join(", ")),
        if files == 1 { "" } else { "s" },
        if classes > 0 { format!(", {classes} classes") } else { String::new() }
    )
}

impl<R: Reader> Source for Parquet<R> {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn name(&self, id: SampleId) -> String {
        let Some(file) = self.files.partition_point(|&(start, _)| start <= id).checked_sub(1) else {
            return String::new();
        };
        let path = self.catalog.shards.get(file).map_or("", |shard| &shard.path);
        let start = self.files.get(file).map_or(0, |&(start, _)| start);
        format!("{}, row {}", printable(file_name(path)), id - start)
    }
    fn size(&self, id: SampleId) -> Size {
        let (payload, tail) = (self.known(id, 0), self.known(id, 1));
        let file = self.files.partition_point(|&(start, _)| start <= id).checked_sub(1);
        let mean = file.and_then(|file| self.files.get(file)).map(|&(_, mean)| mean);
        Size { payload, tail, expected: if payload == SIZE_UNKNOWN { mean } else { mean.and(Some(payload)) } }
    }
    fn remember(&self, id: SampleId, payload_bytes: u32, tail_bytes: u32) {
        if let Some(sizes) = self.sizes.get(id as usize) {
            for (size, bytes) in sizes.iter().zip([payload_bytes, tail_bytes]) {
                size.store(bytes, Relaxed);
            }
        }
    }
    fn labels(&self) -> Option<&[i64]> {
        self.schema.label.as_ref().map(|_| self.labels.as_slice())
    }
    /// Rows have no names and no sizes: the files' names and sizes stand for them, with all labels.
    fn digest(&self) -> String {
        let mut digest = Fingerprint::of(&self.facts);
        for (shard, &(start, _)) in self.catalog.shards.iter().zip(&self.files) {
            digest.add(file_name(&shard.path).as_bytes());
            digest.add(&shard.bytes.to_le_bytes());
            digest.add(&start.to_le_bytes());
        }
        self.schema.pieces.iter().for_each(|piece| digest.add(piece.name.as_bytes()));
        digest.add(bytemuck::cast_slice(&self.labels));
        digest.finish()
    }
    fn counted(&self) -> Counted {
        Counted { answers: self.reader.answers(), ..Counted::default() }
    }
    /// A row's pages are read whole, from files of this machine too.
    fn link(&self) -> Link {
        let link = self.reader.link(&self.catalog);
        Link { request_bytes: self.row_bytes + link.request_bytes * self.columns.len() as u64, ..link }
    }
    fn limit(&self, bytes_per_s: Option<u64>, by: LimitBy) -> bool {
        self.reader.limit(bytes_per_s, by)
    }
    fn tell(&self, news: News<'_>) {
        match news {
            News::Doubtful(ids) => {
                let units: Vec<SampleId> = self.wanted(ids).iter().map(|wanted| self.place(wanted)).collect();
                self.reader.tell(&self.catalog, News::Doubtful(&units));
            }
            News::Listener(_) | News::Room(_) | News::Importances(..) => self.reader.tell(&self.catalog, news),
        }
    }
    /// Rows of the units that come anyway, and of those that come with them.
    fn along(&self, ids: &[SampleId], first: usize, request_bytes: u64) -> Vec<usize> {
        let all = self.wanted(ids);
        let (urgent, rest): (Vec<&Wanted>, Vec<&Wanted>) =
            all.iter().partition(|wanted| wanted.rows.iter().any(|&(_, k)| k < first));
        let places: Vec<SampleId> = urgent.iter().chain(&rest).map(|wanted| self.place(wanted)).collect();
        let along = self.reader.along(&self.catalog, &places, urgent.len(), request_bytes);
        let coming: HashSet<SampleId> =
            (0..urgent.len()).chain(along).filter_map(|at| places.get(at).copied()).collect();
        // A row comes along if all of its units do.
        let mut left = vec![self.columns.len(); ids.len()];
        for wanted in all.iter().filter(|wanted| coming.contains(&self.place(wanted))) {
            wanted.rows.iter().for_each(|&(_, k)| left[k] -= 1);
        }
        (first..ids.len()).filter(|&k| left[k] == 0).collect()
    }
    fn fetch_by(
        &self,
        request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        for (k, &id) in ids.iter().enumerate().filter(|(_, id)| **id as usize >= self.facts.samples) {
            if sink(k, Err(out_of_range(id, self.facts.samples))).is_break() {
                return Traffic::default();
            }
        }
        let wanted = self.wanted(ids);
        let places: Vec<(usize, SampleId)> = wanted.iter().map(|wanted| self.place(wanted)).enumerate().collect();
        let mut coming: HashMap<usize, Coming> = HashMap::new();
        let mut answered = vec![false; ids.len()];
        let mut joined = Vec::new();
        self.reader.read(&self.catalog, &places, request_bytes, stopped, &mut |at, _, read| {
            let Some(wanted) = wanted.get(at) else { return ControlFlow::Continue(()) };
            let cells = match read.and_then(|read| self.cells(wanted, read)) {
                Ok(cells) => cells,
                Err(e) => {
                    for &(_, k) in &wanted.rows {
                        if !std::mem::replace(&mut answered[k], true) {
                            sink(k, Err(Error::new(e.kind(), e.to_string())))?;
                        }
                    }
                    return ControlFlow::Continue(());
                }
            };
            for (&(_, k), cell) in wanted.rows.iter().zip(cells) {
                let columns = self.columns.len();
                let row = coming.entry(k).or_insert_with(|| Coming { cells: vec![None; columns], left: columns });
                row.cells[wanted.column] = cell;
                row.left -= 1;
                if row.left > 0 || answered[k] {
                    continue;
                }
                let Some(row) = coming.remove(&k) else { continue };
                answered[k] = true;
                let made = self.payload(&row.cells, &mut joined);
                sink(k, made.map(|()| Payload::new(&joined, self.target(ids[k]))))?;
            }
            ControlFlow::Continue(())
        })
    }
}
