//! A link of limited bandwidth, shared by all connections.
//!
//! object_store's own throttle sleeps for each request by itself, so its total depends on how many requests happen to
//! be in flight and on the timer's millisecond steps. Here every transfer has its place in one line of bytes, which
//! moves at the link's rate: what a timer oversleeps is never added to it, and the long-run rate is exact. A new rate
//! holds for those who wait already.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Shorter waits are carried over instead of slept: the timer's resolution is a millisecond.
const NEGLIGIBLE: Duration = Duration::from_millis(1);
/// How long one sleeps at most before the rate is looked at again.
const TICK: Duration = Duration::from_millis(100);
/// The line counts in billionths of a byte, so that a nanosecond of any rate is a whole number of them.
const BYTE: u128 = 1_000_000_000;

pub(super) struct Pacer(Mutex<Line>);

struct Line {
    /// `None`: no limit.
    bytes_per_s: Option<u64>,
    /// Where the last transfer ends, and what is through at time `at`. It never overtakes what was promised: time in
    /// which nobody transfers is gone.
    promised: u128,
    through: u128,
    at: Option<Instant>,
}

impl Line {
    fn move_to(&mut self, now: Instant) {
        let at = *self.at.get_or_insert(now);
        self.through = match self.bytes_per_s {
            Some(rate) => {
                let moved = now.saturating_duration_since(at).as_nanos().saturating_mul(u128::from(rate));
                self.through.saturating_add(moved).min(self.promised)
            }
            None => self.promised,
        };
        self.at = Some(now.max(at));
    }
}

impl Pacer {
    /// `None`: no limit.
    pub(super) fn new(bytes_per_s: Option<u64>) -> Self {
        Self(Mutex::new(Line { bytes_per_s, promised: 0, through: 0, at: None }))
    }

    /// Sets the rate from `now` on, for those who wait too.
    pub(super) fn limit(&self, bytes_per_s: Option<u64>, now: Instant) {
        let mut line = self.0.lock();
        line.move_to(now);
        line.bytes_per_s = bytes_per_s;
    }

    pub(super) fn is_limited(&self) -> bool {
        self.0.lock().bytes_per_s.is_some()
    }

    /// A place in the line for `bytes` from `now` on: where it ends.
    fn reserve(&self, bytes: u64, now: Instant) -> u128 {
        let mut line = self.0.lock();
        line.move_to(now);
        line.promised = line.promised.saturating_add(u128::from(bytes) * BYTE);
        line.promised
    }

    /// How long a place that ends here has still to wait at the rate of now.
    fn left(&self, end: u128, now: Instant) -> Duration {
        let mut line = self.0.lock();
        line.move_to(now);
        let left = end.saturating_sub(line.through);
        let nanoseconds = line.bytes_per_s.map_or(0, |rate| left / u128::from(rate.max(1)));
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// Somebody with a place of `bytes` that ends here has left before it was through: those behind move up. What comes
    /// through in the long run stays what the rate allows, because what was given up never came.
    fn leave(&self, end: u128, bytes: u64, now: Instant) {
        let mut line = self.0.lock();
        line.move_to(now);
        let left = end.saturating_sub(line.through).min(u128::from(bytes) * BYTE);
        line.through = line.through.saturating_add(left).min(line.promised);
    }

    /// Waits until `bytes` are through.
    pub(super) async fn pass(&self, bytes: u64) {
        let mut place = Place { pacer: self, end: self.reserve(bytes, Instant::now()), bytes };
        loop {
            let left = self.left(place.end, Instant::now());
            if left < NEGLIGIBLE {
                place.bytes = 0;
                return;
            }
            tokio::time::sleep(left.min(TICK)).await;
        }
    }
}

/// A place in the line, given up when it is dropped. One that is through has no bytes left.
struct Place<'a> {
    pacer: &'a Pacer,
    end: u128,
    bytes: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.pacer.leave(self.end, self.bytes, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn the_links_rate_is_exact_however_transfers_are_cut() {
        for (pieces, bytes) in [(1u32, 1_000_000u64), (1000, 1000), (1_000_000, 1)] {
            let (pacer, start) = (Pacer::new(Some(1_000_000)), Instant::now());
            let last = (0..pieces).map(|_| pacer.reserve(bytes, start)).last().unwrap();
            assert_eq!(pacer.left(last, start), Duration::from_secs(1), "{pieces} pieces");
        }
    }

    #[test]
    fn time_in_which_nobody_transfers_is_gone_and_oversleeping_is_not_added() {
        let (pacer, start) = (Pacer::new(Some(1_000_000)), Instant::now());
        let ends: Vec<u128> = (0..7).map(|_| pacer.reserve(1_234_567, start)).collect();
        assert_eq!(pacer.left(ends[6], start), Duration::from_micros(7 * 1_234_567));
        // Whoever comes late finds the line where it is by then.
        assert_eq!(pacer.left(ends[1], start + ms(2000)), Duration::from_micros(2 * 1_234_567 - 2_000_000));
        // Nothing is saved up while the link is idle.
        let later = start + ms(60_000);
        let end = pacer.reserve(500_000, later);
        assert_eq!(pacer.left(end, later), ms(500));
        // A clock that goes back moves nothing.
        assert_eq!(pacer.left(end, start), ms(500));
    }

    #[test]
    fn a_new_rate_holds_for_those_who_wait_already() {
        let (pacer, start) = (Pacer::new(Some(1000)), Instant::now());
        let (first, last) = (pacer.reserve(1_000_000, start), pacer.reserve(1_000_000, start));
        assert_eq!(pacer.left(first, start), ms(1_000_000));
        pacer.limit(Some(1_000_000), start + ms(1000));
        assert_eq!(pacer.left(first, start + ms(1000)), ms(999));
        assert_eq!(pacer.left(last, start + ms(1500)), ms(1499));
        pacer.limit(None, start + ms(1500));
        assert!(!pacer.is_limited());
        assert_eq!(pacer.left(last, start + ms(1500)), Duration::ZERO);
        let free = pacer.reserve(u64::MAX, start + ms(1500));
        assert_eq!(pacer.left(free, start + ms(1500)), Duration::ZERO);
        pacer.limit(Some(10), start + ms(1600));
        let slow = pacer.reserve(1, start + ms(1600));
        assert_eq!(pacer.left(slow, start + ms(1600)), ms(100));
    }

    #[test]
    fn who_leaves_gives_up_what_had_not_come() {
        let (pacer, start) = (Pacer::new(Some(1000)), Instant::now());
        let ends: Vec<u128> = (0..3).map(|_| pacer.reserve(1000, start)).collect();
        // Half of the first is through; the second has not begun.
        let now = start + ms(500);
        pacer.leave(ends[0], 1000, now);
        assert_eq!(pacer.left(ends[2], now), ms(2000));
        pacer.leave(ends[1], 1000, now);
        assert_eq!(pacer.left(ends[2], now), ms(1000));
        pacer.leave(ends[2], 1000, now + ms(400));
        // The line is empty: a transfer takes its own time.
        let next = pacer.reserve(1000, now + ms(400));
        assert_eq!(pacer.left(next, now + ms(400)), ms(1000));
    }

    proptest! {
        #[test]
        fn the_line_moves_as_a_naive_one_does(
            steps in prop::collection::vec((0u64..3000, prop_oneof![Just(None), (1u64..5000).prop_map(Some)], 0u64..4000), 1..40)
        ) {
            let (pacer, start) = (Pacer::new(None), Instant::now());
            let (mut now, mut rate) = (0u64, None::<u64>);
            let (mut promised, mut through) = (0u128, 0u128);
            for (waits, next_rate, bytes) in steps {
                // A millisecond at a time, in thousandths of a byte.
                for _ in 0..waits {
                    through = rate.map_or(promised, |rate| (through + u128::from(rate)).min(promised));
                }
                now += waits;
                let at = start + ms(now);
                pacer.limit(next_rate, at);
                rate = next_rate;
                if rate.is_none() {
                    through = promised;
                }
                promised += u128::from(bytes) * 1000;
                let end = pacer.reserve(bytes, at);
                let left = rate.map_or(0, |rate| (promised - through) * 1_000_000 / u128::from(rate));
                prop_assert_eq!(pacer.left(end, at).as_nanos(), left);
                if rate.is_none() {
                    through = promised;
                }
            }
        }
    }
}
