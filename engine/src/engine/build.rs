//! Making an engine: everything that can be refused is refused first, then memory is taken.

use super::copy_path::Obstacles;
use super::crew::Threading;
use super::lead::Leading;
use super::run::Clock;
use super::threads::Threads;
use super::tuning::Tuning;
use super::{CopyChoice, Dataset, Engine, copy_cost, keeping, outside};
use crate::arena::Arena;
use crate::cache::Cache;
use crate::control::{BufferSetup, Control, Drawing, STAND_INS, Together};
use crate::device::{self, Cuda, Device, Opened};
use crate::error::{Error, Result};
use crate::index::ScoreTable;
use crate::journal::{Meta, WhenBehind, Writer};
use crate::ledger::Ledger;
use crate::loader::checkpoint::WeightUse;
use crate::loader::{BadSamples, Beside, Deliveries, Feed, Images, NEAREST_MAX, ReadAhead, RecordSizes};
use crate::policy::{self, Needs, Policy};
use crate::process::Process;
use crate::sampler::{
    self, Auto, Batches, Block, Blocks, Circumstances, EpochSize, Neighbours, Pace, ReadCost, Sampler, SamplerSettings,
};
use crate::scoring::Scale;
use crate::settings::{CacheForm, CopyPath, ImageSteps, OnError, Settings};
use crate::source::{Decisions, Decoder, News, NodeOwner, Source, decoded, on_node};
use crate::staging::{BatchLayout, SlotPool};
use crate::stats::{Counters, Identity, Publisher};
use crate::tune::lead::Lead;
use crate::types::SampleId;
use lossfeed_sync::Mutex;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

/// As many samples tell how large those of a dataset are.
const LOOKED_AT: usize = 256;

/// Engines made so far by this process.
static ENGINES: AtomicU64 = AtomicU64::new(0);

impl Engine {
    /// Checks everything, reserves the memory and publishes the stats page. No sample is read yet (images: one was, by
    /// [`Dataset::new`]). Begins with the beliefs of [`Settings::score_file`], if there is one.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Settings`] for settings that do not fit each other or the dataset, and
    /// [`crate::ErrorKind::Device`] for a device that is not there or cannot do what is asked: both before any memory
    /// is taken. [`crate::ErrorKind::Memory`] or [`crate::ErrorKind::Device`] for memory that cannot be had.
    pub fn new(dataset: Dataset, settings: Settings) -> Result<Self> {
        let (settings, chosen) = chosen(&dataset, settings)?;
        let policy = policy::find(settings.policy_name())?.make;
        let samples = dataset.source.len();
        Checked::new(dataset, settings, chosen)?.build(policy(samples))?.keeping()
    }

    /// The same with a cache policy of your own, made for as many samples as the dataset has. [`Settings::policy`] is
    /// not looked at.
    ///
    /// # Errors
    /// As [`Self::new`], and [`crate::ErrorKind::Settings`] for a policy that needs to know more of the
    /// order to come than the sampler can tell.
    pub fn with_policy(dataset: Dataset, settings: Settings, policy: Box<dyn Policy>) -> Result<Self> {
        if matches!(settings.sampler, SamplerSettings::Auto(_)) {
            return Err(Error::settings(
                "sampler=\"auto\" chooses the cache policy itself: name a sampler to use your own policy",
            ));
        }
        if settings.sampler.buffer().is_some() {
            return Err(Error::settings(format!(
                "sampler={:?} manages the cache itself (first in, first out): remove your policy",
                settings.sampler.name()
            )));
        }
        settings.sampler.check_policy(policy.name(), policy.needs())?;
        Checked::new(dataset, settings, Left::default())?.build(policy)?.keeping()
    }

    /// The same with what a file remembers, which is written from now on, if one was asked for.
    fn keeping(mut self) -> Result<Self> {
        self.damaged = self.keep_beliefs(keeping::clock())?;
        Ok(self)
    }
}

/// What is decided while a run goes on whose sampler was left to us; nothing for others.
#[derive(Default)]
struct Left {
    /// Samples count alike until the training loop was seen to read weights.
    awaits_weights: bool,
    pace: Option<Pace>,
    neighbours: Neighbours,
}

/// The settings with the sampler that is chosen where that is left to us. All else about them is checked later.
fn chosen(dataset: &Dataset, settings: Settings) -> Result<(Settings, Left)> {
    let SamplerSettings::Auto(auto) = settings.sampler else { return Ok((settings, Left::default())) };
    if let Some(policy) = &settings.policy {
        return Err(Error::settings(format!(
            "sampler=\"auto\" chooses the cache policy itself: remove policy={policy:?}, or name a sampler"
        )));
    }
    let steps = ImageSteps::of(dataset.spec(), &settings)?;
    let sample_bytes = mean_bytes(&*dataset.source);
    let run = Circumstances {
        dataset_bytes: dataset.records(settings.cache_form).total_footprint(),
        cache_bytes: settings.cache_bytes,
        augmented: steps.any().then(|| steps.is_random()),
        neighbours: neighbours(&*dataset.source, &settings, auto, sample_bytes),
    };
    let chosen = auto.choose(run);
    // Ranks that exchange scores keep one account of all.
    let (rows, ranks) = match settings.exchange {
        true => (dataset.source.len(), 1),
        false => (settings.batches(dataset.source.len())?.share(), settings.world_size),
    };
    let size = EpochSize { rows: rows as u64, sample_bytes, ranks };
    let mut sampler = SamplerSettings::from(chosen);
    let pace = auto.pace(chosen, run, size)?;
    if let Some(pace) = &pace {
        sampler = sampler.with_fetches(pace.fetches(0));
    }
    tracing::info!(sampler = sampler.name(), ?run, "sampler=\"auto\" chose");
    let awaits_weights = !matches!(sampler, SamplerSettings::Uniform(_));
    let neighbours = if sampler.buffer().is_some() { run.neighbours } else { Neighbours::Unknown };
    let cost = ReadCost { request_bytes: dataset.source.link().request_bytes, sample_bytes };
    if neighbours == Neighbours::Alike && cost.block() > 1 {
        tracing::warn!(
            "neighbours in this dataset have the same labels, so new samples are read one by one: `lossfeed pack` \
             mixes them, and then one request brings many"
        );
    }
    Ok((Settings { sampler, ..settings }, Left { awaits_weights, pace, neighbours }))
}

/// Masks and boxes, for a dataset whose images are not resized when they are opened.
fn beside(settings: &Settings, steps: &ImageSteps, decoder: Option<&Decoder>) -> Result<Option<Beside>> {
    let Some(beside) = &settings.beside else { return Ok(None) };
    let decoder = decoder.filter(|decoder| !decoder.resizes()).ok_or_else(|| {
        Error::settings(
            "masks= and boxes= need images as they are stored: open the dataset without resize= and crop=, and give \
             them to the ImageTransform",
        )
    })?;
    Beside::new(beside, steps.crop, decoder.size()).map(Some)
}

/// The stats page, if there is to be one.
fn publisher(
    settings: &Settings,
    policy_name: &'static str,
    feed: &Feed,
    device: &dyn Device,
    counters: Arc<Counters>,
) -> Option<Publisher> {
    let processors = std::thread::available_parallelism().map_or(0, |n| n.get() as u64);
    Counters::set(&counters.processors, processors);
    Counters::set(&counters.cache_most_bytes, settings.cache_bytes);
    if !settings.stats {
        return None;
    }
    let bytes = feed.records.total_footprint();
    Counters::set(&counters.dataset_bytes, if bytes == u64::MAX { 0 } else { bytes });
    let started = Publisher::start(identity(settings, policy_name, feed, device), counters);
    // A run must not fail because it cannot be watched.
    started.inspect_err(|e| tracing::warn!("no stats page: {e}")).ok()
}

/// An engine to be: nothing stands against it but that memory may be short. It holds none of that memory yet.
struct Checked {
    dataset: Dataset,
    node: Option<Arc<NodeOwner>>,
    settings: Settings,
    sampler: Arc<dyn Sampler>,
    batches: Batches,
    steps: ImageSteps,
    layout: BatchLayout,
    records: RecordSizes,
    device: Arc<dyn Device>,
    gpu: Option<Cuda>,
    left: Left,
    /// `None`: the ways to the GPU are to be measured, in the engine's own memory.
    copy_path: Option<CopyPath>,
}

impl Checked {
    fn new(mut dataset: Dataset, settings: Settings, left: Left) -> Result<Self> {
        // Asked of the system once, and not again for every batch.
        let settings = settings.with_processors();
        let samples = dataset.source.len();
        settings.validate(samples)?;
        // A shared cache has the samples of its source.
        if settings.node.is_some()
            && settings.cache_form == CacheForm::Decoded
            && let Some(decoder) = dataset.decoder.take()
        {
            dataset.source = decoded(dataset.source, decoder)?;
        }
        if settings.read_ahead.is_some_and(|bytes| bytes > 0) && dataset.source.size(0).expected.is_none() {
            return Err(Error::settings("read_ahead= needs samples of known size, and these vary: remove it"));
        }
        let sampler = settings.sampler.build()?.into();
        let batches = settings.batches(samples)?;
        let steps = ImageSteps::of(dataset.spec(), &settings)?;
        let delivered = if steps.any() { vec![steps.delivered().clone()] } else { dataset.fields().to_vec() };
        let layout = BatchLayout::of_fields(settings.batch_size, delivered, dataset.source.target_spec().clone())?;
        Arena::check_limit(settings.cache_bytes)?;
        let records = dataset.records(settings.cache_form);
        check_cache_holds_a_sample(&records, settings.cache_bytes)?;
        let Opened { device, gpu } = device::open(&settings.device)?;
        let obstacles = Obstacles {
            device: device.kind(),
            slot_bytes: layout.total_bytes(),
            decoded: settings.cache_form == CacheForm::Encoded && dataset.decoder.is_some(),
            transformed: steps.any(),
            scattered: dataset.source.form().tailed() || layout.fields().len() != 1,
        };
        let mut node = None;
        if let Some(of) = &settings.node {
            let tier = of.tier(settings.job.as_deref(), settings.sampler.is_by_node());
            let (source, owner) = on_node(dataset.source, &tier)?;
            (dataset.source, node) = (source, Some(owner));
        }
        let copy_path = copy_cost::settled_on(&settings, &obstacles, gpu.as_ref())?;
        Ok(Self { dataset, node, settings, sampler, batches, steps, layout, records, device, gpu, left, copy_path })
    }

    /// Takes the memory.
    fn build(self, policy: Box<dyn Policy>) -> Result<Engine> {
        let policy_name = policy.name();
        if policy.needs().contains(Needs::SUBSTITUTES) {
            tracing::warn!(
                policy = policy_name,
                "this policy replaces drawn samples by cached ones: means over an epoch are biased"
            );
        }
        let samples = self.dataset.source.len();
        let counters = self.counters();
        let (threading, pool) = self.slots()?;
        let (arena, copy_choice) = self.arena(&pool)?;
        let cache = self.cache(policy, arena, &counters)?;
        let decisions = Arc::default();
        let (read_ahead, leading) = self.reading(&counters, &decisions);
        let tuning = self.tuning();
        let Self { dataset, node, settings, batches, steps, records, device, gpu, left, .. } = self;
        let Dataset { source, decoder } = dataset;
        // What is kept decoded has one size already, and what a dataset makes one size is cropped of that.
        let own_size = records.encoded() && decoder.as_ref().is_some_and(|decoder| !decoder.resizes());
        let beside = beside(&settings, &steps, decoder.as_ref())?;
        let images = steps.any().then(|| Images::new(steps, own_size, settings.rank));
        let feed = Feed {
            node,
            read_ahead,
            engine: ENGINES.fetch_add(1, Relaxed) + 1,
            source,
            decoder,
            records,
            images,
            seed: settings.seed.into(),
            beside,
            cache,
            pool,
            counters: Arc::clone(&counters),
            on_error: settings.on_error,
            // More of a buffer sampler's would not be there in a resumed run.
            stand_ins: if settings.sampler.buffer().is_some() { STAND_INS } else { NEAREST_MAX },
            keeps_steps: settings.world_size > 1 || settings.on_error == OnError::Substitute,
            in_place: copy_choice.path != CopyPath::Gathered,
            bad: BadSamples::default(),
        };
        let publisher = publisher(&settings, policy_name, &feed, &*device, counters);
        feed.source.tell(News::Listener(&decisions));
        let ahead_bytes = feed.read_ahead.as_ref().map_or(0, ReadAhead::limit);
        feed.source.tell(News::Room(settings.cache_bytes.saturating_add(ahead_bytes)));
        let feed = Arc::new(feed);
        if let Some(publisher) = &publisher {
            outside::obey(&feed, publisher);
        }
        Ok(Engine {
            feed,
            decisions,
            scale: Arc::new(Scale::new(settings.score, settings.score_kind())),
            seed: settings.seed.into(),
            seed_is_open: settings.open_seed.into(),
            settings,
            policy_name,
            batches,
            device,
            gpu,
            copy_choice,
            tuning: tuning.map(Mutex::new),
            neighbours: left.neighbours,
            weights: left.awaits_weights.then(|| Mutex::new(WeightUse::Unread)),
            clock: Mutex::new(Clock::default()),
            digest: OnceLock::new(),
            deliveries: Mutex::new(Deliveries::new(samples)),
            threads: Arc::new(Threads::default()),
            threading: Mutex::new(threading),
            leading: leading.map(Mutex::new),
            keeper: Arc::default(),
            damaged: None,
            publisher: Mutex::new(publisher),
            closed: AtomicBool::new(false),
            made_by: Process::current(),
        })
    }

    fn counters(&self) -> Arc<Counters> {
        let counters = Counters::default();
        counters.samples_in_dataset.store(self.dataset.source.len() as u64, Relaxed);
        counters.samples_in_share.store(self.batches.share() as u64, Relaxed);
        counters.batches_per_epoch.store(self.batches.len() as u64, Relaxed);
        Arc::new(counters)
    }

    /// The batch slots, for as many threads as there may be.
    fn slots(&self) -> Result<(Threading, SlotPool)> {
        let slot_bytes = self.layout.total_bytes();
        let threading = Threading::new(&self.settings, slot_bytes);
        let most = self.settings.slots_max(threading.most(), slot_bytes);
        let pool = SlotPool::new(self.layout.clone(), self.settings.depth(), most, Arc::clone(&self.device))?;
        Ok((threading, pool))
    }

    /// The cache's memory, and the way to the GPU, which may be measured in it.
    fn arena(&self, pool: &SlotPool) -> Result<(Arc<Arena>, CopyChoice)> {
        let mut arena = Arena::new(self.settings.cache_bytes, &*self.device)?;
        let choice = match self.copy_path {
            Some(path) => CopyChoice { path, measured: Vec::new() },
            None => {
                let only = Arc::get_mut(&mut arena).ok_or_else(|| Error::internal("a new arena is shared already"))?;
                copy_cost::measure(&self.settings, only, pool, self.gpu.as_ref())?
            }
        };
        Ok((arena, choice))
    }

    fn cache(&self, policy: Box<dyn Policy>, arena: Arc<Arena>, counters: &Arc<Counters>) -> Result<Cache> {
        let (settings, source) = (&self.settings, &self.dataset.source);
        let (samples, policy_name) = (source.len(), policy.name());
        let scores = ScoreTable::new(samples, settings.smoothing_weight());
        let ledger = Ledger::new(settings.cache_bytes, samples, policy);
        let drawing = self.drawing();
        let mut control = Control::new(scores, ledger).with_drawing(drawing.clone());
        if settings.exchange {
            control = control.with_exchange();
        }
        if let Some(options) = settings.sampler.buffer() {
            let smallest = self.records.smallest_footprint().max(1);
            control = control.with_buffer(BufferSetup {
                options,
                residents_max: (settings.cache_bytes / smallest).min(drawing.owned.len() as u64) as usize,
                seed: settings.seed,
                rank: settings.rank,
                share_weight: match settings.exchange {
                    true => 1.0,
                    false => (f64::from(settings.world_size) * drawing.owned.len() as f64 / samples as f64) as f32,
                },
                owned: drawing.owned,
                awaits_weights: self.left.awaits_weights,
            });
        }
        let journal =
            settings.journal.as_ref().map(|path| journal(path, settings, policy_name, samples)).transpose()?;
        let cache = Cache::new(control, arena, Arc::clone(counters));
        let cache = if let Some(writer) = journal { cache.recorded(writer) } else { cache };
        Ok(if source.facts().in_memory { cache.over_memory() } else { cache })
    }

    /// What epochs are drawn from.
    fn drawing(&self) -> Drawing {
        let (settings, samples) = (&self.settings, self.dataset.source.len());
        let (seed, rank, world_size) = (settings.seed, settings.rank, settings.world_size);
        let owned = match settings.exchange || settings.sampler.given().is_some() {
            true => (0..samples as u32).collect(),
            false => sampler::owned_ids(samples, seed, rank, world_size, self.block().granule()).into(),
        };
        Drawing {
            sampler: Arc::clone(&self.sampler),
            samples: samples as u32,
            owned,
            seed,
            rank,
            world_size,
            blocks: Blocks::new(self.block()),
            awaits_weights: self.left.awaits_weights,
            together: settings
                .exchange
                .then(|| Together { batch_size: settings.batch_size, granule: self.block().granule() }),
        }
    }

    /// Neighbours that a buffer sampler takes together.
    fn block(&self) -> Block {
        self.settings.sampler.buffer().map_or(Block::default(), |options| options.block)
    }

    /// Reading ahead, and the rule that finds how much, where that is not set.
    fn reading(&self, counters: &Arc<Counters>, decisions: &Arc<Decisions>) -> (Option<ReadAhead>, Option<Leading>) {
        let (settings, source) = (&self.settings, &*self.dataset.source);
        let target_bytes = source.target_spec().bytes();
        let bytes = if source.facts().in_memory || source.size(0).expected.is_none() {
            0
        } else if source.facts().in_turn {
            settings.files_ahead_bytes(mean_bytes(source) + target_bytes as u64)
        } else {
            settings.read_ahead_bytes(source.facts().remote)
        };
        let found = settings.read_ahead.is_none() && source.facts().remote && !source.facts().in_turn && bytes > 0;
        let leading = found.then(|| Leading::new(Lead::new(bytes, settings.read_ahead_most())));
        let read_ahead = (bytes > 0).then(|| {
            let ahead =
                ReadAhead::new(bytes, target_bytes, [settings.batch_size, self.batches.share()], Arc::clone(counters));
            match source.facts().in_turn {
                true => ahead.beside(settings.read_ahead.is_some(), Arc::clone(decisions)),
                false => ahead,
            }
        });
        (read_ahead, leading)
    }

    /// What is set between epochs; `None` where nothing is.
    fn tuning(&self) -> Option<Tuning> {
        let (pace, block) = (self.left.pace, self.block());
        let found = (block == Block::Auto).then(|| mean_bytes(&*self.dataset.source));
        (pace.is_some() || found.is_some())
            .then(|| Tuning::new(pace, Blocks::new(block), found, self.settings.exchange))
    }
}

/// A cache that cannot hold one sample is a mistake, not a small cache.
fn check_cache_holds_a_sample(records: &RecordSizes, limit: u64) -> Result<()> {
    let needed = if limit > 0 { records.smallest_footprint() } else { 0 };
    if limit < needed {
        return Err(Error::settings(format!(
            "cache of {limit} bytes is smaller than one sample ({needed} bytes as kept): raise it, or set it to 0 for none"
        )));
    }
    Ok(())
}

/// Labels of neighbours, if they are looked at: where one request could bring several, and not all samples have room in
/// the prefetch window, which brings neighbours together whatever the order. No more of the run may count here: a
/// state is of runs with the same blocks.
fn neighbours(source: &dyn Source, settings: &Settings, auto: Auto, sample_bytes: u64) -> Neighbours {
    let all_bytes = (sample_bytes + source.target_spec().bytes() as u64).saturating_mul(source.len() as u64);
    let dear = source.facts().remote && source.link().request_bytes > 0;
    match source.labels() {
        Some(labels) if dear && auto.block.is_none() && all_bytes > settings.read_ahead_at_first() => {
            Neighbours::of(labels)
        }
        _ => Neighbours::Unknown,
    }
}

/// What samples have in the mean, by what is known before they are read; of a large dataset a few hundred are looked
/// at.
fn mean_bytes(source: &dyn Source) -> u64 {
    let step = source.len().div_ceil(LOOKED_AT).max(1);
    let sizes = (0..source.len()).step_by(step).map(|id| source.size(id as SampleId).expected.unwrap_or(0));
    let (count, sum) = sizes.fold((0u64, 0u64), |(count, sum), bytes| (count + 1, sum.saturating_add(bytes)));
    sum / count.max(1)
}

/// The journal's file, made now: a place that cannot be written is no surprise in mid-epoch.
fn journal(path: &Path, settings: &Settings, policy: &str, samples: usize) -> Result<Writer> {
    let mut meta = Meta::new(samples as u64, settings.cache_bytes, policy, settings.smoothing_weight());
    if let Ok(serde_json::Value::Object(all)) = serde_json::to_value(Settings { journal: None, ..settings.clone() }) {
        meta.settings = all;
    }
    meta.settings.insert("lossfeed".into(), env!("CARGO_PKG_VERSION").into());
    Writer::create(path, &meta, WhenBehind::Lose)
}

fn identity(settings: &Settings, policy: &str, feed: &Feed, device: &dyn Device) -> Identity {
    Identity {
        job: settings.job.clone().unwrap_or_else(|| "lossfeed".into()),
        rank: settings.rank,
        world_size: settings.world_size,
        policy: policy.to_string(),
        sampler: settings.sampler.name().to_string(),
        device: device.name(),
        gpu_uuid: device.uuid(),
        source: feed.source.describe().to_owned(),
    }
}
