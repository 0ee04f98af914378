//! What a journal tells.

use std::sync::Arc;

use lossfeed_control::SampleId;
use lossfeed_control::control::Verdict;
use serde::{Deserialize, Serialize};

/// What is true of the whole run: the first line of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// The version of the format, at most [`Meta::FORMAT`].
    #[serde(rename = "lossfeed-journal")]
    pub format: u32,
    /// Samples of the dataset; ids are below it.
    pub samples: u64,
    /// What the cache may hold, in bytes.
    pub capacity_bytes: u64,
    /// The cache policy's name.
    pub policy: String,
    /// How much of an old belief a new score leaves, as in the run's score table.
    pub smoothing: f32,
    /// Everything else that a reader may want to know: sampler, seed, batch size, ranks, versions.
    #[serde(default)]
    pub settings: serde_json::Map<String, serde_json::Value>,
}

impl Meta {
    /// The version that this crate writes. It reads those before it too: version 1 has neither [`Event::Sampler`] nor
    /// [`Event::Weights`], version 2 no [`Event::Io`].
    pub const FORMAT: u32 = 3;

    /// The run's description, with no further settings.
    pub fn new(samples: u64, capacity_bytes: u64, policy: impl Into<String>, smoothing: f32) -> Self {
        Self {
            format: Self::FORMAT,
            samples,
            capacity_bytes,
            policy: policy.into(),
            smoothing,
            settings: Default::default(),
        }
    }
}

/// One row of a decided batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// The sample that was delivered.
    pub id: SampleId,
    /// The sample that the sampler chose; the weight belongs to this draw.
    pub drawn: SampleId,
    /// What the cache did.
    pub verdict: Verdict,
    /// What the delivered sample takes in the cache; 0: that was not known before it was read, and it was not kept.
    pub bytes: u64,
    /// The weight of the draw.
    pub weight: f32,
}

/// One scored sample. What was not measured is NaN.
#[derive(Debug, Clone, Copy)]
pub struct Scored {
    /// The sample.
    pub id: SampleId,
    /// What the score table was told.
    pub score: f32,
    /// The loss.
    pub loss: f32,
    /// The norm of the gradient.
    pub gradient_norm: f32,
}

impl PartialEq for Scored {
    /// Bit for bit, except that one NaN is like another: they are written alike.
    fn eq(&self, other: &Self) -> bool {
        let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        self.id == other.id
            && same(self.score, other.score)
            && same(self.loss, other.loss)
            && same(self.gradient_norm, other.gradient_norm)
    }
}

/// One call of the books. The order of events is the order of the calls.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A pass over an epoch begins.
    Begin {
        /// The epoch.
        epoch: u64,
        /// Its first batch: not 0 where a run goes on in the middle.
        step: u32,
        /// What the policy was told is to come. Empty where it does not ask: the decisions themselves tell it to a
        /// reader.
        plan: Arc<[SampleId]>,
    },
    /// A batch was decided.
    Decide {
        /// The epoch.
        epoch: u64,
        /// The batch's number in it.
        step: u32,
        /// In the order of the accesses.
        rows: Vec<Row>,
    },
    /// Scores arrived, of batch `step`, one call for all of them.
    Learn {
        /// The epoch of the batch.
        epoch: u64,
        /// The batch's number in it.
        step: u32,
        /// In the order in which they were recorded.
        rows: Vec<Scored>,
    },
    /// These were to be kept, and are not.
    Cancel(Vec<SampleId>),
    /// Whether samples could be read (`true`) or not.
    Read(Vec<(SampleId, bool)>),
    /// These were delivered, and no score came.
    Tried(Vec<SampleId>),
    /// What is believed at the start of a resumed run.
    Believe(Vec<(SampleId, f32)>),
    /// The orders of the passes to come are drawn by this sampler: its name and options, as `lossfeed replay --sampler`
    /// reads them. Told at the borders of epochs, where a run follows what it fetches or waits for.
    Sampler(String),
    /// Whether the orders of the passes to come use weights. Told where that was left to be found out.
    Weights(bool),
    /// Reading goes otherwise from here on. It changes when samples come, and never which.
    Io {
        /// The epoch under way.
        epoch: u64,
        /// The batch that was to be delivered next.
        step: u32,
        /// What was set otherwise, by the name that `lossfeed_control::tune::Knob` has; a later version may know others.
        knob: String,
        /// To what it was set before.
        before: u64,
        /// To what it is set.
        now: u64,
        /// Why, in words.
        why: String,
    },
    /// So many rows are missing here.
    Lost(u64),
}

impl Event {
    /// Its name in the file.
    pub fn name(&self) -> &'static str {
        match self {
            Event::Begin { .. } => "begin",
            Event::Decide { .. } => "decide",
            Event::Learn { .. } => "learn",
            Event::Cancel(_) => "cancel",
            Event::Read(_) => "read",
            Event::Tried(_) => "tried",
            Event::Believe(_) => "believe",
            Event::Sampler(_) => "sampler",
            Event::Weights(_) => "weights",
            Event::Io { .. } => "io",
            Event::Lost(_) => "lost",
        }
    }
    /// Its rows.
    pub fn rows(&self) -> usize {
        match self {
            Event::Begin { plan, .. } => plan.len(),
            Event::Decide { rows, .. } => rows.len(),
            Event::Learn { rows, .. } => rows.len(),
            Event::Cancel(ids) | Event::Tried(ids) => ids.len(),
            Event::Read(rows) => rows.len(),
            Event::Believe(rows) => rows.len(),
            Event::Sampler(_) | Event::Weights(_) | Event::Io { .. } | Event::Lost(_) => 0,
        }
    }
    /// About what it takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        std::mem::size_of::<Self>() + self.rows() * std::mem::size_of::<Row>()
    }
}
