//! A link of fixed bandwidth, shared by all connections.
//!
//! object_store's own throttle sleeps for each request by itself, so its total depends on how many requests happen to
//! be in flight and on the timer's millisecond steps. Here every transfer reserves its place on one time line, and what
//! a timer oversleeps is never added to it: the long-run rate is exact.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Shorter waits are carried over instead of slept: the timer's resolution is a millisecond.
const NEGLIGIBLE: Duration = Duration::from_millis(1);

pub(super) struct Pacer {
    bytes_per_s: u64,
    /// When the link is free again.
    free: Mutex<Option<Instant>>,
}

impl Pacer {
    /// `bytes_per_s` is positive.
    pub(super) fn new(bytes_per_s: u64) -> Self {
        Self { bytes_per_s, free: Mutex::new(None) }
    }

    /// Reserves the link for `bytes` from `now` on; the time to wait until they are through.
    pub(super) fn reserve(&self, bytes: u64, now: Instant) -> Duration {
        let takes = Duration::from_nanos(
            (u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s.max(1))).min(u128::from(u64::MAX)) as u64,
        );
        let mut free = self.free.lock();
        let end = free.map_or(now, |f| f.max(now)).checked_add(takes).unwrap_or(now);
        *free = Some(end);
        end.saturating_duration_since(now)
    }

    pub(super) async fn pass(&self, bytes: u64) {
        let wait = self.reserve(bytes, Instant::now());
        if wait >= NEGLIGIBLE {
            tokio::time::sleep(wait).await;
        }
    }
}
