//! A link of limited bandwidth, shared by all connections.
//!
//! object_store's own throttle sleeps for each request by itself, so its total depends on how many requests happen to
//! be in flight and on the timer's millisecond steps. Here every transfer has its place in one line of bytes, which
//! moves at the link's rate: what a timer oversleeps is never added to it, and the long-run rate is exact. A new rate
//! holds for those who wait already.
//!
//! There are two such lines. Requests are sent when their place in the first one *begins*: what was sent comes over the
//! wire whatever is waited for behind it, so if all connections sent theirs at once, as many bodies would come at full
//! speed, and the wire would bring more or less than the limit whenever the number of requests in flight changes.
//! Bodies have come when their place in the second one *ends*: so it is behind a link of that bandwidth, and no more is
//! delivered than the limit allows.

use std::time::Duration;

use crate::sample::LimitBy;
use lossfeed_sync::Mutex;
// A clock that tests turn.
use tokio::time::Instant;

/// Shorter waits are carried over instead of slept: the timer's resolution is a millisecond.
const NEGLIGIBLE: Duration = Duration::from_millis(1);
/// How long one sleeps at most before the rate is looked at again.
const TICK: Duration = Duration::from_millis(100);
/// What was sent while there was no limit and comes within so long from the first one on is not held back: it has come
/// already, or nearly. Held back, it would keep the wire idle while the limit would let others through.
const IN_FORCE: Duration = Duration::from_secs(1);
/// The line counts in billionths of a byte, so that a nanosecond of any rate is a whole number of them.
const BYTE: u128 = 1_000_000_000;

pub(crate) struct Pacer {
    /// The user's limit and the one from outside; held while they are put in force.
    limits: Mutex<[Option<u64>; 2]>,
    sent: Queue,
    came: Queue,
}

struct Queue(Mutex<Line>);

struct Line {
    /// `None`: no limit.
    bytes_per_s: Option<u64>,
    /// When the first limit was set after there was none.
    limited_at: Option<Instant>,
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
    pub(crate) fn new(bytes_per_s: Option<u64>) -> Self {
        Self { limits: Mutex::new([bytes_per_s, None]), sent: Queue::new(bytes_per_s), came: Queue::new(bytes_per_s) }
    }

    /// Sets the rate from `now` on, for those who wait too: the lower of the two limits.
    pub(crate) fn limit(&self, bytes_per_s: Option<u64>, by: LimitBy, now: Instant) {
        let mut limits = self.limits.lock();
        match by {
            LimitBy::User => limits[0] = bytes_per_s,
            LimitBy::Outside => limits[1] = bytes_per_s,
        }
        let bytes_per_s = limits.iter().flatten().min().copied();
        self.sent.limit(bytes_per_s, now);
        self.came.limit(bytes_per_s, now);
    }

    /// The limit, if there is one.
    pub(crate) fn bytes_per_s(&self) -> Option<u64> {
        self.came.0.lock().bytes_per_s
    }

    /// Waits until a request for `bytes` may be sent. False if there is no limit.
    pub(crate) async fn send(&self, bytes: u64) -> bool {
        let limited = self.bytes_per_s().is_some();
        if limited {
            self.sent.wait(bytes, Until::Begin).await;
        }
        limited
    }

    /// Waits until `bytes` are through, of a request that was sent while there was a limit, or not.
    pub(crate) async fn pass(&self, bytes: u64, sent_limited: bool) {
        if sent_limited || self.came.is_in_force(Instant::now()) {
            self.came.wait(bytes, Until::End).await;
        }
    }
}

impl Queue {
    fn new(bytes_per_s: Option<u64>) -> Self {
        Self(Mutex::new(Line { bytes_per_s, limited_at: None, promised: 0, through: 0, at: None }))
    }

    fn limit(&self, bytes_per_s: Option<u64>, now: Instant) {
        let mut line = self.0.lock();
        line.move_to(now);
        if line.bytes_per_s.is_none() {
            line.limited_at = Some(now);
        }
        line.bytes_per_s = bytes_per_s;
    }

    /// Whether all that comes is held back.
    fn is_in_force(&self, now: Instant) -> bool {
        let line = self.0.lock();
        let for_long = |at| now.saturating_duration_since(at) >= IN_FORCE;
        line.bytes_per_s.is_some() && line.limited_at.is_none_or(for_long)
    }

    /// A place in the line for `bytes` from `now` on: where it ends.
    fn reserve(&self, bytes: u64, now: Instant) -> u128 {
        let mut line = self.0.lock();
        line.move_to(now);
        line.promised = line.promised.saturating_add(u128::from(bytes) * BYTE);
        line.promised
    }

    /// How long whoever waits until the line is here has still to wait at the rate of now.
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

    /// Waits until the line is where a place of `bytes` from now on begins, or ends.
    async fn wait(&self, bytes: u64, until: Until) {
        let mut place = Place { queue: self, end: self.reserve(bytes, Instant::now()), bytes };
        let until = match until {
            Until::Begin => place.end.saturating_sub(u128::from(bytes) * BYTE),
            Until::End => place.end,
        };
        loop {
            let left = self.left(until, Instant::now());
            if left < NEGLIGIBLE {
                place.bytes = 0;
                return;
            }
            tokio::time::sleep(left.min(TICK)).await;
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Until {
    Begin,
    End,
}

/// A place in the line, given up when it is dropped. One that is through has no bytes left.
struct Place<'a> {
    queue: &'a Queue,
    end: u128,
    bytes: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.queue.leave(self.end, self.bytes, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn the_links_rate_is_exact_however_transfers_are_cut() {
        for (pieces, bytes) in [(1u32, 1_000_000u64), (1000, 1000), (1_000_000, 1)] {
            let (queue, start) = (Queue::new(Some(1_000_000)), Instant::now());
            let last = (0..pieces).map(|_| queue.reserve(bytes, start)).last().unwrap();
            assert_eq!(queue.left(last, start), Duration::from_secs(1), "{pieces} pieces");
        }
    }

    #[test]
    fn time_in_which_nobody_transfers_is_gone_and_oversleeping_is_not_added() {
        let (queue, start) = (Queue::new(Some(1_000_000)), Instant::now());
        let ends: Vec<u128> = (0..7).map(|_| queue.reserve(1_234_567, start)).collect();
        assert_eq!(queue.left(ends[6], start), Duration::from_micros(7 * 1_234_567));
        // Whoever comes late finds the line where it is by then.
        assert_eq!(queue.left(ends[1], start + ms(2000)), Duration::from_micros(2 * 1_234_567 - 2_000_000));
        // Nothing is saved up while the link is idle.
        let later = start + ms(60_000);
        let end = queue.reserve(500_000, later);
        assert_eq!(queue.left(end, later), ms(500));
        // A clock that goes back moves nothing.
        assert_eq!(queue.left(end, start), ms(500));
    }

    #[test]
    fn a_new_rate_holds_for_those_who_wait_already() {
        let (queue, start) = (Queue::new(Some(1000)), Instant::now());
        let (first, last) = (queue.reserve(1_000_000, start), queue.reserve(1_000_000, start));
        assert_eq!(queue.left(first, start), ms(1_000_000));
        queue.limit(Some(1_000_000), start + ms(1000));
        assert_eq!(queue.left(first, start + ms(1000)), ms(999));
        assert_eq!(queue.left(last, start + ms(1500)), ms(1499));
        queue.limit(None, start + ms(1500));
        assert!(!queue.is_in_force(start + ms(9000)));
        assert_eq!(queue.left(last, start + ms(1500)), Duration::ZERO);
        let free = queue.reserve(u64::MAX, start + ms(1500));
        assert_eq!(queue.left(free, start + ms(1500)), Duration::ZERO);
        queue.limit(Some(10), start + ms(1600));
        let slow = queue.reserve(1, start + ms(1600));
        assert_eq!(queue.left(slow, start + ms(1600)), ms(100));
    }

    #[test]
    fn who_leaves_gives_up_what_had_not_come() {
        let (queue, start) = (Queue::new(Some(1000)), Instant::now());
        let ends: Vec<u128> = (0..3).map(|_| queue.reserve(1000, start)).collect();
        // Half of the first is through; the second has not begun.
        let now = start + ms(500);
        queue.leave(ends[0], 1000, now);
        assert_eq!(queue.left(ends[2], now), ms(2000));
        queue.leave(ends[1], 1000, now);
        assert_eq!(queue.left(ends[2], now), ms(1000));
        queue.leave(ends[2], 1000, now + ms(400));
        // The line is empty: a transfer takes its own time.
        let next = queue.reserve(1000, now + ms(400));
        assert_eq!(queue.left(next, now + ms(400)), ms(1000));
    }

    #[test]
    fn of_two_limits_the_lower_holds_and_each_is_taken_back_by_itself() {
        use LimitBy::{Outside, User};
        let (pacer, now) = (Pacer::new(Some(500)), Instant::now());
        let sets = [
            (Some(100), Outside, Some(100)),
            (Some(50), User, Some(50)),
            (Some(900), User, Some(100)),
            (Some(2000), Outside, Some(900)),
            (None, User, Some(2000)),
            (None, Outside, None),
            (Some(7), User, Some(7)),
        ];
        for (rate, by, holds) in sets {
            pacer.limit(rate, by, now);
            assert_eq!(pacer.bytes_per_s(), holds, "{by:?} {rate:?}");
        }
    }

    /// There is always more to ask for, each request is answered after 5 to 15 ms, and as many may be in flight as is
    /// said.
    struct Demand {
        pacer: Pacer,
        lanes: AtomicU64,
        asked: AtomicU64,
        wire: AtomicU64,
        delivered: AtomicU64,
    }

    const REQUEST_BYTES: [u64; 4] = [110_000, 3000, 500_000, 20_000];

    impl Demand {
        async fn read(self: Arc<Self>, lane: u64) {
            loop {
                if lane >= self.lanes.load(Relaxed) {
                    tokio::time::sleep(ms(20)).await;
                    continue;
                }
                let k = self.asked.fetch_add(1, Relaxed);
                let bytes = REQUEST_BYTES[k as usize % 4];
                let limited = self.pacer.send(bytes).await;
                tokio::time::sleep(ms(5 + k * 7 % 11)).await;
                self.wire.fetch_add(bytes, Relaxed);
                self.pacer.pass(bytes, limited).await;
                self.delivered.fetch_add(bytes, Relaxed);
            }
        }

        fn so_far(&self) -> [u64; 2] {
            [&self.wire, &self.delivered].map(|count| count.load(Relaxed))
        }
    }

    /// On a clock that the runtime turns as soon as all its tasks wait.
    #[tokio::test(start_paused = true)]
    async fn a_limit_is_exact_a_second_after_it_was_set_however_many_requests_are_in_flight() {
        const SECONDS: u64 = 100;
        let [lanes, asked, wire, delivered] = [60, 0, 0, 0].map(AtomicU64::new);
        let demand = Arc::new(Demand { pacer: Pacer::new(None), lanes, asked, wire, delivered });
        (0..60).for_each(|lane| _ = tokio::spawn(Arc::clone(&demand).read(lane)));
        tokio::time::sleep(ms(500)).await;
        let unlimited = demand.so_far()[0];
        assert!(unlimited > 100 << 20, "{unlimited}");
        for (rate, lanes_before, lanes) in [(4_000_000, 60, 12), (1_000_000, 12, 4), (8_000_000, 60, 30)] {
            demand.lanes.store(lanes_before, Relaxed);
            demand.pacer.limit(Some(rate), LimitBy::User, Instant::now());
            tokio::time::sleep(ms(1000)).await;
            demand.lanes.store(lanes, Relaxed);
            let before = demand.so_far();
            for second in 1..=SECONDS {
                tokio::time::sleep(ms(1000)).await;
                for (so_far, before) in demand.so_far().into_iter().zip(before) {
                    let (came, limit) = (so_far - before, rate * second);
                    assert!(came <= limit + 500_000, "{rate} bytes/s, {lanes} lanes: {came} in {second} s");
                    let whole = second < SECONDS || came * 100 >= limit * 99;
                    assert!(whole, "{rate} bytes/s, {lanes} lanes: {came} in {second} s");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_line_moves_as_a_naive_one_does(
            steps in prop::collection::vec((0u64..3000, prop_oneof![Just(None), (1u64..5000).prop_map(Some)], 0u64..4000), 1..40)
        ) {
            let (queue, start) = (Queue::new(None), Instant::now());
            let (mut now, mut rate) = (0u64, None::<u64>);
            let (mut promised, mut through) = (0u128, 0u128);
            for (waits, next_rate, bytes) in steps {
                // A millisecond at a time, in thousandths of a byte.
                for _ in 0..waits {
                    through = rate.map_or(promised, |rate| (through + u128::from(rate)).min(promised));
                }
                now += waits;
                let at = start + ms(now);
                queue.limit(next_rate, at);
                rate = next_rate;
                if rate.is_none() {
                    through = promised;
                }
                promised += u128::from(bytes) * 1000;
                let end = queue.reserve(bytes, at);
                let left = rate.map_or(0, |rate| (promised - through) * 1_000_000 / u128::from(rate));
                prop_assert_eq!(queue.left(end, at).as_nanos(), left);
                if rate.is_none() {
                    through = promised;
                }
            }
        }
    }
}
