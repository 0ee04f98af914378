//! The loader threads of a run: as many as were asked for, or as many as [`Crew`] decides while it goes on.
//!
//! The consumer's own thread asks it after each batch that it takes: between two batches no time is missing, and no
//! thread exists for it.
//!
//! Lock: taken once a batch for a few instructions, and while threads are started.

use super::Engine;
use crate::error::Result;
use crate::loader::Iteration;
use crate::settings::{Settings, shared_processors};
use crate::source::NodeOwner;
use crate::stats::Counters;
use crate::tune::crew::{Crew, Seen};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Loader threads, and what they have done so far.
pub(super) struct Threading {
    /// `None`: the number was named.
    crew: Option<Crew>,
    /// Processors that the processes of this machine share.
    shared: Option<usize>,
    named: usize,
    most: usize,
    /// Of a batch slot.
    slot_bytes: usize,
    /// Threads of the pass under way that were started.
    started: usize,
    /// What had been counted at the last look; `None` until the first batch of a pass is there. Everybody waits for that
    /// one, however many threads there are.
    counted: Option<Counted>,
}

/// Sums since the run's start.
#[derive(Clone, Copy)]
struct Counted {
    taken: u64,
    own_us: u64,
    waited_us: u64,
    made: u64,
    work_us: u64,
    /// Time on a processor, and in wait of one.
    computed_us: u64,
}

impl Counted {
    fn now(counters: &Counters) -> Self {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        Self {
            taken: of(&counters.batches_total),
            own_us: of(&counters.busy_us_total),
            // A consumer that holds every slot waits for itself.
            waited_us: of(&counters.wait_us_total).saturating_sub(of(&counters.wait_slot_us_total)),
            made: of(&counters.filled_total),
            work_us: of(&counters.work_us_total),
            computed_us: of(&counters.processor_us_total) + of(&counters.queued_us_total),
        }
    }

    fn since(&self, earlier: &Self) -> Seen {
        let seconds = |now: u64, then: u64| now.saturating_sub(then) as f64 / 1e6;
        Seen {
            taken: self.taken.saturating_sub(earlier.taken),
            own_s: seconds(self.own_us, earlier.own_us),
            waited_s: seconds(self.waited_us, earlier.waited_us),
            made: self.made.saturating_sub(earlier.made),
            worked_s: seconds(self.work_us, earlier.work_us),
            cpu_s: seconds(self.computed_us, earlier.computed_us),
        }
    }
}

impl Threading {
    /// For batch slots of `slot_bytes`.
    pub(super) fn new(settings: &Settings, slot_bytes: usize) -> Self {
        let (named, most) = (settings.worker_count(), settings.worker_max(slot_bytes));
        let crew = settings.workers.is_none().then(|| Crew::new(named, most));
        let shared = settings.node.as_ref().and_then(|_| shared_processors());
        Self { crew, shared, named, most, slot_bytes, started: 0, counted: None }
    }

    /// Threads that fill batches now.
    pub(super) fn workers(&self) -> usize {
        self.crew.as_ref().map_or(self.named, Crew::threads)
    }

    /// Tells the node cache's owner how many processors the threads want, and takes in its last answer.
    fn share(&mut self, owner: Option<&NodeOwner>) {
        let (Some(owner), Some(all)) = (owner, self.shared) else { return };
        let wanted = self.crew.as_ref().map_or(self.named.max(1) as f64, Crew::wanted);
        if let (Some(share), Some(crew)) = (owner.processors(all, wanted), &mut self.crew) {
            crew.share(share);
        }
    }

    /// Threads that there may be.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Of a batch slot.
    pub(super) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }
}

impl Engine {
    /// Loader threads that fill batches now; 0: each batch is prepared by whoever asks for it. The number changes while
    /// the run goes on if [`Settings::workers`] is `None`.
    pub fn workers(&self) -> usize {
        self.threading.lock().workers()
    }

    /// A pass begins.
    pub(super) fn start_threads(&self, pass: &Arc<Iteration>) -> Result<()> {
        let mut threading = self.threading.lock();
        threading.counted = None;
        threading.share(self.feed.node.as_deref());
        threading.started = threading.workers();
        self.feed.counters.workers.store(threading.started as u64, Relaxed);
        self.threads.start(pass, 0..threading.started)
    }

    /// The consumer took a batch of `pass`: whether as many threads as now are the right number.
    pub(super) fn tune(&self, pass: &Arc<Iteration>) {
        let mut threading = self.threading.lock();
        let counters = &self.feed.counters;
        if threading.crew.is_none() {
            return;
        }
        let now = Counted::now(counters);
        threading.share(self.feed.node.as_deref());
        let Some(counted) = threading.counted.replace(now) else { return };
        let Some(change) = threading.crew.as_mut().and_then(|crew| crew.follow(now.since(&counted))) else { return };
        counters.workers.store(change.threads as u64, Relaxed);
        counters.workers_changes_total.fetch_add(1, Relaxed);
        counters.workers_reason.store(change.why.code(), Relaxed);
        self.decisions.push(change.into());
        tracing::debug!(threads = change.threads, before = change.before, why = %change.why, "loader threads");
        self.put_to_work(pass, &mut threading, change.threads);
    }

    /// Has `workers` threads work in `pass`, and starts those that are missing.
    fn put_to_work(&self, pass: &Arc<Iteration>, threading: &mut Threading, workers: usize) {
        if pass.stopped() {
            return;
        }
        if workers > threading.started {
            // A thread that cannot be had is done without: the others do its work.
            match self.threads.start(pass, threading.started..workers) {
                Ok(()) => threading.started = workers,
                Err(error) => {
                    tracing::warn!(%error, "a loader thread could not be started: the run goes on with fewer");
                    return;
                }
            }
        }
        pass.set_workers(workers, self.settings.window(workers, threading.slot_bytes));
    }

    /// As if it had been decided so.
    #[cfg(test)]
    pub(super) fn set_workers(&self, workers: usize) {
        let pass = self.clock.lock().current.clone();
        if let Some(pass) = pass {
            self.put_to_work(&pass, &mut self.threading.lock(), workers);
        }
    }
}
