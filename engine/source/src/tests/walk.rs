//! Truths about names, archives and their indexes, with simpler twins where there are any.

use std::io::{Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use crate::error::{Error, ErrorKind};
use crate::format::catalog::{Ignored, Shard};
use crate::format::index_cache;
use crate::format::pattern::{braces, has_wildcard, matches};
use crate::format::tar::{Map, Member, ShardIndex, walk};
use crate::request::identity::Stamp;
use crate::request::link::Worth;
use crate::request::ranged::Ranged;
use crate::stop::Stop;
use crate::tests::{archive, index, png, refusal};

#[test]
fn braces_expand_as_shells_do() {
    for (text, expected) in [
        ("a.tar", vec!["a.tar"]),
        ("a{0..2}", vec!["a0", "a1", "a2"]),
        ("a{008..011}.tar", vec!["a008.tar", "a009.tar", "a010.tar", "a011.tar"]),
        ("{2..0}", vec!["2", "1", "0"]),
        ("{x,,y}z", vec!["xz", "z", "yz"]),
        ("{a,b}{0..1}", vec!["a0", "a1", "b0", "b1"]),
        ("{}{a}{1..}{..2}{a..c}", vec!["{}{a}{1..}{..2}{a..c}"]),
        ("{{1..2}}", vec!["{1}", "{2}"]),
        ("}{", vec!["}{"]),
        ("{99999999999999999999..1}", vec!["{99999999999999999999..1}"]),
    ] {
        assert_eq!(braces(text).unwrap(), expected, "{text}");
    }
    refusal(braces("{0..9999999999}"), ErrorKind::Settings, &["1048576 names"]);
    refusal(braces("{0..9999}{0..9999}"), ErrorKind::Settings, &["1048576 names"]);
}

/// The definition, by recursion.
fn matches_naively(pattern: &[char], name: &[char]) -> bool {
    match (pattern.first(), name.first()) {
        (None, None) => true,
        (Some('*'), _) => {
            matches_naively(&pattern[1..], name) || (!name.is_empty() && matches_naively(pattern, &name[1..]))
        }
        (Some('?'), Some(_)) => matches_naively(&pattern[1..], &name[1..]),
        (Some(p), Some(n)) => p == n && matches_naively(&pattern[1..], &name[1..]),
        _ => false,
    }
}

/// A shard in a store, and the index of one member.
fn one_shard() -> (Shard, ShardIndex) {
    let stamp = Stamp { etag: Some("\"x\"".to_owned()), modified_ns: 5, changed_ns: 0 };
    (Shard { path: "s3://b/s.tar".to_owned(), bytes: 1 << 20, stamp }, ShardIndex::default())
}

#[test]
fn those_that_open_a_shard_at_one_time_walk_it_once() {
    let (dir, walks) = (tempfile::tempdir().unwrap(), AtomicU32::new(0));
    let (shard, index) = one_shard();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let walk = || {
                    walks.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(100));
                    Ok((shard.clone(), index.clone()))
                };
                let key = || index_cache::remote_key("a", &shard);
                let found = index_cache::through(Some(dir.path()), key, &shard, walk, None, &Stop::default());
                assert_eq!(found.unwrap(), (shard.clone(), index.clone()));
            });
        }
    });
    assert_eq!(walks.load(Ordering::SeqCst), 1);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no lock is left");
}

#[test]
fn a_wait_for_anothers_walk_ends_when_it_is_stopped() {
    let (dir, stop) = (tempfile::tempdir().unwrap(), Stop::default());
    let (shard, index) = one_shard();
    let key = || index_cache::remote_key("a", &shard);
    let walk = || {
        let waits = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let unasked = || Err(Error::internal("walked"));
                index_cache::through(Some(dir.path()), key, &shard, unasked, None, &stop)
            });
            stop.ask();
            other.join().unwrap()
        });
        assert_eq!(waits.unwrap_err().kind(), ErrorKind::Interrupted);
        Ok((shard.clone(), index.clone()))
    };
    index_cache::through(Some(dir.path()), key, &shard, walk, None, &Stop::default()).unwrap();
}

proptest! {
    #[test]
    fn wildcards_match_as_their_definition_says(pattern in "[ab*?]{0,8}", name in "[ab]{0,8}") {
        let (p, n): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
        prop_assert_eq!(matches(&pattern, &name), matches_naively(&p, &n));
        prop_assert_eq!(has_wildcard(&pattern), pattern.contains('*') || pattern.contains('?'));
    }

    #[test]
    fn a_remote_object_reads_and_seeks_as_a_file_does(
        len in 0usize..200_000,
        worth in any_worth(),
        steps in prop::collection::vec((0u64..220_000, 0usize..9000), 0..30),
    ) {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        let mut remote = Ranged::new(len as u64, || worth, |r| Ok(Bytes::copy_from_slice(&bytes[r.start as usize..r.end as usize])));
        let mut file = std::io::Cursor::new(&bytes);
        for (at, count) in steps {
            prop_assert_eq!(remote.seek(SeekFrom::Start(at)).unwrap(), file.seek(SeekFrom::Start(at)).unwrap());
            let (mut a, mut b) = (Vec::new(), Vec::new());
            remote.by_ref().take(count as u64).read_to_end(&mut a).unwrap();
            file.by_ref().take(count as u64).read_to_end(&mut b).unwrap();
            prop_assert_eq!(a, b);
        }
    }

    #[test]
    fn an_index_comes_back_from_disk_as_it_went(index in any_index()) {
        let dir = tempfile::tempdir().unwrap();
        let stamp = Stamp { etag: Some("\"x\"".to_owned()), modified_ns: -5, changed_ns: 0 };
        let shard = Shard { path: "s3://b/s.tar".to_owned(), bytes: 1 << 20, stamp };
        let key = |place: &str, shard: &Shard| index_cache::remote_key(place, shard);
        let through = |place: &str, shard: &Shard| {
            let walked = || Err(Error::internal("walked"));
            index_cache::through(Some(dir.path()), || key(place, shard), shard, walked, None, &Stop::default())
        };
        index_cache::keep(dir.path(), &key("a", &shard).unwrap(), &index).unwrap();
        let (same, back) = through("a", &shard).unwrap();
        prop_assert_eq!((back, same), (index, shard.clone()));
        prop_assert!(through("another endpoint", &shard).is_err());
        for stamp in [Stamp { etag: None, ..shard.stamp.clone() }, Stamp { modified_ns: 0, ..shard.stamp.clone() }] {
            let other = Shard { stamp, ..shard.clone() };
            prop_assert!(through("a", &other).is_err());
        }
        let nothing = Shard { stamp: Stamp::default(), ..shard };
        prop_assert!(key("a", &nothing).is_none(), "a size proves nothing");
    }

    #[test]
    fn a_damaged_index_is_never_believed_and_never_panics(
        index in any_index(),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let whole = index_cache::encode("key", &index);
        prop_assert_eq!(index_cache::decode(&whole, "key", 1 << 20), Some(index));
        prop_assert_eq!(index_cache::decode(&whole, "another", 1 << 20), None);
        let mut damaged = whole.clone();
        let at = at.index(damaged.len());
        damaged[at] ^= value;
        prop_assert_eq!(index_cache::decode(&damaged, "key", 1 << 20).is_some(), value == 0);
        prop_assert_eq!(index_cache::decode(&whole[..cut.index(whole.len())], "key", 1 << 20), None);
        // With the checksum put right the damage reaches the parser: it may find an index, all of it within the shard.
        if at >= 16 {
            index_cache::seal(&mut damaged);
            if let Some(found) = index_cache::decode(&damaged, "key", 1 << 20) {
                prop_assert!(found.members.iter().all(|m| m.offset + m.bytes <= 1 << 20));
            }
        }
    }

    #[test]
    fn random_bytes_over_an_archive_are_an_error_or_an_index_within_it(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let image = png(3);
        let mut bytes = archive(&[("c/a.png", &image), ("c/b.png", &image), ("c/b.cls", b"1"), ("d/x.txt", b"text")]);
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        // Valid checksums, so that the damage is not caught at the door.
        for header in bytes.chunks_exact_mut(512).filter(|h| h[0] == b'c' || h[0] == b'd') {
            let sum: u32 = header[..148].iter().chain(&header[156..]).map(|&b| u32::from(b)).sum::<u32>() + 8 * 32;
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        if let Ok(found) = index(&bytes) {
            prop_assert!(found.members.iter().all(|m| m.offset + m.bytes <= bytes.len() as u64));
        }
    }
}

fn any_worth() -> impl Strategy<Value = Worth> {
    let gaps = prop_oneof![Just(4u64 << 10), 4u64 << 10..2 << 20, Just(2 << 20)];
    let limits = prop_oneof![Just(u64::MAX), 64u64 << 10..8 << 20];
    (gaps, limits).prop_map(|(gap_bytes, request_bytes_max)| Worth { gap_bytes, work_bytes: 0, request_bytes_max })
}

fn any_index() -> impl Strategy<Value = ShardIndex> {
    let member =
        ("[a-zé/]{0,12}", 0u64..1 << 19, 0u64..1 << 19, prop::option::of(any::<i64>()), prop::option::of(any::<u32>()))
            .prop_map(|(name, offset, bytes, label, sum)| {
                let map =
                    (bytes % 5 == 1).then(|| Map { bytes: 2 * bytes + 4, parts: vec![(3, 1), (4 + bytes, bytes - 1)] });
                Member {
                    label,
                    sum,
                    map,
                    linked: (bytes % 3 == 0).then_some(offset),
                    ..Member::new(name, offset, bytes)
                }
            });
    let members = || prop::collection::vec(member.clone(), 0..20);
    (members(), members(), members(), any::<(u64, u64, u64)>()).prop_map(
        |(members, others, labels, (links, escaping, ignored))| {
            let ignored = Ignored { links, escaping, others: ignored };
            ShardIndex { members, others, labels, ignored }
        },
    )
}

#[test]
fn a_walk_over_a_store_transfers_headers_and_not_large_members() {
    let large = vec![1u8; 3 << 20];
    let bytes = archive(&[("c/a.png", &large), ("c/b.png", &large), ("c/c.png", &large), ("c/d.png", &large)]);
    let mut transferred = 0;
    let worth = || Worth { gap_bytes: 1 << 20, work_bytes: 0, request_bytes_max: u64::MAX };
    let reader = Ranged::new(bytes.len() as u64, worth, |r| {
        transferred += r.end - r.start;
        Ok(Bytes::copy_from_slice(&bytes[r.start as usize..r.end as usize]))
    });
    let found = walk(reader, bytes.len() as u64, "s.tar").unwrap();
    assert_eq!(found, index(&bytes).unwrap());
    assert!(transferred < 300 << 10, "{transferred} of {} bytes", bytes.len());
}

#[test]
fn an_extension_header_of_gigabytes_is_refused_before_it_is_held() {
    // A sparse file: the claim is honest, the bytes are there, and they are all zero.
    let file = tempfile::tempfile().unwrap();
    let mut header = ::tar::Header::new_gnu();
    header.set_entry_type(::tar::EntryType::XHeader);
    header.set_size(8 << 30);
    header.set_cksum();
    std::io::Write::write_all(&mut &file, header.as_bytes()).unwrap();
    file.set_len(9 << 30).unwrap();
    refusal(walk(&file, 9 << 30, "bomb.tar"), ErrorKind::Source, &["bomb.tar", "larger than 1048576 bytes"]);
}

#[test]
fn long_names_are_read_whole() {
    let name = format!("{}/cat/x.png", "d".repeat(300));
    let image = png(1);
    for pax in [false, true] {
        let mut builder = ::tar::Builder::new(Vec::new());
        let mut header = ::tar::Header::new_gnu();
        header.set_size(image.len() as u64);
        header.set_cksum();
        if pax {
            builder.append_pax_extensions([("path", name.as_bytes())]).unwrap();
            header.set_path("short/x.png").unwrap();
            header.set_cksum();
            builder.append(&header, &image[..]).unwrap();
        } else {
            builder.append_data(&mut header, &name, &image[..]).unwrap();
        }
        let bytes = builder.into_inner().unwrap();
        let found = index(&bytes).unwrap();
        assert_eq!(found.members[0].name, name, "pax: {pax}");
        let at = found.members[0].offset as usize;
        assert_eq!(&bytes[at..at + image.len()], image);
    }
}
