//! What every epoch of one engine shares: where bytes come from, where they stay, where they go.

use crate::cache::Cache;
use crate::error::Error;
use crate::settings::{CacheForm, OnError};
use crate::source::{Decoder, Form, Source};
use crate::staging::{BatchLayout, SlotPool};
use crate::stats::Counters;
use crate::types::SampleId;
use lossfeed_kernels::image::ImageMaker;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A sample that could not be delivered, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadSample {
    /// Its id.
    pub id: SampleId,
    /// Its name at the source.
    pub name: String,
    /// What was wrong.
    pub reason: String,
}

/// Makes the rows of batches from decoded pixels.
pub struct Images {
    /// What it makes.
    pub maker: ImageMaker,
    /// Seed of the draws.
    pub seed: u64,
}

/// Bad samples kept by name; further ones are only counted.
const BAD_SAMPLES_LISTED: usize = 10_000;

/// See the module's head.
pub struct Feed {
    /// Engine number, in every ticket.
    pub engine: u64,
    /// Where the truth lies.
    pub source: Arc<dyn Source>,
    /// Image decoder; `None` for sources of plain rows.
    pub decoder: Option<Decoder>,
    /// Bytes of a decoded sample.
    pub decoded_bytes: usize,
    /// What is made of a decoded sample on its way into a row; `None`: nothing.
    pub images: Option<Images>,
    /// The cache.
    pub cache: Cache,
    /// Batch slots.
    pub pool: SlotPool,
    /// Counters of the stats page.
    pub counters: Arc<Counters>,
    /// Form of cached records.
    pub cache_form: CacheForm,
    /// What happens to bad samples.
    pub on_error: OnError,
    /// Whether every planned batch must come, whatever is bad: the ranks of a run step together.
    pub keeps_steps: bool,
    /// Whether cached samples stay where they are, for a device to read them there.
    pub in_place: bool,
    /// Samples that did.
    pub in_place_total: AtomicU64,
    pub(super) bad: Mutex<Vec<BadSample>>,
}

impl Feed {
    /// A feed from its components.
    #[allow(clippy::too_many_arguments)] // one call site; a builder would say the same twice
    pub fn new(
        engine: u64,
        source: Arc<dyn Source>,
        decoder: Option<Decoder>,
        decoded_bytes: usize,
        images: Option<Images>,
        cache: Cache,
        pool: SlotPool,
        counters: Arc<Counters>,
        cache_form: CacheForm,
        on_error: OnError,
        in_place: bool,
    ) -> Self {
        Self {
            engine,
            source,
            decoder,
            decoded_bytes,
            images,
            cache,
            pool,
            counters,
            cache_form,
            on_error,
            keeps_steps: false,
            in_place,
            in_place_total: AtomicU64::new(0),
            bad: Mutex::default(),
        }
    }

    /// Where things lie in a slot.
    pub fn layout(&self) -> &BatchLayout {
        self.pool.layout()
    }

    /// Whether cached records are decoded again on every use.
    pub(super) fn keeps_encoded(&self) -> bool {
        self.cache_form == CacheForm::Encoded && matches!(self.source.form(), Form::Images)
    }

    /// What a sample takes in the cache: its payload in the form it is kept, followed by its target.
    pub fn record_bytes(&self, id: SampleId) -> u64 {
        let payload = if self.keeps_encoded() { self.source.payload_bytes(id) } else { self.decoded_bytes as u64 };
        payload + self.layout().target_row_bytes() as u64
    }

    /// What happened to sample `id`, with the name that a person knows it by.
    pub(super) fn named(&self, id: SampleId, e: Error) -> Arc<Error> {
        let kind = e.kind();
        Arc::new(Error::new(kind, format!("sample {id} ({})", self.source.name(id))).because(e))
    }

    /// Lists a bad sample (once) and counts it.
    pub(super) fn report_bad(&self, id: SampleId, error: &Error) {
        self.counters.bad_samples_total.fetch_add(1, Relaxed);
        let mut bad = self.bad.lock();
        if bad.len() < BAD_SAMPLES_LISTED && !bad.iter().any(|b| b.id == id) {
            let sample = BadSample { id, name: self.source.name(id), reason: error.to_string() };
            tracing::warn!(id, name = %sample.name, reason = %sample.reason, "bad sample");
            bad.push(sample);
        }
    }

    /// The bad samples met so far, each once.
    pub fn bad_samples(&self) -> Vec<BadSample> {
        self.bad.lock().clone()
    }
}
