//! What was packed is what there was.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Parser;

use super::*;
use crate::args::{Cli, Command};

/// The least that is taken for an image of its kind.
fn image(number: usize) -> Vec<u8> {
    let head: &[u8] = if number.is_multiple_of(3) { b"\x89PNG\r\n\x1a\n" } else { b"\xff\xd8\xff\xe0" };
    [head, &vec![number as u8; number * 13 % 1500]].concat()
}

fn folders(root: &Path) -> PathBuf {
    let data = root.join("data");
    for number in 0..50 {
        let class = data.join(["ä b", "cat", "dog"][number % 3]);
        fs::create_dir_all(&class).unwrap();
        let ending = if number % 3 == 0 { "png" } else { "jpeg" };
        fs::write(class.join(format!("{number}.{ending}")), image(number)).unwrap();
    }
    data
}

fn args(source: &Path, folder: &Path, more: &[&str]) -> PackArgs {
    let line = ["lossfeed", "pack", source.to_str().unwrap(), folder.to_str().unwrap()];
    let Command::Pack(args) = Cli::try_parse_from(line.iter().chain(more)).unwrap().command else { panic!() };
    args
}

/// Every sample's bytes, and how often they come with which label.
fn contents(path: &Path) -> BTreeMap<(Vec<u8>, i64), usize> {
    let source = source::open(path.to_str().unwrap(), &OpenOptions::default()).unwrap();
    let labels = source.labels().unwrap();
    let mut all = BTreeMap::new();
    let ids: Vec<u32> = (0..source.len() as u32).collect();
    source.fetch(&ids, &mut |at, payload| {
        *all.entry((payload.unwrap().data.to_vec(), labels[at])).or_default() += 1;
        std::ops::ControlFlow::Continue(())
    });
    all
}

#[test]
fn packed_shards_hold_every_image_with_its_label() {
    let root = tempfile::tempdir().unwrap();
    let data = folders(root.path());
    for (name, more) in [
        ("a", &["--shard-size", "8kB"][..]),
        ("b", &["--shard-size", "8kB", "--seed", "7"]),
        ("c", &["--keep-order"]),
        ("d", &["--shard-size", "1"]),
    ] {
        let folder = root.path().join(name);
        let report = pack(&args(&data, &folder, more)).unwrap();
        assert_eq!((report.samples, report.kept), (50, 0));
        assert_eq!(contents(&folder), contents(&data), "{name}");
        assert_eq!(report.shards, fs::read_dir(&folder).unwrap().count());
    }
    let read = |name: &str| fs::read(root.path().join(name).join("shard-000000.tar")).unwrap();
    assert_ne!(read("a"), read("b"), "another seed, another order");
    // Shards of shards, in another order; their classes are folders still.
    let again = root.path().join("again");
    pack(&args(&root.path().join("a"), &again, &["--seed", "9"])).unwrap();
    assert_eq!(contents(&again), contents(&data));
}

#[test]
fn labels_that_are_numbers_stay_numbers() {
    let root = tempfile::tempdir().unwrap();
    let shard = root.path().join("in.tar");
    let mut archive = tar::Builder::new(fs::File::create(&shard).unwrap());
    for number in 0..9 {
        for (name, bytes) in [(format!("{number}.jpg"), image(1)), (format!("{number}.cls"), b"-4".to_vec())] {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            archive.append_data(&mut header, name, &bytes[..]).unwrap();
        }
    }
    archive.finish().unwrap();
    let folder = root.path().join("out");
    pack(&args(&shard, &folder, &["--shard-size", "6kB"])).unwrap();
    assert_eq!(contents(&folder), contents(&shard));
}

#[test]
fn what_was_begun_is_gone_on_with_and_nothing_else_is_touched() {
    let root = tempfile::tempdir().unwrap();
    let (data, folder) = (folders(root.path()), root.path().join("out"));
    let small = ["--shard-size", "8kB"];
    let first = pack(&args(&data, &folder, &small)).unwrap();
    let refused = pack(&args(&data, &folder, &small)).unwrap_err().to_string();
    assert!(refused.contains("is not empty") && refused.contains("--resume"), "{refused}");
    // One is missing, and one was being written.
    fs::remove_file(folder.join("shard-000001.tar")).unwrap();
    fs::write(folder.join(".shard-000001.tar.partial"), b"half").unwrap();
    let resumed = pack(&args(&data, &folder, &["--shard-size", "8kB", "--resume"])).unwrap();
    assert_eq!((resumed.kept, resumed.shards, resumed.bytes), (first.shards - 1, first.shards, first.bytes));
    assert_eq!(contents(&folder), contents(&data));
    // The same folder with another order is another dataset, and says so.
    let other =
        pack(&args(&data, &folder, &["--shard-size", "8kB", "--seed", "1", "--resume"])).unwrap_err().to_string();
    assert!(other.contains("does not hold this packing's result"), "{other}");
    // Somebody else's file.
    let foreign = root.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("notes.txt"), b"mine").unwrap();
    assert!(pack(&args(&data, &foreign, &["--resume"])).unwrap_err().to_string().contains("notes.txt"));
    assert_eq!(fs::read(foreign.join("notes.txt")).unwrap(), b"mine");
}

#[test]
fn a_sample_that_cannot_be_read_ends_it_and_leaves_no_half_shard() {
    let root = tempfile::tempdir().unwrap();
    let (data, folder) = (folders(root.path()), root.path().join("out"));
    let source = source::open(data.to_str().unwrap(), &OpenOptions::default()).unwrap();
    fs::remove_file(data.join("cat/1.jpeg")).unwrap();
    let ids: Vec<u32> = (0..50).collect();
    fs::create_dir(&folder).unwrap();
    let labels = Labels::of(source.as_ref()).unwrap();
    let failed = write::shard(source.as_ref(), &ids, &labels, &folder, "shard-000000.tar").unwrap_err();
    assert!(failed.to_string().contains("cat/1.jpeg"), "{failed}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn shards_do_not_go_into_what_is_packed() {
    let root = tempfile::tempdir().unwrap();
    let source = folders(root.path());
    let link = root.path().join("link");
    std::os::unix::fs::symlink(&source, &link).unwrap();
    for folder in [source.join("shards"), source.clone(), link.join("a/b"), source.join("x/../y")] {
        let error = pack(&args(&source, &folder, &[])).err().unwrap().to_string();
        assert!(error.contains("the folder to be packed") && error.contains("outside of it"), "{error}");
    }
    pack(&args(&source, &root.path().join("shards"), &[])).unwrap();
}
