//! The node cache before a source: fetched samples are kept once for all processes of this machine (lossfeed-node).
//!
//! A sample's key is a digest of the dataset's and of [`Source::proof`], as in the disk tier: two jobs have one only
//! for the same bytes, and an object that has changed is another sample.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use lossfeed_disk::Whose;
use lossfeed_node::{Client, Flight, Key, Offer, Settings};
use lossfeed_sync::Mutex;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::format::several::several;
use crate::options::NodeTier;
use crate::sample::Source;
use crate::stop::Stop;
use crate::tune::circuit::Outcome;
use crate::types::SampleId;
use crate::wrap::tier::{Tier, TierNumbers, check_kept};
use crate::wrap::tiered::Tiered;

/// Samples that are handed over at once, and the threads that decode them where decoded ones are kept.
const AT_ONCE: usize = 64;
const THREADS_MAX: usize = 8;
/// Nothing is remembered of datasets with more samples: 17 MiB of memory.
const KNOWN_MAX: usize = 1 << 20;
/// An owner in which one of so many bytes is free still keeps all.
const FULL: u64 = 16;
/// The owner is asked for processors so often.
const ASKED_EACH_MS: u64 = 200;

/// See the module's head.
struct OnNode {
    source: Arc<dyn Source>,
    owner: Arc<NodeOwner>,
    place: [u8; 32],
    known: Known,
    /// This job draws by importance, or in an order of the owner's: samples that it has now it may give up for others.
    rated: AtomicBool,
}

/// The way through an epoch whose order came from the owner; empty in an order of this job's own.
#[derive(Default)]
struct Walk {
    /// The place of each sample.
    places: Vec<u32>,
    /// Places that were read, and that the owner was told of.
    at: u32,
    told: u32,
}

impl Walk {
    /// These are read now. How far that is, if the owner is to be told: a thousand times an epoch.
    fn read(&mut self, ids: &[SampleId]) -> Option<u32> {
        let places = ids.iter().filter_map(|&id| self.places.get(id as usize));
        self.at = places.fold(self.at, |at, &place| at.max(place + 1));
        let news = self.at - self.told > self.places.len() as u32 / 1024;
        news.then(|| {
            self.told = self.at;
            self.at
        })
    }
}

/// The process that owns the node cache, as a run talks to it.
pub struct NodeOwner {
    client: Client,
    walk: Mutex<Walk>,
    processors: Processors,
}

/// Processors of the machine for the run's loader threads.
struct Processors {
    since: Instant,
    /// All of them; 0: nothing is asked.
    all: AtomicU32,
    /// The bits of an `f32`, each.
    wanted: AtomicU32,
    share: AtomicU32,
    /// Milliseconds after `since` until which nothing is asked again.
    next_ms: AtomicU64,
}

impl NodeOwner {
    /// Datasets have at most so many samples.
    pub const SAMPLES_MAX: usize = lossfeed_node::ORDERED_MAX as usize;

    /// The run's loader threads want so many of the machine's `all` processors, infinitely many if its training waits.
    /// The last answer of [`Self::ask`]; `None`: there is none.
    pub fn processors(&self, all: usize, wanted: f64) -> Option<f64> {
        let processors = &self.processors;
        processors.wanted.store((wanted as f32).to_bits(), Relaxed);
        processors.all.store(u32::try_from(all).unwrap_or(u32::MAX), Relaxed);
        Some(f32::from_bits(processors.share.load(Relaxed))).filter(|share| *share > 0.0).map(f64::from)
    }

    /// Asks for processors, a few times a second. For loader threads: an owner that hangs is waited for half a second,
    /// and left alone for a while after that.
    pub fn ask(&self, stopped: &dyn Fn() -> bool) {
        let (p, now_ms) = (&self.processors, self.processors.since.elapsed().as_millis() as u64);
        let (all, next_ms) = (p.all.load(Relaxed), p.next_ms.load(Relaxed));
        let due = all > 0 && now_ms >= next_ms;
        if due && p.next_ms.compare_exchange(next_ms, now_ms + ASKED_EACH_MS, Relaxed, Relaxed).is_ok() {
            let share = self.client.processors(all, f32::from_bits(p.wanted.load(Relaxed)), stopped);
            p.share.store(share.unwrap_or(0.0).to_bits(), Relaxed);
        }
    }

    /// The order of an epoch that begins now: every sample once. `None` where no owner answers.
    pub fn begin(&self) -> Option<Vec<SampleId>> {
        let order = self.client.order(&|| false);
        let mut places = vec![0; order.as_ref().map_or(0, Vec::len)];
        for (place, &id) in (0..).zip(order.iter().flatten()) {
            places[id as usize] = place;
        }
        *self.walk.lock() = Walk { places, at: 0, told: 0 };
        order
    }

    /// The epoch that begins now has an order from elsewhere.
    pub fn pass_over(&self) {
        *self.walk.lock() = Walk::default();
    }
}

/// Keys that were computed, and samples that the owner had when it was asked last; of small datasets.
struct Known {
    /// The two halves of a key; 0: not computed yet.
    halves: Box<[[AtomicU64; 2]]>,
    there: Box<[AtomicBool]>,
}

impl Known {
    fn new(samples: usize) -> Self {
        let samples = if samples <= KNOWN_MAX { samples } else { 0 };
        let (halves, there) = ((0..samples).map(|_| Default::default()), (0..samples).map(|_| AtomicBool::new(false)));
        Self { halves: halves.collect(), there: there.collect() }
    }

    fn key(&self, id: SampleId) -> Option<Key> {
        let halves = self.halves.get(id as usize)?.each_ref().map(|half| half.load(Relaxed));
        let bytes = halves.map(u64::to_ne_bytes);
        (!halves.contains(&0)).then(|| bytes.as_flattened().first_chunk().copied())?
    }

    fn learn(&self, id: SampleId, key: &Key) {
        if let Some(halves) = self.halves.get(id as usize) {
            let (parts, _) = key.as_chunks();
            halves.iter().zip(parts).for_each(|(half, part)| half.store(u64::from_ne_bytes(*part), Relaxed));
        }
    }

    fn set(&self, id: SampleId, there: bool) {
        if let Some(known) = self.there.get(id as usize) {
            known.store(there, Relaxed);
        }
    }
}

/// `source` with the node cache before it.
///
/// # Errors
/// `Settings` for a folder that is another user's and for a source whose samples cannot be kept. An owner that does not
/// start is no error: samples come from the source until one does.
pub fn on_node(source: Arc<dyn Source>, node: &NodeTier) -> Result<(Arc<dyn Source>, Arc<NodeOwner>)> {
    if source.facts().in_memory {
        return Err(Error::settings(format!(
            "share=\"node\": the samples of {} are in this process's memory and are not read from a store: leave it out",
            source.describe()
        )));
    }
    check_kept(source.as_ref(), "share")?;
    let describes = source.describe();
    let mut place = Sha256::new();
    // Relative paths mean other files elsewhere.
    if !describes.starts_with('/') && !describes.contains("://") {
        let here = std::env::current_dir().unwrap_or_default();
        place.update(here.as_os_str().as_encoded_bytes());
    }
    place.update(source.digest());
    let place: [u8; 32] = place.finalize().into();
    let (client, failed) = Client::new(Settings {
        folders: node.folders.clone(),
        bytes: node.bytes,
        command: node.command.clone(),
        job: node.job.clone(),
        dataset: place.first_chunk().map_or(0, |first| u64::from_le_bytes(*first)),
        name: describes.split_once(": ").map_or(describes, |(place, _)| place).to_owned(),
        samples: u32::try_from(source.len()).unwrap_or(u32::MAX),
    })
    .map_err(|reason| {
        Error::settings(format!("share=\"node\": {reason}; leave it out, or set LOSSFEED_RUNTIME_DIR"))
    })?;
    if let Some(reason) = failed {
        tracing::warn!(reason, "the node cache has no owner: samples come from the source until one starts");
    } else if client.capacity() != node.bytes {
        tracing::info!(
            bytes = client.capacity(),
            asked = node.bytes,
            "the node cache was started with another size, which holds until its last job ends"
        );
    }
    let alone_us = client.fetched_in_us();
    let owner = Arc::new(NodeOwner {
        client: client.clone(),
        walk: Mutex::default(),
        processors: Processors {
            since: Instant::now(),
            all: AtomicU32::new(0),
            wanted: AtomicU32::new(0),
            share: AtomicU32::new(0),
            next_ms: AtomicU64::new(0),
        },
    });
    let tier = OnNode {
        source: Arc::clone(&source),
        owner: Arc::clone(&owner),
        place,
        known: Known::new(source.len()),
        rated: AtomicBool::new(node.order),
    };
    let tiered = Tiered::new(source, tier, alone_us);
    hand_over(&tiered, &client)?;
    Ok((Arc::new(tiered), owner))
}

/// Gives the owner what came while the dataset was opened, as far as it has room: no process has to fetch it.
fn hand_over(source: &dyn Source, client: &Client) -> Result<()> {
    let near: Vec<SampleId> = (0..source.len() as SampleId).filter(|&id| source.is_near(id)).collect();
    let threads = available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    several(&near.chunks(AT_ONCE).collect::<Vec<_>>(), threads, &Stop::default(), |ids| {
        let bytes: u64 = ids.iter().map(|&id| source.payload_bytes(id)).sum();
        if client.numbers().bytes.saturating_add(bytes) < client.capacity() {
            source.fetch_by(u64::MAX, &|| false, ids, &mut |_, _| ControlFlow::Continue(()));
        }
        Ok(())
    })
    .map(|_| ())
}

impl OnNode {
    fn key(&self, id: SampleId) -> Option<Key> {
        self.known.key(id).or_else(|| {
            let key = self.computed(id)?;
            self.known.learn(id, &key);
            Some(key)
        })
    }

    fn computed(&self, id: SampleId) -> Option<Key> {
        let mut digest = Sha256::new();
        digest.update(self.place);
        digest.update(self.source.proof(id)?);
        digest.finalize().first_chunk().copied()
    }
}

impl Tier for OnNode {
    type Flight = Flight;

    fn name(&self) -> &'static str {
        "the node cache"
    }

    fn counted(&self) -> TierNumbers {
        TierNumbers::Node(self.owner.client.numbers())
    }

    /// Not known without asking.
    fn has(&self, _: SampleId) -> bool {
        false
    }

    fn may_have(&self, _: SampleId) -> bool {
        true
    }

    fn is_near(&self, id: SampleId) -> bool {
        !self.rated.load(Relaxed) && self.known.there.get(id as usize).is_some_and(|there| there.load(Relaxed))
    }

    fn read(
        &self,
        ids: &[SampleId],
        patience: &dyn Fn(usize) -> Duration,
        stopped: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(usize, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        let far = self.owner.walk.lock().read(ids);
        far.into_iter().for_each(|at| self.owner.client.read_to(at));
        let keys = ids.iter().enumerate();
        let keys: Vec<(usize, Key, u64)> =
            keys.filter_map(|(k, &id)| Some((k, self.key(id)?, self.source.payload_bytes(id)))).collect();
        let mut came = vec![false; ids.len()];
        let read = self.owner.client.read(&keys, patience, stopped, &mut |k, data| {
            came.iter_mut().skip(k).take(1).for_each(|came| *came = true);
            sink(k, data)
        });
        ids.iter().zip(came).for_each(|(&id, came)| self.known.set(id, came));
        Outcome {
            answers: read.answers,
            failures: 0,
            took_us: read.took.as_micros() as u64,
            unfinished: read.unfinished,
        }
    }

    fn flight(&self) -> Option<Flight> {
        self.owner.client.flight()
    }

    fn claim(&self, flight: &mut Flight, ids: &[SampleId], stopped: &dyn Fn() -> bool) -> Vec<Whose> {
        // A sample without a key has no bytes.
        let keys: Vec<Key> = ids.iter().map(|&id| self.key(id).unwrap_or_default()).collect();
        let whose = flight.claim(&keys, stopped).into_iter();
        whose
            .zip(keys)
            .map(|(whose, key)| match whose {
                lossfeed_node::Whose::Theirs if key != Key::default() => Whose::Theirs,
                lossfeed_node::Whose::There if key != Key::default() => Whose::There,
                _ => Whose::Ours,
            })
            .collect()
    }

    fn offer(&self, flight: Option<&mut Flight>, id: SampleId, cost: Duration, data: &[u8]) {
        if let (Some(flight), Some(key)) = (flight, self.key(id)) {
            flight.offer(&Offer { key, id, cost, data });
            // An owner that has room keeps what it is offered.
            let used = self.owner.client.numbers().bytes;
            self.known.set(id, used < self.owner.client.capacity() / FULL * (FULL - 1));
        }
    }

    fn forget(&self, ids: &[SampleId]) {
        let keys: Vec<Key> = ids.iter().filter_map(|&id| self.key(id)).collect();
        self.owner.client.forget(&keys);
    }

    /// Tells the owner the expected draws of each sample: importances with mean 1; a sample without one is drawn as the
    /// mean is.
    fn rate(&self, _: &str, importances: &[f32]) {
        self.rated.store(true, Relaxed);
        let known = || importances.iter().copied().filter(|worth| worth.is_finite() && *worth >= 0.0);
        let mean = known().map(f64::from).sum::<f64>() / known().count().max(1) as f64;
        if mean > 0.0 {
            let draws: Vec<f32> = importances.iter().map(|worth| (f64::from(*worth) / mean) as f32).collect();
            self.owner.client.rate(&draws);
        }
    }
}
