//! Doors for the fuzz targets (`tests/fuzz/targets`) to parsers that nobody else may call. Only in fuzzing
//! builds, and in tests, which hold the seeds and whatever was found to the same promises.

use std::collections::HashSet;
use std::io::Cursor;

use crate::format::catalog::{Catalog, Ignored, Shard};
use crate::format::groups::assemble;
use crate::format::index_cache;
use crate::format::tar::{Map, Member, ShardIndex, walk};
#[cfg(feature = "cloud")]
use crate::place::hub;
use crate::request::identity::Stamp;
#[cfg(feature = "cloud")]
use crate::request::pages::Pages;
use crate::sample::payload::picture_and_tail;

#[cfg(feature = "parquet")]
pub use crate::format::parquet::fuzzing::{parquet, parquet_seeds};

/// Whose index it is, and how large the shard: what an index must agree with.
const KEY: &str = "file:///data/train.tar";
const SHARD_BYTES: u64 = 1 << 20;

/// An archive: refused with words, or an index of members that lie within it, have plain names and come once.
pub fn tar(bytes: &[u8]) {
    let Ok(found) = walk(Cursor::new(bytes), bytes.len() as u64, "the shard") else { return };
    within(&found, bytes.len() as u64);
    let mut names = HashSet::new();
    for member in all_of(&found) {
        assert!(!member.name.starts_with('/') && member.name.split('/').all(|part| part != ".."), "{:?}", member.name);
    }
    for member in &found.members {
        assert!(names.insert(&member.name), "{:?} comes twice", member.name);
    }
    let kept = index_cache::encode(KEY, &found);
    assert_eq!(index_cache::decode(&kept, KEY, bytes.len() as u64).as_ref(), Some(&found));
    for fields in [&["png;jpg", "txt"][..], &["cls", "png"], &["txt", "json"], &["txt", "fine.cls;cls", "a.cls"]] {
        groups(bytes, found.clone(), fields);
    }
}

/// A page of a listing of the Hub: refused with words, or objects with plain names and tags, no more
/// than the page justifies. One of S3, Google or Azure: refused with words, or handed on, with less in it at most.
#[cfg(feature = "cloud")]
pub fn listing(bytes: &[u8]) {
    match Pages::default().page(bytes.to_vec()) {
        Ok(kept) => assert!(kept.len() <= bytes.len()),
        Err(e) => assert!(!e.to_string().is_empty()),
    }
    let found = match hub::files(bytes) {
        Ok(found) => found,
        Err(e) => {
            assert!(!e.to_string().is_empty());
            return;
        }
    };
    assert!(found.len() * r#"{"path":""}"#.len() <= bytes.len(), "{} objects in {} bytes", found.len(), bytes.len());
    for object in found {
        let name = object.location.as_ref();
        let plain = name.split('/').all(|part| !["", ".", ".."].contains(&part));
        assert!(plain || name.is_empty(), "{name:?}");
    }
}

/// Pages as the Hub, S3 and Azure write them.
#[cfg(feature = "cloud")]
pub fn listing_seeds() -> Vec<Vec<u8>> {
    [
        r#"[{"type":"file","path":"data/train-0.parquet","size":12,"oid":"ab"},{"type":"directory","path":"data"}]"#,
        "[]",
        "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>a//b</Key></Contents><Contents><Key>a&amp;</Key></Contents>\
         <NextContinuationToken>t</NextContinuationToken></ListBucketResult>",
        "<EnumerationResults><Blobs><Blob><Name>../a</Name></Blob></Blobs><NextMarker/></EnumerationResults>",
    ]
    .map(|page| page.as_bytes().to_vec())
    .into()
}

/// Samples of several members: refused with words, or payloads of what lies in the archive, as long as announced.
fn groups(bytes: &[u8], found: ShardIndex, fields: &[&str]) {
    let fields: Vec<String> = fields.iter().map(|&field| field.to_owned()).collect();
    let shard = Shard { path: "train.tar".to_owned(), bytes: bytes.len() as u64, stamp: Stamp::default() };
    let mut catalog = Catalog::default();
    let Ok(members) = assemble(&mut catalog, vec![(shard, found)], &fields) else { return };
    let mut payload = Vec::new();
    for (id, place) in (0..).zip(&catalog.places) {
        let start = place.offset as usize;
        let read = bytes.get(start..start + place.bytes as usize);
        assert!(read.is_some_and(|read| members.payload(id, read, &mut payload).is_ok()), "{place:?}");
        assert_eq!(payload.len() as u64, members.payload_bytes(id));
        let apart = picture_and_tail(&payload).map(|(_, tail)| tail.len() as u64);
        assert!(!(members.picture && members.has_tail()) || apart.is_ok_and(|tail| tail == members.tail_bytes(id)));
    }
}

/// An index file, as it lies and with its checksum put right: nothing, or members within the shard.
pub fn index(bytes: &[u8]) {
    let mut sealed = bytes.to_vec();
    index_cache::seal(&mut sealed);
    for file in [bytes, &sealed] {
        let Some(found) = index_cache::decode(file, KEY, SHARD_BYTES) else { continue };
        within(&found, SHARD_BYTES);
        assert!(
            found.members.capacity() + found.others.capacity() + found.labels.capacity() <= file.len(),
            "memory that the file does not justify"
        );
        assert_eq!(index_cache::decode(&index_cache::encode(KEY, &found), KEY, SHARD_BYTES), Some(found));
    }
}

fn all_of(found: &ShardIndex) -> impl Iterator<Item = &Member> {
    found.members.iter().chain(&found.others).chain(&found.labels)
}

fn within(found: &ShardIndex, shard_bytes: u64) {
    for member in all_of(found) {
        assert!(member.offset.checked_add(member.bytes).is_some_and(|end| end <= shard_bytes), "{member:?}");
    }
}

/// Archives by the `tar` crate's writer.
pub fn tar_seeds() -> Vec<Vec<u8>> {
    let archive = |members: &[(&str, &[u8])]| {
        let mut builder = ::tar::Builder::new(Vec::new());
        for (name, bytes) in members {
            let mut header = ::tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            let _ = builder.append_data(&mut header, name, *bytes);
        }
        builder.into_inner().unwrap_or_default()
    };
    let long = format!("{}/a.png", "d".repeat(150));
    vec![
        archive(&[("a.png", b"x"), ("a.cls", b"1"), ("b.jpg", b"yy"), ("b.cls", b" 2\n")]),
        archive(&[("cat/a.png", b"x"), ("dog/b.jpg", &[7; 600]), ("notes.txt", b"")]),
        archive(&[(&long, b"x")]),
        archive(&[
            ("a.png", b"x"),
            ("a.txt", b"words"),
            ("a.cls", b"1"),
            ("b.txt", b""),
            ("b.cls", b"2"),
            ("b.jpg", b"yy"),
        ]),
        archive(&[("a.txt", b"words"), ("a.json", b"{}"), ("a.wav", &[7; 600]), ("b.json", b"[]"), ("b.txt", b"")]),
    ]
}

/// Indexes by our own writer.
pub fn index_seeds() -> Vec<Vec<u8>> {
    let member = |n: u64, label| Member {
        label,
        sum: n.is_multiple_of(2).then_some(n as u32),
        map: (n == 3).then(|| Map { bytes: 1000, parts: vec![(7, 100), (900, 3)] }),
        linked: (n == 4).then_some(9999),
        ..Member::new(format!("cat/{n}.png"), 512 * n, 100 + n)
    };
    let ignored = Ignored { links: 1, escaping: 2, others: 3 };
    [vec![], vec![member(1, None)], (0..5).map(|n| member(n, Some(-(n as i64)))).collect()]
        .map(|members| {
            let (others, labels) = (members.clone(), members.clone());
            index_cache::encode(KEY, &ShardIndex { members, others, labels, ignored })
        })
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every file of the corpus. Whatever its format: to another parser it is noise.
    fn corpus() -> Vec<Vec<u8>> {
        let folder: std::path::PathBuf =
            [env!("CARGO_MANIFEST_DIR"), "..", "..", "tests", "fuzz", "corpus"].iter().collect();
        std::fs::read_dir(folder).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect()
    }

    #[test]
    fn seeds_and_all_that_was_found_keep_the_promises() {
        for seed in tar_seeds() {
            assert!(walk(Cursor::new(&seed), seed.len() as u64, "a seed").is_ok());
            tar(&seed);
        }
        for seed in index_seeds() {
            assert!(index_cache::decode(&seed, KEY, SHARD_BYTES).is_some());
            index(&seed);
        }
        let all = corpus();
        assert!(all.len() > 40);
        for bytes in &all {
            tar(bytes);
            index(bytes);
            #[cfg(feature = "cloud")]
            listing(bytes);
        }
    }

    #[cfg(feature = "cloud")]
    #[test]
    fn listings_are_objects_with_plain_names_or_refused() {
        for seed in listing_seeds() {
            assert!(seed.starts_with(b"<") || hub::files(&seed).is_ok());
            listing(&seed);
            for cut in 0..seed.len() {
                listing(&seed[..cut]);
            }
        }
        assert!(hub::files(br#"[{"type":"file","path":"a/../b"}]"#).is_err());
    }
}
