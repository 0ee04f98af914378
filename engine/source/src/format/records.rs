//! Rows of fixed sizes that lie at even distances in files of this machine: what `.npy`, `.npz`, safetensors and files
//! of raw records hold.
//!
//! Whoever opens them has read their heads, and says where the rows begin and how far it is from one to the next: as
//! far as a row is long, further where a record has other fields too, less where rows overlap.
//!
//! A dataset may consist of more files than a process may have open, so they are opened anew where they were closed
//! meanwhile (`handles.rs`), and held against their stamps then and behind each read.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::catalog::file_name;
use crate::format::files::out_of_range;
use crate::request::changed::is_another;
use crate::request::file::{failed, settled};
use crate::request::handles::Handles;
use crate::request::identity::Stamp;
use crate::sample::{Facts, Fields, Fingerprint, Form, Payload, Size, Source, Traffic};
use crate::types::{MAX_SAMPLES, SampleId, TensorSpec};

/// Bytes read between two looks at whether the files are what they were: as much as stays in a core's own cache.
const TOGETHER_BYTES: usize = 128 << 10;
/// Rows that the fingerprint reads of each file, and how far into each.
const DIGEST_ROWS: usize = 256;
const DIGEST_ROW_BYTES: usize = 4096;

/// Where one array's rows lie.
#[derive(Debug, Clone)]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    /// Where its first row begins.
    pub offset: u64,
    /// Bytes from a row's begin to the next one's; `None`: as many as a row has.
    pub stride: Option<u64>,
    /// One row.
    pub spec: TensorSpec,
}

struct Column {
    /// Among the dataset's files.
    file: usize,
    offset: u64,
    stride: u64,
    row_bytes: usize,
}

/// A file that rows lie in.
struct Kept {
    /// Absolute, so that it is found again when the process works in another directory.
    path: PathBuf,
    /// Its path, for people.
    shown: String,
    /// What it was when the dataset was opened.
    bytes: u64,
    stamp: Stamp,
}

/// A dataset of rows in files: arrays of data, and one of targets or none.
pub struct Records {
    /// Each once, though several columns may lie in it.
    files: Vec<Kept>,
    handles: Handles,
    /// Those of the data, then that of the target if there is one.
    columns: Vec<Column>,
    data_bytes: usize,
    facts: Facts,
}

impl Records {
    /// Opens the files; each array has `samples` rows. Without a `target` a sample's is one byte, 0.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Settings`] for no samples or too many, and for rows without bytes;
    /// [`crate::ErrorKind::Source`] for a file that cannot be opened, or ends before its last row.
    pub fn open(data: Vec<Place>, target: Option<Place>, samples: usize) -> Result<Self> {
        if samples == 0 || samples > MAX_SAMPLES {
            return Err(Error::settings(format!(
                "the arrays have {samples} rows: a dataset has 1 to {MAX_SAMPLES} samples"
            )));
        }
        let specs: Vec<TensorSpec> = data.iter().map(|place| place.spec.clone()).collect();
        let fields = Fields::new(specs.clone(), false)?;
        let data_bytes = fields.row().bytes();
        let form = match <[TensorSpec; 1]>::try_from(specs) {
            Ok([only]) => Form::Rows(only),
            Err(_) => Form::Fields(fields),
        };
        let target_spec = target.as_ref().map_or_else(TensorSpec::no_target, |place| place.spec.clone());
        Fields::new(vec![target_spec.clone()], false)?;
        let mut files = Vec::new();
        let columns = data.into_iter().chain(target).map(|place| Column::look(place, samples, &mut files));
        let columns = columns.collect::<Result<_>>()?;
        let handles = Handles::of(files.len());
        let mut names: Vec<&str> = files.iter().map(|kept: &Kept| file_name(&kept.shown)).collect();
        names.dedup();
        let description = format!("{samples} rows of {}", names.join(", "));
        let facts = Facts { in_turn: true, ..Facts::new(samples, description, form, target_spec) };
        Ok(Self { files, handles, columns, data_bytes, facts })
    }

    fn row_bytes(&self) -> usize {
        self.data_bytes + self.facts.target.bytes()
    }

    /// The file as it was when the dataset was opened.
    fn file(&self, number: usize) -> Result<Arc<File>> {
        let kept = self.files.get(number).ok_or_else(|| Error::internal(format!("file {number} is not there")))?;
        self.handles.file(number, || kept.open()).map(|(file, _)| file)
    }

    /// Reads samples into `buf`, one after the other, until `stopped`; by sample that was read, what went wrong.
    fn read(&self, ids: &[SampleId], buf: &mut Vec<u8>, stopped: &dyn Fn() -> bool) -> Vec<Option<Error>> {
        let row_bytes = self.row_bytes();
        buf.clear();
        buf.resize(ids.len() * row_bytes, 0);
        let files: Vec<Result<Arc<File>>> = (0..self.files.len()).map(|number| self.file(number)).collect();
        let mut wrong: Vec<Option<Error>> = Vec::with_capacity(ids.len());
        for (&id, mut row) in ids.iter().zip(buf.chunks_exact_mut(row_bytes)) {
            if stopped() {
                break;
            }
            let mut failed = (id as usize >= self.facts.samples).then(|| out_of_range(id, self.facts.samples));
            for column in &self.columns {
                let (into, rest) = std::mem::take(&mut row).split_at_mut(column.row_bytes);
                row = rest;
                if failed.is_none() {
                    failed = match &files[column.file] {
                        Ok(file) => column.read(id as usize, file, into).map_err(|e| self.unread(id, column, e)).err(),
                        Err(e) => Some(of_row(id, e)),
                    };
                }
            }
            wrong.push(failed);
        }
        // Behind the reads, before anybody sees what was read: times only grow.
        let stale = self.files.iter().zip(&files).find_map(|(kept, file)| kept.unchanged(file.as_ref().ok()?).err());
        if let Some(stale) = stale {
            for (failed, id) in wrong.iter_mut().zip(ids) {
                failed.get_or_insert_with(|| of_row(*id, &stale));
            }
        }
        wrong
    }

    fn unread(&self, id: SampleId, column: &Column, e: std::io::Error) -> Error {
        let path = self.files.get(column.file).map_or("", |kept| &kept.shown);
        Error::unreadable(format!("row {id} of {path}: cannot be read")).because(e)
    }
}

/// What is wrong with a file, said of one of its rows.
fn of_row(id: SampleId, e: &Error) -> Error {
    Error::new(e.kind(), format!("row {id}: {e}"))
}

impl Kept {
    fn look(path: PathBuf) -> Result<Self> {
        let shown = path.display().to_string();
        let meta = File::open(&path).and_then(|file| file.metadata()).map_err(|e| failed(&shown, e))?;
        if !meta.is_file() {
            return Err(Error::unreadable(format!("{shown} is no file: check the path")));
        }
        let stamp = Stamp::of_file(&meta);
        settled(&stamp);
        Ok(Self { path, shown, bytes: meta.len(), stamp })
    }

    fn open(&self) -> Result<File> {
        let file = File::open(&self.path).map_err(|e| failed(&self.shown, e))?;
        self.unchanged(&file)?;
        Ok(file)
    }

    /// Whether `file` is what it was.
    fn unchanged(&self, file: &File) -> Result<()> {
        let now = match file.metadata() {
            Ok(meta) if meta.len() == self.bytes && Stamp::of_file(&meta) == self.stamp => return Ok(()),
            Ok(meta) => format!("it has {} now", meta.len()),
            Err(e) => e.to_string(),
        };
        Err(Error::unreadable(is_another(&self.shown, self.bytes, &now)))
    }
}

impl Column {
    /// Looks at the file and adds it to `files`, unless it is among them.
    fn look(place: Place, samples: usize, files: &mut Vec<Kept>) -> Result<Self> {
        let Place { path, offset, stride, spec } = place;
        let path = std::path::absolute(&path).map_err(|e| failed(&path.display().to_string(), e))?;
        let among = match files.iter().position(|kept| kept.path == path) {
            Some(among) => among,
            None => {
                files.push(Kept::look(path.clone())?);
                files.len() - 1
            }
        };
        let bytes = files.get(among).map_or(0, |kept| kept.bytes);
        let row_bytes = spec.bytes();
        let stride = stride.unwrap_or(row_bytes as u64);
        let last = stride.checked_mul((samples as u64).saturating_sub(1)).and_then(|at| at.checked_add(offset));
        let end = last.and_then(|at| at.checked_add(row_bytes as u64));
        if end.is_none_or(|end| end > bytes) {
            return Err(Error::unreadable(format!(
                "{} has {bytes} bytes, and {samples} rows of {row_bytes} bytes from offset {offset} on take more: it is cut short, make or copy it again",
                path.display()
            )));
        }
        Ok(Self { file: among, offset, stride, row_bytes })
    }

    fn read(&self, row: usize, file: &File, into: &mut [u8]) -> std::io::Result<()> {
        file.read_exact_at(into, self.offset + row as u64 * self.stride)
    }
}

impl Source for Records {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn name(&self, id: SampleId) -> String {
        format!("row {id}")
    }
    fn size(&self, id: SampleId) -> Size {
        Size::known(if (id as usize) < self.facts.samples { self.data_bytes as u64 } else { 0 })
    }
    /// Rows have no names: some of them, evenly spread, stand for all, and the sizes of the files.
    fn digest(&self) -> String {
        let mut digest = Fingerprint::of(&self.facts);
        for column in &self.columns {
            digest.add(&self.files.get(column.file).map_or(0, |kept| kept.bytes).to_le_bytes());
            let file = self.file(column.file);
            let mut row = vec![0; column.row_bytes.min(DIGEST_ROW_BYTES)];
            for at in (0..self.facts.samples).step_by(self.facts.samples.div_ceil(DIGEST_ROWS)) {
                // What cannot be read now is no part of it; reading the sample tells.
                let _ = file.as_ref().map(|file| column.read(at, file, &mut row));
                digest.add(&row);
            }
        }
        digest.finish()
    }

    fn fetch_by(
        &self,
        _: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        let row_bytes = self.row_bytes();
        let together = (TOGETHER_BYTES / row_bytes.max(1)).max(1);
        let mut buf = Vec::new();
        for (number, ids) in ids.chunks(together).enumerate() {
            let wrong = self.read(ids, &mut buf, stopped);
            let all = wrong.len() == ids.len();
            for (k, (failed, row)) in wrong.into_iter().zip(buf.chunks_exact(row_bytes)).enumerate() {
                let (data, target) = row.split_at(self.data_bytes);
                let answer = failed.map_or(Ok(Payload::new(data, target)), Err);
                if sink(number * together + k, answer).is_break() {
                    return Traffic::default();
                }
            }
            if !all {
                break;
            }
        }
        Traffic::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::handles::HANDLES_MAX;
    use crate::tests::open_below;
    use crate::types::Dtype;
    use crate::wrap::Concat;
    use std::io::Write;

    fn place(bytes: &[u8], offset: u64, spec: TensorSpec) -> (tempfile::NamedTempFile, Place) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let path = file.path().to_owned();
        (file, Place { path, offset, stride: None, spec })
    }

    fn answers(source: &dyn Source, ids: &[SampleId]) -> Vec<std::result::Result<Vec<u8>, String>> {
        let mut found = vec![Err("no answer".to_owned()); ids.len()];
        source.fetch(ids, &mut |k, answer| {
            found[k] = answer.map(|p| [p.data, p.target].concat()).map_err(|e| e.to_string());
            ControlFlow::Continue(())
        });
        found
    }

    #[test]
    fn rows_are_what_lies_behind_the_head_and_targets_follow() {
        let (_a, a) = place(b"head0123456789", 4, TensorSpec::new(Dtype::U8, [2]));
        let (_b, b) = place(b"abcde", 0, TensorSpec::new(Dtype::U8, []));
        let (_c, c) = place(b"ABCDE", 0, TensorSpec::new(Dtype::U8, []));
        let pairs = Records::open(vec![a.clone()], Some(b.clone()), 5).unwrap();
        assert!(
            matches!(pairs.facts.form, Form::Rows(_))
                && pairs.size(4) == Size::known(2)
                && pairs.size(5) == Size::known(0)
        );
        assert_eq!(answers(&pairs, &[4, 0, 2]), [Ok(b"89e".to_vec()), Ok(b"01a".to_vec()), Ok(b"45c".to_vec())]);
        assert!(answers(&pairs, &[5, 1])[0].as_ref().unwrap_err().contains("0 to 4"));
        let three = Records::open(vec![a.clone(), c], Some(b), 5).unwrap();
        assert!(matches!(three.facts.form, Form::Fields(_)));
        assert_eq!(answers(&three, &[1])[0], Ok(b"23Bb".to_vec()));
        let apart = Place { stride: Some(3), ..a.clone() };
        let over = Place { stride: Some(1), ..a.clone() };
        let both = Records::open(vec![apart.clone(), over.clone()], None, 3).unwrap();
        assert_eq!(answers(&both, &[2, 0]), [Ok(b"6723\0".to_vec()), Ok(b"0101\0".to_vec())]);
        assert!(Records::open(vec![over.clone()], None, 9).is_ok() && Records::open(vec![over], None, 10).is_err());
        assert!(Records::open(vec![apart.clone()], None, 3).is_ok() && Records::open(vec![apart], None, 4).is_err());
        let none = Records::open(vec![a], None, 5).unwrap();
        assert_eq!(answers(&none, &[1])[0], Ok(b"23\0".to_vec()));
        assert!(pairs.digest() != none.digest() && pairs.digest() == pairs.digest());
    }

    #[test]
    fn a_file_that_is_cut_short_or_changes_is_named() {
        let (file, place) = place(&[7; 100], 20, TensorSpec::new(Dtype::F32, [5]));
        let cut = Records::open(vec![place.clone()], None, 5).err().unwrap().to_string();
        assert!(cut.contains("5 rows of 20 bytes from offset 20") && cut.contains("has 100 bytes"), "{cut}");
        assert!(Records::open(vec![Place { offset: u64::MAX, ..place.clone() }], None, 1).is_err());
        assert!(Records::open(vec![Place { path: "/nowhere".into(), ..place.clone() }], None, 1).is_err());
        assert!(Records::open(vec![place.clone()], None, 0).is_err());
        let open = Records::open(vec![place], None, 4).unwrap();
        assert!(answers(&open, &[0, 3]).iter().all(Result::is_ok));
        file.as_file().set_len(60).unwrap();
        let after = answers(&open, &[0, 3]);
        assert!(after[0].as_ref().unwrap_err().contains("changed since"), "{after:?}");
        assert!(after[1].is_err());
    }
    /// A process has 1024 by default, and a dataset may have more files than that.
    #[test]
    fn more_files_than_may_be_open_are_read_and_one_that_changed_while_it_was_closed_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let count = HANDLES_MAX as u32 + 40;
        let path = |n: u32| dir.path().join(n.to_string());
        (0..count).for_each(|n| std::fs::write(path(n), [n.to_le_bytes(), (n + 1).to_le_bytes()].concat()).unwrap());
        let part = |n: u32| {
            let place = |offset| Place { path: path(n), offset, stride: None, spec: TensorSpec::new(Dtype::U8, [4]) };
            Arc::new(Records::open(vec![place(0)], Some(place(4)), 1).unwrap()) as Arc<dyn Source>
        };
        let all = Concat::new((0..count).map(part).collect()).unwrap();
        let ids: Vec<SampleId> = (0..count).map(|k| k * 7 % count).collect();
        for round in 0..2 {
            let mut came = 0;
            let before_each = || {
                assert!(open_below(dir.path()) <= HANDLES_MAX + 1, "{}", open_below(dir.path()));
                false
            };
            all.fetch_by(u64::MAX, &before_each, &ids, &mut |k, answer| {
                let wanted = [ids[k].to_le_bytes(), (ids[k] + 1).to_le_bytes()];
                match answer {
                    Ok(payload) => assert_eq!([payload.data, payload.target], wanted),
                    Err(e) => assert!(round == 1 && ids[k] == 3 && e.to_string().contains("changed since"), "{e}"),
                }
                came += 1;
                ControlFlow::Continue(())
            });
            assert_eq!(came, count);
            std::fs::write(path(3), [9; 8]).unwrap();
        }
        drop(all);
        assert_eq!(open_below(dir.path()), 0);
    }
}
