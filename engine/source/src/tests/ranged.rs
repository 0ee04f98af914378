//! Truths about the walk over a remote archive: what it finds, how many requests it takes, and what they bring.

use bytes::Bytes;
use proptest::prelude::*;

use crate::format::tar::{ShardIndex, walk};
use crate::request::link::Worth;
use crate::request::ranged::Ranged;

/// What a walk asked for.
#[derive(Debug, Default)]
struct Asked {
    requests: u64,
    bytes: u64,
}

impl Asked {
    /// What it cost, in bytes, where a request is worth `gap_bytes`.
    fn cost(&self, gap_bytes: u64) -> u64 {
        self.requests * gap_bytes + self.bytes
    }
}

/// The index of a remote archive, or why there is none.
fn walked(archive: &[u8], worth: Worth) -> (Result<ShardIndex, String>, Asked) {
    let (len, mut asked) = (archive.len() as u64, Asked::default());
    let fetch = |range: std::ops::Range<u64>| {
        assert!(range.start < range.end && range.end <= len, "{range:?} of {len}");
        asked.requests += 1;
        asked.bytes += range.end - range.start;
        Ok(Bytes::copy_from_slice(&archive[range.start as usize..range.end as usize]))
    };
    let found = walk(Ranged::new(len, || worth, fetch), len, "s.tar").map_err(|e| e.to_string());
    (found, asked)
}

#[derive(Debug, Clone)]
enum Kind {
    Image,
    Label,
    LongGnu,
    LongPax,
    Other,
    Link,
    Directory,
}

/// An archive of members of these kinds and sizes.
fn archive_of(members: &[(Kind, usize)]) -> Vec<u8> {
    let mut builder = ::tar::Builder::new(Vec::new());
    for (n, (kind, bytes)) in members.iter().enumerate() {
        let mut header = ::tar::Header::new_gnu();
        let long = format!("{}/{n}.png", "directory/".repeat(20));
        let body = vec![n as u8; *bytes];
        let mut add = |name: &str, body: &[u8]| {
            header.set_size(body.len() as u64);
            builder.append_data(&mut header, name, body).unwrap();
        };
        match kind {
            Kind::Image => add(&format!("c/{n}.png"), &body),
            // The label of the image before it, as WebDataset writers put it.
            Kind::Label => add(&format!("c/{}.cls", n.saturating_sub(1)), format!("{n}").as_bytes()),
            Kind::LongGnu => add(&long, &body),
            Kind::LongPax => {
                builder
                    .append_pax_extensions([("path", long.as_bytes()), ("comment", &body[..body.len().min(9000)])])
                    .unwrap();
                header.set_path(format!("short/{n}.png")).unwrap();
                header.set_size(body.len() as u64);
                header.set_cksum();
                builder.append(&header, &body[..]).unwrap();
            }
            Kind::Other => add(&format!("c/{n}.txt"), &body),
            Kind::Link => {
                header.set_entry_type(::tar::EntryType::Symlink);
                header.set_size(0);
                builder.append_link(&mut header, format!("c/{n}.lnk"), "elsewhere").unwrap();
            }
            Kind::Directory => {
                header.set_entry_type(::tar::EntryType::Directory);
                header.set_size(0);
                builder.append_data(&mut header, format!("d{n}/"), &[][..]).unwrap();
            }
        }
    }
    builder.into_inner().unwrap()
}

fn any_members() -> impl Strategy<Value = Vec<(Kind, usize)>> {
    let kinds = prop_oneof![
        6 => Just(Kind::Image),
        2 => Just(Kind::Label),
        1 => Just(Kind::LongGnu),
        1 => Just(Kind::LongPax),
        1 => Just(Kind::Other),
        1 => Just(Kind::Link),
        1 => Just(Kind::Directory),
    ];
    let sizes = prop_oneof![Just(0usize), 0usize..2000, 0usize..200_000, Just(511), Just(512), Just(3 << 20)];
    prop::collection::vec((kinds, sizes), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// The twin is the walk over the whole file in memory, which reads each header where it lies.
    #[test]
    fn a_remote_archive_has_the_index_of_a_local_one(
        members in any_members(),
        gap_bytes in prop_oneof![Just(4u64 << 10), 4u64 << 10..2 << 20],
        request_bytes_max in prop_oneof![Just(u64::MAX), 64u64 << 10..1 << 20],
        cut in prop::option::of(any::<prop::sample::Index>()),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let mut archive = archive_of(&members);
        for (at, value) in damage {
            let at = at.index(archive.len());
            archive[at] = value;
        }
        if let Some(cut) = cut {
            archive.truncate(cut.index(archive.len()));
        }
        let local = walk(std::io::Cursor::new(&archive), archive.len() as u64, "s.tar").map_err(|e| e.to_string());
        let (remote, _) = walked(&archive, Worth { gap_bytes, work_bytes: 0, request_bytes_max });
        prop_assert_eq!(remote, local);
    }

    /// Beside the two walks that know what is coming: one request a header, and the archive from end to end.
    #[test]
    fn a_walk_costs_little_more_than_the_better_of_leaping_and_streaming(
        runs in prop::collection::vec((1usize..200, prop_oneof![0usize..10_000, 0usize..400_000, 1usize << 20..3 << 20]), 1..4),
        gap_bytes in 4u64 << 10..2 << 20,
    ) {
        let mut members = Vec::new();
        for (count, bytes) in runs {
            // Archives of some 40 MB.
            let fits = (40_000_000 / (bytes + 1024)).clamp(1, count);
            members.extend((0..fits).map(|_| (Kind::Image, bytes)));
        }
        let archive = archive_of(&members);
        let (found, asked) = walked(&archive, Worth { gap_bytes, work_bytes: 0, request_bytes_max: u64::MAX });
        prop_assert_eq!(found.unwrap().members.len(), members.len());
        let leaping = Asked { requests: members.len() as u64 + 1, bytes: 512 * (members.len() as u64 + 2) };
        let streaming = Asked { requests: (archive.len() as u64).div_ceil(4 << 20), bytes: archive.len() as u64 };
        let best = leaping.cost(gap_bytes).min(streaming.cost(gap_bytes));
        // The first and the last request, and the growth to the longest one.
        let start = 10 * gap_bytes.max(64 << 10);
        prop_assert!(asked.cost(gap_bytes) <= 4 * best + start, "{:?} costs {} where {} will do", asked, asked.cost(gap_bytes), best);
    }
}

#[test]
fn a_shard_of_five_thousand_small_members_takes_twenty_requests_at_most() {
    let labels =
        |bytes: usize| (0..5000).flat_map(move |_| [(Kind::Image, bytes), (Kind::Label, 0)]).collect::<Vec<_>>();
    let images = |bytes: usize| (0..5000).map(|_| (Kind::Image, bytes)).collect::<Vec<_>>();
    for members in [images(900), images(3000), images(9000), labels(900), labels(6000)] {
        let archive = archive_of(&members);
        for gap_bytes in [4 << 10, 100 << 10, 1 << 20] {
            let (found, asked) = walked(&archive, Worth { gap_bytes, work_bytes: 0, request_bytes_max: u64::MAX });
            assert_eq!(found.unwrap().members.len(), 5000);
            assert!(asked.requests <= 20, "{asked:?} for {} bytes", archive.len());
            assert!(asked.bytes <= archive.len() as u64);
        }
    }
}

#[test]
fn large_members_are_leapt_over_by_a_small_request_each() {
    let members: Vec<_> = (0..20).flat_map(|n| [(Kind::Image, (3 << 20) + n), (Kind::Label, 0)]).collect();
    let archive = archive_of(&members);
    let (found, asked) = walked(&archive, Worth { gap_bytes: 1 << 20, work_bytes: 0, request_bytes_max: u64::MAX });
    assert_eq!(found.unwrap().members.len(), 20);
    assert!(asked.requests <= 21 && asked.bytes <= 21 * (64 << 10), "{asked:?}");
}

#[test]
fn a_slow_link_is_asked_for_no_more_than_it_brings_in_time() {
    let archive = archive_of(&(0..500).map(|_| (Kind::Image, 3000)).collect::<Vec<_>>());
    let longest = std::cell::Cell::new(0);
    let worth = || Worth { gap_bytes: 4 << 10, work_bytes: 0, request_bytes_max: 100 << 10 };
    let fetch = |range: std::ops::Range<u64>| {
        longest.set(longest.get().max(range.end - range.start));
        Ok(Bytes::copy_from_slice(&archive[range.start as usize..range.end as usize]))
    };
    walk(Ranged::new(archive.len() as u64, worth, fetch), archive.len() as u64, "s.tar").unwrap();
    assert_eq!(longest.get(), 100 << 10);
}
