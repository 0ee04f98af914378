//! How much is read ahead of a source behind a network: as much as was asked for, or as [`Lead`] decides while the run
//! goes on. As for the crew, the consumer's own thread asks it after each batch that it takes.
//!
//! Lock: taken once a batch for a few instructions; the window is locked under it.

use super::Engine;
use crate::loader::ReadAhead;
use crate::stats::Counters;
use crate::tune::lead::{Lead, Seen};
use std::sync::atomic::Ordering::Relaxed;

/// A lead that is found, and what had been counted when it was looked at last.
pub(super) struct Leading {
    lead: Lead,
    counted: Option<Counted>,
}

/// Sums since the run's start, in microseconds.
#[derive(Clone, Copy)]
struct Counted {
    own: u64,
    waited: u64,
    short: u64,
}

impl Counted {
    fn now(counters: &Counters, ahead: &ReadAhead) -> Self {
        let waited = counters.wait_us_total.load(Relaxed);
        Self { own: counters.busy_us_total.load(Relaxed), waited, short: ahead.short_us.load(Relaxed) }
    }

    fn since(&self, earlier: &Self) -> Seen {
        let seconds = |now: u64, then: u64| now.saturating_sub(then) as f64 / 1e6;
        Seen {
            own_s: seconds(self.own, earlier.own),
            waited_s: seconds(self.waited, earlier.waited),
            short_s: seconds(self.short, earlier.short),
        }
    }
}

impl Leading {
    pub(super) fn new(lead: Lead) -> Self {
        Self { lead, counted: None }
    }

    /// A pass begins: everybody waits for its first batch, however much was read ahead.
    pub(super) fn begin(&mut self) {
        self.counted = None;
    }
}

impl Engine {
    /// The consumer took a batch: whether as much is read ahead as should be.
    pub(super) fn lead(&self) {
        let (Some(leading), Some(ahead)) = (&self.leading, &self.feed.read_ahead) else { return };
        let mut leading = leading.lock();
        let now = Counted::now(&self.feed.counters, ahead);
        let Some(counted) = leading.counted.replace(now) else { return };
        let Some(change) = leading.lead.follow(now.since(&counted)) else { return };
        tracing::debug!(bytes = change.bytes, before = change.before, why = %change.why, "prefetch limit changed");
        ahead.set_limit(change.bytes);
        self.decisions.push(change.into());
    }
}
