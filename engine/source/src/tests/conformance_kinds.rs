//! The kinds of sources beside folders and shards that keep the promises of `conformance.rs`: rows in files,
//! Parquet, and shards behind web servers and stores.

use std::fs;
#[cfg(feature = "parquet")]
use std::path::Path;

use crate::tests::conformance::{SAMPLES, bytes_of, source_keeps_its_promises};
use crate::types::Dtype;
use crate::types::TensorSpec;
use crate::*;

#[test]
fn rows_in_files_keep_the_promises() {
    let root = tempfile::tempdir().unwrap();
    let short = 40;
    let place = |name: &str, spec, offset: u64, rows: Vec<u8>| {
        let path = root.path().join(name);
        fs::write(&path, [vec![0xee; offset as usize], rows].concat()).unwrap();
        Place { path, offset, stride: None, spec }
    };
    let part = |from: usize, to: usize| (0..SAMPLES).flat_map(|id| bytes_of(id)[from..to].to_vec()).collect();
    let targets = (0..SAMPLES).flat_map(|id| i64::from(id).to_ne_bytes()).collect();
    let target = place("target", TensorSpec::class_index(), 0, targets);
    let one = place("one", TensorSpec::new(Dtype::U8, [short]), 128, part(0, short));
    let halves = [(0, 12), (12, short)]
        .map(|(from, to)| place(&format!("from {from}"), TensorSpec::new(Dtype::U8, [to - from]), 1, part(from, to)));
    for data in [vec![one], halves.into()] {
        let source = Records::open(data, Some(target.clone()), SAMPLES as usize).unwrap();
        source_keeps_its_promises(&source);
    }
}

#[test]
fn files_of_a_list_keep_the_promises() {
    let root = tempfile::tempdir().unwrap();
    let paths = (0..SAMPLES).map(|id| {
        fs::write(root.path().join(format!("{id}.png")), bytes_of(id)).unwrap();
        format!("{id}.png")
    });
    let column = Column { name: "image".to_owned(), kind: PieceKind::Picture, values: Values::Files(paths.collect()) };
    let labels = Labels { labels: (0..i64::from(SAMPLES)).collect(), classes: Vec::new() };
    let options = OpenOptions::default();
    let source = open_table("a list".to_owned(), root.path().to_owned(), vec![column], Some(labels), &options);
    source_keeps_its_promises(&*source.unwrap());
}

/// All samples as rows of Parquet files below `root`: several pages in several row groups, with a dictionary and
/// without, in one file or two.
#[cfg(feature = "parquet")]
fn rows(root: &Path, dictionary: bool, index: bool, files: u32) -> String {
    use ::parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
    use ::parquet::file::properties::{EnabledStatistics, WriterProperties};
    use ::parquet::file::writer::SerializedFileWriter;
    use ::parquet::schema::parser::parse_message_type;

    let schema = "message row { required binary image; required int64 label; }";
    let schema = std::sync::Arc::new(parse_message_type(schema).unwrap());
    let statistics = if index { EnabledStatistics::Page } else { EnabledStatistics::None };
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(dictionary)
        .set_data_page_row_count_limit(2)
        .set_write_batch_size(1)
        .set_offset_index_disabled(!index)
        .set_statistics_enabled(statistics)
        .build();
    let properties = std::sync::Arc::new(properties);
    let folder = root.join(format!("{dictionary}-{index}-{files}"));
    fs::create_dir_all(&folder).unwrap();
    for file in 0..files {
        let path = folder.join(format!("{file}.parquet"));
        let ids: Vec<u32> = (0..SAMPLES).filter(|id| id * files / SAMPLES == file).collect();
        let into = fs::File::create(&path).unwrap();
        let mut writer = SerializedFileWriter::new(into, schema.clone(), properties.clone()).unwrap();
        for ids in ids.chunks(7) {
            let mut group = writer.next_row_group().unwrap();
            let images: Vec<ByteArray> = ids.iter().map(|&id| bytes_of(id).into()).collect();
            let labels: Vec<i64> = ids.iter().map(|&id| i64::from(id)).collect();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&images, None, None).unwrap();
            column.close().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<Int64Type>().write_batch(&labels, None, None).unwrap();
            column.close().unwrap();
            group.close().unwrap();
        }
        writer.close().unwrap();
    }
    format!("{}/*.parquet", folder.display())
}

#[cfg(feature = "parquet")]
#[test]
fn rows_of_parquet_files_keep_the_promises() {
    use crate::tests::conformance::{ask, far};

    let root = tempfile::tempdir().unwrap();
    for (dictionary, index, files) in [(false, true, 1), (true, true, 2), (false, false, 2), (true, false, 1)] {
        let path = rows(root.path(), dictionary, index, files);
        let with = |throttle, chaos| open(&path, &OpenOptions { throttle, chaos, ..OpenOptions::default() }).unwrap();
        let source = with(None, None);
        assert_eq!(source.labels(), Some(&(0..i64::from(SAMPLES)).collect::<Vec<_>>()[..]));
        source_keeps_its_promises(&*source);
        source_keeps_its_promises(&*with(far(), None));
        let subset = Subset::new(with(far(), None), (0..SAMPLES).collect()).unwrap();
        source_keeps_its_promises(&subset);
        // Requests that fail on purpose take their time.
        if dictionary && index {
            ask(&*with(far(), Some(5)), &(0..SAMPLES).collect::<Vec<_>>(), usize::MAX, &|| false);
        }
    }
}

#[cfg(feature = "cloud")]
#[test]
fn shards_behind_servers_and_stores_keep_the_promises() {
    use crate::tests::conformance::{kept, stored};
    use crate::tests::web_double::Web;

    let root = tempfile::tempdir().unwrap();
    let [_, path] = stored(root.path());
    let shard = fs::read(path).unwrap();
    for ranges in [true, false] {
        // Where a web server has it, and S3 below its endpoint.
        let paths = ["/s.tar", "/bucket/s.tar"];
        let web = Web::start(paths.map(|path| (path.to_owned(), shard.clone())).into(), ranges);
        let signed_by_nobody = [("endpoint", web.url.as_str()), ("skip_signature", "true"), ("region", "here")];
        let kinds = [(format!("{}/s.tar", web.url), &[][..]), ("s3://bucket/s.tar".to_owned(), &signed_by_nobody)];
        // Only of a plain web server whole objects are read.
        for (number, (url, said)) in kinds.iter().take(if ranges { 2 } else { 1 }).enumerate() {
            let store_options = said.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
            let mut options = OpenOptions { store_options, ..OpenOptions::default() };
            source_keeps_its_promises(&*open(url, &options).unwrap());
            let folder = root.path().join(format!("tier-{ranges}-{number}"));
            options.disk = Some(DiskTier { folder, bytes: 64 << 20 });
            let source = open(url, &options).unwrap();
            source_keeps_its_promises(&*source);
            kept(&*source);
            source_keeps_its_promises(&*source);
        }
    }
}
