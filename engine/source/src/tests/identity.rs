//! Truths about what proves that bytes are those that were indexed.

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::error::ErrorKind;
use crate::request::identity::{Mark, Proof, Stamp};
use crate::tests::{all, archive, class_folders, open_path, png, refusal};
use crate::*;

fn mark(etag: Option<&str>, seconds: i128) -> Mark {
    Mark::of(&Stamp { etag: etag.map(str::to_owned), modified_ns: seconds * 1_000_000_000, changed_ns: 0 })
}

#[test]
fn a_tag_decides_where_both_have_one_and_else_the_date() {
    let indexed = mark(Some("\"a\""), 5);
    for (answer, proof) in [
        (mark(Some("\"a\""), 5), Proof::Same),
        (mark(Some("a"), 6), Proof::Same),
        (mark(Some("W/\"a\""), 5), Proof::Same),
        (mark(Some("\"b\""), 5), Proof::Differs),
        (mark(None, 5), Proof::Same),
        (mark(None, 6), Proof::Differs),
        (mark(None, 0), Proof::Missing),
    ] {
        assert_eq!(indexed.proved_by(answer), proof, "{answer:?}");
    }
    assert_eq!(mark(None, 5).proved_by(mark(Some("\"a\""), 6)), Proof::Differs);
    assert_eq!(mark(None, 0).proved_by(mark(Some("\"a\""), 6)), Proof::Same, "nothing was known");
    assert_eq!(Stamp { etag: Some("W/\"a\"".to_owned()), ..Stamp::default() }.if_match(), None);
    assert_eq!(Stamp { etag: Some("0x8D".to_owned()), ..Stamp::default() }.if_match().unwrap(), "\"0x8D\"");
}

/// Writes over a file where it lies, and puts its old time back, as `cp -p` and `rsync --inplace` do.
fn overwrite_quietly(path: &Path, bytes: &[u8]) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.set_times(FileTimes::new().set_modified(modified)).unwrap();
}

#[test]
fn a_shard_overwritten_in_place_is_noticed_whatever_its_time_says() {
    let shard = |v: u8| archive(&[("c/a.png", &png(v)), ("c/b.png", &png(v + 1))]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.tar");
    fs::write(&path, shard(1)).unwrap();
    let source = open_path(&path).unwrap();
    assert!(all(&*source).iter().all(|(_, r)| r.is_ok()), "the handle is open from here on");
    assert_eq!(shard(1).len(), shard(3).len());
    overwrite_quietly(&path, &shard(3));
    for (name, seen) in all(&*source) {
        let message = seen.unwrap_err();
        assert!(message.contains(&name) && message.contains("changed since it was indexed"), "{message}");
    }
}

#[test]
fn a_shard_overwritten_while_it_is_read_is_noticed() {
    // Larger than what is read together, so that the sink runs between two reads.
    let big = vec![7u8; 100 << 10];
    let members: Vec<(String, &[u8])> = (0..6).map(|n| (format!("c/{n}.png"), &big[..])).collect();
    let members: Vec<(&str, &[u8])> = members.iter().map(|(n, b)| (n.as_str(), *b)).collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.tar");
    fs::write(&path, archive(&members)).unwrap();
    let source = open_path(&path).unwrap();
    let other = vec![8u8; big.len()];
    let mut good = Vec::new();
    source.fetch(&[0, 1, 2, 3, 4, 5], &mut |k, seen| {
        if good.is_empty() {
            for n in 0..6 {
                overwrite_quietly_at(&path, &other, 512 + n * (512 + big.len() as u64));
            }
        }
        // Never the new bytes under the old name.
        good.push((k, seen.map(|p| assert!(p.data == big)).is_ok()));
        std::ops::ControlFlow::Continue(())
    });
    assert_eq!(good.len(), 6);
    assert!(good[0].1 && good.iter().filter(|(_, good)| *good).count() < 6, "{good:?}");
}

fn overwrite_quietly_at(path: &Path, bytes: &[u8], at: u64) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
    file.set_times(FileTimes::new().set_modified(modified)).unwrap();
}

#[test]
fn a_whole_file_overwritten_in_place_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    class_folders(dir.path());
    let source = open_path(dir.path()).unwrap();
    overwrite_quietly(&dir.path().join("cat/a.png"), &png(9));
    let seen = all(&*source);
    let message = seen[0].1.as_ref().unwrap_err();
    assert!(message.contains("cat/a.png changed since it was indexed"), "{message}");
    assert!(seen[1].1.is_ok() && seen[2].1.is_ok());
}

#[test]
fn shards_of_one_name_size_and_time_in_two_directories_have_indexes_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let options = OpenOptions { index_cache: Some(dir.path().join("cache")), ..OpenOptions::default() };
    let fixed = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for class in ["cat", "dog"] {
        let path = dir.path().join(class).join("train.tar");
        fs::create_dir(path.parent().unwrap()).unwrap();
        fs::write(&path, archive(&[(&format!("{class}/1.png"), &png(1))])).unwrap();
        File::options().write(true).open(&path).unwrap().set_times(FileTimes::new().set_modified(fixed)).unwrap();
    }
    // One name for both, as a relative one is from two working directories.
    let name = dir.path().join("here");
    for class in ["cat", "dog", "cat"] {
        std::os::unix::fs::symlink(dir.path().join(class), &name).unwrap();
        let source = open(name.join("train.tar").to_str().unwrap(), &options).unwrap();
        assert_eq!(source.classes(), [class]);
        fs::remove_file(&name).unwrap();
    }
    assert_eq!(fs::read_dir(dir.path().join("cache")).unwrap().count(), 2, "the third opening found its own");
}

#[test]
fn an_index_that_is_a_link_or_anothers_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let (path, cache) = (dir.path().join("s.tar"), dir.path().join("cache"));
    fs::write(&path, archive(&[("c/a.png", &png(1))])).unwrap();
    let options = OpenOptions { index_cache: Some(cache.clone()), ..OpenOptions::default() };
    let names = || open(path.to_str().unwrap(), &options).unwrap().name(0);
    names();
    let kept = fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path();
    let elsewhere = dir.path().join("elsewhere");
    fs::rename(&kept, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &kept).unwrap();
    assert_eq!(names(), "s.tar/c/a.png");
    assert!(fs::symlink_metadata(&kept).unwrap().is_file(), "a link is replaced, not followed and not written through");
}

#[test]
fn checksums_are_taken_on_opening_kept_with_the_index_and_held_against_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, shard) = (dir.path().join("folder"), dir.path().join("s.tar"));
    class_folders(&folder);
    fs::write(folder.join("dog/empty.png"), b"").unwrap();
    fs::write(&shard, archive(&[("c/a.png", &png(1)), ("c/b.png", b""), ("c/c.png", &png(2))])).unwrap();
    let with = |checksums, throttle| OpenOptions {
        checksums,
        throttle,
        index_cache: Some(dir.path().join("cache")),
        ..OpenOptions::default()
    };
    let far = Some(Throttle { latency: Duration::ZERO, bandwidth_bytes_per_s: Some(1 << 30) });
    for path in [&folder, &shard] {
        let plain = all(&*open(path.to_str().unwrap(), &with(false, None)).unwrap());
        for throttle in [None, far, None] {
            // The second time the shard's index is found without sums and completed, the third time with them.
            assert_eq!(all(&*open(path.to_str().unwrap(), &with(true, throttle)).unwrap()), plain);
        }
    }
    let mut catalog = crate::format::catalog::Catalog::default();
    catalog.push_file("c/x.png", 3, &Stamp::default()).unwrap();
    catalog.sums = vec![crc32fast::hash(b"abc")];
    catalog.verify(0, b"abc").unwrap();
    refusal(catalog.verify(0, b"abd"), ErrorKind::Sample, &["c/x.png has the checksum", "352441c2", "restore it"]);
    fs::remove_file(folder.join("cat/a.png")).unwrap();
    std::os::unix::fs::symlink("/proc/self/mem", folder.join("cat/a.png")).unwrap();
    assert!(open(folder.to_str().unwrap(), &with(true, None)).is_ok_and(|s| s.len() == 4), "sizes of 0 are not read");
}
