//! The wiring: one engine feeds one rank of one run.

mod copy_cost;
mod copy_path;
mod courier;
mod mail;
mod resume;
mod run;
mod threads;

use copy_path::Obstacles;
pub use copy_path::{CopyChoice, CopyCost};
pub use courier::{Courier, ImagesTo};
pub use mail::{Credits, Kept, ScoreMailbox};
use threads::Threads;

use crate::arena::Arena;
use crate::cache::Cache;
use crate::device::{self, Device};
use crate::error::{Error, Result};
use crate::index::ScoreTable;
use crate::ledger::Ledger;
use crate::loader::{BadSample, Coverage, Feed, Images, Ticket};
use crate::policy;
use crate::sampler::{self, Batches, Sampler};
use crate::scoring::{self, Belief, Measured};
use crate::settings::{CacheForm, CopyPath, OnError, Settings, transformed};
use crate::source::{Decoder, Form, ImageMode, Source};
use crate::staging::{BatchLayout, SlotPool};
use crate::stats::{Counters, Identity, Publisher};
use crate::types::{SampleId, TensorSpec};
use lossfeed_kernels::image::ImageMaker;
use lossfeed_kernels::rank;
use parking_lot::Mutex;
use run::Clock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A source and how its samples are decoded.
#[derive(Clone)]
pub struct Dataset {
    /// Where the truth lies.
    pub source: Arc<dyn Source>,
    /// For sources of images.
    pub decoder: Option<Decoder>,
}

impl Dataset {
    /// Finds out what a sample of `source` looks like (images: by decoding the first one).
    pub fn new(source: Arc<dyn Source>, mode: ImageMode, resize: Option<(usize, usize)>) -> Result<Self> {
        let decoder = match source.form() {
            Form::Images => Some(Decoder::for_source(&*source, mode, resize)?),
            Form::Rows(_) if resize.is_some() => {
                return Err(Error::settings(
                    "resize is for images; this dataset holds tensors, which travel as they are",
                ));
            }
            Form::Rows(_) => None,
        };
        Ok(Self { source, decoder })
    }
    /// Element type and shape of one delivered sample.
    pub fn spec(&self) -> &TensorSpec {
        match (&self.decoder, self.source.form()) {
            (Some(decoder), _) => decoder.spec(),
            (None, Form::Rows(spec)) => spec,
            (None, Form::Images) => self.source.target_spec(), // unreachable by construction: images have a decoder
        }
    }
}

/// One rank's engine: it draws epochs, fills batches, keeps what matters and takes scores home.
///
/// All methods may be called from any thread; one consumer at a time takes batches. After `fork` a child must make its
/// own engine: every call there is refused.
pub struct Engine {
    feed: Arc<Feed>,
    settings: Settings,
    sampler: Box<dyn Sampler>,
    owned: Vec<SampleId>,
    batches: Batches,
    device: Arc<dyn Device>,
    copy_choice: CopyChoice,
    clock: Mutex<Clock>,
    /// Of the dataset; made when a state is first taken or given.
    digest: OnceLock<String>,
    coverage: Mutex<Coverage>,
    threads: Threads,
    publisher: Mutex<Option<Publisher>>,
    closed: AtomicBool,
    pid: u32,
}

static ENGINES: AtomicU64 = AtomicU64::new(0);

impl Engine {
    /// Validates everything, reserves the memory and publishes the stats page. No sample is read yet (images: one was,
    /// by [`Dataset::new`]).
    pub fn new(dataset: Dataset, settings: Settings) -> Result<Self> {
        let Dataset { source, decoder } = dataset.clone();
        let samples = source.len();
        settings.validate(samples)?;
        let sampler = settings.sampler.build()?;
        let device = device::open(&settings.device)?;
        let batches =
            Batches::new(samples, settings.batch_size, settings.drop_last, settings.rank, settings.world_size)?;
        let transform = settings.transform.as_ref().map(|t| t.build(dataset.spec())).transpose()?;
        let delivered = transform.as_ref().map_or_else(|| dataset.spec().clone(), transformed);
        let layout = BatchLayout::new(settings.batch_size, delivered, source.target_spec().clone())?;
        let counters = Arc::new(Counters::default());
        counters.samples_in_dataset.store(samples as u64, Relaxed);
        let max_slots = settings.max_slots.unwrap_or(settings.depth() + 64);
        let pool = SlotPool::new(layout, settings.depth(), max_slots, Arc::clone(&device))?;
        let mut arena = Arena::new(settings.cache_bytes, &*device)?;
        let obstacles = Obstacles {
            device: device.kind(),
            slot_bytes: pool.layout().total_bytes(),
            decoded: settings.cache_form == CacheForm::Encoded && decoder.is_some(),
            transformed: transform.is_some(),
        };
        let only = Arc::get_mut(&mut arena).ok_or_else(|| Error::internal("a new arena is somebody else's too"))?;
        let copy_choice = copy_cost::choose(&settings, &obstacles, only, &pool, &*device)?;
        let scores = ScoreTable::new(samples, settings.smoothing_weight());
        let ledger = Ledger::new(settings.cache_bytes, samples, policy::from_name(settings.policy_name(), samples)?);
        let cache = Cache::new(scores, ledger, arena, Arc::clone(&counters));
        let cache = if source.in_memory() { cache.over_memory() } else { cache };
        let number = ENGINES.fetch_add(1, Relaxed) + 1;
        let mut feed = Feed::new(
            number,
            source,
            decoder,
            dataset.spec().bytes(),
            transform.map(|t| Images { maker: ImageMaker::new(t), seed: settings.seed }),
            cache,
            pool,
            Arc::clone(&counters),
            settings.cache_form,
            settings.on_error,
            copy_choice.path != CopyPath::Gathered,
        );
        feed.keeps_steps = settings.world_size > 1 || settings.on_error == OnError::Substitute;
        check_cache_holds_a_sample(&feed, &settings)?;
        let owned = sampler::owned_ids(samples, settings.seed, settings.rank, settings.world_size);
        let publisher = settings.stats.then(|| Publisher::start(identity(&settings, &feed, &*device), counters));
        // A run must not fail because nobody can watch it.
        let publisher = publisher.and_then(|p| p.inspect_err(|e| tracing::warn!("no stats page: {e}")).ok());
        let engine = Self {
            feed: Arc::new(feed),
            settings,
            sampler,
            owned,
            batches,
            device,
            copy_choice,
            clock: Mutex::default(),
            digest: OnceLock::new(),
            coverage: Mutex::new(Coverage::new(samples)),
            threads: Threads::default(),
            publisher: Mutex::new(publisher),
            closed: AtomicBool::new(false),
            pid: std::process::id(),
        };
        engine.feed.counters.batches_per_epoch.store(batches.len() as u64, Relaxed);
        Ok(engine)
    }

    /// Where things lie in a batch slot.
    pub fn layout(&self) -> &BatchLayout {
        self.feed.layout()
    }

    /// The settings this engine was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The device batches go to.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The way batches take to the GPU, and what was measured to choose it.
    pub fn copy_choice(&self) -> &CopyChoice {
        &self.copy_choice
    }

    /// The source behind it.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.feed.source
    }

    /// Batches an epoch, the same on every rank.
    pub fn batches_per_epoch(&self) -> usize {
        self.batches.len()
    }

    fn same_process(&self) -> Result<()> {
        let pid = std::process::id();
        if pid == self.pid {
            return Ok(());
        }
        Err(Error::usage(format!(
            "this loader was made in process {} and is used in its fork {pid}: threads and device memory do not survive a fork; make a loader in the child",
            self.pid
        )))
    }

    fn usable(&self) -> Result<()> {
        self.same_process()?;
        if self.closed.load(Relaxed) {
            return Err(Error::usage("this loader is closed: make a new one"));
        }
        Ok(())
    }

    fn count_slots(&self) {
        let (c, gauges) = (&self.feed.counters, self.feed.pool.gauges());
        c.slots_total.store(gauges.total as u64, Relaxed);
        c.slots_free.store(gauges.free as u64, Relaxed);
        c.slots_lent.store(gauges.lent as u64, Relaxed);
        c.slots_copying.store(gauges.copying as u64, Relaxed);
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

    fn belief(&self) -> Belief {
        match self.settings.control_seed() {
            Some(seed) => Belief::Noise(seed),
            None => Belief::Measured(self.settings.score_kind()),
        }
    }

    /// Credits per-sample losses you hold already; ranks are counted here.
    pub fn apply_losses(&self, ticket: &Ticket, losses: &[f32]) -> Result<usize> {
        let count = rank::counts(losses);
        self.apply_scores(ticket, &Measured { loss: losses, grad_norm: None, entropy: None, count: &count })
    }

    /// What is believed about every sample now; NaN = no score.
    pub fn importance(&self) -> Vec<f32> {
        self.feed.cache.lock().scores.as_slice().to_vec()
    }

    /// The bad samples met so far.
    pub fn bad_samples(&self) -> Vec<BadSample> {
        self.feed.bad_samples()
    }

    /// All counters, gauges and the ratios people ask for. Ratios are 0 to 1.
    pub fn stats(&self) -> Vec<(String, f64)> {
        self.count_slots();
        let c = &self.feed.counters;
        {
            let state = self.feed.cache.lock();
            c.score_age_steps.store(state.scores.mean_age(state.step).unwrap_or(0.0) as u64, Relaxed);
        }
        let mut all = c.snapshot().flat();
        let get = |name: &str| all.iter().find(|(n, _)| n == name).map_or(0.0, |(_, v)| *v);
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let (wait, busy) = (get("wait_us_total"), get("busy_us_total"));
        let n = get("samples_in_dataset");
        let derived = [
            ("hit_ratio", ratio(get("hits_total"), get("requests_total"))),
            ("stall_fraction", ratio(wait, wait + busy)),
            ("coverage_epoch", ratio(get("distinct_epoch"), n / f64::from(self.settings.world_size))),
            ("coverage_ever", ratio(get("distinct_ever"), n)),
            ("ess_fraction", get("ess_ppm") / 1e6),
            ("in_place_samples_total", self.feed.in_place_total.load(Relaxed) as f64),
            ("arena_used_bytes", self.feed.cache.arena().used_bytes() as f64),
            ("arena_largest_free_bytes", self.feed.cache.arena().largest_free_bytes() as f64),
        ];
        all.extend(derived.map(|(name, value)| (name.to_string(), value)));
        all
    }

    /// Ends everything and waits for the loader threads, however long they take. Calls after it are refused; calling it
    /// twice is fine.
    pub fn close(&self) {
        while !self.close_within(Duration::from_secs(1)).is_empty() {}
    }

    /// Ends everything and waits for the loader threads, but no longer than `patience`. Returns who has not come by then,
    /// in words: such a thread hangs in the source. It keeps the memory it writes to alive and ends by itself when the
    /// source lets it.
    pub fn close_within(&self, patience: Duration) -> Vec<String> {
        if self.pid != std::process::id() {
            return Vec::new();
        }
        self.signal_close();
        drop(self.publisher.lock().take());
        self.threads.wait(patience)
    }

    fn signal_close(&self) {
        self.closed.store(true, Relaxed);
        // The position stays: a state may still be taken.
        if let Some(current) = &self.clock.lock().current {
            current.stop();
        }
        // Last, so that a loader thread that is woken by it finds its pass stopped.
        self.feed.pool.close();
    }
}

impl Drop for Engine {
    /// Signals the end but does not wait: a loader thread may be inside a callback that needs what the caller holds.
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            self.signal_close();
        }
    }
}

/// A cache that cannot hold one sample is a mistake, not a small cache.
fn check_cache_holds_a_sample(feed: &Feed, settings: &Settings) -> Result<()> {
    let limit = settings.cache_bytes;
    let smallest = match feed.cache_form {
        CacheForm::Encoded => (0..feed.source.len() as SampleId).map(|id| feed.record_bytes(id)).min(),
        CacheForm::Decoded => Some(feed.record_bytes(0)),
    };
    let needed = Arena::footprint(smallest.unwrap_or(0) as usize);
    if limit > 0 && limit < needed {
        return Err(Error::settings(format!(
            "cache of {limit} bytes is smaller than one sample ({needed} bytes as kept): raise it, or set it to 0 for none"
        )));
    }
    Ok(())
}

fn identity(settings: &Settings, feed: &Feed, device: &dyn Device) -> Identity {
    Identity {
        job: settings.job.clone().unwrap_or_else(|| "lossfeed".into()),
        rank: settings.rank,
        world_size: settings.world_size,
        policy: settings.policy_name().to_string(),
        sampler: settings.sampler.name().to_string(),
        device: device.name(),
        gpu_uuid: device.uuid(),
        source: feed.source.describe(),
    }
}
