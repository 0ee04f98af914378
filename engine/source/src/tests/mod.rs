//! Fixtures, and the truths about sources on this machine.

mod coalesce;
mod conformance;
mod conformance_kinds;
mod identity;
mod link_model;
mod on_disk;
mod permits;
mod probe;
mod ranged;
mod stop;
mod store;
mod tiered;
mod walk;
#[cfg(feature = "cloud")]
mod web_double;
#[cfg(feature = "cloud")]
mod whole;
mod wrappers;

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::error::Result;
use crate::error::{Error, ErrorKind};
use crate::format::catalog::Shard;
use crate::format::index_cache;
use crate::format::tar::{ShardIndex, walk};
use crate::request::file;
use crate::types::Dtype;
use crate::types::TensorSpec;
use crate::*;

/// A gray PNG of 2 × 3 pixels, all of `value`.
pub(crate) fn png(value: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut bytes, 3, 2);
    encoder.set_color(::png::ColorType::Grayscale);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&[value; 6]).unwrap();
    writer.finish().unwrap();
    bytes
}

pub(crate) fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = ::tar::Builder::new(Vec::new());
    for (name, data) in members {
        let mut header = ::tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        // Written into the header by hand: the library refuses the names this room must survive.
        header.as_mut_bytes()[..name.len().min(100)].copy_from_slice(&name.as_bytes()[..name.len().min(100)]);
        header.set_cksum();
        builder.append(&header, *data).unwrap();
    }
    builder.into_inner().unwrap()
}

pub(crate) fn index(bytes: &[u8]) -> Result<ShardIndex> {
    walk(std::io::Cursor::new(bytes), bytes.len() as u64, "shard.tar")
}

/// Two classes, `cat` with images 1 and 2, `dog` with 3.
pub(crate) fn class_folders(root: &Path) {
    for (name, value) in [("cat/a.png", 1), ("cat/deeper/b.png", 2), ("dog/a.PNG", 3)] {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, png(value)).unwrap();
    }
}

/// What every sample says, in the order of ids: name, first bytes' hash as data, and label.
pub(crate) fn all(source: &dyn Source) -> Vec<(String, std::result::Result<(Vec<u8>, i64), String>)> {
    let ids: Vec<u32> = (0..source.len() as u32).collect();
    let mut seen = vec![None; ids.len()];
    source.fetch(&ids, &mut |k, payload| {
        assert!(seen[k].is_none(), "position {k} was answered twice");
        seen[k] = Some(
            payload
                .map(|p| (p.data.to_vec(), i64::from_ne_bytes(p.target.try_into().unwrap())))
                .map_err(|e| e.to_string()),
        );
        ControlFlow::Continue(())
    });
    ids.iter().map(|&id| (source.name(id), seen[id as usize].take().expect("every position is answered"))).collect()
}

pub(crate) fn open_path(path: &Path) -> Result<Arc<dyn Source>> {
    open(path.to_str().unwrap(), &OpenOptions::default())
}

/// How many files below `root` this process has open.
pub(crate) fn open_below(root: &Path) -> usize {
    let open = fs::read_dir("/proc/self/fd").unwrap();
    open.filter(|fd| fs::read_link(fd.as_ref().unwrap().path()).is_ok_and(|file| file.starts_with(root))).count()
}

pub(crate) fn refusal<T>(result: Result<T>, kind: ErrorKind, words: &[&str]) {
    let error: Error = match result {
        Ok(_) => panic!("this should have been refused: {words:?}"),
        Err(e) => e,
    };
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} is missing from: {error}");
    }
}

#[test]
fn a_class_folder_gives_its_images_in_the_order_of_their_names() {
    let dir = tempfile::tempdir().unwrap();
    class_folders(dir.path());
    fs::write(dir.path().join("README"), "x").unwrap();
    fs::write(dir.path().join("cat/notes.txt"), "x").unwrap();
    let source = open_path(dir.path()).unwrap();
    assert_eq!(source.classes(), ["cat", "dog"]);
    assert_eq!(source.labels().unwrap(), [0, 0, 1]);
    let expected: Vec<_> = [("cat/a.png", 1, 0), ("cat/deeper/b.png", 2, 0), ("dog/a.PNG", 3, 1)]
        .map(|(n, v, l)| (n.to_owned(), Ok((png(v), l))))
        .into();
    assert_eq!(all(&*source), expected);
    assert_eq!(source.payload_bytes(2), png(3).len() as u64);
    assert!(source.describe().contains("2 other files ignored"), "{}", source.describe());
}

#[test]
fn a_shard_gives_its_members_in_order_with_classes_from_their_directories() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (png(7), png(8));
    fs::write(dir.path().join("x-1.tar"), archive(&[("./dog/1.png", &one)])).unwrap();
    fs::write(dir.path().join("x-0.tar"), archive(&[("cat/2.png", &two), ("info.txt", b"hello"), ("dog/9.png", &one)]))
        .unwrap();
    for name in ["", "/x-{0..1}.tar", "/x-*.tar", "/x-?.tar"] {
        let source = open(&format!("{}{name}", dir.path().display()), &OpenOptions::default()).unwrap();
        let expected: Vec<_> =
            [("x-0.tar/cat/2.png", &two, 0), ("x-0.tar/dog/9.png", &one, 1), ("x-1.tar/dog/1.png", &one, 1)]
                .map(|(n, v, l)| (n.to_owned(), Ok((v.clone(), l))))
                .into();
        assert_eq!(all(&*source), expected, "{name}");
        assert_eq!(source.classes(), ["cat", "dog"]);
    }
    let url = format!("file://{}/x-{{1,0}}.tar", dir.path().display());
    assert_eq!(open(&url, &OpenOptions::default()).unwrap().name(0), "x-1.tar/dog/1.png");
}

#[test]
fn labels_beside_images_win_over_directories() {
    let image = png(1);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("w.tar");
    fs::write(&path, archive(&[("d/0.cls", b"7\n"), ("d/0.png", &image), ("d/1.png", &image), ("d/1.cls", b" -1 ")]))
        .unwrap();
    let source = open_path(&path).unwrap();
    assert_eq!(source.labels().unwrap(), [7, -1]);
    assert!(source.classes().is_empty());
}

#[test]
fn arrays_hand_out_their_rows_and_labels() {
    let data: Vec<u8> = (0..12).collect();
    let target: Vec<u8> = [5i64, -6].iter().flat_map(|v| v.to_ne_bytes()).collect();
    let source = Arrays::new(data, TensorSpec::new(Dtype::U8, [2, 3]), target, TensorSpec::class_index(), 2).unwrap();
    assert_eq!(source.labels().unwrap(), [5, -6]);
    assert_eq!(
        all(&source),
        [("row 0".to_owned(), Ok(((0..6).collect(), 5))), ("row 1".to_owned(), Ok(((6..12).collect(), -6)))]
    );
}

#[test]
fn arrays_that_do_not_fit_their_shape_are_refused() {
    let spec = || TensorSpec::new(Dtype::F32, [3]);
    let build = |data: usize, spec, target: usize, n| {
        Arrays::new(vec![0; data], spec, vec![0; target], TensorSpec::class_index(), n)
    };
    refusal(build(24, spec(), 15, 2), ErrorKind::Settings, &["target", "15 bytes"]);
    refusal(build(23, spec(), 16, 2), ErrorKind::Settings, &["data", "2 rows", "[3]", "23 bytes"]);
    refusal(build(0, spec(), 0, 0), ErrorKind::Settings, &["0 samples"]);
    refusal(build(0, TensorSpec::new(Dtype::U8, [0, 4]), 16, 2), ErrorKind::Settings, &["[0, 4]"]);
    refusal(build(8, TensorSpec::new(Dtype::U8, [usize::MAX, 9]), 16, 2), ErrorKind::Settings, &["8 bytes"]);
}

#[test]
fn an_id_out_of_range_is_an_error_and_the_others_still_come() {
    let dir = tempfile::tempdir().unwrap();
    class_folders(dir.path());
    let source = open_path(dir.path()).unwrap();
    let mut answers = vec![None; 3];
    source.fetch(&[9, 0, 3], &mut |k, p| {
        answers[k] = Some(p.is_ok());
        ControlFlow::Continue(())
    });
    assert_eq!(answers, [Some(false), Some(true), Some(false)]);
}

#[test]
fn what_is_missing_or_empty_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| format!("{}/{name}", dir.path().display());
    let open = |name: &str| open(&at(name), &OpenOptions::default());
    refusal(open("nothing"), ErrorKind::Source, &[&at("nothing"), "does not exist"]);
    refusal(open("x-{0..2}.tar"), ErrorKind::Source, &["x-0.tar", "does not exist"]);
    refusal(open("*.tar"), ErrorKind::Source, &["*.tar", "matches"]);
    refusal(open(""), ErrorKind::Source, &["no samples", "class folders"]);
    fs::create_dir_all(dir.path().join("empty/cat")).unwrap();
    refusal(open("empty"), ErrorKind::Sample, &["class folder cat", "remove"]);
    fs::write(at("e.tar"), archive(&[])).unwrap();
    refusal(open("e.tar"), ErrorKind::Source, &["no samples"]);
    fs::write(at("zero.tar"), b"").unwrap();
    refusal(open("zero.tar"), ErrorKind::Source, &["empty (0 bytes)"]);
    refusal(open("e.tar/x"), ErrorKind::Source, &["e.tar/x"]);
    refusal(crate::place::open("", &OpenOptions::default()), ErrorKind::Settings, &["empty"]);
    fs::write(at("empty/a.tar"), archive(&[])).unwrap();
    refusal(open("empty"), ErrorKind::Settings, &["1 tar files and 1 folders"]);
}

#[test]
fn an_unlabelled_image_is_named() {
    let image = png(1);
    let open_with = |members: &[(&str, &[u8])]| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.tar");
        fs::write(&path, archive(members)).unwrap();
        open_path(&path)
    };
    refusal(open_with(&[("a.png", &image)]), ErrorKind::Sample, &["a.png", "no label", "a.cls"]);
    refusal(
        open_with(&[("a.png", &image), ("b.png", &image), ("b.cls", b"1")]),
        ErrorKind::Sample,
        &["a.png", "1 of the 2 images", "a.cls"],
    );
}

#[test]
fn an_empty_member_is_a_bad_sample_and_the_rest_is_read() {
    let image = png(1);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.tar");
    fs::write(&path, archive(&[("c/a.png", &image), ("c/b.png", b""), ("c/d.png", &image)])).unwrap();
    let source = open_path(&path).unwrap();
    let seen = all(&*source);
    assert!(seen[1].1.as_ref().unwrap_err().contains("c/b.png is empty (0 bytes)"));
    assert_eq!((seen[0].1.as_ref().unwrap().1, seen[2].1.as_ref().unwrap().1), (0, 0));
}

#[test]
fn a_file_cut_after_indexing_is_refused_with_its_numbers() {
    let image = png(1);
    let dir = tempfile::tempdir().unwrap();
    let shard = dir.path().join("s.tar");
    fs::write(&shard, archive(&[("c/a.png", &image), ("c/b.png", &image)])).unwrap();
    let source = open_path(&shard).unwrap();
    assert!(all(&*source).iter().all(|(_, r)| r.is_ok()), "the handle is open from here on");
    fs::OpenOptions::new().write(true).open(&shard).unwrap().set_len(1024 + 512 + 10).unwrap();
    // What is left of it is not read either: nobody knows what it is.
    for (name, seen) in all(&*source) {
        let message = seen.unwrap_err();
        for word in [&*name, "s.tar changed since it was indexed", "now 1546 bytes", "open the dataset again"] {
            assert!(message.contains(word), "{word:?} is missing from: {message}");
        }
    }

    let folder = dir.path().join("folder");
    class_folders(&folder);
    let source = open_path(&folder).unwrap();
    fs::write(folder.join("cat/a.png"), b"short").unwrap();
    fs::write(folder.join("dog/a.PNG"), vec![0; 5000]).unwrap();
    fs::remove_file(folder.join("cat/deeper/b.png")).unwrap();
    let seen: Vec<String> = all(&*source).into_iter().map(|(_, r)| r.unwrap_err()).collect();
    assert!(seen[0].contains("got 5"), "{}", seen[0]);
    assert!(seen[1].contains("does not exist"), "{}", seen[1]);
    assert!(seen[2].contains("now 5000"), "{}", seen[2]);
}

#[test]
fn a_shard_replaced_before_its_first_read_is_refused() {
    let image = png(1);
    let dir = tempfile::tempdir().unwrap();
    let shard = dir.path().join("s.tar");
    fs::write(&shard, archive(&[("c/a.png", &image)])).unwrap();
    let source = open_path(&shard).unwrap();
    fs::write(&shard, archive(&[("c/a.png", &image), ("c/b.png", &image)])).unwrap();
    let message = all(&*source).remove(0).1.unwrap_err();
    assert!(message.contains("changed since it was indexed"), "{message}");
}

#[test]
fn more_shards_than_handles_are_all_read_and_only_so_many_are_open() {
    let dir = tempfile::tempdir().unwrap();
    let shards = 600u32;
    for n in 0..shards {
        let image = png((n % 251) as u8);
        fs::write(dir.path().join(format!("{n:03}.tar")), archive(&[("c/a.png", &image)])).unwrap();
    }
    let source = open(&format!("{}/{{000..599}}.tar", dir.path().display()), &OpenOptions::default()).unwrap();
    let (mut came, most) = (0, std::cell::Cell::new(0));
    let before_each = || {
        most.set(most.get().max(open_below(dir.path())));
        false
    };
    source.fetch_by(u64::MAX, &before_each, &(0..shards).collect::<Vec<_>>(), &mut |n, seen| {
        assert_eq!(seen.unwrap().data, png((n % 251) as u8));
        came += 1;
        ControlFlow::Continue(())
    });
    assert_eq!((came, source.name(7)), (shards, "007.tar/c/a.png".to_owned()));
    assert!((200..=crate::request::handles::HANDLES_MAX + 8).contains(&most.get()), "{most:?} files are open at once");
}

#[test]
fn a_link_back_up_is_an_error_and_not_a_loop() {
    let dir = tempfile::tempdir().unwrap();
    class_folders(dir.path());
    std::os::unix::fs::symlink(dir.path().join("cat"), dir.path().join("cat/deeper/again")).unwrap();
    refusal(open_path(dir.path()), ErrorKind::Source, &["leads back", "remove the link"]);
}

#[test]
fn links_to_class_folders_and_images_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    class_folders(&dir.path().join("real"));
    let view = dir.path().join("view");
    fs::create_dir_all(view.join("own")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("real/cat"), view.join("cat")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("real/dog/a.PNG"), view.join("own/x.png")).unwrap();
    let source = open_path(&view).unwrap();
    assert_eq!(
        all(&*source).iter().map(|(n, r)| (n.as_str(), r.as_ref().unwrap().1)).collect::<Vec<_>>(),
        [("cat/a.png", 0), ("cat/deeper/b.png", 0), ("own/x.png", 1)]
    );
}

/// Ids and fingerprint stay what they are without the strangers, which are counted.
#[test]
fn links_that_lead_nowhere_and_names_that_are_no_text_are_left_out() {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    class_folders(dir.path());
    let healthy = open_path(dir.path()).unwrap();
    let none = dir.path().join("none");
    symlink(&none, dir.path().join("cat/gone.png")).unwrap();
    symlink("round.png", dir.path().join("cat/deeper/round.png")).unwrap();
    symlink(dir.path().join("dog/a.PNG/below"), dir.path().join("dog/below.png")).unwrap();
    symlink(&none, dir.path().join("ant")).unwrap();
    symlink(&none, dir.path().join(".hidden")).unwrap();
    fs::write(dir.path().join("dog").join(std::ffi::OsStr::from_bytes(b"b\xff.png")), png(4)).unwrap();
    fs::create_dir(dir.path().join(std::ffi::OsStr::from_bytes(b"\xfe"))).unwrap();
    let source = open_path(dir.path()).unwrap();
    assert_eq!(all(&*source), all(&*healthy));
    assert_eq!((source.classes(), source.digest()), (healthy.classes(), healthy.digest()));
    let said = source.describe();
    assert!(said.contains("4 links ignored") && said.contains("2 other files ignored"), "{said}");
    // A class of nothing else is still a class without images.
    fs::create_dir(dir.path().join("eel")).unwrap();
    symlink(&none, dir.path().join("eel/gone.png")).unwrap();
    refusal(open_path(dir.path()), ErrorKind::Sample, &["class folder eel", "no images", ".webp", "add some"]);
}

#[test]
fn a_shard_that_cannot_be_reached_is_refused_by_name() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("0.tar"), archive(&[("c/a.png", &png(1))])).unwrap();
    let (link, odd) = (dir.path().join("1.tar"), dir.path().join(std::ffi::OsStr::from_bytes(b"2\xff.tar")));
    std::os::unix::fs::symlink(dir.path().join("none"), &link).unwrap();
    let pattern = dir.path().join("*.tar");
    for path in [dir.path(), &pattern] {
        refusal(open_path(path), ErrorKind::Source, &["1.tar in", "repair or remove it"]);
    }
    fs::remove_file(link).unwrap();
    fs::write(&odd, b"").unwrap();
    for path in [dir.path(), &pattern] {
        refusal(open_path(path), ErrorKind::Source, &["2\u{fffd}.tar in", "not UTF-8: rename it"]);
    }
    assert_eq!(open_path(&dir.path().join("0*.tar")).unwrap().len(), 1);
}

/// Which files of a shard are images is in the index.
#[test]
fn an_index_of_another_version_is_not_believed() {
    let index =
        index(&archive(&[("c/a.png", &png(1)), ("c/b.tif", b"x"), ("c/c.WEBP", b"x"), ("c/d.svg", b"x")])).unwrap();
    assert_eq!((index.members.len(), index.others.len()), (3, 1));
    let mut kept = index_cache::encode("key", &index);
    assert_eq!(index_cache::decode(&kept, "key", 1 << 20).as_ref(), Some(&index));
    assert_eq!(kept[8..12], 6u32.to_le_bytes());
    kept[8] = 5;
    assert_eq!(index_cache::decode(&kept, "key", 1 << 20), None, "written when links and sparse files were left out");
}

#[test]
fn options_out_of_range_are_refused() {
    let with = |change: fn(&mut OpenOptions)| {
        let mut options = OpenOptions::default();
        change(&mut options);
        open("anything", &options)
    };
    refusal(with(|o| o.connections = 0), ErrorKind::Settings, &["connections=0", "4096"]);
    refusal(with(|o| o.timeout = Some(std::time::Duration::ZERO)), ErrorKind::Settings, &["timeout=0"]);
    refusal(
        with(|o| o.throttle = Some(Throttle { latency: std::time::Duration::ZERO, bandwidth_bytes_per_s: Some(0) })),
        ErrorKind::Settings,
        &["bandwidth"],
    );
    refusal(
        with(|o| {
            o.throttle = Some(Throttle { latency: std::time::Duration::from_secs(9999), bandwidth_bytes_per_s: None })
        }),
        ErrorKind::Settings,
        &["latency", "hour"],
    );
}

#[test]
fn a_cached_index_is_used_and_a_changed_shard_is_walked_again() {
    let image = png(1);
    let dir = tempfile::tempdir().unwrap();
    let (shard, cache) = (dir.path().join("s.tar"), dir.path().join("deep/cache"));
    fs::write(&shard, archive(&[("c/a.png", &image)])).unwrap();
    let options = OpenOptions { index_cache: Some(cache.clone()), ..OpenOptions::default() };
    let names = || {
        let source = open(shard.to_str().unwrap(), &options).unwrap();
        (0..source.len() as u32).map(|id| source.name(id)).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["s.tar/c/a.png"]);
    let kept: Vec<_> = fs::read_dir(&cache).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let mode = |p: &Path| std::os::unix::fs::PermissionsExt::mode(&fs::metadata(p).unwrap().permissions()) & 0o777;
    assert_eq!((mode(&cache), mode(&kept[0])), (0o700, 0o600));

    // The index on disk is what is read: rename the member in it, checksum and all, and the name changes.
    let key = || {
        let (_, bytes, stamp) = file::open_file(shard.to_str().unwrap()).unwrap();
        index_cache::local_key(&Shard { path: shard.to_str().unwrap().to_owned(), bytes, stamp }).unwrap()
    };
    let renamed = index(&archive(&[("c/z.png", &image)])).unwrap();
    index_cache::keep(&cache, &key(), &renamed).unwrap();
    assert_eq!(names(), ["s.tar/c/z.png"]);

    // A file that is open to others, or a damaged one, is not believed.
    let whole = fs::read(&kept[0]).unwrap();
    fs::set_permissions(&kept[0], std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    assert_eq!(names(), ["s.tar/c/a.png"]);
    index_cache::keep(&cache, &key(), &renamed).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&kept[0], &damaged).unwrap();
    assert_eq!(names(), ["s.tar/c/a.png"]);

    fs::write(&shard, archive(&[("c/a.png", &image), ("c/b.png", &image)])).unwrap();
    assert_eq!(names(), ["s.tar/c/a.png", "s.tar/c/b.png"]);
}

/// Each would add its numbers to those of the one before, and every member would be a sparse file.
#[test]
fn global_records_make_no_sparse_files() {
    let mut made = ::tar::Builder::new(Vec::new());
    let records = b"26 GNU.sparse.numbytes=10\n";
    for _ in 0..2 {
        let mut header = ::tar::Header::new_ustar();
        header.set_entry_type(::tar::EntryType::XGlobalHeader);
        header.set_size(records.len() as u64);
        header.set_cksum();
        made.append(&header, &records[..]).unwrap();
    }
    let mut header = ::tar::Header::new_ustar();
    header.set_size(3);
    made.append_data(&mut header, "c/a.png", &b"abc"[..]).unwrap();
    let found = index(&made.into_inner().unwrap()).unwrap();
    assert_eq!((found.members.len(), found.members[0].bytes, &found.members[0].map), (1, 3, &None));
}
