//! The engine's counters and gauges: one list, from which the struct, the names, the help and the stats page follow.

use std::sync::atomic::{AtomicU64, Ordering};

use lossfeed_control::tune::Knob;
use lossfeed_control::tune::circuit::State;

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

impl Descriptor {
    /// What the values of a code mean, from the table of knobs; empty for other numbers.
    pub fn codes(&self) -> Vec<(u64, &'static str)> {
        if matches!(self.name, "disk_circuit" | "pool_circuit" | "node_circuit") {
            return State::ALL.map(|state| (state.code(), state.words())).to_vec();
        }
        let knob = Knob::ALL.into_iter().find(|knob| knob.about().reason == self.name);
        knob.map_or(Vec::new(), |knob| (1..).zip(knob.about().reasons.iter().copied()).collect())
    }
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

            /// The number of that name.
            pub fn named(&self, name: &str) -> Option<&AtomicU64> {
                match name {
                    $(stringify!($name) => Some(&self.$name),)+
                    _ => None,
                }
            }

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
    /// Samples that batches asked for.
    requests_total: Counter, Samples;
    /// Requested samples that were in the cache.
    hits_total: Counter, Samples;
    /// Requested samples that were not in the cache (admitted or bypassed).
    misses_total: Counter, Samples;
    /// Misses that the policy admitted to the cache.
    admitted_total: Counter, Samples;
    /// Misses that the policy did not admit.
    bypassed_total: Counter, Samples;
    /// Residents evicted to make room.
    evicted_total: Counter, Samples;
    /// Admissions cancelled because the bytes never arrived or no contiguous place was free. High: the cache is
    /// fragmented or the source fails.
    admission_cancelled_total: Counter, Samples;
    /// Samples read from the source, its disk tier or its pool.
    fetched_samples_total: Counter, Samples;
    /// Bytes read from the source, its disk tier or its pool.
    fetched_bytes_total: Counter, Bytes;
    /// Requests sent to the store, repeated ones included; 0 for local files and memory. Near `fetched_samples_total`:
    /// samples that are needed together lie far apart, so set `block`.
    store_requests_total: Counter, Requests;
    /// Bytes read from the store that no sample needed: gaps between samples fetched by one request.
    store_vain_bytes_total: Counter, Bytes;
    /// Prefetched samples that had arrived when their batch needed them.
    read_ahead_samples_total: Counter, Samples;
    /// Prefetched samples that were still in flight when their batch needed them. High: the source is slower than the
    /// training, or `read_ahead` is too small.
    read_ahead_late_total: Counter, Samples;
    /// Prefetched samples that were not used: they became residents meanwhile, or the pass ended.
    read_ahead_vain_total: Counter, Samples;
    /// Delivered samples that were no cache hits but ready when their batch needed them: prefetched, from the disk
    /// tier, or in the source's memory.
    on_time_total: Counter, Samples;
    /// Delivered samples that were no cache hits and that their batch waited for. Hits, on time and late add up to all
    /// delivered samples. High: prefetching is off or too short, or the source is slower than the training.
    late_total: Counter, Samples;
    /// Samples that the disk tier had, since the dataset was opened. They count as misses of the cache.
    disk_hits_total: Counter, Samples;
    /// Bytes of these samples.
    disk_hit_bytes_total: Counter, Bytes;
    /// Samples that the disk tier was asked for and did not have.
    disk_misses_total: Counter, Samples;
    /// Records of the disk tier that failed their checksum. These samples were fetched from the source.
    disk_damaged_total: Counter, Samples;
    /// Samples that the disk tier has and could not read; they were fetched from the source. Not 0: the disk fails.
    disk_failed_total: Counter, Samples;
    /// Samples that were fetched from the source because the disk tier's circuit breaker was open or the disk answered
    /// too late.
    disk_skipped_total: Counter, Samples;
    /// Times that the disk tier's circuit breaker opened: it failed, hung or was slower than the source.
    disk_opened_total: Counter, Changes;
    /// Samples written to the disk tier.
    disk_written_total: Counter, Samples;
    /// Fetched samples that were not written to the disk tier: its queue or its disk was full, or the sample is too
    /// large. High: the disk is slow.
    disk_dropped_total: Counter, Samples;
    /// Fetched samples that were not written because what the disk tier holds is worth as much.
    disk_declined_total: Counter, Samples;
    /// Samples that the pool had, since the dataset was opened. They count as misses of the cache.
    pool_hits_total: Counter, Samples;
    /// Their bytes.
    pool_hit_bytes_total: Counter, Bytes;
    /// Samples that the pool was asked for and did not have.
    pool_misses_total: Counter, Samples;
    /// Values of the pool that were damaged, truncated or not ours. These samples were fetched from the source.
    pool_damaged_total: Counter, Samples;
    /// Samples whose request to the pool failed or was not answered in time; they were fetched from the source. Not 0:
    /// the server fails or hangs.
    pool_failed_total: Counter, Samples;
    /// Samples that were fetched from the source because the pool's circuit breaker was open.
    pool_skipped_total: Counter, Samples;
    /// Times that the pool's circuit breaker opened: the server failed, hung or was slower than the source.
    pool_opened_total: Counter, Changes;
    /// Samples written to the pool.
    pool_written_total: Counter, Samples;
    /// Fetched samples that were not written to the pool: its queue was full or the server failed. High: the server is
    /// slow.
    pool_dropped_total: Counter, Samples;
    /// Fetched samples that were not written to the pool: they are there, or the budget is used up.
    pool_declined_total: Counter, Samples;
    /// Samples that this run had put in the pool and that left it for more important ones.
    pool_evicted_total: Counter, Samples;
    /// Samples that were read from the node cache, since the loader was made. They count as misses of the cache.
    node_hits_total: Counter, Samples;
    /// Their bytes.
    node_hit_bytes_total: Counter, Bytes;
    /// Samples that the node cache was asked for and did not have.
    node_misses_total: Counter, Samples;
    /// Samples that were asked of the node cache in vain: its owner failed, did not answer in time, or a checksum was
    /// wrong.
    node_failed_total: Counter, Samples;
    /// Times that the node cache's circuit breaker opened: its owner failed, hung or was slower than the source.
    node_opened_total: Counter, Changes;
    /// Scored batches at the time the score file was last written.
    score_file_step: Gauge, Steps;
    /// Failed attempts to write the score file: its disk is full, or another loader writes it.
    score_file_failed_total: Counter, Failures;
    /// Samples that waited for a fetch that another thread had under way.
    coalesced_total: Counter, Samples;
    /// Batches delivered.
    batches_total: Counter, Batches;
    /// Samples delivered.
    samples_total: Counter, Samples;
    /// Time the training waited for batches (µs): the stall. Its parts by cause add up to it exactly.
    wait_us_total: Counter, Microseconds;
    /// Part of the wait: the thread that brought the batch read from the source (µs). High: the source or its
    /// connections are slow.
    wait_source_us_total: Counter, Microseconds;
    /// Part of the wait: it decoded or transformed (µs). High: raise `num_workers`, or set `cache_form="decoded"`.
    wait_decode_us_total: Counter, Microseconds;
    /// Part of the wait: no batch slot was free (µs). High: the training keeps batches.
    wait_slot_us_total: Counter, Microseconds;
    /// Part of the wait: it copied rows (µs).
    wait_copy_us_total: Counter, Microseconds;
    /// Part of the wait: it made cache decisions, or waited for the cache's lock (µs).
    wait_decide_us_total: Counter, Microseconds;
    /// Part of the wait that none of the other parts explains: thread wake-ups and the hand-over itself (µs).
    wait_handover_us_total: Counter, Microseconds;
    /// Part of the wait, of a torch `DataLoader` only: Python code of the dataset or its `collate_fn` (µs).
    wait_python_us_total: Counter, Microseconds;
    /// Waits for the first batch of a pass (µs), in `wait_us_total` too.
    wait_first_us_total: Counter, Microseconds;
    /// Passes that began.
    passes_total: Counter, Epochs;
    /// Time the training spent between batches (µs): its own work.
    busy_us_total: Counter, Microseconds;
    /// Part of `busy_us_total`: copies to the device (µs). Measured by `lossfeed why`.
    copies_us_total: Counter, Microseconds;
    /// Copies from memory that is not pinned (µs). Measured by `lossfeed why`.
    copies_pageable_us_total: Counter, Microseconds;
    /// Time the GPU computed, by its own events (µs). Measured by `lossfeed why`.
    compute_us_total: Counter, Microseconds;
    /// Part of `busy_us_total`: backward passes and collectives, in which ranks wait for each other (µs). Measured by
    /// `lossfeed why`.
    sync_us_total: Counter, Microseconds;
    /// Processor time of the training thread (µs). Measured by `lossfeed why`.
    own_processor_us_total: Counter, Microseconds;
    /// Optimizer steps. Measured by `lossfeed why`.
    steps_total: Counter, Steps;
    /// Time reading from the source, or waiting for another thread's fetch (µs, summed over threads).
    source_us_total: Counter, Microseconds;
    /// Time decoding (µs, summed over threads).
    decode_us_total: Counter, Microseconds;
    /// Batches filled by loader threads.
    filled_total: Counter, Batches;
    /// Time loader threads spent filling batches (µs, summed over threads): reading, decoding, copying, deciding.
    work_us_total: Counter, Microseconds;
    /// Processor time of that (µs). Far less than `work_us_total`: threads wait for the source or each other, or
    /// processors are short.
    processor_us_total: Counter, Microseconds;
    /// Time in which loader threads could have run and had no processor (µs, summed over threads). Measured with
    /// `share="node"`. High: the machine has too few processors for its jobs.
    queued_us_total: Counter, Microseconds;
    /// Samples copied to the GPU straight from the cache, without a copy into a batch slot.
    in_place_samples_total: Counter, Samples;
    /// Samples that could not be read or decoded.
    bad_samples_total: Counter, Samples;
    /// Bad samples replaced by another sample.
    substituted_total: Counter, Samples;
    /// Samples that received a score.
    scores_total: Counter, Samples;
    /// Samples whose scores were lost on the way from the GPU: the mailbox was full, or their batch was forgotten.
    /// High: scores are read too slowly; training is not affected.
    scores_dropped_total: Counter, Samples;
    /// Samples whose scores arrived later than the sampler's `lag` allows. High: raise `lag`, or score batches sooner;
    /// a seed may then give another order.
    scores_late_total: Counter, Samples;
    /// Samples whose score was invalid: NaN, infinite, ignored, or of no known sample.
    scores_unranked_total: Counter, Samples;
    /// Samples whose score was below 0, which is no importance; part of `scores_unranked_total`.
    scores_negative_total: Counter, Samples;
    /// Samples scored a second time in the same batch; the second score was ignored.
    scores_repeated_total: Counter, Samples;
    /// Samples whose rows are missing from the journal because its disk was slower than the run.
    journal_lost_total: Counter, Samples;
    /// The current epoch.
    epoch: Gauge, Epochs;
    /// Batches delivered in the current epoch.
    batch: Gauge, Batches;
    /// Batches in an epoch.
    batches_per_epoch: Gauge, Batches;
    /// Samples in the dataset.
    samples_in_dataset: Gauge, Samples;
    /// Samples that this rank draws from in an epoch.
    samples_in_share: Gauge, Samples;
    /// Samples in the cache.
    residents: Gauge, Samples;
    /// Bytes in the cache.
    cache_bytes: Gauge, Bytes;
    /// Bytes of prefetched samples: in flight, or waiting for their batch.
    read_ahead_bytes: Gauge, Bytes;
    /// Limit of in-flight prefetch requests, set by what the link can use; for slow local files, of reads. 0: nothing
    /// is prefetched.
    read_ahead_requests: Gauge, Requests;
    /// Changes of that limit.
    read_ahead_changes_total: Counter, Changes;
    /// Reason of its last change. 0: no change yet.
    read_ahead_reason: Gauge, Code;
    /// Prefetch limit: most bytes in flight or waiting for their batch. 0: nothing is prefetched.
    read_ahead_limit_bytes: Gauge, Bytes;
    /// Changes of the prefetch limit.
    read_ahead_limit_changes_total: Counter, Changes;
    /// Reason of its last change. 0: no change yet.
    read_ahead_limit_reason: Gauge, Code;
    /// State of the disk tier's circuit breaker. Open: the tier is left out.
    disk_circuit: Gauge, Code;
    /// Reason of its last change. 0: no change yet.
    disk_circuit_reason: Gauge, Code;
    /// State of the pool's circuit breaker. Open: the pool is left out.
    pool_circuit: Gauge, Code;
    /// Reason of its last change. 0: no change yet.
    pool_circuit_reason: Gauge, Code;
    /// State of the node cache's circuit breaker. Open: it is left out.
    node_circuit: Gauge, Code;
    /// Reason of its last change. 0: no change yet.
    node_circuit_reason: Gauge, Code;
    /// Bytes in the node cache, those of other datasets and processes included.
    node_bytes: Gauge, Bytes;
    /// Bytes on the disk tier, those of other datasets and processes included.
    disk_bytes: Gauge, Bytes;
    /// The cache's limit in bytes.
    cache_capacity_bytes: Gauge, Bytes;
    /// The cache's size when the loader was made: the most that its limit can be.
    cache_most_bytes: Gauge, Bytes;
    /// Bytes that caching the whole dataset would take. 0: unknown until its samples are read.
    dataset_bytes: Gauge, Bytes;
    /// Limit in bytes a second of what is read from the store, as set from outside (`lossfeed allocate --apply`, or a
    /// pod's annotation). 0: none.
    link_limit_bytes: Gauge, Bytes;
    /// Limits from outside that were refused; the log says why. The last limits hold.
    limits_refused_total: Counter, Failures;
    /// Memory allocated for cached samples, with rounding and samples still being copied.
    arena_used_bytes: Gauge, Bytes;
    /// Largest contiguous free piece of the cache's memory, to an eighth. Far below the free bytes: the memory is
    /// fragmented, and larger samples cannot be kept.
    arena_largest_free_bytes: Gauge, Bytes;
    /// Memory for scores, policy and byte accounting: at most 32 bytes a resident when all samples are resident.
    cache_metadata_bytes: Gauge, Bytes;
    /// Batch slots that exist.
    slots_total: Counter, Batches;
    /// Batch slots that are free.
    slots_free: Gauge, Batches;
    /// Batch slots that the training holds. Near `slots_total`: it keeps batches.
    slots_lent: Gauge, Batches;
    /// Batch slots being copied to the device. Near `slots_total`: the device is that far behind.
    slots_copying: Gauge, Batches;
    /// Complete batches that wait for the training. Near 0: the training waits for data.
    slots_ready: Gauge, Batches;
    /// Loader threads that fill batches now. 0: the training's own thread does.
    workers: Gauge, Threads;
    /// Changes of that number, with `num_workers="auto"`.
    workers_changes_total: Counter, Changes;
    /// Reason of its last change. 0: no change yet.
    workers_reason: Gauge, Code;
    /// Processors that the process may use.
    processors: Gauge, Threads;
    /// Processes that read a Python dataset, plus 1; 1: threads of the training's process read it. 0: no such dataset.
    dataset_readers: Gauge, Threads;
    /// Torch `DataLoader`s that feed the run; 0 for `lossfeed.Loader`.
    torch_loaders: Gauge, Threads;
    /// Half of the store's last answers took at most so long (µs). 0: unknown.
    store_us_p50: Gauge, Microseconds;
    /// 99 of 100 of the store's last answers took at most so long (µs). 0: unknown.
    store_us_p99: Gauge, Microseconds;
    /// Distinct samples delivered in this epoch.
    distinct_epoch: Gauge, Samples;
    /// Distinct samples delivered since the start.
    distinct_ever: Gauge, Samples;
    /// Effective sample size of this epoch's weights so far, (Σw)²/(n Σw²), in millionths. Low: few samples carry the
    /// gradient.
    ess_ppm: Gauge, Millionths;
    /// Share of the rows that `sampler="auto"` may fetch in this epoch to meet its stall target, in millionths. 0: no
    /// target.
    fetches_ppm: Gauge, Millionths;
    /// Length of the runs of neighbours that enter together in the next pass, with `"block": "auto"`.
    block_samples: Gauge, Samples;
    /// Mean age of the importances, in scored batches.
    score_age_steps: Gauge, Steps;
    /// Failed attempts to write the stats page. The run goes on; other programs see old numbers.
    stats_failures_total: Counter, Failures;
}

/// The counters whose last hundred seconds are on the page too, for rates and curves. All of them for that long would
/// make the page eight times as large.
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
#[path = "counters_tests.rs"]
mod tests;
