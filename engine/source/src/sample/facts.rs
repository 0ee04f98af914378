//! What a source says of itself, and what it is told.

use std::sync::Arc;
use std::time::Duration;

use crate::sample::{CircuitNumbers, Decisions, Form, Piece, PoolNumbers};
use crate::types::{SampleId, TensorSpec};

/// The facts that hold for all samples of a source while it is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Number of samples, at least one.
    pub samples: usize,
    /// The dataset in words for people: its URL without credentials or query, or what it is made of.
    pub description: String,
    /// The meaning of [`Payload::data`](crate::sample::Payload::data).
    pub form: Form,
    /// Element type and shape of every target.
    pub target: TensorSpec,
    /// The parts of each sample, where there are more than form and target say. Parts in the tail are in this order.
    pub pieces: Vec<Piece>,
    /// Class names, indexed by label; empty when labels are plain numbers.
    pub classes: Vec<String>,
    /// The size of every sample is known before it is read.
    pub sized: bool,
    /// Samples are in memory: to wait for another thread's fetch of one gains nothing. Such a source may be asked for
    /// an id several times at once.
    pub in_memory: bool,
    /// Samples are read from files of this machine, one after the other on the calling thread: several threads read
    /// more where a read waits for its device. Such a source asks `stopped` of
    /// [`Source::fetch_by`](crate::sample::Source::fetch_by) before each read, and hands to the sink what it has read
    /// when the answer is yes.
    pub in_turn: bool,
    /// Samples come over a network: bytes that are not a sample may be right when they are fetched again.
    pub remote: bool,
    /// The time for fetching such bytes again, counted from the first fetch. They are fetched twice in any case.
    pub retry_timeout: Duration,
}

impl Facts {
    /// Facts of a source without classes. Sizes are known unless samples have a tail, and all other flags are false.
    pub fn new(samples: usize, description: impl Into<String>, form: Form, target: TensorSpec) -> Self {
        Self {
            samples,
            description: description.into(),
            sized: !form.tailed(),
            form,
            target,
            pieces: Vec::new(),
            classes: Vec::new(),
            in_memory: false,
            in_turn: false,
            remote: false,
            retry_timeout: Duration::ZERO,
        }
    }
}

/// A sample's bytes, without its target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// The stored sample; 0 for an id out of range. Where samples are not [`Facts::sized`] it is unknown
    /// ([`SIZE_UNKNOWN`](crate::types::SIZE_UNKNOWN)) until the sample is delivered, and a delivery alone changes it.
    pub payload: u64,
    /// The tail after an encoded image, known when the payload is; else 0.
    pub tail: u64,
    /// An estimate of the payload: room for it is kept by this while it is on its way. `None`: there is no estimate,
    /// and the sample is not read ahead.
    pub expected: Option<u64>,
}

impl Size {
    /// A known size without a tail.
    pub fn known(payload: u64) -> Self {
        Self { payload, tail: 0, expected: Some(payload) }
    }
}

/// Counts of a source's store and of the tiers before it since the dataset was opened; `None` without one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// A disk tier, and its circuit breaker.
    pub disk: Option<(lossfeed_disk::Numbers, CircuitNumbers)>,
    /// A pool, and its circuit breaker.
    pub pool: Option<(PoolNumbers, CircuitNumbers)>,
    /// The node cache, and its circuit breaker.
    pub node: Option<(lossfeed_node::Numbers, CircuitNumbers)>,
    /// Microseconds up to the first byte of a store's last answers: half of them took at most the first number, 99 of
    /// 100 the second. `None` also before it has answered often enough.
    pub answers: Option<(u64, u64)>,
}

/// A link to a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Link {
    /// Most in-flight requests for samples that are not needed yet. 0: none is made.
    pub requests_ahead: usize,
    /// The price of a request beside the samples that it brings: bytes that the link would have brought meanwhile, and
    /// bytes that are read in vain. By this a sampler has neighbours wanted together, which come with one request. 0:
    /// samples come alone, or those of any order come together.
    pub request_bytes: u64,
}

/// Advice to a source.
#[derive(Debug, Clone, Copy)]
pub enum News<'a> {
    /// A run that draws by importance begins an epoch: the importance of every sample by id, NaN without a score. All
    /// processes of a run give it one name. A tier may keep what is important.
    Importances(&'a str, &'a [f32]),
    /// These samples do not decode, as they came last. Each tier forgets their bytes, so that the next fetch reads them
    /// again.
    Doubtful(&'a [SampleId]),
    /// A run begins. Bytes that were read while the dataset was opened and were not fetched yet may take so much
    /// memory.
    Room(u64),
    /// From now on, decisions about reading are told here too, as long as it lives.
    Listener(&'a Arc<Decisions>),
}
