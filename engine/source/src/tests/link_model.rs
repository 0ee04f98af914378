//! An epoch of small samples over a modelled link, on a clock of its own: what the requests cost that are made as the
//! link is measured on them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use crate::format::catalog::Place;
use crate::format::runs::{Run, Wish, in_a_row_bytes, runs};
use crate::request::link::{Link, Sent, Worth};

const CONNECTIONS: usize = 64;
/// What is read ahead at most, and of that the first call and the longest.
const FIRST_CALL: u64 = 2 << 20;
const LONGEST_CALL: u64 = 64 << 20;
/// Samples that one call looks at.
const LOOK: usize = 2048;
/// The first batch is decided before anything was read for it.
const BATCH: usize = 64;

/// One line for all bodies.
#[derive(Debug, Clone, Copy)]
struct Wire {
    latency_s: f64,
    /// Latencies lie so far around it, as a share.
    spread: f64,
    bytes_per_s: f64,
    /// Time that the server takes for each request, one after the other.
    server_s: f64,
}

const NEAR: Wire = Wire { latency_s: 0.01, spread: 0.3, bytes_per_s: 20e6, server_s: 0.0 };
const FAR: Wire = Wire { latency_s: 0.05, ..NEAR };

/// What an epoch took.
#[derive(Debug, Default)]
struct Took {
    requests: usize,
    vain_bytes: u64,
    seconds: f64,
}

/// A request that was sent, as far as it got.
struct Flight<'a> {
    sent: Sent<'a>,
    bytes: u64,
    samples: usize,
    sent_s: f64,
    /// When the first byte came, and how many bytes the link had brought by then.
    begun: Option<(f64, u64)>,
}

/// A step of a fixed pseudo-random sequence.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn shuffled(count: u32) -> Vec<u32> {
    let (mut order, mut state): (Vec<u32>, u64) = ((0..count).collect(), 7);
    for k in (1..order.len()).rev() {
        order.swap(k, next(&mut state) as usize % (k + 1));
    }
    order
}

/// Members of an archive, one behind the other.
fn places(sizes: &[u32]) -> Vec<Place> {
    let mut offset = 0u64;
    let place = |&bytes: &u32| {
        let at = offset + 512;
        offset = (at + u64::from(bytes)).next_multiple_of(512);
        Place { offset: at, bytes, shard: 0 }
    };
    sizes.iter().map(place).collect()
}

/// The requests of a call as `store_reader.rs` makes them.
fn requests(link: &Link, wishes: Vec<Wish>, asked_bytes: Option<u64>) -> Vec<Run> {
    let worth = link.worth(CONNECTIONS, None);
    let Some(asked_bytes) = asked_bytes else { return runs(wishes, worth, 0) };
    let request_bytes_max = worth.request_bytes_max.min((asked_bytes / 256).max(worth.gap_bytes));
    let bytes = wishes.iter().map(|wish| u64::from(wish.place.bytes)).sum();
    let in_a_row = in_a_row_bytes(bytes, CONNECTIONS, worth.request_bytes_max);
    runs(wishes, Worth { request_bytes_max, ..worth }, in_a_row)
}

fn epoch(wire: Wire, sizes: &[u32], order: &[u32]) -> Took {
    let link = Link::new(Some(Duration::from_secs(30)));
    let (places, mut took, mut state) = (places(sizes), Took::default(), 1u64);
    let (mut now, mut line, mut server, mut next_place) = (0.0f64, 0.0f64, 0.0f64, 0);
    let (mut asked_bytes, mut last_call, mut unanswered) = (0u64, 0, 0);
    let mut to_send: VecDeque<Run> = VecDeque::new();
    let mut flights: Vec<Option<Flight<'_>>> = Vec::new();
    let mut events: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let at_ns = |seconds: f64| (seconds * 1e9) as u64;
    loop {
        while next_place < order.len() && unanswered <= (last_call / 4).max(BATCH) {
            let (first, mut bytes, mut wishes) = (next_place == 0, 0, Vec::new());
            let enough = if first { u64::MAX } else { asked_bytes.clamp(FIRST_CALL, LONGEST_CALL) };
            for &id in order[next_place..].iter().take(if first { BATCH } else { LOOK }) {
                if bytes < enough {
                    let place = places[id as usize];
                    bytes += u64::from(place.bytes);
                    wishes.push(Wish { k: wishes.len(), id, place });
                }
            }
            (next_place, last_call, unanswered) = (next_place + wishes.len(), wishes.len(), unanswered + wishes.len());
            to_send.extend(requests(&link, wishes, (!first).then_some(asked_bytes)));
            asked_bytes += if first { 0 } else { bytes };
        }
        while events.len() < CONNECTIONS
            && let Some(run) = to_send.pop_front()
        {
            (took.requests, took.vain_bytes) = (took.requests + 1, took.vain_bytes + run.vain_bytes);
            let late = 1.0 + wire.spread * (next(&mut state) as f64 / f64::from(1u32 << 30) - 1.0);
            server = server.max(now) + wire.server_s;
            events.push(Reverse((at_ns(server + wire.latency_s * late), flights.len())));
            let (bytes, samples) = (run.end - run.start, run.wishes.len());
            flights.push(Some(Flight { sent: link.send(bytes), bytes, samples, sent_s: now, begun: None }));
        }
        let Some(Reverse((at, n))) = events.pop() else { break };
        now = at as f64 / 1e9;
        let flight = flights[n].take().unwrap();
        match flight.begun {
            None => {
                line = line.max(now) + flight.bytes as f64 / wire.bytes_per_s;
                events.push(Reverse((at_ns(line), n)));
                flights[n] = Some(Flight { begun: Some((now, link.brought())), ..flight });
            }
            Some((begun_s, before)) => {
                link.count(flight.bytes);
                unanswered -= flight.samples;
                let (wait, body) = (begun_s - flight.sent_s, now - begun_s);
                let [wait, body] = [wait, body].map(Duration::from_secs_f64);
                flight.sent.answered(wait, body, before);
            }
        }
    }
    took.seconds = now;
    took
}

#[test]
fn small_samples_in_order_come_together_as_soon_as_the_link_is_known() {
    let (sizes, in_order) = (vec![2979u32; 20_000], (0..20_000).collect::<Vec<u32>>());
    for wire in [NEAR, FAR] {
        for bytes_per_s in [20e6, 1e9] {
            for (server_s, spread) in [(0.0, 0.0), (0.0, 0.3), (3e-4, 0.0), (3e-4, 0.3)] {
                let wire = Wire { bytes_per_s, server_s, spread, ..wire };
                let took = epoch(wire, &sizes, &in_order);
                assert!(took.requests <= 2200, "{wire:?}: {took:?}");
                // All of the archive, a wait or two for each of the dozen calls, and what the server takes.
                let most_s = 1.1 * 71.7e6 / bytes_per_s + 20.0 * wire.latency_s + 2200.0 * server_s;
                assert!(took.seconds < most_s, "{wire:?}: {took:?}, at most {most_s:.2} s");
            }
        }
    }
}

#[test]
fn shuffled_small_samples_cost_little_beside_a_request_each() {
    let (sizes, order) = (vec![2979u32; 20_000], shuffled(20_000));
    for wire in [NEAR, FAR] {
        for bytes_per_s in [5e6, 20e6, 1e9] {
            for spread in [0.0, 0.3] {
                let wire = Wire { bytes_per_s, spread, ..wire };
                let took = epoch(wire, &sizes, &order);
                // The link alone, or the waits of as many requests as there are samples.
                let link_s = 20_000.0 * 2979.0 / bytes_per_s;
                let waits_s = 20_000.0 * wire.latency_s / CONNECTIONS as f64;
                assert!(took.seconds < 1.1 * link_s.max(waits_s), "{wire:?}: {took:?}");
                assert!(took.requests < 20_000, "{wire:?}: {took:?}");
            }
        }
    }
}

#[test]
fn a_link_that_is_slow_brings_little_in_vain() {
    let mut state = 3;
    let sizes: Vec<u32> = (0..30_000).map(|_| 800 + next(&mut state) as u32 % 250).collect();
    let wanted: u64 = sizes.iter().map(|&bytes| u64::from(bytes)).sum();
    for order in [(0..30_000).collect(), shuffled(30_000)] {
        for spread in [0.0, 0.3] {
            let took = epoch(Wire { bytes_per_s: 180e3, spread, ..NEAR }, &sizes, &order);
            // What was asked for before anything was known is a part of it.
            assert!(took.vain_bytes * 10 < wanted, "{took:?} for {wanted} bytes");
        }
    }
}
