//! The engine's numbers: one list, from which the struct, the names, what is said of each and the stats page follow.

use std::sync::atomic::{AtomicU64, Ordering};

/// How a number behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Samples of the dataset.
    Samples,
    /// Batches, or the slots that hold them.
    Batches,
    /// Bytes.
    Bytes,
    /// Millionths of a second.
    Microseconds,
    /// Millionths of a whole.
    Millionths,
    /// Batches that were scored: the clock of beliefs.
    Steps,
    /// Epochs.
    Epochs,
    /// Attempts that failed.
    Failures,
    /// Requests to a store.
    Requests,
    /// Threads.
    Threads,
    /// Changes of a number.
    Changes,
    /// A number that stands for words.
    Code,
    /// A share, 0 to 1.
    Ratio,
}

impl Unit {
    /// In one lower-case word.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Samples => "samples",
            Unit::Batches => "batches",
            Unit::Bytes => "bytes",
            Unit::Microseconds => "microseconds",
            Unit::Millionths => "millionths",
            Unit::Steps => "steps",
            Unit::Epochs => "epochs",
            Unit::Failures => "failures",
            Unit::Requests => "requests",
            Unit::Threads => "threads",
            Unit::Changes => "changes",
            Unit::Code => "code",
            Unit::Ratio => "ratio",
        }
    }
}

/// A number, as an exporter describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Its name in every place that shows it.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// What it counts.
    pub unit: Unit,
    /// What it means, in a sentence or two.
    pub help: &'static str,
}

macro_rules! counters {
    ($($(#[doc = $help:literal])+ $name:ident: $kind:ident, $unit:ident;)+) => {
        /// Every number an engine keeps about itself. Those that end in `_total` only grow; the others are gauges.
        ///
        /// All are relaxed atomics: a reader sees each number whole, but not all of one moment. Hot paths add once per
        /// batch, not once per sample.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[doc = $help])+ pub $name: AtomicU64,)+
        }

        impl Counters {
            /// What is known of each number, in the order of [`Snapshot::values`].
            pub const DESCRIPTORS: &'static [Descriptor] = &[$(Descriptor {
                name: stringify!($name),
                kind: Kind::$kind,
                unit: Unit::$unit,
                help: concat!($($help),+).trim_ascii(),
            },)+];
            /// The names, in the same order.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)+];

            /// All numbers now.
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { values: [$(self.$name.load(Ordering::Relaxed),)+] }
            }
        }
    };
}

/// Numbers that have another name now, by their old one. Readers may ask for either, for one release.
pub const RENAMED: [(&str, &str); 1] = [("wait_score_us_total", "wait_decide_us_total")];

/// The name that a number has now.
pub fn current_name(name: &str) -> &str {
    RENAMED.iter().find(|(old, _)| *old == name).map_or(name, |&(_, new)| new)
}

counters! {
    /// Samples asked for by the plan.
    requests_total: Counter, Samples;
    /// Of these, found in the cache.
    hits_total: Counter, Samples;
    /// Of these, not in the cache (admitted or bypassed).
    misses_total: Counter, Samples;
    /// Misses that the policy let into the cache.
    admitted_total: Counter, Samples;
    /// Misses that passed by the cache.
    bypassed_total: Counter, Samples;
    /// Residents put out to make room.
    evicted_total: Counter, Samples;
    /// Admissions taken back because the bytes never came or found no contiguous place. High: the cache is fragmented
    /// or the source fails.
    admission_cancelled_total: Counter, Samples;
    /// Samples read from the source, its disk tier included.
    fetched_samples_total: Counter, Samples;
    /// Bytes read from the source.
    fetched_bytes_total: Counter, Bytes;
    /// Requests sent to the store, those that were repeated included; 0 where samples lie in memory or in files of this
    /// machine. Near `fetched_samples_total`: samples that are wanted together lie far apart.
    store_requests_total: Counter, Requests;
    /// Bytes read from the store in vain: they lay between samples that one request brought.
    store_vain_bytes_total: Counter, Bytes;
    /// Fetched samples that were read before their batch was decided, and had come when it needed them.
    read_ahead_samples_total: Counter, Samples;
    /// Those that were still on their way when their batch needed them. High: the source is slower than the training,
    /// or `read_ahead` is short.
    read_ahead_late_total: Counter, Samples;
    /// Samples that were read ahead and not needed, because they had become residents meanwhile or the pass ended.
    read_ahead_vain_total: Counter, Samples;
    /// Delivered samples that were no hits and lay ready when their batch needed them: read ahead, on the disk tier or
    /// in the source's own memory. Not hits: see `hits_total`.
    on_time_total: Counter, Samples;
    /// Delivered samples that were no hits and that their batch waited for. With the hits and those on time they are
    /// all that was delivered. High: reading ahead is off or short, or the source is slower than the training.
    late_total: Counter, Samples;
    /// Samples that the dataset's disk tier had, since the dataset was opened. They are misses of the cache.
    disk_hits_total: Counter, Samples;
    /// Their bytes.
    disk_hit_bytes_total: Counter, Bytes;
    /// Samples that it was asked for and did not have.
    disk_misses_total: Counter, Samples;
    /// Of these, found damaged: torn or flipped. They were fetched instead.
    disk_damaged_total: Counter, Samples;
    /// Samples that it had and could not read. They were fetched instead. Not 0: its device fails.
    disk_failed_total: Counter, Samples;
    /// Samples that it was not asked for because its circuit was open, or did not give in time. They were fetched.
    disk_skipped_total: Counter, Samples;
    /// Times that its circuit opened: it failed, hung or was slower than the source.
    disk_opened_total: Counter, Changes;
    /// Samples written to it.
    disk_written_total: Counter, Samples;
    /// Fetched samples that were not: its queue was full, its disk was, or they are too large. High: its disk is slow.
    disk_dropped_total: Counter, Samples;
    /// Fetched samples that were not written because what lies there is worth as much.
    disk_declined_total: Counter, Samples;
    /// Batches that had been scored when beliefs were last written to the file of scores.
    score_file_step: Gauge, Steps;
    /// Attempts to write that file which failed: its disk is full, or others took its place.
    score_file_failed_total: Counter, Failures;
    /// Requests that joined a fetch already under way.
    coalesced_total: Counter, Samples;
    /// Batches delivered.
    batches_total: Counter, Batches;
    /// Samples delivered.
    samples_total: Counter, Samples;
    /// Time the consumer waited for a batch (µs): the stall. The six parts add up to it exactly.
    wait_us_total: Counter, Microseconds;
    /// Of this, while the thread that brought the batch read from the source (µs). High: the source or its connections
    /// are slow.
    wait_source_us_total: Counter, Microseconds;
    /// Of this, while it decoded (µs). High: a larger `num_workers`, or `cache_form="decoded"`.
    wait_decode_us_total: Counter, Microseconds;
    /// Of this, while it had no free batch slot (µs). High: the consumer holds on to batches.
    wait_slot_us_total: Counter, Microseconds;
    /// Of this, while it copied rows (µs).
    wait_copy_us_total: Counter, Microseconds;
    /// Of this, while it decided what the cache keeps, or waited for the lock under which scores are folded in (µs).
    wait_decide_us_total: Counter, Microseconds;
    /// Of this, what none of these explains: threads waking up, the hand-over itself (µs).
    wait_handover_us_total: Counter, Microseconds;
    /// Time the consumer kept between batches (µs): its own work.
    busy_us_total: Counter, Microseconds;
    /// Time in the source, or waiting for another thread's fetch of the same sample (µs, summed over threads).
    source_us_total: Counter, Microseconds;
    /// Time decoding (µs, summed over threads).
    decode_us_total: Counter, Microseconds;
    /// Batches that loader threads have filled.
    filled_total: Counter, Batches;
    /// What these took (µs, summed over threads): reading, decoding, copying and deciding.
    work_us_total: Counter, Microseconds;
    /// Of this, on a processor (µs). Far less: threads wait for the source or for each other, or processors are short.
    processor_us_total: Counter, Microseconds;
    /// Samples delivered from where the cache has them, without being gathered in a batch slot.
    in_place_samples_total: Counter, Samples;
    /// Samples that could not be read or decoded.
    bad_samples_total: Counter, Samples;
    /// Bad samples that another sample replaced.
    substituted_total: Counter, Samples;
    /// Samples that were credited with a score.
    scores_total: Counter, Samples;
    /// Samples whose scores were lost on their way from the GPU: no room in the mailbox, or their batch is forgotten.
    /// High: they are read too slowly; training is not affected.
    scores_dropped_total: Counter, Samples;
    /// Samples whose scores came later than the sampler's `lag` allows. High: raise `lag`, or score batches sooner; one
    /// seed may give another order.
    scores_late_total: Counter, Samples;
    /// Samples whose scores were no scores: rows that have no rank (NaN, infinite or ignored) or name no sample.
    scores_unranked_total: Counter, Samples;
    /// Of those, samples whose scores were below 0, which is no importance.
    scores_negative_total: Counter, Samples;
    /// Samples whose scores came a second time for the same batch, and were left out.
    scores_repeated_total: Counter, Samples;
    /// Samples whose rows are missing from the journal: its disk was slower than the run.
    journal_lost_total: Counter, Samples;
    /// The current epoch.
    epoch: Gauge, Epochs;
    /// Batches delivered of the current epoch.
    batch: Gauge, Batches;
    /// Batches an epoch has.
    batches_per_epoch: Gauge, Batches;
    /// Samples in the dataset.
    samples_in_dataset: Gauge, Samples;
    /// Of these, the share of this rank: what it draws from in an epoch.
    samples_in_share: Gauge, Samples;
    /// Samples in the cache.
    residents: Gauge, Samples;
    /// Bytes in the cache.
    cache_bytes: Gauge, Bytes;
    /// Bytes that were asked for ahead of their batch, or have come and wait for it.
    read_ahead_bytes: Gauge, Bytes;
    /// Requests to the store ahead of need that may be in flight, as many as its link has use for now; of files of this
    /// machine that turned out to be slow, reads. 0: none are made.
    read_ahead_requests: Gauge, Requests;
    /// Times that this number was changed.
    read_ahead_changes_total: Counter, Changes;
    /// Why it was last: 1 as much may come with fewer, 2 as much comes with fewer, 3 less comes with fewer, 4 more
    /// brings nothing, 5 the rate follows, 6 requests have become smaller, 7 requests have become larger, 8 more comes
    /// than before, 9 less comes than before, 10 answers take longer and no more comes, 11 answers come sooner, 12 more
    /// may come with more, 13 reads of files take long, 14 reads of files take no time. 0: it was not.
    read_ahead_reason: Gauge, Code;
    /// The most bytes that are asked for ahead of their batch or have come and wait for it; 0 where nothing is read
    /// ahead.
    read_ahead_limit_bytes: Gauge, Bytes;
    /// Times that this limit was changed.
    read_ahead_limit_changes_total: Counter, Changes;
    /// Why it was last: 1 answers came late, 2 answers came in time for long. 0: it was not.
    read_ahead_limit_reason: Gauge, Code;
    /// The circuit before the disk tier: 0 closed, 1 open (it is left out), 2 half open (it is tried).
    disk_circuit: Gauge, Code;
    /// Why the circuit opened or closed last: 1 it was later than the source, 2 it did not answer, 3 its reads fail, 4
    /// it is no better yet, 5 it serves again. 0: it never did.
    disk_circuit_reason: Gauge, Code;
    /// Bytes on the disk tier, those of other datasets and processes included.
    disk_bytes: Gauge, Bytes;
    /// The cache's limit in bytes.
    cache_capacity_bytes: Gauge, Bytes;
    /// Memory handed out for cached samples, rounding and samples still being copied included.
    arena_used_bytes: Gauge, Bytes;
    /// The largest free piece of that memory, give or take an eighth. Far below what is free: it is fragmented, and
    /// larger samples cannot be kept.
    arena_largest_free_bytes: Gauge, Bytes;
    /// Bytes that the cache keeps about samples besides their own: scores, policy, ledger, places, tags. Per resident
    /// at most 32 when all are resident; what is known about those that are not is part of it.
    cache_metadata_bytes: Gauge, Bytes;
    /// Batch slots that exist.
    slots_total: Counter, Batches;
    /// Batch slots that are nobody's.
    slots_free: Gauge, Batches;
    /// Batch slots in the consumer's hands. Near `slots_total`: the consumer holds on to batches.
    slots_lent: Gauge, Batches;
    /// Batch slots under a copy to the device. Near `slots_total`: the device is that far behind.
    slots_copying: Gauge, Batches;
    /// Complete batches that wait. Near 0: the consumer waits for data.
    slots_ready: Gauge, Batches;
    /// Loader threads that fill batches now; 0: the consumer's own thread does.
    workers: Gauge, Threads;
    /// Times that their number was changed, with `num_workers="auto"`.
    workers_changes_total: Counter, Changes;
    /// Why it was last: 1 the consumer waits, 2 threads hardly rest, 3 fewer have time enough, 4 fewer may bring as
    /// much, 5 as much comes with fewer, 6 less comes with fewer. 0: it was not.
    workers_reason: Gauge, Code;
    /// Different samples delivered in this epoch.
    distinct_epoch: Gauge, Samples;
    /// Different samples delivered since the start.
    distinct_ever: Gauge, Samples;
    /// Effective sample size of this epoch's weights so far, (Σw)²/(n Σw²), in millionths. Low: few samples carry the
    /// gradient.
    ess_ppm: Gauge, Millionths;
    /// The part of the rows that sampler `auto` fetches in this epoch to keep to its stall target, in millionths. 0
    /// without one.
    fetches_ppm: Gauge, Millionths;
    /// Neighbouring samples that are new together in the next pass over the dataset, where `block` is `auto`.
    block_samples: Gauge, Samples;
    /// Mean age of the beliefs, in steps.
    score_age_steps: Gauge, Steps;
    /// Times the stats page could not be written. The run goes on; its numbers grow stale on the page.
    stats_failures_total: Counter, Failures;
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
    /// The number of that name, or of that former name.
    pub fn get(&self, name: &str) -> Option<u64> {
        let name = current_name(name);
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
    }

    #[test]
    fn every_number_is_described_and_its_kind_is_that_of_its_name() {
        assert_eq!(Counters::DESCRIPTORS.iter().map(|d| d.name).collect::<Vec<_>>(), Counters::NAMES);
        for number in Counters::DESCRIPTORS {
            let Descriptor { name, kind, unit, help } = number;
            assert!(help.len() > 10 && help.ends_with('.') && !help.contains("  "), "{name}: {help:?}");
            assert_eq!(*kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert_eq!(*unit == Unit::Microseconds, name.contains("_us_"), "{name}");
            assert_eq!(*unit == Unit::Bytes, name.contains("bytes"), "{name}");
            assert!(!unit.name().is_empty());
        }
    }

    #[test]
    fn a_renamed_number_is_found_by_its_old_name() {
        let counters = Counters::default();
        Counters::add(&counters.wait_decide_us_total, 9);
        for (old, new) in RENAMED {
            assert!(!Counters::NAMES.contains(&old) && Counters::NAMES.contains(&new), "{old}");
            assert_eq!(counters.snapshot().get(old), counters.snapshot().get(new));
        }
        assert_eq!(counters.snapshot().get("wait_score_us_total"), Some(9));
    }
}
