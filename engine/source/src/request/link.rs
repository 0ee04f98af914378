//! What a request costs, in bytes.
//!
//! A request waits for its first byte. In that time the link would have brought other bytes: *latency × bandwidth* of
//! them. So many are worth reading in vain, if that saves a request. Where several requests run side by side they wait
//! together, each saves its share only, and nothing at all once the others keep the link busy meanwhile. What is left
//! then is the work that a request takes on both sides.
//!
//! Latency and bandwidth are measured on the requests that are made anyway, and assumed until then. Bandwidth shows in
//! long bodies, and where all are short in how much longer an answer takes the more is under way
//! (`control/src/tune/short.rs`). An estimate that is wrong costs time and never data.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lossfeed_sync::Mutex;

use lossfeed_control::tune::short::{FORGOTTEN, Load, Short, TIMES_MAX};

/// What is assumed of a store that nobody has asked yet: one in the same region, through one connection. Stores take
/// 10 to 30 ms to the first byte of an object in use (AWS's guidelines for S3 name 100 ms and more for others) and give
/// a connection 50 to 90 MB/s. The low ends are taken: reading too little in vain costs least.
const LATENCY_S: f64 = 0.02;
const BYTES_PER_S: f64 = 50e6;
/// The assumption weighs as much as one request whose body takes as long as it waited.
const ASSUMED_BYTES: f64 = LATENCY_S * BYTES_PER_S;
/// Share that a new measurement has in what is believed: single slow answers do not move it far, and it has followed a
/// change after some thirty requests.
const NEWS: f64 = 1.0 / 16.0;
/// Shorter bodies come in one burst with the answer's head and say nothing about bandwidth: they fit in the socket's
/// buffer.
const BODY_BYTES_MIN: u64 = 64 << 10;
/// Processor time that a request takes on this side and in the kernel: on one core of 2026, 50 to 100 µs.
const WORK_S: f64 = 50e-6;
/// Whatever was measured: no more in vain at once.
const GAP_BYTES_MAX: u64 = 2 << 20;
/// What lies between neighbours of an archive: padding, a header, and small files that belong to one of them, a label
/// or a JSON. More is never taken to be worth a request's work alone.
const WORK_BYTES_MAX: u64 = 4 << 10;
/// No limit on a request's size is smaller, however slow the link.
const REQUEST_BYTES_MIN: u64 = 64 << 10;

/// What is worth reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Worth {
    /// Bytes that may be read in vain to save a request that somebody waits for.
    pub(crate) gap_bytes: u64,
    /// Bytes that may be read in vain to save the work of a request, even if nobody waits for it.
    pub(crate) work_bytes: u64,
    /// The most that one request can be expected to bring in a quarter of its time limit.
    pub(crate) request_bytes_max: u64,
}

/// The link to one store, as its requests have found it.
pub(crate) struct Link {
    timeout: Option<Duration>,
    /// Bytes of all bodies so far.
    brought: AtomicU64,
    under_way: Mutex<Load>,
    believed: Mutex<Believed>,
}

struct Believed {
    latency_s: f64,
    /// Bytes, and the seconds in which the link brought them: older ones count less.
    bytes: f64,
    seconds: f64,
    short: Short,
}

impl Believed {
    fn bytes_per_s(&self, limit: Option<u64>) -> f64 {
        let measured = self.bytes / self.seconds;
        let bytes_per_s = self.short.seconds_per_byte().map_or(measured, |each| measured.min(1.0 / each));
        limit.map_or(bytes_per_s, |limit| bytes_per_s.min(limit as f64))
    }
}

/// A request that was sent. When it is dropped it is not under way any more.
pub(crate) struct Sent<'a> {
    link: &'a Link,
    bytes: u64,
    load: Load,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let mut under_way = self.link.under_way.lock();
        under_way.requests -= 1;
        under_way.bytes -= self.bytes;
    }
}

impl Sent<'_> {
    /// It was answered after `first_byte`, and its body came in `body`. When that began the link had brought `before`
    /// bytes in all.
    pub(crate) fn answered(self, first_byte: Duration, body: Duration, before: u64) {
        let Self { link, bytes, load } = self;
        link.learn(Answer { load, bytes, first_byte, body, brought: link.brought().saturating_sub(before) });
    }
}

/// How a request went.
struct Answer {
    load: Load,
    bytes: u64,
    first_byte: Duration,
    body: Duration,
    /// Bytes that the link brought while the body came: those of other requests too.
    brought: u64,
}

impl Link {
    /// `timeout` is what one request may take.
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        let believed =
            Believed { latency_s: LATENCY_S, bytes: ASSUMED_BYTES, seconds: LATENCY_S, short: Short::default() };
        let under_way = Mutex::new(Load { requests: 0, bytes: 0 });
        Self { timeout, brought: AtomicU64::new(0), under_way, believed: Mutex::new(believed) }
    }

    /// So many bytes have come.
    pub(crate) fn count(&self, bytes: u64) {
        self.brought.fetch_add(bytes, Ordering::Relaxed);
    }

    /// All bytes that have come so far.
    pub(crate) fn brought(&self) -> u64 {
        self.brought.load(Ordering::Relaxed)
    }

    /// A request of `bytes` is sent.
    pub(crate) fn send(&self, bytes: u64) -> Sent<'_> {
        let mut under_way = self.under_way.lock();
        under_way.requests += 1;
        under_way.bytes += bytes;
        Sent { link: self, bytes, load: *under_way }
    }

    fn learn(&self, answer: Answer) {
        let Answer { load, bytes, first_byte, body, brought } = answer;
        let mut believed = self.believed.lock();
        let latency_s = first_byte.as_secs_f64().min(believed.latency_s * TIMES_MAX).max(1e-6);
        believed.latency_s += (latency_s - believed.latency_s) * NEWS;
        if bytes >= BODY_BYTES_MIN {
            believed.bytes += bytes.max(brought) as f64 - believed.bytes * NEWS;
            believed.seconds += body.as_secs_f64().max(1e-6) - believed.seconds * NEWS;
        } else {
            believed.short.learn(load, first_byte.saturating_add(body).as_secs_f64());
            believed.bytes += (ASSUMED_BYTES - believed.bytes) * FORGOTTEN;
            believed.seconds += (LATENCY_S - believed.seconds) * FORGOTTEN;
        }
    }

    /// Measured bandwidth, at most `limit` bytes a second.
    pub(crate) fn bytes_per_s(&self, limit: Option<u64>) -> f64 {
        self.believed.lock().bytes_per_s(limit)
    }

    /// What is worth reading where `lanes` requests run side by side, and no more than `limit` bytes a second are let
    /// through.
    pub(crate) fn worth(&self, lanes: usize, limit: Option<u64>) -> Worth {
        let believed = self.believed.lock();
        let bytes_per_s = believed.bytes_per_s(limit);
        let lane_bytes_per_s = bytes_per_s / lanes.max(1) as f64;
        let gap_bytes = ((believed.latency_s * lane_bytes_per_s) as u64).min(GAP_BYTES_MAX);
        let work_bytes = ((WORK_S * bytes_per_s) as u64).min(WORK_BYTES_MAX);
        let most = self.timeout.map_or(u64::MAX, |limit| (limit.as_secs_f64() / 4.0 * lane_bytes_per_s) as u64);
        Worth { gap_bytes, work_bytes, request_bytes_max: most.max(REQUEST_BYTES_MIN) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// An answer to a request that was alone under way.
    fn learn(link: &Link, first_byte: Duration, body: Duration, bytes: u64, brought: u64) {
        link.learn(Answer { load: Load { requests: 1, bytes }, bytes, first_byte, body, brought });
    }

    #[test]
    fn what_is_measured_replaces_what_was_assumed() {
        let link = Link::new(Some(ms(30_000)));
        assert_eq!(link.worth(1, None).gap_bytes, 1_000_000);
        assert_eq!(link.worth(50, None).gap_bytes, 20_000, "requests that wait together save their share");
        assert_eq!((link.worth(1, None).work_bytes, link.worth(50, None).work_bytes), (2500, 2500));
        // 10 ms and 8 MB/s.
        for _ in 0..200 {
            learn(&link, ms(10), ms(125), 1_000_000, 1_000_000);
        }
        let Worth { gap_bytes, work_bytes, request_bytes_max } = link.worth(1, None);
        assert!((79_000..81_000).contains(&gap_bytes), "{gap_bytes}");
        assert!((395..405).contains(&work_bytes), "{work_bytes}");
        assert!((59_000_000..61_000_000).contains(&request_bytes_max), "{request_bytes_max}");
        // The same link, shared by ten requests that each take ten times as long.
        for _ in 0..200 {
            learn(&link, ms(10), ms(1250), 1_000_000, 10_000_000);
        }
        assert!((79_000..81_000).contains(&link.worth(1, None).gap_bytes));
        // A limit is known, and needs no measuring.
        assert_eq!(link.worth(1, Some(800_000)).work_bytes, 40);
        assert_eq!(link.worth(1, Some(1 << 40)), link.worth(1, None));
    }

    #[test]
    fn small_bodies_and_single_slow_answers_say_little() {
        let link = Link::new(None);
        for _ in 0..1000 {
            learn(&link, ms(20), Duration::from_nanos(1), BODY_BYTES_MIN - 1, 1 << 40);
        }
        assert!(link.worth(1, None).gap_bytes.abs_diff(1_000_000) < 1000);
        learn(&link, ms(60_000), ms(0), 100, 100);
        assert!(link.worth(1, None).gap_bytes < 1_200_000);
        assert_eq!(link.worth(1, None).request_bytes_max, u64::MAX);
    }

    /// A request's size: most are single small samples, some bring several.
    fn size(k: u64) -> u64 {
        let noise = k.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        800 + noise % 250 + if noise.is_multiple_of(8) { noise % 9000 } else { 0 }
    }

    /// Answers of a link that sends one body after the other, `lanes` at a time.
    fn queued(link: &Link, lanes: usize, bytes_per_s: f64, requests: u64) {
        let (mut now, mut ends) = (0.0f64, std::collections::VecDeque::from(vec![(0.0, 0); lanes]));
        for k in 0..requests {
            let (asked, _): (f64, u64) = ends.pop_front().unwrap();
            now = now.max(asked + 0.01) + size(k) as f64 / bytes_per_s;
            ends.push_back((now, size(k)));
            let load = Load { requests: lanes as u64, bytes: ends.iter().map(|(_, bytes)| bytes).sum() };
            // The head comes at once, or with the body.
            let wait = if k % 2 == 0 { 0.01 } else { now - asked };
            let (first, body) = (Duration::from_secs_f64(wait), Duration::from_secs_f64(now - asked - wait));
            link.learn(Answer { load, bytes: size(k), first_byte: first, body, brought: size(k) });
        }
    }

    #[test]
    fn short_bodies_show_that_a_link_is_slow() {
        for lanes in [1, 5, 20, 64] {
            let link = Link::new(None);
            queued(&link, lanes, 180e3, 500);
            let Worth { gap_bytes, work_bytes, .. } = link.worth(64, None);
            assert!(gap_bytes < 2000 && work_bytes < 20, "{lanes}: {gap_bytes}, {work_bytes}");
            // Faster again: the old ones are forgotten.
            queued(&link, lanes, 1e9, 30_000);
            assert!(link.worth(64, None).work_bytes > 1000, "{lanes}");
        }
    }

    #[test]
    fn short_bodies_of_a_fast_link_show_nothing() {
        let link = Link::new(None);
        for k in 0..20_000u64 {
            let noise = k.wrapping_mul(0xd134_2543_de82_ef95) >> 40;
            let late = if noise % 100 == 0 { 500 } else { 0 };
            let first = Duration::from_micros(9000 + noise % 3000) + ms(late);
            learn(&link, first, Duration::from_nanos(20 * size(k)), size(k), size(k));
            assert_eq!(link.worth(64, None).work_bytes, 2500, "{k}");
        }
    }

    #[test]
    fn a_link_that_was_slow_is_tried_again() {
        let link = Link::new(None);
        for _ in 0..100 {
            learn(&link, ms(20), ms(1000), 1_000_000, 1_000_000);
        }
        assert!((19_000..21_000).contains(&link.worth(1, None).gap_bytes));
        (0..500).for_each(|_| learn(&link, ms(20), ms(1), 3000, 3000));
        assert!((19_000..40_000).contains(&link.worth(1, None).gap_bytes), "not at once");
        (0..30_000).for_each(|_| learn(&link, ms(20), ms(1), 3000, 3000));
        assert!((900_000..1_000_001).contains(&link.worth(1, None).gap_bytes));
    }

    #[test]
    fn no_measurement_leads_out_of_bounds() {
        for (first_byte, body, bytes) in
            [(ms(0), ms(0), u64::MAX), (ms(u64::MAX / 2), ms(0), 1 << 40), (ms(0), ms(u64::MAX / 2), 1 << 20)]
        {
            let link = Link::new(Some(ms(1)));
            for _ in 0..100 {
                learn(&link, first_byte, body, bytes, bytes / 2);
            }
            for lanes in [0, 1, 4096] {
                let Worth { gap_bytes, work_bytes, request_bytes_max } = link.worth(lanes, None);
                assert!(gap_bytes <= GAP_BYTES_MAX && work_bytes <= WORK_BYTES_MAX, "{gap_bytes} {work_bytes}");
                assert!(request_bytes_max >= REQUEST_BYTES_MIN);
            }
        }
    }
}
