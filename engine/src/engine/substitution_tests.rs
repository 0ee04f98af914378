//! A policy that delivers other samples than those drawn: whatever follows a batch follows what it holds.

use super::{Dataset, Engine};
use crate::index::Standing;
use crate::loader::Next;
use crate::policy::{Needs, Policy, View};
use crate::sampler::{SamplerSettings, Uniform};
use crate::settings::{CacheForm, ScoreKind, Settings};
use crate::source::{Arrays, ImageMode};
use crate::types::{Dtype, SampleId, TensorSpec};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

const SAMPLES: u32 = 64;
const KEPT: usize = 12;

/// Fills the cache once; from then on delivers the next resident in place of whoever is not there.
#[derive(Default)]
struct Neighbour(VecDeque<SampleId>);

impl Policy for Neighbour {
    fn name(&self) -> &'static str {
        "neighbour"
    }
    fn needs(&self) -> Needs {
        Needs::SUBSTITUTES
    }
    fn hit(&mut self, _: SampleId, _: &View<'_>) {}
    fn place(&mut self, id: SampleId, view: &View<'_>, _: &mut Vec<SampleId>) -> bool {
        let fits = view.missing(id) == 0;
        self.0.extend(fits.then_some(id));
        fits
    }
    fn instead(&mut self, asked: SampleId, view: &View<'_>) -> Option<SampleId> {
        if self.0.len() < KEPT { None } else { view.residents.next(asked) }
    }
    fn weakest(&mut self, _: &View<'_>) -> Option<SampleId> {
        self.0.front().copied()
    }
    fn left(&mut self, id: SampleId) {
        self.0.retain(|&kept| kept != id);
    }
    fn metadata_bytes(&self) -> usize {
        self.0.capacity() * 4
    }
    fn check(&self, view: &View<'_>) -> Result<(), String> {
        if view.residents.count() == self.0.len() { Ok(()) } else { Err("another number of residents".into()) }
    }
}

/// Sample `id` is `id` in four bytes, and so is its label.
fn dataset() -> Dataset {
    let data: Vec<u8> = (0..SAMPLES).flat_map(u32::to_ne_bytes).collect();
    let target: Vec<u8> = (0..SAMPLES).flat_map(|id| i64::from(id).to_ne_bytes()).collect();
    let spec = TensorSpec::new(Dtype::U8, [4]);
    let source = Arrays::new(data, spec, target, TensorSpec::class_index(), SAMPLES as usize).unwrap();
    Dataset::new(Arc::new(source), ImageMode::Auto, None).unwrap()
}

#[test]
fn labels_scores_and_coverage_follow_the_delivered_sample() {
    for workers in [0, 2] {
        let records = dataset().records(CacheForm::Decoded);
        let settings = Settings {
            batch_size: 4,
            stats: false,
            workers: Some(workers),
            cache_bytes: KEPT as u64 * records.footprint(0),
            cache_form: CacheForm::Decoded,
            sampler: SamplerSettings::Uniform(Uniform::default()),
            score: Some(ScoreKind::Loss),
            ..Settings::default()
        };
        let engine = Engine::with_policy(dataset(), settings, Box::new(Neighbour::default())).unwrap();
        assert_eq!(engine.biased(), Some("neighbour"));
        let mut delivered: HashSet<SampleId> = HashSet::new();
        let pass = engine.start_epoch().unwrap();
        loop {
            let batch = match engine.next_batch(pass, Duration::from_secs(60)).unwrap() {
                Next::Batch(batch) => batch,
                Next::Pending => continue,
                Next::End => break,
            };
            let data: Vec<u32> = bytemuck::pod_collect_to_vec(&batch.slot.data().unwrap()[..4 * batch.rows]);
            assert_eq!(*data, *batch.ticket.ids, "rows hold the samples that the ticket names");
            delivered.extend(data);
            // Every other batch: the others are delivered without a score.
            if batch.ticket.number.is_multiple_of(2) {
                let losses: Vec<f32> = batch.ticket.ids.iter().map(|&id| id as f32).collect();
                engine.apply_losses(&batch.ticket, &losses).unwrap();
            }
        }
        // One pass draws each sample once, so whoever is missing was replaced.
        assert!(delivered.len() < SAMPLES as usize / 2, "{} of {SAMPLES} came", delivered.len());
        let counted = engine.stats().into_iter().find(|(name, _)| name == "distinct_epoch").unwrap().1;
        assert_eq!(counted as usize, delivered.len());
        let now = engine.feed.cache.snapshot();
        for id in 0..SAMPLES {
            match now.scores().standing(id) {
                Standing::Scored(belief) => assert!(delivered.contains(&id) && belief == id as f32),
                Standing::Tried => assert!(delivered.contains(&id), "{id} was drawn, and not delivered"),
                Standing::Unseen => assert!(!delivered.contains(&id), "{id} was delivered"),
                Standing::Failed => panic!("nothing fails"),
            }
        }
    }
}

/// The next batch's samples; `None` at the epoch's end.
fn next(engine: &Engine, pass: u64) -> Option<Vec<SampleId>> {
    loop {
        match engine.next_batch(pass, Duration::from_secs(60)).unwrap() {
            Next::Batch(batch) => {
                let losses: Vec<f32> = batch.ticket.ids.iter().map(|&id| (id % 7) as f32).collect();
                engine.apply_losses(&batch.ticket, &losses).unwrap();
                return Some(batch.ticket.ids.to_vec());
            }
            Next::Pending => {}
            Next::End => return None,
        }
    }
}

#[test]
fn a_resumed_epoch_delivers_who_is_owed_and_nobody_twice() {
    let mut settled = 0;
    for (policy, workers, held) in [("icache", 0, 0), ("icache", 2, 0), ("quiver", 0, 1), ("quiver", 2, 0)] {
        let records = dataset().records(CacheForm::Decoded);
        let settings = || Settings {
            batch_size: 4,
            stats: false,
            workers: Some(workers),
            cache_bytes: KEPT as u64 * records.footprint(0),
            cache_form: CacheForm::Decoded,
            policy: Some(policy.into()),
            sampler: SamplerSettings::Uniform(Uniform::default()),
            score: Some(ScoreKind::Loss),
            ..Settings::default()
        };
        let first = Engine::new(dataset(), settings()).unwrap();
        for _ in 0..3 {
            let pass = first.start_epoch().unwrap();
            while next(&first, pass).is_some() {}
        }
        let pass = first.start_epoch().unwrap();
        let batches: Vec<_> = (0..5).filter_map(|_| next(&first, pass)).collect();
        let mut delivered = batches[..5 - held].concat();
        let second = Engine::new(dataset(), settings()).unwrap();
        second.load_state(&first.state_held(held).unwrap()).unwrap();
        let pass = second.start_epoch().unwrap();
        let planned = second.clock.lock().current.as_ref().unwrap().plan().order.ids.to_vec();
        settled += usize::from(planned != first.clock.lock().current.as_ref().unwrap().plan().order.ids);
        while let Some(ids) = next(&second, pass) {
            delivered.extend(ids);
        }
        delivered.sort_unstable();
        assert!(delivered.into_iter().eq(0..SAMPLES), "{policy}, {workers} workers: each once");
    }
    assert!(settled >= 2, "nobody was owed: this proves nothing");
}
