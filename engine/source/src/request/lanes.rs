//! Requests to a store ahead of need: a number of them in flight that follows the link (`control/src/tune/tuner.rs`).
//!
//! What a batch waits for takes no lane and is bounded by the store's connections alone.
//!
//! Lock: guards the number of in-flight requests; held when a request begins or ends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lossfeed_sync::Mutex;
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

use crate::request::flow::Flow;
use crate::sample::Listeners;
use crate::tune::decided::Decided;

pub(crate) struct Lanes {
    free: Semaphore,
    target: AtomicUsize,
    traffic: Mutex<Traffic>,
    /// Who is told of changes.
    pub(crate) listeners: Listeners,
}

/// A request ahead of need that is in flight.
pub(crate) struct Lane<'a> {
    lanes: &'a Lanes,
    permit: Option<SemaphorePermit<'a>>,
}

struct Traffic {
    flow: Flow,
    /// Lanes that are closed as soon as their request has ended.
    to_close: usize,
}

impl Lanes {
    /// At most `max`.
    pub(crate) fn new(max: usize) -> Self {
        let max = max.max(1);
        let flow = Flow::new(max, max, Instant::now());
        Self {
            free: Semaphore::new(max),
            target: AtomicUsize::new(max),
            traffic: Mutex::new(Traffic { flow, to_close: 0 }),
            listeners: Listeners::default(),
        }
    }

    /// How many there are.
    pub(crate) fn target(&self) -> usize {
        self.target.load(Ordering::Relaxed)
    }

    /// Waits for one, in the order of asking.
    pub(crate) async fn enter(&self) -> Result<Lane<'_>, AcquireError> {
        let permit = Some(self.free.acquire().await?);
        self.traffic.lock().flow.begin(Instant::now());
        Ok(Lane { lanes: self, permit })
    }

    /// Opens or closes lanes.
    fn change(&self, traffic: &mut Traffic, decided: Decided) {
        let (before, now) = (decided.before as usize, decided.now as usize);
        if now > before {
            let opened = now - before;
            let kept = opened.min(traffic.to_close);
            traffic.to_close -= kept;
            self.free.add_permits(opened - kept);
        } else {
            let closed = before - now;
            traffic.to_close += closed - self.free.forget_permits(closed);
        }
        self.target.store(now, Ordering::Relaxed);
        self.listeners.tell(decided);
    }
}

impl Lane<'_> {
    /// Its request was answered: the first byte came after `first_byte`, all of `bytes` now.
    pub(crate) fn answered(self, first_byte: Duration, bytes: u64) {
        self.lanes.traffic.lock().flow.answered(first_byte, bytes);
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut traffic = self.lanes.traffic.lock();
        if let Some(decided) = traffic.flow.end(now) {
            self.lanes.change(&mut traffic, decided);
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
    use super::*;
    use crate::sample::Decisions;
    use crate::tune::decided::Knob;
    use lossfeed_control::tune::tuner::Seen;
    use std::sync::Arc;

    fn seen(in_flight: f64, mb: u64) -> Seen {
        Seen { seconds: 0.25, answers: 100, bytes: mb << 20, first_byte_s: 0.001, in_flight }
    }

    fn follow(lanes: &Lanes, seen: Seen) {
        let mut traffic = lanes.traffic.lock();
        if let Some(decided) = traffic.flow.follow(seen) {
            lanes.change(&mut traffic, decided);
        }
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
        follow(&lanes, seen(8.0, 10));
        assert_eq!((lanes.target(), lanes.free.available_permits()), (4, 0));
        let first = told.take()[0];
        assert_eq!((first.knob, first.before, first.now, first.code), (Knob::Requests, 8, 4, 1));
        held.truncate(6);
        assert_eq!((lanes.free.available_permits(), lanes.traffic.lock().to_close), (0, 2));
        // Less comes: all are opened again, those that were not closed yet first.
        for _ in 0..8 {
            follow(&lanes, seen(4.0, 5));
        }
        assert_eq!((lanes.target(), lanes.free.available_permits()), (8, 2));
        held.pop().unwrap().answered(Duration::from_millis(1), 100);
        held.clear();
        assert_eq!((lanes.free.available_permits(), lanes.traffic.lock().flow.in_flight()), (8, 0));
        // Free ones are closed at once.
        let other = Lanes::new(8);
        follow(&other, seen(8.0, 10));
        assert_eq!((other.target(), other.free.available_permits(), other.traffic.lock().to_close), (4, 4, 0));
    }
}
