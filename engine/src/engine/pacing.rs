//! Fetching as much as training hardly waits for: what an epoch took, told to the [`Pace`] before the next is drawn.

use super::Engine;
use crate::error::Result;
use crate::sampler::{Observed, Pace};
use crate::stats::Counters;
use std::sync::atomic::Ordering::Relaxed;

/// A pace, and what had been counted when it was last told of an epoch.
pub(super) struct Pacing {
    pace: Pace,
    counted: Counted,
}

/// Sums since the run's start.
#[derive(Clone, Copy, Default)]
struct Counted {
    us: u64,
    waited_us: u64,
    rows: u64,
    fetched: u64,
}

impl Counted {
    fn now(counters: &Counters) -> Self {
        let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
        Self {
            us: of(&counters.wait_us_total) + of(&counters.busy_us_total),
            waited_us: of(&counters.wait_source_us_total),
            rows: of(&counters.samples_total),
            fetched: of(&counters.fetched_samples_total),
        }
    }

    fn since(&self, earlier: &Self) -> Observed {
        Observed {
            seconds: self.us.saturating_sub(earlier.us) as f64 / 1e6,
            waited_s: self.waited_us.saturating_sub(earlier.waited_us) as f64 / 1e6,
            rows: self.rows.saturating_sub(earlier.rows),
            fetched: self.fetched.saturating_sub(earlier.fetched),
        }
    }
}

impl Pacing {
    pub(super) fn new(pace: Pace) -> Self {
        Self { pace, counted: Counted::default() }
    }
    /// Target and bound, for a run's identity.
    pub(super) fn told(&self) -> String {
        self.pace.told()
    }
    /// For a run's state. Between two epochs (`between`) the one that has ended counts already: the run that goes on
    /// from the state has not seen it.
    pub(super) fn stored(&self, between: bool, counters: &Counters) -> [u32; 2] {
        let mut pace = self.pace;
        if between {
            pace.follow(Counted::now(counters).since(&self.counted));
        }
        pace.stored()
    }
}

impl Engine {
    /// An epoch is about to be drawn. `anew`: from its first batch on; what was left of a restored one goes on at the
    /// pace at which it began.
    pub(super) fn set_pace(&self, anew: bool) -> Result<()> {
        let Some(mut pacing) = self.pacing.as_ref().map(parking_lot::Mutex::lock) else { return Ok(()) };
        let now = Counted::now(&self.feed.counters);
        let seen = now.since(&pacing.counted);
        pacing.counted = now;
        if anew {
            pacing.pace.follow(seen);
            self.apply(&pacing)?;
        }
        Ok(())
    }

    /// Goes on at the pace of a state.
    pub(super) fn restore_pace(&self, stored: Option<[u32; 2]>) -> Result<()> {
        let Some(mut pacing) = self.pacing.as_ref().map(parking_lot::Mutex::lock) else { return Ok(()) };
        if let Some(stored) = stored {
            pacing.pace.restore(stored)?;
        }
        pacing.counted = Counted::now(&self.feed.counters);
        self.apply(&pacing)
    }

    fn apply(&self, pacing: &Pacing) -> Result<()> {
        let fetches = pacing.pace.fetches();
        self.feed.counters.fetches_ppm.store((fetches * 1e6).round() as u64, Relaxed);
        self.feed.cache.retune(self.settings.sampler.with_fetches(fetches))
    }
}
