//! A door for the fuzz target of the owner's protocol (`tests/fuzz/targets`). Only in fuzzing builds, and in tests.

use std::os::unix::net::UnixStream;

use crate::arena::Shown;
use crate::message::{Hello, OfferHead, Parser, frame, hello, kind, offer, text};
use crate::owner::{Owner, Peer};

const BYTES: u64 = 16 << 10;

/// Bytes as they are, and as a script of sound messages of two connections: a connection is refused with a reason, and
/// whatever came, the owner's books agree with its arena, and nothing is held once all have gone.
pub fn protocol(bytes: &[u8]) {
    let Ok(mut owner) = Owner::new(BYTES) else { return };
    let mut peers =
        Vec::from_iter((0..3).filter_map(|_| UnixStream::pair().ok()).map(|(socket, _)| Some(peer(socket))));
    hear(&mut owner, &mut peers, 2, bytes);
    for (k, step) in bytes.chunks(8).enumerate() {
        let at = k % 2;
        hear(&mut owner, &mut peers, at, &message(at, step));
        owner.answer_waiters();
        assert!(owner.books.used() <= BYTES);
        owner.agrees();
    }
    for (number, peer) in peers.iter_mut().enumerate() {
        if let Some((peer, _)) = peer {
            owner.gone(number as u64, peer);
        }
    }
    assert!(!owner.books.has_members() && !owner.books.is_leased() && owner.waiters.is_empty());
    owner.agrees();
}

impl Owner {
    /// The next owner would find in the arena what this one has, and nothing else.
    fn agrees(&self) {
        let shown = self.arena.file().try_clone_to_owned().map_err(|e| e.to_string()).and_then(Shown::map);
        assert!(shown.is_ok());
        let Ok(shown) = shown else { return };
        let mut tagged: Vec<OfferHead> = shown
            .tags()
            .map(|(_, head, offset)| {
                assert_eq!(shown.at(offset, head.bytes).map(crc32fast::hash), Some(head.crc));
                head
            })
            .collect();
        let here = self.books.checked().into_iter().map(|(_, r)| r).filter(|r| r.is_here());
        let mut here: Vec<OfferHead> =
            here.map(|r| OfferHead { key: r.key, id: r.id, cost_us: r.cost_us, crc: r.crc, bytes: r.bytes }).collect();
        tagged.sort_unstable_by_key(|head| head.key);
        here.sort_unstable_by_key(|head| head.key);
        assert_eq!(tagged, here);
    }
}

fn peer(socket: UnixStream) -> (Peer, Parser) {
    (Peer::new(socket), Parser::default())
}

/// Gives the owner bytes of connection `at`.
fn hear(owner: &mut Owner, peers: &mut [Option<(Peer, Parser)>], at: usize, bytes: &[u8]) {
    let Some(place) = peers.get_mut(at) else { return };
    let Some((peer, parser)) = place else { return };
    if let Err(reason) = parser.feed(bytes, &mut |part| owner.hear(at as u64, peer, part)) {
        assert!(!reason.is_empty());
        owner.gone(at as u64, peer);
        *place = None;
    }
}

/// A message of connection `at` that is sound, but for a checksum now and then.
fn message(at: usize, step: &[u8]) -> Vec<u8> {
    let of = |k: usize| step.get(k).copied().unwrap_or(0);
    let keys: Vec<u8> = step.iter().skip(2).flat_map(|&k| [k % 32; 16]).collect();
    match of(0) % 16 {
        0 => hello(&Hello {
            member: at as u64,
            dataset: u64::from(of(1) % 2),
            samples: u32::from(of(2)),
            bytes: 0,
            job: format!("job {}", of(3) % 3),
            name: format!("data {}", of(1) % 2),
        }),
        1 | 2 => frame(kind::ASK, &[&keys]),
        3 => frame(kind::CLAIM, &[&[of(1) % 2], &keys]),
        4..=6 => {
            let data = vec![of(1); usize::from(of(2)) * usize::from(of(3) % 32) + 1];
            let crc = crc32fast::hash(&data) ^ u32::from(of(4) == 255);
            let id = u32::from(of(5) % 32);
            let head = OfferHead { key: [id as u8; 16], id, cost_us: 1, crc, bytes: data.len() as u64 };
            [offer(&head), data].concat()
        }
        7 => frame(kind::END, &[]),
        8 => frame(kind::RATE, &[&u32::from(of(1)).to_le_bytes(), &f32::from(of(2)).to_le_bytes()]),
        9 => frame(kind::FORGET, &[&keys]),
        10 => frame(kind::DROP, &[&text(&format!("data {}", of(1) % 3))]),
        11 => frame(kind::PIN, &[&[of(2) % 2], &text(&format!("data {}", of(1) % 3))]),
        12 => frame(kind::ORDER, &[]),
        13 => frame(kind::AT, &[&u32::from(of(1)).to_le_bytes()]),
        15 => frame(kind::PROCESSORS, &[&u32::from(of(1)).to_le_bytes(), &f32::from(of(2)).to_le_bytes()]),
        _ => frame(kind::LIMIT, &[&(u64::from(of(1)) << 6).to_le_bytes(), &text(&format!("job {}", of(2) % 3))]),
    }
}

/// Bytes that reach most of it.
pub fn seeds() -> Vec<Vec<u8>> {
    let greeting = message(0, &[0, 1, 40, 0]);
    let offers = [[0, 1, 40, 0, 0, 0, 0, 0], [0, 1, 40, 1, 0, 0, 0, 0]].concat();
    let steps = (0..60).flat_map(|k: u8| [k, k, 200, k, 0, k, k / 2, 3]);
    // Samples that are dropped, limited and forgotten while they are read.
    let leaving = [10u8, 14, 9].map(|how| {
        let read = [[4, 1, 40, 1, 0, 3, 0, 0], [4, 1, 40, 1, 0, 4, 0, 0], [1, 0, 3, 4, 3, 4, 3, 4]].concat();
        let leave = [how, if how == 14 { 0 } else { 1 }, 0, 3, 4, 3, 4, 3];
        [&offers[..], &read, &leave, &[7; 8], &[7; 8]].concat()
    });
    let sound = [&greeting[..], &message(0, &[5, 9, 8, 7, 0, 3])].concat();
    [sound, offers.iter().copied().chain(steps).collect()].into_iter().chain(leaving).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_two_clients_say_the_owner_agrees_with_itself(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            super::protocol(&bytes);
            let greeted = [[0, 1, 40, 0, 0, 0, 0, 0], [0, 1, 40, 1, 0, 0, 0, 0]].concat();
            super::protocol(&[greeted, bytes].concat());
        }
    }

    #[test]
    fn seeds_hold() {
        super::seeds().iter().for_each(|seed| super::protocol(seed));
    }
}
