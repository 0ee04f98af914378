//! What every epoch of one engine shares: where bytes come from, where they stay, where they go.

use super::timesheet::queued_time;
use super::{Beside, Images, ReadAhead, RecordSizes};
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::settings::OnError;
use crate::source::{Decoder, News, NodeOwner, Payload, Source, Traffic};
use crate::staging::{BatchLayout, SlotPool};
use crate::stats::Counters;
use crate::types::SampleId;
use lossfeed_sync::Mutex;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

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

/// Bad samples kept by name; further ones are only counted.
const BAD_SAMPLES_LISTED: usize = 10_000;

/// A list that many threads add to.
#[derive(Debug, Default)]
pub struct BadSamples(Mutex<Vec<BadSample>>);

/// What all passes of one engine share.
pub struct Feed {
    /// Engine number, in every ticket.
    pub engine: u64,
    /// Where the truth lies.
    pub source: Arc<dyn Source>,
    /// The owner of the node cache, in a run that has one.
    pub node: Option<Arc<NodeOwner>>,
    /// What is read before its batch is decided; `None`: nothing.
    pub read_ahead: Option<ReadAhead>,
    /// Image decoder; `None` for sources of plain rows.
    pub decoder: Option<Decoder>,
    /// What samples take in the cache, and in which form they are kept there.
    pub records: RecordSizes,
    /// What is made of an image on its way into a row; `None`: nothing.
    pub images: Option<Images>,
    /// Seed of the images' draws. It is set once more, between passes, in a run whose seed was left open.
    pub seed: AtomicU64,
    /// Moves the masks and boxes in tails; `None`: samples have none.
    pub beside: Option<Beside>,
    /// The cache.
    pub cache: Cache,
    /// Batch slots.
    pub pool: SlotPool,
    /// Counters of the stats page.
    pub counters: Arc<Counters>,
    /// What happens to bad samples.
    pub on_error: OnError,
    /// Whether every planned batch must come, whatever is bad: the ranks of a run step together.
    pub keeps_steps: bool,
    /// Batches that are tried in place of one in which nothing is good.
    pub stand_ins: usize,
    /// Whether cached samples stay where they are, for a device to read them there.
    pub in_place: bool,
    /// The bad samples met so far.
    pub bad: BadSamples,
}

impl Feed {
    /// Time for which the calling thread has had no processor, where the node cache's owner shares them out: so threads
    /// that wait for one are told from those that wait for samples. Zero elsewhere.
    pub(super) fn queued_time(&self) -> Duration {
        self.node.as_ref().map_or(Duration::ZERO, |_| queued_time())
    }

    /// Asks the node cache's owner for processors, if that is due. For a loader thread that has delivered a batch.
    pub(super) fn ask_owner(&self, stopped: &dyn Fn() -> bool) {
        if let Some(node) = &self.node {
            node.ask(stopped);
        }
    }

    /// Where things lie in a slot.
    pub fn layout(&self) -> &BatchLayout {
        self.pool.layout()
    }

    /// Whether cached records are decoded again on every use.
    pub(super) fn keeps_encoded(&self) -> bool {
        self.records.encoded()
    }

    /// Whether a sample's bytes go to several places.
    pub(super) fn scatters(&self) -> bool {
        self.records.tailed() || self.layout().fields().len() != 1
    }

    /// What a sample takes in the cache, see [`RecordSizes::bytes`].
    pub fn record_bytes(&self, id: SampleId) -> u64 {
        self.records.bytes(id)
    }

    /// Reads samples of a batch: from what was read ahead, and with [`Source::fetch_by`] what was not.
    pub(super) fn fetch_unless(
        &self,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        match &self.read_ahead {
            Some(ahead) => ahead.fetch_unless(&*self.source, stopped, ids, sink),
            None => self.source.fetch_by(u64::MAX, stopped, ids, sink),
        }
    }

    /// See [`ReadAhead::wait_for_start`].
    pub(super) fn wait_for_start(&self, first: bool, stopped: &dyn Fn() -> bool) {
        if let Some(ahead) = &self.read_ahead {
            ahead.wait_for_start(first, stopped);
        }
    }

    /// See [`News::Doubtful`]: also of what was read ahead.
    pub(super) fn doubt(&self, ids: &[SampleId]) {
        self.source.tell(News::Doubtful(ids));
        if let Some(ahead) = &self.read_ahead {
            ahead.doubt(ids);
        }
    }

    /// What happened to sample `id`, with the name that a person knows it by.
    pub(super) fn named(&self, id: SampleId, e: Error) -> Arc<Error> {
        let kind = e.kind();
        Arc::new(Error::new(kind, format!("sample {id} ({})", self.source.name(id))).because(e))
    }

    /// Lists a bad sample (once) and counts it.
    pub(super) fn report_bad(&self, id: SampleId, error: &Error) {
        self.counters.bad_samples_total.fetch_add(1, Relaxed);
        let mut bad = self.bad.0.lock();
        if bad.len() < BAD_SAMPLES_LISTED && !bad.iter().any(|b| b.id == id) {
            let sample = BadSample { id, name: self.source.name(id), reason: error.to_string() };
            tracing::warn!(id, name = %sample.name, reason = %sample.reason, "bad sample");
            bad.push(sample);
        }
    }

    /// The bad samples met so far, each once.
    pub fn bad_samples(&self) -> Vec<BadSample> {
        self.bad.0.lock().clone()
    }
}
