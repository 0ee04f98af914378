//! Requests to a store ahead of need: a number of them in flight that follows the link, see `tuner.rs`.
//!
//! What a batch waits for takes no lane and is bounded by the store's connections alone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

use super::decisions::Listeners;
use super::tuner::{INTERVAL_S, Seen, Tuner};
use crate::decided::{Decided, Knob};

/// Waits that are remembered of an interval; of more, the last.
const WAITS_MAX: usize = 256;

pub(super) struct Lanes {
    free: Semaphore,
    target: AtomicUsize,
    traffic: Mutex<Traffic>,
    /// Who is told of changes.
    pub(super) listeners: Listeners,
}

/// A request ahead of need that is in flight.
pub(super) struct Lane<'a> {
    lanes: &'a Lanes,
    permit: Option<SemaphorePermit<'a>>,
}

/// What was seen since the interval began.
struct Traffic {
    tuner: Tuner,
    since: Instant,
    /// When the number in flight changed last, and the sum of it over time.
    at: Instant,
    in_flight: usize,
    busy_s: f64,
    answers: u64,
    bytes: u64,
    waits_s: Vec<f64>,
    /// Lanes that are closed as soon as their request has ended.
    to_close: usize,
}

impl Traffic {
    fn move_to(&mut self, now: Instant) {
        self.busy_s += self.in_flight as f64 * now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
    }

    fn wait(&mut self, first_byte: Duration) {
        let at = self.answers as usize % WAITS_MAX;
        match self.waits_s.get_mut(at) {
            Some(wait) => *wait = first_byte.as_secs_f64(),
            None => self.waits_s.push(first_byte.as_secs_f64()),
        }
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
}

impl Lanes {
    /// At most `max`.
    pub(super) fn new(max: usize) -> Self {
        let (tuner, now) = (Tuner::new(max), Instant::now());
        let (answers, bytes, in_flight, to_close) = (0, 0, 0, 0);
        Self {
            free: Semaphore::new(tuner.target()),
            target: AtomicUsize::new(tuner.target()),
            traffic: Mutex::new(Traffic {
                tuner,
                since: now,
                at: now,
                in_flight,
                busy_s: 0.0,
                answers,
                bytes,
                waits_s: Vec::new(),
                to_close,
            }),
            listeners: Listeners::default(),
        }
    }

    /// How many there are.
    pub(super) fn target(&self) -> usize {
        self.target.load(Ordering::Relaxed)
    }

    /// Waits for one, in the order of asking.
    pub(super) async fn enter(&self) -> Result<Lane<'_>, AcquireError> {
        let permit = Some(self.free.acquire().await?);
        let mut traffic = self.traffic.lock();
        traffic.move_to(Instant::now());
        traffic.in_flight += 1;
        Ok(Lane { lanes: self, permit })
    }

    /// Opens or closes lanes.
    fn follow(&self, traffic: &mut Traffic, seen: Seen) {
        let before = traffic.tuner.target();
        let Some(change) = traffic.tuner.follow(seen) else { return };
        if change.target > before {
            let opened = change.target - before;
            let kept = opened.min(traffic.to_close);
            traffic.to_close -= kept;
            self.free.add_permits(opened - kept);
        } else {
            let closed = before - change.target;
            traffic.to_close += closed - self.free.forget_permits(closed);
        }
        self.target.store(change.target, Ordering::Relaxed);
        tracing::debug!(
            requests = change.target,
            before,
            why = %change.why,
            answers_per_s = seen.answers as f64 / seen.seconds,
            bytes_per_s = seen.bytes as f64 / seen.seconds,
            first_byte_s = seen.first_byte_s,
            "requests in flight ahead of need"
        );
        self.listeners.tell(Decided {
            knob: Knob::Requests,
            before: before as u64,
            now: change.target as u64,
            code: change.why.code(),
            why: change.why.words(),
        });
    }
}

impl Lane<'_> {
    /// Its request was answered: the first byte came after `first_byte`, all of `bytes` now.
    pub(super) fn answered(self, first_byte: Duration, bytes: u64) {
        let mut traffic = self.lanes.traffic.lock();
        traffic.wait(first_byte);
        (traffic.answers, traffic.bytes) = (traffic.answers + 1, traffic.bytes + bytes);
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut traffic = self.lanes.traffic.lock();
        traffic.move_to(now);
        traffic.in_flight -= 1;
        if let Some(seen) = traffic.seen(now) {
            self.lanes.follow(&mut traffic, seen);
        }
        if traffic.to_close > 0
            && let Some(permit) = self.permit.take()
        {
            traffic.to_close -= 1;
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Decisions;
    use super::*;
    use std::sync::Arc;

    fn seen(in_flight: f64, mb: u64) -> Seen {
        Seen { seconds: 0.25, answers: 100, bytes: mb << 20, first_byte_s: 0.001, in_flight }
    }

    #[tokio::test]
    async fn as_many_are_in_flight_as_the_tuner_says_and_none_is_lost() {
        let lanes = Lanes::new(8);
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(lanes.enter().await.unwrap());
        }
        let told = Arc::new(Decisions::default());
        lanes.listeners.add(&told);
        assert!(lanes.free.try_acquire().is_err());
        // Half of them are closed, as their requests end.
        lanes.follow(&mut lanes.traffic.lock(), seen(8.0, 10));
        assert_eq!((lanes.target(), lanes.free.available_permits()), (4, 0));
        let first = told.take()[0];
        assert_eq!((first.knob, first.before, first.now, first.code), (Knob::Requests, 8, 4, 1));
        held.truncate(6);
        assert_eq!((lanes.free.available_permits(), lanes.traffic.lock().to_close), (0, 2));
        // Less comes: all are opened again, those that were not closed yet first.
        for _ in 0..8 {
            lanes.follow(&mut lanes.traffic.lock(), seen(4.0, 5));
        }
        assert_eq!((lanes.target(), lanes.free.available_permits()), (8, 2));
        held.pop().unwrap().answered(Duration::from_millis(1), 100);
        held.clear();
        assert_eq!((lanes.free.available_permits(), lanes.traffic.lock().in_flight), (8, 0));
        // Free ones are closed at once.
        let other = Lanes::new(8);
        other.follow(&mut other.traffic.lock(), seen(8.0, 10));
        assert_eq!((other.target(), other.free.available_permits(), other.traffic.lock().to_close), (4, 4, 0));
    }

    #[test]
    fn what_an_interval_shows_is_counted_anew_in_the_next() {
        let lanes = Lanes::new(8);
        let mut traffic = lanes.traffic.lock();
        let (start, ms) = (traffic.since, Duration::from_millis);
        traffic.in_flight = 2;
        traffic.move_to(start + ms(200));
        traffic.in_flight = 6;
        for wait in 0..1000 {
            traffic.wait(ms(wait % 100));
            (traffic.answers, traffic.bytes) = (traffic.answers + 1, traffic.bytes + 10);
        }
        assert_eq!(traffic.seen(start + ms(200)), None);
        traffic.move_to(start + ms(400));
        let seen = traffic.seen(start + ms(400)).unwrap();
        assert_eq!((seen.answers, seen.bytes), (1000, 10_000));
        assert!((seen.in_flight - 4.0).abs() < 1e-6 && (seen.seconds - 0.4).abs() < 1e-6, "{seen:?}");
        assert!((0.04..0.06).contains(&seen.first_byte_s), "{seen:?}");
        traffic.move_to(start + ms(900));
        let empty = traffic.seen(start + ms(900)).unwrap();
        assert_eq!((empty.answers, empty.bytes, empty.first_byte_s), (0, 0, 0.0));
        assert!((empty.in_flight - 6.0).abs() < 1e-6);
    }
}
