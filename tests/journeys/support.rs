//! A source whose every byte is known, with faults on request.

use lossfeed::engine::Dataset;
use lossfeed::error::{Error, Result};
use lossfeed::loader::{Batch, Next};
use lossfeed::source::{Facts, Form, ImageMode, Payload, Size, Source, Traffic};
use lossfeed::{Dtype, Engine, SampleId, Settings, TensorSpec};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

/// Bytes of one sample.
pub(crate) const SAMPLE_BYTES: usize = 48;

/// Sample `id` is `SAMPLE_BYTES` bytes of a pattern that no other sample has; its target is `id % 10`.
pub(crate) struct Patterned {
    facts: Facts,
    /// Samples that were read. Whoever has `shut` for writing keeps all others waiting.
    pub(crate) fetches: Arc<AtomicU64>,
    pub(crate) shut: Arc<RwLock<()>>,
    pub(crate) delay: Duration,
    pub(crate) bad: HashSet<SampleId>,
    /// Fetching one of these panics, once each, in threads whose names begin like this.
    pub(crate) explosive: Arc<Mutex<HashSet<SampleId>>>,
    pub(crate) explodes_in: &'static str,
    in_the_air: Mutex<HashSet<SampleId>>,
}

pub(crate) fn pattern(id: SampleId) -> [u8; SAMPLE_BYTES] {
    std::array::from_fn(|k| (id.wrapping_mul(2_654_435_761).rotate_left(k as u32 % 32) ^ k as u32) as u8)
}

impl Patterned {
    pub(crate) fn new(samples: usize) -> Self {
        Self {
            facts: Facts::new(
                samples,
                "patterned",
                Form::Rows(TensorSpec::new(Dtype::U8, [SAMPLE_BYTES])),
                TensorSpec::class_index(),
            ),
            fetches: Arc::default(),
            shut: Arc::default(),
            delay: Duration::ZERO,
            bad: HashSet::new(),
            explosive: Arc::default(),
            explodes_in: "",
            in_the_air: Mutex::default(),
        }
    }
}

impl Source for Patterned {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn name(&self, id: SampleId) -> String {
        format!("pattern-{id}")
    }
    fn size(&self, _: SampleId) -> Size {
        Size::known(SAMPLE_BYTES as u64)
    }
    fn fetch_by(
        &self,
        _: u64,
        _: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        {
            let mut air = self.in_the_air.lock().unwrap();
            for &id in ids {
                assert!(air.insert(id), "sample {id} is being fetched twice at one time");
            }
        }
        let _open = self.shut.read().unwrap();
        std::thread::sleep(self.delay);
        let here = std::thread::current().name().unwrap_or_default().starts_with(self.explodes_in);
        let explodes = here && ids.iter().any(|id| self.explosive.lock().unwrap().remove(id));
        if explodes {
            self.in_the_air.lock().unwrap().retain(|id| !ids.contains(id));
            panic!("it explodes on purpose");
        }
        // Backwards: sinks must not rely on an order.
        for (k, &id) in ids.iter().enumerate().rev() {
            self.fetches.fetch_add(1, Relaxed);
            self.in_the_air.lock().unwrap().remove(&id);
            let target = i64::from(id % 10).to_ne_bytes();
            let bytes = pattern(id);
            let answer = match self.bad.contains(&id) {
                true => Err(Error::sample("it is bad on purpose")),
                false => Ok(Payload::new(&bytes, &target)),
            };
            if sink(k, answer).is_break() {
                self.in_the_air.lock().unwrap().retain(|id| !ids[..k].contains(id));
                return Traffic::default();
            }
        }
        Traffic::default()
    }
}

pub(crate) fn settings(batch_size: usize) -> Settings {
    Settings { batch_size, stats: false, workers: Some(2), ..Settings::default() }
}

pub(crate) fn engine(source: Patterned, settings: Settings) -> Engine {
    let dataset = Dataset::new(Arc::new(source), ImageMode::Auto, None).unwrap();
    Engine::new(dataset, settings).unwrap()
}

/// The next batch, checked byte by byte against its own ids.
pub(crate) fn next(engine: &Engine, iteration: u64) -> Result<Option<Batch>> {
    for _ in 0..600 {
        match engine.next_batch(iteration, Duration::from_millis(100))? {
            Next::Pending => continue,
            Next::End => return Ok(None),
            Next::Batch(batch) => {
                check(engine, &batch);
                return Ok(Some(batch));
            }
        }
    }
    panic!("no batch within a minute");
}

pub(crate) fn check(engine: &Engine, batch: &Batch) {
    let layout = engine.layout();
    let bytes = batch.slot.bytes();
    for (row, &id) in batch.ticket.ids.iter().enumerate() {
        let at = row * SAMPLE_BYTES;
        assert_eq!(bytes[at..at + SAMPLE_BYTES], pattern(id), "row {row} does not hold sample {id}");
        let at = layout.target_offset() + 8 * row;
        assert_eq!(bytes[at..at + 8], i64::from(id % 10).to_ne_bytes());
        let at = layout.ids_offset() + 8 * row;
        assert_eq!(bytes[at..at + 8], i64::from(id).to_ne_bytes());
    }
}

/// All ids of the next epoch, batch by batch; every batch is handed to `each`.
pub(crate) fn epoch(engine: &Engine, mut each: impl FnMut(&Batch)) -> Vec<SampleId> {
    let iteration = engine.start_epoch().unwrap();
    let mut ids = Vec::new();
    while let Some(batch) = next(engine, iteration).unwrap() {
        ids.extend_from_slice(&batch.ticket.ids);
        each(&batch);
    }
    ids
}
