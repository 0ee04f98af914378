//! The times of one rank over a window.

use crate::derived::Lookup;

/// The loader that feeds the rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Loader {
    /// `lossfeed.Loader`.
    #[default]
    Lossfeed,
    /// torch's `DataLoader`.
    Torch,
}

/// Waits for batches (µs) and their parts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wait {
    /// All waits.
    pub total_us: u64,
    /// Part of them: for the first batch of a pass.
    pub first_us: u64,
    /// Reading: the store, the network, the disk.
    pub source_us: u64,
    /// Decoding and transforming, in compiled code.
    pub decode_us: u64,
    /// The interpreter: Python code of the dataset, or of its `collate_fn`.
    pub python_us: u64,
    /// No free batch slot.
    pub slot_us: u64,
    /// Copying rows into the batch.
    pub copy_us: u64,
    /// Cache decisions.
    pub decide_us: u64,
    /// Queues, pipes, pinning and thread wake-ups.
    pub handover_us: u64,
}

/// The work of the loader's threads or processes, summed over them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Batches made.
    pub batches: u64,
    /// Time it took (µs).
    pub total_us: u64,
    /// Processor time of that (µs).
    pub processor_us: u64,
    /// Part of the time: waits for a processor (µs); 0: unknown.
    pub queued_us: u64,
    /// Processor time of worker processes beside it, for handing batches over (µs); 0: unknown.
    pub packed_us: u64,
    /// Processor time of the loop for taking them, first batches apart (µs); 0: unknown.
    pub taken_us: u64,
    /// Tensors in a batch, each of which crosses from a worker process by itself; 0: unknown.
    pub pieces: u64,
    /// True if loaders in the loop's process and in worker processes both gave batches, so that no model fits.
    pub mixed: bool,
}

/// The cache of `lossfeed.Loader`; all zero without one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cache {
    /// Limit in bytes; 0: no cache.
    pub capacity_bytes: u64,
    /// Bytes in it now.
    pub used_bytes: u64,
    /// Samples asked for.
    pub requests: u64,
    /// Samples it had.
    pub hits: u64,
    /// Samples read from the source.
    pub fetched: u64,
    /// Bytes of these.
    pub fetched_bytes: u64,
    /// Distinct samples delivered since the start.
    pub distinct: u64,
    /// Samples in the dataset.
    pub dataset: u64,
}

/// Settings in force. `None`: unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settings {
    /// Worker processes (torch) or loader threads (lossfeed).
    pub workers: Option<u64>,
    /// Worker processes of a Python dataset in `lossfeed.Loader`; 0: its threads read it. `None`: no Python dataset.
    pub processes: Option<u64>,
    /// `persistent_workers=` of torch.
    pub persistent: Option<bool>,
    /// `pin_memory=` of torch.
    pub pinned: Option<bool>,
    /// An `IterableDataset` of torch: each worker process reads a copy of it.
    pub stream: Option<bool>,
    /// Processors that this process may use.
    pub processors: Option<u64>,
    /// Thousandths of processors that other programs used in the mean; 0: none, or unknown.
    pub taken_permille: u64,
}

/// The times of one rank over a window, in microseconds. Waits and busy time add up to the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// The rank.
    pub rank: u32,
    /// Its loader.
    pub loader: Loader,
    /// Batches taken.
    pub steps: u64,
    /// Samples in them; 0: unknown.
    pub samples: u64,
    /// Passes over a dataset that began.
    pub passes: u64,
    /// Waits for batches.
    pub wait: Wait,
    /// Time between batches.
    pub busy_us: u64,
    /// Part of the busy time: copies to the device.
    pub copies_us: u64,
    /// Part of the copies: from memory that is not pinned.
    pub pageable_us: u64,
    /// Time the GPU computed, by its own clock; 0: unknown.
    pub compute_us: u64,
    /// Part of the busy time: backward passes and collectives, in which ranks wait for each other; 0: unknown.
    pub sync_us: u64,
    /// Processor time of the training thread.
    pub own_processor_us: u64,
    /// Its loader's work.
    pub work: Work,
    /// Its cache.
    pub cache: Cache,
    /// Samples scored.
    pub scores: u64,
    /// Samples whose score came too late or was lost.
    pub scores_late: u64,
    /// Half of the store's answers took at most so long (µs); 0: unknown.
    pub store_p50_us: u64,
    /// 99 of 100 did; 0: unknown.
    pub store_p99_us: u64,
    /// The settings in force.
    pub settings: Settings,
}

impl Measured {
    /// From the counters of a page, or of a loader's `stats()`. With `before`, of the time between the two; counters
    /// that are missing are 0.
    pub fn of(now: Lookup<'_>, before: Option<Lookup<'_>>) -> Self {
        let gauge = |name: &str| now(name).unwrap_or(0);
        let grown = |name: &str| gauge(name).saturating_sub(before.and_then(|at| at(name)).unwrap_or(0));
        let known = |name: &str| now(name).filter(|&n| n > 0);
        Self {
            rank: 0,
            loader: if gauge("torch_loaders") > 0 { Loader::Torch } else { Loader::Lossfeed },
            steps: grown("batches_total"),
            samples: grown("samples_total"),
            passes: grown("passes_total"),
            wait: Wait {
                total_us: grown("wait_us_total"),
                first_us: grown("wait_first_us_total"),
                source_us: grown("wait_source_us_total"),
                decode_us: grown("wait_decode_us_total"),
                python_us: grown("wait_python_us_total"),
                slot_us: grown("wait_slot_us_total"),
                copy_us: grown("wait_copy_us_total"),
                decide_us: grown("wait_decide_us_total"),
                handover_us: grown("wait_handover_us_total"),
            },
            busy_us: grown("busy_us_total"),
            copies_us: grown("copies_us_total"),
            pageable_us: grown("copies_pageable_us_total"),
            compute_us: grown("compute_us_total"),
            sync_us: grown("sync_us_total"),
            own_processor_us: grown("own_processor_us_total"),
            work: Work {
                // Worker processes of a Python dataset are not measured on the page of the process that they feed.
                batches: if gauge("dataset_readers") > 1 { 0 } else { grown("filled_total") },
                total_us: grown("work_us_total"),
                processor_us: grown("processor_us_total"),
                ..Work::default()
            },
            cache: Cache {
                capacity_bytes: gauge("cache_capacity_bytes"),
                used_bytes: gauge("cache_bytes"),
                requests: grown("requests_total"),
                hits: grown("hits_total"),
                fetched: grown("fetched_samples_total"),
                fetched_bytes: grown("fetched_bytes_total"),
                distinct: gauge("distinct_ever"),
                dataset: gauge("samples_in_dataset"),
            },
            scores: grown("scores_total"),
            scores_late: grown("scores_late_total").saturating_add(grown("scores_dropped_total")),
            store_p50_us: gauge("store_us_p50"),
            store_p99_us: gauge("store_us_p99"),
            settings: Settings {
                workers: now("workers"),
                processes: known("dataset_readers").map(|n| n - 1),
                processors: known("processors"),
                ..Settings::default()
            },
        }
    }

    /// The whole window (µs).
    pub fn total_us(&self) -> u64 {
        self.wait.total_us.saturating_add(self.busy_us)
    }

    /// Waits without those for the first batch of a pass (µs): the pace.
    pub fn pace_wait_us(&self) -> u64 {
        self.wait.total_us.saturating_sub(self.wait.first_us)
    }

    /// The window without those first waits (µs).
    pub fn pace_us(&self) -> u64 {
        self.total_us().saturating_sub(self.wait.first_us)
    }

    /// Mean time of a step, first batches apart (µs).
    pub fn step_us(&self) -> f64 {
        self.pace_us() as f64 / self.steps.max(1) as f64
    }
}

pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
