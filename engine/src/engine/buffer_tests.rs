//! Buffer samplers alive: one seed is one order, whatever the threads, and a resumed run is the same run.

use super::{Dataset, Engine};
use crate::loader::{Next, Ticket};
use crate::sampler::{Block, BufferOptions, Echo, Replay, SamplerSettings};
use crate::settings::{CacheForm, ScoreKind, Settings};
use crate::source::{Arrays, Facts, ImageMode, Link, Payload, Size, Source, Traffic};
use crate::types::{Dtype, SampleId, TensorSpec};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub(super) const SAMPLES: u32 = 200;
const KEPT: u64 = 40;
const BATCH: usize = 16;
const LAG: u32 = 16;

pub(super) fn dataset() -> Dataset {
    let data: Vec<u8> = (0..SAMPLES).flat_map(u32::to_ne_bytes).collect();
    let target: Vec<u8> = (0..SAMPLES).flat_map(|id| i64::from(id).to_ne_bytes()).collect();
    let spec = TensorSpec::new(Dtype::U8, [4]);
    let source = Arrays::new(data, spec, target, TensorSpec::class_index(), SAMPLES as usize).unwrap();
    Dataset::new(Arc::new(source), ImageMode::Auto, None).unwrap()
}

/// The samples of [`dataset`], outside of memory.
struct Stored<F> {
    rows: Arc<dyn Source>,
    facts: Facts,
    request_bytes: Arc<AtomicU64>,
    before_each: F,
}

/// The samples of [`dataset`], outside of memory. A request costs `request_bytes`, and `before_each` is called before
/// each sample.
pub(super) fn stored(
    remote: bool,
    request_bytes: &Arc<AtomicU64>,
    before_each: impl Fn() + Send + Sync + 'static,
) -> Dataset {
    let rows = dataset().source;
    let facts = Facts { remote, in_memory: false, ..rows.facts().clone() };
    let source = Stored { rows, facts, request_bytes: Arc::clone(request_bytes), before_each };
    Dataset::new(Arc::new(source), ImageMode::Auto, None).unwrap()
}

impl<F: Fn() + Send + Sync> Source for Stored<F> {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn name(&self, id: SampleId) -> String {
        self.rows.name(id)
    }
    fn size(&self, id: SampleId) -> Size {
        self.rows.size(id)
    }
    fn labels(&self) -> Option<&[i64]> {
        self.rows.labels()
    }
    fn fetch_by(
        &self,
        request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, crate::error::Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        self.rows.fetch_by(request_bytes, stopped, ids, &mut |k, payload| {
            (self.before_each)();
            sink(k, payload)
        })
    }
    fn link(&self) -> Link {
        Link { requests_ahead: 0, request_bytes: self.request_bytes.load(Relaxed) }
    }
}

fn both() -> [SamplerSettings; 2] {
    [
        SamplerSettings::Echo(Echo { lag: LAG, ..Echo::default() }),
        SamplerSettings::Replay(Replay { lag: LAG, ..Replay::default() }),
    ]
}

pub(super) fn settings(sampler: SamplerSettings, workers: usize) -> Settings {
    Settings {
        batch_size: BATCH,
        stats: false,
        workers: Some(workers),
        seed: 11,
        cache_bytes: KEPT * dataset().records(CacheForm::Decoded).footprint(0),
        cache_form: CacheForm::Decoded,
        sampler,
        score: Some(ScoreKind::Loss),
        ..Settings::default()
    }
}

fn engine(sampler: SamplerSettings, workers: usize) -> Engine {
    Engine::new(dataset(), settings(sampler, workers)).unwrap()
}

/// What a run delivered: ids and weights, batch by batch.
pub(super) type Seen = Vec<(u64, usize, Vec<SampleId>, Vec<u32>)>;

fn score(engine: &Engine, ticket: &Ticket) {
    let loss = |&id: &SampleId| (id.wrapping_mul(2_654_435_761) >> 20) as f32 / 64.0 + ticket.epoch as f32;
    let losses: Vec<f32> = ticket.ids.iter().map(loss).collect();
    engine.apply_losses(ticket, &losses).unwrap();
}

/// Takes and scores batches of the next epoch, at most `most`; the rest of it is left.
pub(super) fn deliver(engine: &Engine, most: usize, seen: &mut Seen) -> u64 {
    let pass = engine.start_epoch().unwrap();
    for _ in 0..most {
        let batch = loop {
            match engine.next_batch(pass, Duration::from_secs(60)).unwrap() {
                Next::Pending => {}
                Next::End => return pass,
                Next::Batch(batch) => break batch,
            }
        };
        let held: Vec<u32> = bytemuck::pod_collect_to_vec(&batch.slot.data().unwrap()[..4 * batch.rows]);
        assert_eq!(*held, *batch.ticket.ids);
        let weights = batch.slot.weight().iter().map(|weight| weight.to_bits()).collect();
        seen.push((batch.ticket.epoch, batch.ticket.number, held, weights));
        score(engine, &batch.ticket);
    }
    pass
}

#[test]
fn one_seed_is_one_order_with_any_number_of_workers() {
    for sampler in both() {
        let mut expected: Option<Seen> = None;
        for workers in [0, 1, 2, 4] {
            let engine = engine(sampler, workers);
            let mut seen = Seen::new();
            for _ in 0..4 {
                deliver(&engine, usize::MAX, &mut seen);
            }
            let late = engine.stats().into_iter().find(|(name, _)| name == "scores_late_total").unwrap().1;
            assert_eq!(late, 0.0);
            assert_eq!(&seen, expected.get_or_insert_with(|| seen.clone()), "{} workers {workers}", sampler.name());
        }
        let seen = expected.unwrap();
        // The buffer turns over: after it is full a quarter of each batch is new, and all samples come within a few
        // epochs.
        let fresh: usize = seen
            .windows(2)
            .skip(10)
            .map(|two| {
                let before: HashSet<_> =
                    seen.iter().take_while(|batch| **batch != two[1]).flat_map(|b| &b.2[..]).collect();
                two[1].2.iter().filter(|id| !before.contains(id)).count()
            })
            .sum();
        assert!(fresh > 0, "nothing new came");
        let weighted = seen.iter().flat_map(|batch| &batch.3).any(|&weight| f32::from_bits(weight) != 1.0);
        assert_eq!(weighted, sampler.name() == "replay");
    }
}

#[test]
fn new_samples_come_in_blocks_if_asked_to() {
    let sampler = SamplerSettings::Echo(Echo { lag: LAG, block: Block::Of(8), ..Echo::default() });
    let (mut blocks, mut plain) = (Seen::new(), Seen::new());
    for (sampler, seen) in [(sampler, &mut blocks), (both()[0], &mut plain)] {
        let engine = engine(sampler, 0);
        for _ in 0..6 {
            deliver(&engine, usize::MAX, seen);
        }
    }
    // Of two samples in a row that were never delivered before, how many are neighbours.
    let neighbours = |seen: &Seen| {
        let mut before = HashSet::new();
        let fresh: Vec<SampleId> =
            seen.iter().flat_map(|batch| &batch.2).copied().filter(|&id| before.insert(id)).collect();
        assert_eq!(fresh.len(), SAMPLES as usize, "everything came");
        fresh.windows(2).filter(|pair| pair[1] == pair[0] + 1).count()
    };
    let (blocks, plain) = (neighbours(&blocks), neighbours(&plain));
    assert!(blocks >= SAMPLES as usize / 8 * 7 - 1 && plain < 20, "{blocks} in blocks, {plain} without");
}

#[test]
fn the_random_control_lets_no_score_through() {
    // The rows of one run whose losses are `factor` times the sample's number.
    let order = |random_scores: bool, factor: f32| {
        let engine = engine(SamplerSettings::Replay(Replay { lag: LAG, random_scores, ..Replay::default() }), 0);
        let mut order = Vec::new();
        for _ in 0..4 {
            let pass = engine.start_epoch().unwrap();
            while let Next::Batch(batch) = engine.next_batch(pass, Duration::from_secs(60)).unwrap() {
                let weights = batch.slot.weight().iter().map(|weight| weight.to_bits());
                order.push((batch.ticket.ids.to_vec(), weights.collect::<Vec<_>>()));
                let losses: Vec<f32> = batch.ticket.ids.iter().map(|&id| factor * id as f32).collect();
                engine.apply_losses(&batch.ticket, &losses).unwrap();
            }
        }
        order
    };
    let noise = order(true, 1.0);
    assert_eq!(noise, order(true, 0.0));
    assert_ne!(order(false, 1.0), order(false, 0.0), "scores choose where no noise stands for them");
    assert!(noise.iter().any(|(_, weights)| weights.iter().any(|&bits| f32::from_bits(bits) != 1.0)));
}

#[test]
fn a_resumed_run_is_the_run_that_went_on() {
    for sampler in both() {
        for (epoch, taken, workers) in [(0, 2, 0), (1, 5, 2), (2, 13, 4), (2, 0, 1)] {
            let mut whole = Seen::new();
            let reference = engine(sampler, 0);
            (0..4).for_each(|_| {
                deliver(&reference, usize::MAX, &mut whole);
            });
            let first = engine(sampler, workers);
            let mut parts = Seen::new();
            (0..epoch).for_each(|_| {
                deliver(&first, usize::MAX, &mut parts);
            });
            if taken > 0 {
                deliver(&first, taken, &mut parts);
            }
            let state = first.state().unwrap();
            let resumed = engine(sampler, 2);
            resumed.load_state(&state).unwrap();
            assert_eq!(resumed.state().unwrap(), state, "a state that nobody touched is itself");
            while parts.len() < whole.len() {
                deliver(&resumed, usize::MAX, &mut parts);
            }
            assert_eq!(parts, whole, "{} at batch {taken} of epoch {epoch}", sampler.name());
            // Not into a loader that has a buffer of its own.
            let error = reference.load_state(&state).unwrap_err();
            assert!(error.to_string().contains("can be loaded only before the first epoch"), "{error}");
        }
    }
}

#[test]
fn what_does_not_go_with_a_buffer_is_refused() {
    let refused = |settings: Settings, says: &str| {
        let error = Engine::new(dataset(), settings).err().unwrap();
        assert_eq!(error.kind(), crate::ErrorKind::Settings);
        assert!(error.to_string().contains(says), "{error}");
    };
    for sampler in both() {
        refused(Settings { policy: Some("lru".into()), ..settings(sampler, 0) }, "remove policy=\"lru\"");
        refused(Settings { cache_bytes: 0, ..settings(sampler, 0) }, "trains from the cache");
        assert_eq!(engine(sampler, 0).policy_name(), "fifo");
        let options = sampler.buffer().unwrap();
        let by_score = sampler.name() == "replay";
        assert_eq!(options, BufferOptions { fresh: 0.25, lag: u64::from(LAG), by_score, block: Block::default() });
        assert_eq!(Settings { workers: Some(64), ..settings(sampler, 0) }.window(64, 1), LAG as usize - 2);
    }
    refused(settings(SamplerSettings::Echo(Echo { fresh: 0.0, ..Echo::default() }), 0), "fresh is 0");
    refused(settings(SamplerSettings::Replay(Replay { fresh: 0.5, lag: 2, ..Replay::default() }), 0), "lag is 2");
    refused(settings(SamplerSettings::Echo(Echo { block: Block::Of(0), ..Echo::default() }), 0), "block is 0");
    let other = Settings { cache_bytes: settings(both()[0], 0).cache_bytes * 2, ..settings(both()[0], 0) };
    let error = Engine::new(dataset(), other).unwrap().load_state(&engine(both()[0], 0).state().unwrap()).unwrap_err();
    assert!(error.to_string().contains("cache_bytes"), "{error}");
}
