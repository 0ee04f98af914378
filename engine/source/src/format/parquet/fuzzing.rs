//! A door for the fuzz target of Parquet files (`tests/fuzz/targets`). Only in fuzzing builds, and in tests, which hold
//! the seeds and whatever was found to the same promises.

use std::io::Cursor;
use std::ops::ControlFlow;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::{Parquet, look};
use crate::error::{Error, Result};
use crate::format::catalog::{Catalog, Shard};
use crate::format::reader::Reader;
use crate::request::identity::Stamp;
use crate::sample::payload::picture_and_tail;
use crate::sample::{Form, SIZE_UNKNOWN, Source, Traffic};
use crate::types::SampleId;

/// Rows that are read of a file: several units of each column.
const ROWS: usize = 24;

/// A file in memory.
struct Held<'a>(&'a [u8]);

impl Reader for Held<'_> {
    fn read(
        &self,
        catalog: &Arc<Catalog>,
        wanted: &[(usize, SampleId)],
        _: u64,
        _: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(usize, SampleId, Result<&[u8]>) -> ControlFlow<()>,
    ) -> Traffic {
        for &(k, id) in wanted {
            let place = catalog.place(id);
            let read = place.and_then(|place| {
                let start = usize::try_from(place.offset).ok()?;
                self.0.get(start..start.checked_add(place.bytes as usize)?)
            });
            // Whoever looked at the file has made sure of it.
            assert!(read.is_some(), "{place:?} lies outside of the file's {} bytes", self.0.len());
            if sink(k, id, read.ok_or_else(|| Error::internal("nothing there"))).is_break() {
                break;
            }
        }
        Traffic::default()
    }
}

/// A Parquet file: refused with words, or rows that each come once, or have an error with words, and the same again.
pub fn parquet(bytes: &[u8]) {
    for fields in [&[][..], &["image", "text", "label"], &["numbers"]] {
        let fields: Vec<String> = fields.iter().map(|&field: &&str| field.to_owned()).collect();
        let shard = Shard { path: "rows.parquet".to_owned(), bytes: bytes.len() as u64, stamp: Stamp::default() };
        let opened = look(Cursor::new(bytes), shard, &fields)
            .and_then(|looked| Parquet::new("rows".to_owned(), vec![looked], Held(bytes)));
        match opened {
            Ok(source) => rows(&source),
            Err(e) => assert!(!e.to_string().is_empty()),
        }
    }
}

fn rows(source: &dyn Source) {
    // The first and the last.
    let (all, some) = (source.len(), ROWS.min(source.len()));
    let mut ids: Vec<SampleId> = (0..some / 2).chain(all - some.div_ceil(2)..all).map(|id| id as SampleId).collect();
    let mut read = || {
        let mut came: Vec<Option<std::result::Result<Vec<u8>, String>>> = vec![None; ids.len()];
        source.fetch(&ids, &mut |k, answer| {
            let answer = answer.map(|payload| payload.data.to_vec()).map_err(|e| e.to_string());
            assert!(came[k].replace(answer).is_none(), "row {} came twice", ids[k]);
            ControlFlow::Continue(())
        });
        ids.reverse();
        came
    };
    let (first, mut second) = (read(), read());
    second.reverse();
    assert_eq!(first, second, "the same row gave two results");
    for (&id, answer) in ids.iter().zip(first) {
        assert!(answer.is_some(), "row {id} has no answer");
        match answer.unwrap_or_else(|| Err(String::new())) {
            Err(words) => assert!(!words.is_empty()),
            Ok(payload) => {
                source.delivered(id, &payload);
                assert!(source.payload_bytes(id) == payload.len() as u64 && source.payload_bytes(id) < SIZE_UNKNOWN);
                if *source.form() == (Form::Images { tailed: true }) {
                    let tail = picture_and_tail(&payload).map(|(_, tail)| tail.len() as u64);
                    assert!(tail.is_ok_and(|tail| tail == source.size(id).tail));
                }
            }
        }
    }
}

/// Small files by the library's writer: with dictionaries and without, compressed and not, of one page and of several.
pub fn parquet_seeds() -> Vec<Vec<u8>> {
    let made = [
        (Compression::UNCOMPRESSED, true, 100, "required binary image; required int64 label;"),
        (Compression::SNAPPY, false, 2, "required binary image; required int32 label; optional binary text (UTF8);"),
        (
            Compression::UNCOMPRESSED,
            false,
            2,
            "optional group numbers (LIST) { repeated group list { optional float element; } }",
        ),
        (
            Compression::ZSTD(Default::default()),
            true,
            3,
            "required binary text (UTF8); required boolean flag; optional double x;",
        ),
        (
            Compression::LZ4_RAW,
            true,
            2,
            "required group image { optional binary bytes; optional binary path (UTF8); } required int64 label;",
        ),
    ];
    made.into_iter()
        .filter_map(|(codec, dictionary, page, columns)| seed(codec, dictionary, page, columns).ok())
        .collect()
}

/// Five rows, in row groups of three and two.
fn seed(
    codec: Compression,
    dictionary: bool,
    page: usize,
    columns: &str,
) -> std::result::Result<Vec<u8>, ParquetError> {
    let schema = Arc::new(parse_message_type(&format!("message row {{ {columns} }}"))?);
    let features = r#"{"info":{"features":{"label":{"_type":"ClassLabel","names":["cat","dog"]}}}}"#;
    let properties = WriterProperties::builder()
        .set_compression(codec)
        .set_dictionary_enabled(dictionary)
        .set_data_page_row_count_limit(page)
        .set_write_batch_size(1)
        .set_key_value_metadata(Some(vec![KeyValue::new("huggingface".to_owned(), features.to_owned())]))
        .build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties))?;
    for rows in [3, 2] {
        let mut group = writer.next_row_group()?;
        while let Some(mut column) = group.next_column()? {
            let (define, repeat) = match column.untyped() {
                ColumnWriter::ByteArrayColumnWriter(w) => {
                    (w.get_descriptor().max_def_level(), w.get_descriptor().max_rep_level())
                }
                ColumnWriter::FloatColumnWriter(w) => {
                    (w.get_descriptor().max_def_level(), w.get_descriptor().max_rep_level())
                }
                ColumnWriter::DoubleColumnWriter(w) => {
                    (w.get_descriptor().max_def_level(), w.get_descriptor().max_rep_level())
                }
                _ => (0, 0),
            };
            // Two elements a row, where there are lists.
            let values = if repeat > 0 { 2 * rows } else { rows };
            let (define, repeat) =
                (vec![define; values], (0..values as i16).map(|k| k % (repeat + 1)).collect::<Vec<_>>());
            let levels = (Some(define.as_slice()), Some(repeat.as_slice()));
            match column.untyped() {
                ColumnWriter::ByteArrayColumnWriter(w) => {
                    let words: Vec<ByteArray> =
                        (0..values).map(|k| ByteArray::from("words".repeat(1 + k % 2).into_bytes())).collect();
                    w.write_batch(&words, levels.0, levels.1)?
                }
                ColumnWriter::BoolColumnWriter(w) => w.write_batch(&vec![true; values], levels.0, levels.1)?,
                ColumnWriter::Int32ColumnWriter(w) => w.write_batch(&vec![1; values], levels.0, levels.1)?,
                ColumnWriter::Int64ColumnWriter(w) => w.write_batch(&vec![1; values], levels.0, levels.1)?,
                ColumnWriter::FloatColumnWriter(w) => w.write_batch(&vec![0.5; values], levels.0, levels.1)?,
                ColumnWriter::DoubleColumnWriter(w) => w.write_batch(&vec![0.5; values], levels.0, levels.1)?,
                _ => 0,
            };
            column.close()?;
        }
        group.close()?;
    }
    writer.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_and_all_that_was_found_keep_the_promises() {
        let seeds = parquet_seeds();
        assert_eq!(seeds.len(), 5);
        for seed in &seeds {
            let shard = Shard { path: "seed".to_owned(), bytes: seed.len() as u64, stamp: Stamp::default() };
            let source =
                Parquet::new("seed".to_owned(), vec![look(Cursor::new(seed), shard, &[]).unwrap()], Held(seed));
            let source = source.unwrap();
            let mut good = 0;
            source.fetch_by(u64::MAX, &|| false, &[0, 1, 2, 3, 4], &mut |_, answer| {
                good += usize::from(answer.is_ok());
                ControlFlow::Continue(())
            });
            assert_eq!(good, 5, "{}", source.facts().description);
        }
        let folder = [env!("CARGO_MANIFEST_DIR"), "..", "..", "tests", "fuzz", "corpus"];
        let folder: std::path::PathBuf = folder.iter().collect();
        let all = std::fs::read_dir(folder).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
        seeds.into_iter().chain(all).for_each(|bytes| parquet(&bytes));
    }
    /// Each of Hugging Face's files says itself what its classes are called.
    #[test]
    fn files_whose_labels_mean_different_classes_are_refused_and_a_file_without_names_has_the_others() {
        let seed = parquet_seeds().remove(0);
        let instead = |from: &str, to: &str| {
            let at = seed.windows(from.len()).position(|found| found == from.as_bytes()).unwrap();
            let mut changed = seed.clone();
            changed[at..at + from.len()].copy_from_slice(to.as_bytes());
            changed
        };
        let other = instead(r#""cat","dog""#, r#""cat","dot""#);
        let silent = instead("huggingface", "huggingfile");
        let open = |files: [&[u8]; 2]| {
            let looked = files.into_iter().zip(["a.parquet", "b.parquet"]).map(|(file, path)| {
                let shard = Shard { path: path.to_owned(), bytes: file.len() as u64, stamp: Stamp::default() };
                look(Cursor::new(file), shard, &[]).unwrap()
            });
            Parquet::new("both".to_owned(), looked.collect(), Held(&[]))
        };
        let refused = open([&seed, &other]).err().unwrap().to_string();
        for words in [r#"b.parquet calls class 1 "dot" and a.parquet calls it "dog" (2 and 2"#, "two things", "apart"] {
            assert!(refused.contains(words), "{words:?} is missing from: {refused}");
        }
        for files in [[&seed, &silent], [&silent, &seed], [&seed, &seed]] {
            assert_eq!(open(files.map(Vec::as_slice)).unwrap().facts().classes, ["cat", "dog"]);
        }
        assert!(open([&silent, &silent]).unwrap().facts().classes.is_empty());
    }
}
