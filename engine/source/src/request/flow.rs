//! What is asked for ahead of need, as it flows: how many requests are in flight, what came, how long it was waited
//! for. A [`Tuner`] is told of it, and says how many there may be.

use std::time::{Duration, Instant};

use crate::tune::decided::{Decided, Knob};
use lossfeed_control::tune::tuner::{INTERVAL_S, Seen, Tuner};

/// Waits that are remembered of an interval; of more, the last.
const WAITS_MAX: usize = 256;

/// What was seen since the interval began.
pub struct Flow {
    tuner: Tuner,
    since: Instant,
    /// When the number in flight changed last, and the sum of it over time.
    at: Instant,
    in_flight: usize,
    busy_s: f64,
    answers: u64,
    bytes: u64,
    waits_s: Vec<f64>,
}

impl Flow {
    /// At most `max` requests, and `start` to begin with.
    pub fn new(start: usize, max: usize, now: Instant) -> Self {
        let (answers, bytes, in_flight) = (0, 0, 0);
        let tuner = Tuner::new(start, max);
        Self { tuner, since: now, at: now, in_flight, busy_s: 0.0, answers, bytes, waits_s: Vec::new() }
    }

    /// Requests that may be in flight.
    pub fn target(&self) -> usize {
        self.tuner.target()
    }

    /// Those that are.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// A request is sent.
    pub fn begin(&mut self, now: Instant) {
        self.move_to(now);
        self.in_flight += 1;
    }

    /// A request was answered: the first byte came after `first_byte`, all of `bytes` now.
    pub fn answered(&mut self, first_byte: Duration, bytes: u64) {
        let at = self.answers as usize % WAITS_MAX;
        match self.waits_s.get_mut(at) {
            Some(wait) => *wait = first_byte.as_secs_f64(),
            None => self.waits_s.push(first_byte.as_secs_f64()),
        }
        (self.answers, self.bytes) = (self.answers + 1, self.bytes + bytes);
    }

    /// A request is over, answered or not. Another number from now on, and why.
    pub fn end(&mut self, now: Instant) -> Option<Decided> {
        self.move_to(now);
        self.in_flight = self.in_flight.saturating_sub(1);
        let seen = self.seen(now)?;
        self.follow(seen)
    }

    fn move_to(&mut self, now: Instant) {
        self.busy_s += self.in_flight as f64 * now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
    }

    /// What the interval showed, if it is over. The next one begins.
    fn seen(&mut self, now: Instant) -> Option<Seen> {
        let seconds = now.saturating_duration_since(self.since).as_secs_f64();
        if seconds < INTERVAL_S {
            return None;
        }
        self.waits_s.sort_unstable_by(f64::total_cmp);
        let first_byte_s = self.waits_s.get(self.waits_s.len() / 2).copied().unwrap_or(0.0);
        let &mut Self { answers, bytes, .. } = self;
        let seen = Seen { seconds, answers, bytes, first_byte_s, in_flight: self.busy_s / seconds };
        (self.since, self.busy_s, self.answers, self.bytes) = (now, 0.0, 0, 0);
        self.waits_s.clear();
        Some(seen)
    }

    /// As if an interval had shown that.
    pub(crate) fn follow(&mut self, seen: Seen) -> Option<Decided> {
        let before = self.tuner.target();
        let change = self.tuner.follow(seen)?;
        tracing::debug!(
            requests = change.target,
            before,
            why = %change.why,
            answers_per_s = seen.answers as f64 / seen.seconds,
            bytes_per_s = seen.bytes as f64 / seen.seconds,
            first_byte_s = seen.first_byte_s,
            "requests in flight ahead of need"
        );
        Some(Decided {
            knob: Knob::Requests,
            before: before as u64,
            now: change.target as u64,
            code: change.why.code(),
            why: change.why.words(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_interval_shows_is_counted_anew_in_the_next() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let mut flow = Flow::new(8, 8, start);
        (0..2).for_each(|_| flow.begin(start));
        (0..4).for_each(|_| flow.begin(start + ms(200)));
        for wait in 0..1000 {
            flow.answered(ms(wait % 100), 10);
        }
        flow.move_to(start + ms(200));
        assert_eq!(flow.seen(start + ms(200)), None);
        flow.move_to(start + ms(400));
        let seen = flow.seen(start + ms(400)).unwrap();
        assert_eq!((seen.answers, seen.bytes), (1000, 10_000));
        assert!((seen.in_flight - 4.0).abs() < 1e-6 && (seen.seconds - 0.4).abs() < 1e-6, "{seen:?}");
        assert!((0.04..0.06).contains(&seen.first_byte_s), "{seen:?}");
        flow.move_to(start + ms(900));
        let empty = flow.seen(start + ms(900)).unwrap();
        assert_eq!((empty.answers, empty.bytes, empty.first_byte_s), (0, 0, 0.0));
        assert!((empty.in_flight - 6.0).abs() < 1e-6);
    }

    #[test]
    fn a_few_threads_become_more_as_long_as_the_rate_follows() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let mut flow = Flow::new(8, 64, start);
        let (mut now, mut changes) = (start, Vec::new());
        // Each read waits 40 ms, however many there are.
        while flow.target() < 64 {
            assert!(now < start + ms(5000), "{changes:?}");
            let target = flow.target();
            (flow.in_flight()..target).for_each(|_| flow.begin(now));
            now += ms(40);
            for _ in 0..target {
                flow.answered(ms(40), 1000);
                let change = flow.end(now);
                changes.extend(change.map(|change| (change.before, change.now, change.why)));
                flow.begin(now);
            }
        }
        let follows = crate::tune::decided::Requests::Follows.words();
        assert_eq!(changes[0], (8, 16, crate::tune::decided::Requests::MayBeMore.words()));
        assert_eq!(changes[1..], [(16, 32, follows), (32, 64, follows)]);
    }
}
