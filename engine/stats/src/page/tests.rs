//! Pages to bytes and back, and pages of other builds.

use super::*;
use proptest::prelude::*;

fn page_after(updates: u64) -> Vec<u8> {
    let identity = Identity { job: "j".into(), world_size: 1, ..Identity::default() };
    let mut bytes = fresh(&identity, Process::default(), 5);
    let samples_total = Counters::NAMES.iter().position(|&name| name == "samples_total").unwrap();
    for k in 0..updates {
        let mut snapshot = Snapshot::zero();
        snapshot.values[samples_total] = 10 * (k + 1);
        for (at, piece) in update(2 * k, k, 1000 + k, &snapshot) {
            bytes[at..at + piece.len()].copy_from_slice(&piece);
        }
    }
    bytes
}

#[test]
fn the_ring_keeps_the_last_hundred_seconds_in_order() {
    for updates in [0, 1, 2, 99, 100, 101, 1234] {
        let contents = parse(&page_after(updates)).unwrap();
        let kept = updates.min(100);
        let expected: Vec<(u64, u64)> = (updates - kept..updates).map(|k| (1000 + k, 10 * (k + 1))).collect();
        let got: Vec<(u64, u64)> =
            contents.history.iter().map(|s| (s.unix_ms, s.get("samples_total").unwrap())).collect();
        assert_eq!(got, expected);
        assert_eq!(contents.numbers.get("samples_total"), Some(10 * updates));
    }
}

#[test]
fn a_reader_between_two_writes_of_an_update_sees_that_it_is_half_written() {
    let mut bytes = page_after(3);
    let pieces = update(6, 3, 2000, &Snapshot::zero());
    for (n, (at, piece)) in pieces.iter().enumerate() {
        bytes[*at..at + piece.len()].copy_from_slice(piece);
        assert_eq!(parse(&bytes).is_ok(), n == 3, "after write {n}");
    }
}

#[test]
fn texts_are_cut_at_characters_and_cannot_steer_a_terminal() {
    assert_eq!(read_text(&text::<4>("aéé")), "aé");
    assert_eq!(read_text(&text::<3>("aéé")), "aé");
    assert_eq!(read_text(&text::<2>("aéé")), "a");
    assert_eq!(read_text(b"\x1b[2Jx\n"), "\u{fffd}[2Jx\u{fffd}");
    assert_eq!(read_text(b"\xff\xfe"), "\u{fffd}\u{fffd}");
    assert_eq!(read_text("a\u{202e}b\u{9b}2Jc".as_bytes()), "a\u{fffd}b\u{fffd}2Jc");
}

#[test]
fn every_wrong_head_is_named() {
    let good = page_after(1);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] ^= byte;
        parse(&bytes).unwrap_err()
    };
    assert!(with(0, 1).contains("magic"));
    assert!(with(8, 1).contains("a newer lossfeed (layout version 5, this program reads 4)"));
    assert!(with(8, 7).contains("an older lossfeed (layout version 3, this program reads 4)"));
    // Another version's page may have any size: the version is what is said of it.
    assert!(parse(&[&MAGIC[..], &[1, 0, 0, 0]].concat()).unwrap_err().contains("layout version 1"));
    for at in [12, 16, 24, 28, 32, 36] {
        assert!(with(at, 1).contains("sizes"), "byte {at}");
    }
    // Sizes that wrap round, or that nobody has the memory for.
    for at in [15, 19, 23, 27, 31, 35, 39] {
        assert!(with(at, 0x80).contains("sizes"), "byte {at}");
    }
    for (at, byte) in [(1, 0), (1, 0xff), (1, b'!'), (NAMES_BYTES, 1)] {
        let mut bytes = good.clone();
        let end = bytes.len();
        bytes[end - at] = byte;
        assert!(parse(&bytes).is_err_and(|why| why.contains("names")) == (byte != 0 || at != 1), "{at} {byte}");
    }
    assert!(parse(&good[..good.len() - 1]).unwrap_err().contains("bytes long"));
    assert!(parse(&[]).is_err());
}

/// A page of a build that counts `hits_total`, `moons_total` and `epoch`, with a history of the second and
/// `samples_total`.
fn of_another_build() -> Vec<u8> {
    let names = "hits_total\0moons_total\0epoch\0moons_total\0samples_total\0";
    let places = Places::new(3, 2);
    let mut bytes = fresh(&Identity { job: "other".into(), ..Identity::default() }, Process::default(), 5);
    let mut header: Header = bytemuck::pod_read_unaligned(&bytes[..LIVE_AT]);
    (header.counters, header.history, header.names_bytes) = (3, 2, names.len() as u32);
    header.page_bytes = (places.names_at + names.len()) as u64;
    bytes.truncate(LIVE_AT);
    bytes[..LIVE_AT].copy_from_slice(bytemuck::bytes_of(&header));
    let live = Live { sequence: 2, updated_unix_ms: 9, seconds: 1 };
    bytes.extend_from_slice(bytemuck::bytes_of(&live));
    bytes.extend_from_slice(bytemuck::cast_slice(&[7u64, 13, 4, 9, 12, 100]));
    bytes.resize(places.names_at, 0);
    bytes.extend_from_slice(names.as_bytes());
    bytes
}

#[test]
fn a_page_of_a_build_that_counts_other_things_is_read_by_its_own_names() {
    let contents = parse(&of_another_build()).unwrap();
    let numbers: Vec<_> = contents.numbers.iter().collect();
    assert_eq!(numbers, [("hits_total", 7), ("moons_total", 13), ("epoch", 4)]);
    assert_eq!((contents.numbers.get("moons_total"), contents.numbers.get("misses_total")), (Some(13), None));
    let [second] = contents.history[..] else { panic!("{:?}", contents.history) };
    let of = ["samples_total", "fetched_bytes_total", "moons_total"].map(|name| second.get(name));
    assert_eq!((second.unix_ms, of), (9, [Some(100), None, None]));
}

proptest! {
    #[test]
    fn any_bytes_of_a_pages_size_are_read_or_refused_but_never_panic(
        seed in proptest::collection::vec(any::<u8>(), 1..64),
        keep_head in any::<bool>(),
        seconds in any::<u64>(),
    ) {
        let mut bytes: Vec<u8> = seed.iter().copied().cycle().take(PAGE_BYTES).collect();
        if keep_head {
            let good = page_after(0);
            bytes[..40].copy_from_slice(&good[..40]);
            bytes[OWN.names_at..].copy_from_slice(&good[OWN.names_at..]);
            bytes[LIVE_AT] &= !1;
            bytes[LIVE_AT + 16..LIVE_AT + 24].copy_from_slice(&seconds.to_ne_bytes());
            let contents = parse(&bytes).unwrap();
            prop_assert_eq!(contents.history.len() as u64, seconds.min(RING as u64));
        } else {
            prop_assert!(parse(&bytes).is_err());
        }
    }
}
