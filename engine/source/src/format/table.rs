//! Samples whose parts are named one by one: a file each, or a value. Lists of paths, manifests (CSV, JSON lines),
//! and files of several folders that have one stem are such tables; the reader of a manifest makes the columns.
//!
//! A path is relative to the table's root unless it is absolute; it is opened as it is written.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result, printable};
use crate::format::catalog::Catalog;
use crate::format::files::{Files, out_of_range};
use crate::format::local::LocalReader;
use crate::options::OpenOptions;
use crate::request::file::{failed, settled};
use crate::request::identity::Stamp;
use crate::sample::payload::{self, TailPart};
use crate::sample::{Facts, Fields, Fingerprint, Form, Payload, Piece, PieceKind, Size, Source, Traffic};
use crate::types::{SampleId, TensorSpec};

/// A column of a table: a part of every sample.
pub struct Column {
    /// Name of the part.
    pub name: String,
    /// Kind of the part. Numbers are [`Values::Whole`] or [`Values::Real`]; the label is apart.
    pub kind: PieceKind,
    /// One a sample.
    pub values: Values,
}

/// The values of a column.
pub enum Values {
    /// Paths of files that hold the part.
    Files(Vec<String>),
    /// The part itself.
    Text(Vec<String>),
    /// Whole numbers.
    Whole(Vec<i64>),
    /// Real numbers.
    Real(Vec<f64>),
}

impl Values {
    fn len(&self) -> usize {
        match self {
            Self::Files(all) | Self::Text(all) => all.len(),
            Self::Whole(all) => all.len(),
            Self::Real(all) => all.len(),
        }
    }
}

/// Labels of all samples.
pub struct Labels {
    /// One a sample.
    pub labels: Vec<i64>,
    /// Names of the classes; empty where labels are plain numbers.
    pub classes: Vec<String>,
}

/// Opens a table. `url` is its name for people, `root` what relative paths begin at.
///
/// # Errors
/// `Source` for a file that cannot be found or read, and for a table without samples; `Settings` for columns of
/// different lengths.
pub fn open_table(
    url: String,
    root: PathBuf,
    columns: Vec<Column>,
    labels: Option<Labels>,
    options: &OpenOptions,
) -> Result<Arc<dyn Source>> {
    let samples = columns.first().map_or(0, |column| column.values.len());
    let lengths = columns.iter().map(|column| column.values.len()).chain(labels.iter().map(|l| l.labels.len()));
    if let Some(other) = lengths.clone().find(|&length| length != samples) {
        return Err(Error::settings(format!("{url}: {samples} samples and {other} of their parts: give one a sample")));
    }
    if samples == 0 {
        return Err(Error::unreadable(format!(
            "{} holds no samples: check the path and what it lists",
            printable(&url)
        )));
    }
    let mut pieces: Vec<Piece> = columns.iter().map(|c| Piece { name: c.name.clone(), kind: c.kind }).collect();
    let (labels, classes) = labels.map_or((None, Vec::new()), |l| (Some(l.labels), l.classes));
    let single = matches!(columns.as_slice(), [Column { kind: PieceKind::Picture, values: Values::Files(_), .. }]);
    let mut parts = Vec::with_capacity(columns.len());
    for column in columns {
        parts.push(match column.values {
            Values::Files(paths) => {
                let mut catalog = catalog(&url, &root, &column.name, paths, options)?;
                if single && let Some(labels) = &labels {
                    (catalog.labels, catalog.classes, catalog.unlabelled) = (labels.clone(), classes.clone(), false);
                }
                Part::Files(Arc::new(Files::new(catalog, LocalReader::new(root.clone(), 0), options)?))
            }
            Values::Text(all) => Part::Text(all),
            Values::Whole(all) => Part::Numbers(all.into_iter().map(i64::to_ne_bytes).collect()),
            Values::Real(all) => Part::Numbers(all.into_iter().map(f64::to_ne_bytes).collect()),
        });
    }
    if single && let Some(Part::Files(files)) = parts.pop() {
        return Ok(files);
    }
    if labels.is_some() {
        pieces.push(Piece { name: "label".to_owned(), kind: PieceKind::Label });
    }
    let picture = pieces.iter().position(|piece| piece.kind == PieceKind::Picture);
    let form = match picture {
        Some(_) => Form::Images { tailed: parts.len() > 1 },
        None => Form::Fields(Fields::new(Vec::new(), true)?),
    };
    let target = if labels.is_some() { TensorSpec::class_index() } else { TensorSpec::no_target() };
    let said = if classes.is_empty() { String::new() } else { format!(", {} classes", classes.len()) };
    let description = format!("{}: {samples} samples of {} parts{said}", printable(&url), pieces.len());
    let facts = Facts { in_turn: true, sized: true, pieces, classes, ..Facts::new(samples, description, form, target) };
    Ok(Arc::new(Table { facts, parts, picture, labels }))
}

/// The files of a column.
fn catalog(
    url: &str,
    root: &std::path::Path,
    column: &str,
    paths: Vec<String>,
    options: &OpenOptions,
) -> Result<Catalog> {
    let mut catalog = Catalog { url: url.to_owned(), unlabelled: true, ..Catalog::default() };
    let mut newest = Stamp::default();
    for (row, path) in paths.iter().enumerate() {
        options.stop.check()?;
        let named = || format!("{column} of sample {row} ({})", printable(path));
        let meta = std::fs::metadata(root.join(path)).map_err(|e| failed(&named(), e))?;
        if !meta.is_file() {
            return Err(Error::unreadable(format!("{} is no file: name one file a sample", named())));
        }
        let stamp = Stamp::of_file(&meta);
        catalog.push_file(path, meta.len(), &stamp)?;
        if stamp.changed_ns > newest.changed_ns {
            newest = stamp;
        }
    }
    settled(&newest);
    Ok(catalog)
}

enum Part {
    Files(Arc<dyn Source>),
    Text(Vec<String>),
    Numbers(Vec<[u8; 8]>),
}

impl Part {
    fn bytes(&self, id: SampleId) -> u64 {
        match self {
            Self::Files(files) => files.payload_bytes(id),
            Self::Text(all) => all.get(id as usize).map_or(0, |text| text.len() as u64),
            Self::Numbers(_) => 8,
        }
    }

    /// Puts a sample's part in the place of `into`.
    fn read(&self, id: SampleId, into: &mut Vec<u8>) -> Result<()> {
        into.clear();
        match self {
            // Text without a letter is text.
            Self::Files(files) if files.payload_bytes(id) == 0 => {}
            Self::Files(files) => {
                let mut answer = Err(Error::internal("a part's file was not answered for"));
                files.fetch(&[id], &mut |_, payload| {
                    answer = payload.map(|payload| into.extend_from_slice(payload.data));
                    ControlFlow::Continue(())
                });
                answer?;
            }
            Self::Text(all) => into.extend_from_slice(all.get(id as usize).map_or(&[], |text| text.as_bytes())),
            Self::Numbers(all) => into.extend_from_slice(all.get(id as usize).map_or(&[][..], |number| number)),
        }
        Ok(())
    }

    fn digest(&self, id: SampleId, add: &mut dyn FnMut(&[u8])) {
        match self {
            Self::Files(files) => {
                add(files.name(id).as_bytes());
                add(&files.payload_bytes(id).to_le_bytes());
            }
            Self::Text(all) => add(all.get(id as usize).map_or(&[], |text| text.as_bytes())),
            Self::Numbers(all) => add(all.get(id as usize).map_or(&[][..], |number| number)),
        }
    }
}

/// A table of several parts a sample.
struct Table {
    facts: Facts,
    /// One for each piece but the label's.
    parts: Vec<Part>,
    picture: Option<usize>,
    labels: Option<Vec<i64>>,
}

impl Table {
    /// The parts of the tail.
    fn tail(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().enumerate().filter(|(at, _)| Some(*at) != self.picture).map(|(_, part)| part)
    }

    fn payload(&self, id: SampleId, read: &mut [Vec<u8>], joined: &mut Vec<u8>) -> Result<()> {
        for (part, into) in self.parts.iter().zip(read.iter_mut()) {
            part.read(id, into)?;
        }
        let part = |(at, part): (usize, &Part)| {
            let bytes = read.get(at).map_or(&[][..], Vec::as_slice);
            (Some(at) != self.picture).then_some(TailPart {
                bytes,
                length: (!matches!(part, Part::Numbers(_))).then_some(bytes.len() as u64),
            })
        };
        let tail: Vec<TailPart<'_>> = self.parts.iter().enumerate().filter_map(part).collect();
        payload::join(self.picture.and_then(|at| read.get(at)).map(Vec::as_slice), &tail, joined);
        Ok(())
    }
}

impl Source for Table {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn name(&self, id: SampleId) -> String {
        let file = self.parts.iter().find_map(|part| match part {
            Part::Files(files) => Some(files.name(id)),
            _ => None,
        });
        file.unwrap_or_else(|| format!("row {id}"))
    }
    fn size(&self, id: SampleId) -> Size {
        let lengths = 8 * self.tail().filter(|part| !matches!(part, Part::Numbers(_))).count() as u64;
        let tail = self.tail().fold(0u64, |bytes, part| bytes.next_multiple_of(8) + part.bytes(id)) + lengths;
        if id as usize >= self.facts.samples {
            return Size { tail, ..Size::known(0) };
        }
        let picture = self.picture.and_then(|at| self.parts.get(at)).map(|part| part.bytes(id));
        Size { tail, ..Size::known(payload::payload_bytes(picture, tail, self.tail().next().is_some())) }
    }
    fn labels(&self) -> Option<&[i64]> {
        self.labels.as_deref()
    }
    fn digest(&self) -> String {
        let mut digest = Fingerprint::of(&self.facts);
        self.facts.pieces.iter().for_each(|piece| digest.add(piece.name.as_bytes()));
        for id in 0..self.facts.samples as SampleId {
            self.parts.iter().for_each(|part| part.digest(id, &mut |bytes| digest.add(bytes)));
        }
        digest.add(bytemuck::cast_slice(self.labels.as_deref().unwrap_or_default()));
        digest.finish()
    }
    fn proof(&self, id: SampleId) -> Option<[u8; 16]> {
        let mut digest = Sha256::new();
        for part in &self.parts {
            match part {
                Part::Files(files) => digest.update(files.proof(id)?),
                _ => part.digest(id, &mut |bytes| {
                    digest.update((bytes.len() as u64).to_le_bytes());
                    digest.update(bytes);
                }),
            }
        }
        digest.finalize().first_chunk().copied()
    }
    fn fetch_by(
        &self,
        _: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        let (mut read, mut joined) = (vec![Vec::new(); self.parts.len()], Vec::new());
        for (k, &id) in ids.iter().enumerate() {
            if stopped() {
                break;
            }
            let made = match (id as usize) < self.facts.samples {
                true => self.payload(id, &mut read, &mut joined),
                false => Err(out_of_range(id, self.facts.samples)),
            };
            let target = match &self.labels {
                Some(labels) => labels.get(id as usize).map_or(&[][..], bytemuck::bytes_of),
                None => &[0],
            };
            if sink(k, made.map(|()| Payload::new(&joined, target))).is_break() {
                break;
            }
        }
        Traffic::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::apart;
    use crate::types::Dtype;

    fn column(name: &str, kind: PieceKind, values: Values) -> Column {
        Column { name: name.to_owned(), kind, values }
    }

    #[test]
    fn samples_have_the_parts_and_sizes_that_their_table_says() {
        let root = tempfile::tempdir().unwrap();
        let text = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        for (name, bytes) in
            [("a.png", &b"first picture"[..]), ("b.png", b"second"), ("a.txt", b"words"), ("b.txt", b"")]
        {
            std::fs::write(root.path().join(name), bytes).unwrap();
        }
        let absolute = root.path().join("b.txt").display().to_string();
        let columns = || {
            vec![
                column("n", PieceKind::Number(Dtype::I64), Values::Whole(vec![7, -1])),
                column("said", PieceKind::Text, Values::Files(text(&["a.txt", &absolute]))),
                column("image", PieceKind::Picture, Values::Files(text(&["a.png", "b.png"]))),
                column("note", PieceKind::Text, Values::Text(text(&["", "x"]))),
            ]
        };
        let labels = || Some(Labels { labels: vec![1, 0], classes: text(&["c", "d"]) });
        let open = |columns, labels| {
            open_table("a table".to_owned(), root.path().to_owned(), columns, labels, &OpenOptions::default())
        };
        let source = open(columns(), labels()).unwrap();
        let mut seen = 0;
        source.fetch(&[1, 0], &mut |k, payload| {
            let (id, payload) = ([1, 0][k], payload.unwrap());
            assert_eq!(source.payload_bytes(id), payload.data.len() as u64);
            let parts = apart(source.pieces(), payload.data).unwrap();
            let n = [7i64, -1][id as usize].to_ne_bytes();
            let (said, picture, note) =
                [(&b"words"[..], &b"first picture"[..], &b""[..]), (b"", b"second", b"x")][id as usize];
            assert_eq!(parts, [&n[..], said, picture, note, b""]);
            assert_eq!(payload.target, [1i64, 0][id as usize].to_ne_bytes());
            let tail = crate::sample::picture_and_tail(payload.data).unwrap().1;
            assert_eq!(source.size(id).tail, tail.len() as u64);
            seen += 1;
            ControlFlow::Continue(())
        });
        assert_eq!((seen, source.facts().sized, source.payload_bytes(2)), (2, true, 0));
        // Other values are another dataset, and another sample. An empty file proves nothing.
        let with = |numbers| {
            let mut columns = columns();
            columns[0].values = Values::Whole(numbers);
            open(columns, labels()).unwrap()
        };
        let (same, other) = (with(vec![7, 1]), with(vec![8, -1]));
        assert!(source.digest() != same.digest() && source.digest() != other.digest());
        assert!(source.proof(0).is_some() && source.proof(0) == same.proof(0) && source.proof(0) != other.proof(0));
        assert_eq!(source.proof(1), None);
        let mut short = columns();
        short[3].values = Values::Text(text(&["x"]));
        assert!(open(short, None).is_err_and(|e| e.to_string().contains("2 samples and 1 of their parts")));
        assert!(open(Vec::new(), None).is_err_and(|e| e.to_string().contains("holds no samples")));
    }
}
