//! The engine's numbers: one list, from which the struct, the names and the stats page follow.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// Every number an engine keeps about itself. Those that end in `_total` only grow; the others are gauges.
        ///
        /// All are relaxed atomics: a reader sees each number whole, but not all of one moment. Hot paths add once per
        /// batch, not once per sample.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])+ pub $name: AtomicU64,)+
        }

        impl Counters {
            /// The names, in the order of [`Snapshot::values`]. The order is part of the stats page's version.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)+];

            /// All numbers now.
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { values: [$(self.$name.load(Ordering::Relaxed),)+] }
            }
        }
    };
}

counters! {
    /// Samples asked for by the plan.
    requests_total,
    /// Of these, found in the cache.
    hits_total,
    /// Of these, not in the cache (admitted or bypassed).
    misses_total,
    /// Misses that the policy let into the cache.
    admitted_total,
    /// Misses that passed by the cache.
    bypassed_total,
    /// Residents put out to make room.
    evicted_total,
    /// Admissions taken back because the bytes never came or found no contiguous place. High: the cache is fragmented
    /// or the source fails.
    admission_cancelled_total,
    /// Samples read from the source.
    fetched_samples_total,
    /// Bytes read from the source.
    fetched_bytes_total,
    /// Requests that joined a fetch already under way.
    coalesced_total,
    /// Batches delivered.
    batches_total,
    /// Samples delivered.
    samples_total,
    /// Time the consumer waited for a batch (µs): the stall. The six that follow add up to it exactly.
    wait_us_total,
    /// Of this, while the thread that brought the batch read from the source (µs). High: the source or its connections are slow.
    wait_source_us_total,
    /// Of this, while it decoded (µs). High: more `num_workers`, or `cache_form="decoded"`.
    wait_decode_us_total,
    /// Of this, while it had no free batch slot (µs). High: the consumer holds on to batches.
    wait_slot_us_total,
    /// Of this, while it copied rows (µs).
    wait_copy_us_total,
    /// Of this, while it was at the cache's books or waited for those who fold scores in (µs).
    wait_score_us_total,
    /// Of this, what none of these explains: threads waking up, the hand-over itself (µs).
    wait_handover_us_total,
    /// Time the consumer kept between batches (µs): its own work.
    busy_us_total,
    /// Time in the source, or waiting for another thread's fetch of the same sample (µs, summed over threads).
    source_us_total,
    /// Time decoding (µs, summed over threads).
    decode_us_total,
    /// Samples that could not be read or decoded.
    bad_samples_total,
    /// Bad samples that another sample replaced.
    substituted_total,
    /// Scores credited to a sample.
    scores_total,
    /// Scores that found no room on their way home. High: the drain is too slow; training is not affected.
    scores_dropped_total,
    /// Scores of rows that have no rank (NaN, infinite or ignored).
    scores_unranked_total,
    /// Scores that came a second time for the same batch.
    scores_repeated_total,
    /// The current epoch.
    epoch,
    /// Batches delivered of the current epoch.
    batch,
    /// Batches an epoch has.
    batches_per_epoch,
    /// Samples in the dataset.
    samples_in_dataset,
    /// Samples in the cache.
    residents,
    /// Bytes in the cache.
    cache_bytes,
    /// The cache's limit in bytes.
    cache_capacity_bytes,
    /// Bytes that the cache keeps about samples besides their own: scores, policy, ledger, places, tags. Per resident at most 32
    /// when all are resident; what is known about those that are not is part of it.
    cache_metadata_bytes,
    /// Batch slots that exist.
    slots_total,
    /// Batch slots that are nobody's.
    slots_free,
    /// Batch slots in the consumer's hands. Near `slots_total`: the consumer holds on to batches.
    slots_lent,
    /// Batch slots under a copy to the device. Near `slots_total`: the device is that far behind.
    slots_copying,
    /// Complete batches that wait. Near 0: the consumer waits for data.
    slots_ready,
    /// Different samples delivered in this epoch.
    distinct_epoch,
    /// Different samples delivered since the start.
    distinct_ever,
    /// Effective sample size of the plan's weights, (Σw)²/(N Σw²), in millionths. Low: few samples carry the gradient.
    ess_ppm,
    /// Mean age of the beliefs, in steps.
    score_age_steps,
    /// Times the stats page could not be written. The run goes on; its numbers grow stale on the page.
    stats_failures_total,
}

/// The counters whose last two minutes are on the page too: what a rate or a curve is drawn from. All of them for that
/// long would make the page eight times as large.
pub const HISTORY: [&str; 4] = ["samples_total", "fetched_bytes_total", "wait_us_total", "busy_us_total"];

impl Counters {
    /// Adds to a counter.
    #[inline]
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
    /// Sets a gauge.
    #[inline]
    pub fn set(gauge: &AtomicU64, value: u64) {
        gauge.store(value, Ordering::Relaxed);
    }
    /// Reads one number.
    #[inline]
    pub fn get(number: &AtomicU64) -> u64 {
        number.load(Ordering::Relaxed)
    }
}

/// All numbers of one (almost) moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// In the order of [`Counters::NAMES`].
    pub values: [u64; Counters::NAMES.len()],
}

impl Snapshot {
    /// All zero.
    pub fn zero() -> Self {
        Self { values: [0; Counters::NAMES.len()] }
    }
    /// The number of that name.
    pub fn get(&self, name: &str) -> Option<u64> {
        Counters::NAMES.iter().position(|&n| n == name).map(|k| self.values[k])
    }
    /// Names and numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counters::NAMES.iter().copied().zip(self.values.iter().copied())
    }
    /// The numbers of [`HISTORY`].
    pub(super) fn history(&self) -> [u64; HISTORY.len()] {
        HISTORY.map(|name| self.get(name).unwrap_or(0))
    }
    /// Names and numbers as reals, for `loader.stats()`.
    pub fn flat(&self) -> Vec<(String, f64)> {
        self.iter().map(|(name, value)| (name.to_owned(), value as f64)).collect()
    }
    /// Hits by requests, or `None` before the first request.
    pub fn hit_ratio(&self) -> Option<f64> {
        ratio(self.get("hits_total")?, self.get("requests_total")?)
    }
    /// Share of the consumer's time spent waiting for a batch, or `None` before the first batch.
    pub fn stall_fraction(&self) -> Option<f64> {
        let waited = self.get("wait_us_total")?;
        ratio(waited, waited + self.get("busy_us_total")?)
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_each_finds_its_own_number() {
        let counters = Counters::default();
        Counters::add(&counters.hits_total, 3);
        Counters::add(&counters.hits_total, 4);
        Counters::set(&counters.score_age_steps, 5);
        let snapshot = counters.snapshot();
        assert_eq!((snapshot.get("hits_total"), snapshot.get("score_age_steps")), (Some(7), Some(5)));
        assert_eq!(snapshot.get("misses_total"), Some(0));
        assert_eq!(snapshot.get("no_such_number"), None);
        assert_eq!(snapshot.values.iter().sum::<u64>(), 12);
        let distinct: std::collections::HashSet<_> = Counters::NAMES.iter().collect();
        assert_eq!(distinct.len(), Counters::NAMES.len());
        assert!(HISTORY.iter().all(|name| distinct.contains(name)));
        assert!(snapshot.flat().contains(&("hits_total".to_owned(), 7.0)));
    }

    #[test]
    fn ratios_are_unknown_before_there_is_anything_to_divide_by() {
        let counters = Counters::default();
        assert_eq!((counters.snapshot().hit_ratio(), counters.snapshot().stall_fraction()), (None, None));
        Counters::add(&counters.requests_total, 4);
        Counters::add(&counters.hits_total, 1);
        Counters::add(&counters.wait_us_total, 10);
        Counters::add(&counters.busy_us_total, 30);
        assert_eq!((counters.snapshot().hit_ratio(), counters.snapshot().stall_fraction()), (Some(0.25), Some(0.25)));
    }
}
