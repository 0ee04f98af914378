//! The number of requests in flight against a modelled link: soon as good as the best fixed number, then at rest.

use super::tuner::{Change, INTERVAL_S, Seen, Tuner};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What a store is like for a while.
#[derive(Debug, Clone, Copy)]
struct Profile {
    latency_s: f64,
    bytes_per_s: f64,
    /// Of one connection.
    lane_bytes_per_s: f64,
    request_bytes: f64,
    /// Above so many requests at once each costs the link a hundredth of its rate.
    crowd: usize,
    /// Latencies and sizes lie so far around these, as a share.
    spread: f64,
}

const NEAR: Profile = Profile {
    latency_s: 0.01,
    bytes_per_s: 40e6,
    lane_bytes_per_s: 1e12,
    request_bytes: 110e3,
    crowd: 1000,
    spread: 0.1,
};
const FAR: Profile = Profile { latency_s: 0.05, ..NEAR };
const WIDE: Profile = Profile { bytes_per_s: 120e6, lane_bytes_per_s: 20e6, latency_s: 0.03, ..NEAR };
const SMALL: Profile = Profile { request_bytes: 3e3, ..NEAR };
const CROWDED: Profile = Profile { crowd: 12, ..NEAR };

/// Always enough to ask for; requests end in the order in which their bodies have passed the link.
struct Model {
    now: f64,
    link_free: f64,
    /// When each request in flight will have its first byte (in ns), and when it was sent.
    waiting: BinaryHeap<Reverse<(u64, u64)>>,
    chance: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        Self { now: 0.0, link_free: 0.0, waiting: BinaryHeap::new(), chance: seed }
    }

    /// Around 1.
    fn spread(&mut self, spread: f64) -> f64 {
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        1.0 + spread * ((self.chance >> 33) as f64 / f64::from(1u32 << 30) - 1.0)
    }

    fn interval(&mut self, link: Profile, target: usize) -> Seen {
        let (end, began) = (self.now + INTERVAL_S, self.now);
        let (mut answers, mut bytes, mut in_flight) = (0, 0.0, 0.0);
        let mut waits = Vec::new();
        loop {
            while self.waiting.len() < target {
                let ready = self.now + link.latency_s * self.spread(link.spread);
                self.waiting.push(Reverse(((ready * 1e9) as u64, (self.now * 1e9) as u64)));
            }
            let Reverse((ready, sent)) = *self.waiting.peek().unwrap();
            let (ready, sent) = (ready as f64 / 1e9, sent as f64 / 1e9);
            let size = link.request_bytes * self.spread(link.spread);
            let crowd = 1.0 - 0.01 * self.waiting.len().saturating_sub(link.crowd) as f64;
            let through = self.link_free.max(ready) + size / (link.bytes_per_s * crowd.max(0.1));
            let done = through.max(ready + size / link.lane_bytes_per_s).max(self.now);
            if done > end {
                in_flight += self.waiting.len() as f64 * (end - self.now);
                self.now = end;
                break;
            }
            in_flight += self.waiting.len() as f64 * (done - self.now);
            self.waiting.pop();
            waits.push(ready - sent);
            (self.now, self.link_free, answers, bytes) = (done, through, answers + 1, bytes + size);
        }
        waits.sort_unstable_by(f64::total_cmp);
        let first_byte_s = waits.get(waits.len() / 2).copied().unwrap_or(0.0);
        let seconds = self.now - began;
        Seen { seconds, answers, bytes: bytes as u64, first_byte_s, in_flight: in_flight / seconds }
    }
}

fn intervals(seconds: f64) -> usize {
    (seconds / INTERVAL_S) as usize
}

/// Bytes that the best fixed number brings in twenty seconds.
fn best(link: Profile) -> u64 {
    let of = |target| {
        let mut model = Model::new(7);
        let warm = intervals(2.0);
        (0..warm + intervals(20.0)).map(|n| (n, model.interval(link, target).bytes)).skip(warm).map(|(_, b)| b).sum()
    };
    (1..=64).map(of).max().unwrap()
}

/// Twenty-five seconds of each profile. By profile: the bytes of all but its first five seconds, and how many of them
/// were behind a change.
fn tuned(profiles: &[Profile], seed: u64) -> (Vec<(u64, usize)>, Vec<Change>) {
    let (mut model, mut tuner) = (Model::new(seed), Tuner::new(64, 64));
    let (mut all, mut changes) = (Vec::new(), Vec::new());
    for &link in profiles {
        let (mut bytes, mut late) = (0, 0);
        for number in 0..intervals(25.0) {
            let seen = model.interval(link, tuner.target());
            let change = tuner.follow(seen);
            changes.extend(change);
            assert!((1..=64).contains(&tuner.target()));
            assert!(change.is_none_or(|change| change.target == tuner.target()));
            if number >= intervals(5.0) {
                bytes += seen.bytes;
                late += usize::from(change.is_some());
            }
        }
        all.push((bytes, late));
    }
    (all, changes)
}

#[test]
fn it_is_as_good_as_the_best_fixed_number_soon_after_the_link_has_changed_and_then_rests() {
    let all = [NEAR, FAR, WIDE, SMALL, CROWDED];
    let best = all.map(best);
    for (a, from) in all.into_iter().enumerate() {
        for (b, to) in all.into_iter().enumerate() {
            let (seen, changes) = tuned(&[from, to, from], (a * 5 + b) as u64);
            for (best, (bytes, late)) in [best[a], best[b], best[a]].into_iter().zip(&seen) {
                let share = *bytes as f64 / best as f64;
                assert!(share >= 0.95, "{share} of the best\n{from:?}\n{to:?}\n{seen:?} {changes:?}");
                assert!(*late <= 2, "{late} changes in twenty seconds\n{from:?}\n{to:?}\n{changes:?}");
            }
        }
    }
}

#[test]
fn a_short_link_gets_few_and_a_long_wait_many() {
    let at_end = |link| {
        let (mut model, mut tuner) = (Model::new(1), Tuner::new(64, 64));
        (0..intervals(10.0)).for_each(|_| _ = tuner.follow(model.interval(link, tuner.target())));
        tuner.target()
    };
    // 364 answers a second: 3.6 of them wait for 10 ms, and one is on the link.
    assert!((5..=16).contains(&at_end(NEAR)), "{}", at_end(NEAR));
    assert!((20..=48).contains(&at_end(FAR)), "{}", at_end(FAR));
    // 64 requests of 3 KB behind 10 ms bring 19 of 40 MB/s.
    assert_eq!(at_end(SMALL), 64);
    assert!(at_end(CROWDED) <= 16, "{}", at_end(CROWDED));
}

#[test]
fn nothing_is_learnt_of_a_store_that_is_not_asked_for_enough_or_does_not_answer() {
    let mut tuner = Tuner::new(64, 64);
    let idle = Seen { seconds: 0.25, answers: 100, bytes: 1 << 20, first_byte_s: 0.01, in_flight: 12.0 };
    let silent = Seen { answers: 0, bytes: 0, first_byte_s: 0.0, in_flight: 64.0, ..idle };
    let empty = Seen { bytes: 0, in_flight: 64.0, ..idle };
    let (stopped, odd) = (Seen { seconds: 0.0, ..idle }, Seen { first_byte_s: f64::NAN, in_flight: 64.0, ..idle });
    for _ in 0..100 {
        for seen in [idle, silent, empty, stopped] {
            assert_eq!(tuner.follow(seen), None);
        }
    }
    assert_eq!(tuner.target(), 64);
    for _ in 0..100 {
        tuner.follow(odd);
        assert!((1..=64).contains(&tuner.target()));
    }
    assert_eq!(Tuner::new(0, 0).target(), 1);
}
