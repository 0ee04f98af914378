//! The wiring: one engine feeds one rank of one run.
//!
//! | file | job |
//! | --- | --- |
//! | `build` | makes an engine: checks everything, then takes memory |
//! | `run` | passes over epochs, and the consumer's clock |
//! | `resume` | a run's state, taken and put back |
//! | `other_ranks` | what a state of another number of ranks is to this one |
//! | `exchange` | what ranks learned, brought together |
//! | `keeping` | beliefs in a file, for the next process |
//! | `dataset` | what an engine is made over |
//! | `copy_path`, `copy_cost` | which way batches take to a GPU |
//! | `courier` | batches on their way to a GPU |
//! | `mail` | scores on their way back from it |
//! | `crew` | how many loader threads there are |
//! | `outside` | limits that other programs set |
//! | `threads` | they, started and waited for |
//!
//! Lock: `clock` guards the current epoch and iteration; held for a few instructions, and while an epoch is drawn.

#[cfg(test)]
mod auto_tests;
#[cfg(test)]
mod beside_tests;
#[cfg(test)]
mod buffer_tests;
mod build;
#[cfg(test)]
mod chaos_tests;
mod copy_cost;
mod copy_path;
mod courier;
mod crew;
#[cfg(test)]
mod crew_tests;
mod dataset;
mod exchange;
#[cfg(test)]
mod exchange_tests;
#[cfg(test)]
mod given_tests;
mod keeping;
#[cfg(test)]
mod keeping_tests;
mod lead;
#[cfg(test)]
mod lead_tests;
mod mail;
mod order;
mod other_ranks;
#[cfg(test)]
mod other_ranks_tests;
mod outside;
mod resume;
mod run;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod substitution_tests;
mod threads;
mod tuning;
#[cfg(test)]
mod tuning_tests;

pub use copy_path::{CopyChoice, CopyCost};
pub use courier::{Courier, ImagesBy, ImagesTo};
pub use dataset::Dataset;
pub use exchange::{Agreed, refusal};
use keeping::Keeper;
pub use mail::{Credits, Kept, ScoreMailbox};
use threads::Threads;

use crate::device::{Cuda, Device};
use crate::error::{Error, Result};
use crate::loader::checkpoint::WeightUse;
use crate::loader::{BadSample, Deliveries, EpochReport, Feed, Ticket};
use crate::process::Process;
use crate::sampler::{Batches, Neighbours};
use crate::scoring::{self, Belief, Measured, Scale};
use crate::settings::{ScoreKind, Settings};
use crate::source::{Decisions, Source};
use crate::staging::BatchLayout;
use crate::stats::Publisher;
use crate::tune::Knob;
use lossfeed_kernels::rank;
use lossfeed_sync::Mutex;
use run::Clock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// One rank's engine: it draws epochs, fills batches, keeps what matters and takes scores home.
///
/// All methods may be called from any thread; one consumer at a time takes batches. After `fork` a child must make its
/// own engine: every call there is refused.
pub struct Engine {
    feed: Arc<Feed>,
    settings: Settings,
    policy_name: &'static str,
    batches: Batches,
    device: Arc<dyn Device>,
    gpu: Option<Cuda>,
    copy_choice: CopyChoice,
    /// The run's; it changes in runs whose seed was left open, under the clock's lock.
    seed: AtomicU64,
    seed_is_open: AtomicBool,
    /// Of a run that awaits weights: its sampler was left to [`crate::sampler::Auto`].
    weights: Option<Mutex<WeightUse>>,
    neighbours: Neighbours,
    /// Of a run of which something is set between epochs: see [`crate::sampler::Auto`] and [`crate::sampler::Block`].
    tuning: Option<Mutex<tuning::Tuning>>,
    clock: Mutex<Clock>,
    /// Of the dataset; made when a state is first taken or given.
    digest: OnceLock<String>,
    deliveries: Mutex<Deliveries>,
    scale: Arc<Scale>,
    threads: Arc<Threads>,
    threading: Mutex<crew::Threading>,
    /// Of a run that finds how much is to be read ahead.
    leading: Option<Mutex<lead::Leading>>,
    /// About reading, and not written down yet.
    decisions: Arc<Decisions>,
    keeper: Arc<Keeper>,
    /// What of the files of scores is not believed, in words.
    damaged: Option<String>,
    publisher: Mutex<Option<Publisher>>,
    closed: AtomicBool,
    made_by: Process,
}

impl Engine {
    /// Where things lie in a batch slot.
    pub fn layout(&self) -> &BatchLayout {
        self.feed.layout()
    }

    /// The settings this engine was made with; the sampler is the one that was chosen, if that was left to it.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The cache policy's name.
    pub fn policy_name(&self) -> &'static str {
        self.policy_name
    }

    /// Who makes the mean over an epoch biased on purpose, by name: the sampler, or a policy that substitutes. `None`:
    /// nobody.
    pub fn biased(&self) -> Option<&'static str> {
        self.feed.cache.biased()
    }

    /// The training loop reads batches' weights. Where the choice of the sampler was left to the engine
    /// ([`crate::sampler::Auto`]), epochs that begin from now on are drawn by score. Any thread, any number of times.
    pub fn weights_are_read(&self) {
        if let Some(mut weights) = self.weights.as_ref().map(Mutex::lock) {
            *weights = (*weights).max(WeightUse::Read);
        }
    }

    /// The device batches go to.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The same where it is a GPU.
    pub fn gpu(&self) -> Option<&Cuda> {
        self.gpu.as_ref()
    }

    /// The way batches take to the GPU, and what was measured to choose it.
    pub fn copy_choice(&self) -> &CopyChoice {
        &self.copy_choice
    }

    /// Labels of neighbours, if the choice of [`crate::sampler::Auto`] depends on them.
    pub fn neighbours(&self) -> Neighbours {
        self.neighbours
    }

    /// The source behind it.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.feed.source
    }

    /// Batches an epoch, the same on every rank. Where the caller brings the order, those of the epoch that began last.
    pub fn batches_per_epoch(&self) -> usize {
        self.feed.counters.batches_per_epoch.load(Relaxed) as usize
    }

    fn same_process(&self) -> Result<()> {
        self.made_by.check(|of, fork| {
            Error::usage(format!(
                "this loader was made in process {of} and is used in its fork {fork}: threads and device memory do not survive a fork; make a loader in the child"
            ))
        })
    }

    fn usable(&self) -> Result<()> {
        self.same_process()?;
        if self.closed.load(Relaxed) {
            return Err(Error::usage("this loader is closed: make a new one"));
        }
        Ok(())
    }

    /// Brings the gauges up to date that nobody else keeps.
    fn gauge(&self) {
        let (c, arena, slots) = (&self.feed.counters, self.feed.cache.arena(), self.feed.pool.gauges());
        c.slots_total.store(slots.total as u64, Relaxed);
        c.slots_free.store(slots.free as u64, Relaxed);
        c.slots_lent.store(slots.lent as u64, Relaxed);
        c.slots_copying.store(slots.copying as u64, Relaxed);
        c.arena_used_bytes.store(arena.used_bytes(), Relaxed);
        c.arena_largest_free_bytes.store(arena.largest_free_bytes(), Relaxed);
        if let Some(ahead) = &self.feed.read_ahead {
            c.read_ahead_bytes.store(ahead.bytes(), Relaxed);
            c.read_ahead_limit_bytes.store(ahead.limit(), Relaxed);
            let requests = self.feed.source.link().requests_ahead + ahead.reads();
            c.read_ahead_requests.store(requests as u64, Relaxed);
        }
        let counted = self.feed.source.counted();
        if let Some((disk, circuit)) = counted.disk {
            c.disk_hits_total.store(disk.hits, Relaxed);
            c.disk_hit_bytes_total.store(disk.hit_bytes, Relaxed);
            c.disk_misses_total.store(disk.misses, Relaxed);
            c.disk_damaged_total.store(disk.damaged, Relaxed);
            c.disk_failed_total.store(disk.failed, Relaxed);
            c.disk_skipped_total.store(disk.late + circuit.skipped, Relaxed);
            c.disk_written_total.store(disk.written, Relaxed);
            c.disk_dropped_total.store(disk.dropped, Relaxed);
            c.disk_declined_total.store(disk.declined, Relaxed);
            c.disk_bytes.store(disk.bytes, Relaxed);
            c.disk_circuit.store(circuit.state.code(), Relaxed);
            c.disk_opened_total.store(circuit.opened, Relaxed);
            c.disk_circuit_reason.store(circuit.why, Relaxed);
        }
        if let Some((p50, p99)) = counted.answers {
            c.store_us_p50.store(p50, Relaxed);
            c.store_us_p99.store(p99, Relaxed);
        }
        if let Some((pool, circuit)) = counted.pool {
            c.pool_hits_total.store(pool.hits, Relaxed);
            c.pool_hit_bytes_total.store(pool.hit_bytes, Relaxed);
            c.pool_misses_total.store(pool.misses, Relaxed);
            c.pool_damaged_total.store(pool.damaged, Relaxed);
            c.pool_failed_total.store(pool.failed, Relaxed);
            c.pool_skipped_total.store(circuit.skipped, Relaxed);
            c.pool_written_total.store(pool.written, Relaxed);
            c.pool_dropped_total.store(pool.dropped, Relaxed);
            c.pool_declined_total.store(pool.declined, Relaxed);
            c.pool_evicted_total.store(pool.evicted, Relaxed);
            c.pool_circuit.store(circuit.state.code(), Relaxed);
            c.pool_opened_total.store(circuit.opened, Relaxed);
            c.pool_circuit_reason.store(circuit.why, Relaxed);
        }
        if let Some((node, circuit)) = counted.node {
            c.node_hits_total.store(node.hits, Relaxed);
            c.node_hit_bytes_total.store(node.hit_bytes, Relaxed);
            c.node_misses_total.store(node.misses, Relaxed);
            c.node_failed_total.store(node.failed + node.damaged, Relaxed);
            c.node_opened_total.store(circuit.opened, Relaxed);
            c.node_circuit.store(circuit.state.code(), Relaxed);
            c.node_circuit_reason.store(circuit.why, Relaxed);
            c.node_bytes.store(node.bytes, Relaxed);
        }
    }

    /// Counts what was decided about reading since the last look, and hands it to the journal.
    fn note_decisions(&self) {
        let c = &self.feed.counters;
        for decided in self.decisions.take() {
            let counted = match decided.knob {
                Knob::Requests => Some((&c.read_ahead_changes_total, &c.read_ahead_reason)),
                Knob::Lead => Some((&c.read_ahead_limit_changes_total, &c.read_ahead_limit_reason)),
                // Who decides them counts them.
                Knob::Threads | Knob::Disk | Knob::Pool | Knob::Node | Knob::Fetches | Knob::Block => None,
            };
            if let Some((changes, reason)) = counted {
                changes.fetch_add(1, Relaxed);
                reason.store(decided.code, Relaxed);
            }
            self.feed.cache.note(&decided, (c.epoch.load(Relaxed), c.batch.load(Relaxed) as usize));
        }
    }

    /// A Python dataset is read by so many processes; 0: by threads of this one.
    pub fn read_by(&self, processes: u64) {
        self.feed.counters.dataset_readers.store(processes.saturating_add(1), Relaxed);
    }

    /// Credits measured scores to exactly the samples of the ticket's batch. Returns how many were scored (0 if the
    /// batch had been scored before). Never blocks on I/O.
    pub fn apply_scores(&self, ticket: &Ticket, measured: &Measured<'_>) -> Result<usize> {
        self.usable()?;
        if ticket.engine != self.feed.engine {
            return Err(Error::usage(format!(
                "scores for batch {} of epoch {} of another loader: score a batch on the loader that delivered it",
                ticket.number, ticket.epoch
            )));
        }
        scoring::credit(&self.feed.cache, &self.feed.counters, self.belief(), ticket, measured)
    }

    fn belief(&self) -> Belief<'_> {
        match self.settings.control_seed(self.seed.load(Relaxed)) {
            Some(seed) => Belief::Noise(seed),
            None => Belief::Measured(&self.scale),
        }
    }

    /// The measurement that is the importance in this run; see [`scoring::Scale`].
    pub fn score_kind(&self) -> ScoreKind {
        self.scale.kind()
    }

    /// Whether losses are all that this run needs of a batch's scores: its importance is made of them (a rank is one
    /// of losses), and no journal writes down the rest.
    pub fn losses_suffice(&self) -> bool {
        self.settings.journal.is_none() && self.score_kind().needs().is_none()
    }

    /// Credits per-sample losses you hold already; ranks are counted here.
    pub fn apply_losses(&self, ticket: &Ticket, losses: &[f32]) -> Result<usize> {
        let count = rank::counts(losses);
        self.apply_scores(ticket, &Measured { loss: losses, grad_norm: None, entropy: None, count: &count })
    }

    /// What of the files in [`Settings::score_file`] is damaged and not believed, in words; `None`: nothing.
    pub fn damaged_scores(&self) -> Option<&str> {
        self.damaged.as_deref()
    }

    /// What is believed about every sample now; NaN = no score.
    pub fn importance(&self) -> Vec<f32> {
        self.feed.cache.snapshot().scores().as_slice().to_vec()
    }

    /// What the epoch under way has delivered so far, or the last one all in all: weights, uses, classes, and how old
    /// scores are. Looks at every sample of the dataset, so it is for an epoch's end and not for every batch.
    pub fn epoch_report(&self) -> EpochReport {
        let beliefs = self.feed.cache.snapshot();
        self.deliveries.lock().report(&beliefs, self.batches_per_epoch())
    }

    /// The bad samples met so far.
    pub fn bad_samples(&self) -> Vec<BadSample> {
        self.feed.bad_samples()
    }

    /// All counters, gauges and the ratios people ask for. Ratios are 0 to 1, and 0 while there is nothing to divide
    /// by.
    pub fn stats(&self) -> Vec<(String, f64)> {
        self.gauge();
        self.feed.counters.snapshot().flat()
    }

    /// Ends everything and waits for the loader threads, however long they take. Calls after it are refused; calling it
    /// twice is fine.
    pub fn close(&self) {
        while !self.close_within(Duration::from_secs(1)).is_empty() {}
    }

    /// Ends everything and waits for the loader threads, but no longer than `patience`. Returns who has not come by
    /// then, in words: such a thread hangs in the source. It keeps the memory it writes to alive and ends by itself
    /// when the source lets it.
    pub fn close_within(&self, patience: Duration) -> Vec<String> {
        if !self.made_by.is_current() {
            return Vec::new();
        }
        self.signal_close();
        drop(self.publisher.lock().take());
        let late = self.threads.wait(patience);
        if late.is_empty() {
            self.note_decisions();
            match self.feed.cache.end_journal() {
                Ok(Some(summary)) if summary.lost > 0 => {
                    tracing::warn!(lost = summary.lost, "the journal has gaps: its disk was slower than the run");
                }
                Ok(_) => {}
                Err(e) => tracing::error!(error = %e, "the journal is incomplete"),
            }
        }
        late
    }

    fn signal_close(&self) {
        self.closed.store(true, Relaxed);
        // The position stays: a state may still be taken.
        if let Some(current) = &self.clock.lock().current {
            current.stop();
        }
        if let Some(ahead) = &self.feed.read_ahead {
            ahead.close();
        }
        self.keeper.close();
        // Last, so that a loader thread that is woken by it finds its pass stopped.
        self.feed.pool.close();
    }
}

impl Drop for Engine {
    /// Signals the end but does not wait: a loader thread may be inside a callback that needs what the caller holds.
    fn drop(&mut self) {
        if self.made_by.is_current() {
            self.signal_close();
        }
    }
}
