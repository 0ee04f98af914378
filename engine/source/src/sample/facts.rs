//! What a source says of itself, and what it is told.

use std::sync::Arc;
use std::time::Duration;

use crate::sample::{CircuitNumbers, Decisions, Form, Piece, PoolNumbers};
use crate::types::{SIZE_UNKNOWN, SampleId, TensorSpec};

/// What holds for all samples of a source, as long as it is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Their number, at least one.
    pub samples: usize,
    /// The dataset in words for people: its URL without credentials or query, or what it is made of.
    pub description: String,
    /// What [`Payload::data`](crate::sample::Payload::data) is.
    pub form: Form,
    /// Element type and shape of every target.
    pub target: TensorSpec,
    /// What samples are made of, where that is more than form and target say. Parts in the tail lie there in this
    /// order.
    pub pieces: Vec<Piece>,
    /// Class names, indexed by label; empty when labels are plain numbers.
    pub classes: Vec<String>,
    /// The size of every sample is known before it is read.
    pub sized: bool,
    /// Samples lie in memory, so that nobody gains by waiting for another's fetch of the same one. Such a source may be
    /// asked for an id several times at once.
    pub in_memory: bool,
    /// Samples are read from files of this machine, one after the other on the calling thread, so that several threads
    /// bring more where a read waits for its device. Such a source asks `stopped` of
    /// [`Source::fetch_by`](crate::sample::Source::fetch_by) before each read, and hands to the sink what it has read
    /// when the answer is yes.
    pub in_turn: bool,
    /// Bytes that turn out not to be a sample may come right when they are fetched again: they came over a network.
    pub remote: bool,
    /// The time for fetching such bytes again, counted from the first fetch. They are fetched twice in any case.
    pub retry_timeout: Duration,
}

impl Facts {
    /// Of a source of `samples` samples without classes, whose sizes are known unless they have a tail, and that is
    /// none of the other things.
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
    /// The stored sample; 0 for an id out of range. Where samples are not [`Facts::sized`] it is [`SIZE_UNKNOWN`] until
    /// the sample is read, and does not change once it is known.
    pub payload: u64,
    /// Of encoded images with a tail: the tail, known when the payload is.
    pub tail: u64,
    /// What the payload will be about: what room is kept by while it is on its way. `None` where nothing is known of
    /// that, and such samples are not read ahead.
    pub expected: Option<u64>,
}

impl Size {
    /// Of a sample without a tail whose size is known.
    pub fn known(payload: u64) -> Self {
        Self { payload, tail: 0, expected: Some(payload) }
    }

    /// It is not known, nor about how large.
    pub fn unknown() -> Self {
        Self { payload: SIZE_UNKNOWN, ..Self::default() }
    }
}

/// What a source's store and the tiers before it have counted since the dataset was opened; `None` without one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// A disk tier, and its circuit.
    pub disk: Option<(lossfeed_disk::Numbers, CircuitNumbers)>,
    /// A pool, and its circuit.
    pub pool: Option<(PoolNumbers, CircuitNumbers)>,
    /// The node cache, and its circuit.
    pub node: Option<(lossfeed_node::Numbers, CircuitNumbers)>,
    /// Microseconds up to the first byte of a store's last answers: half of them took at most the first number, 99 of
    /// 100 the second. `None` also before it has answered often enough.
    pub answers: Option<(u64, u64)>,
}

/// A link to a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Link {
    /// Requests for what nobody needs yet that are in flight at most. 0: none is made.
    pub requests_ahead: usize,
    /// What a request costs beside the samples that it brings: bytes that the link would have brought meanwhile, and
    /// bytes that are read in vain. By this a sampler has neighbours wanted together, which come with one request. 0:
    /// samples come alone, or those of any order come together.
    pub request_bytes: u64,
}

/// What a source is told. All of it is advice.
#[derive(Debug, Clone, Copy)]
pub enum News<'a> {
    /// A run that draws by importance begins an epoch: the importance of every sample by id, NaN without a score. All
    /// processes of a run give it one name. A tier may keep what is important.
    Importances(&'a str, &'a [f32]),
    /// These samples do not decode, as they came last. Whoever keeps bytes between here and the truth lets go of them,
    /// so that the next fetch reads them anew.
    Doubtful(&'a [SampleId]),
    /// What is decided about reading from now on goes there too, as long as it lives.
    Listener(&'a Arc<Decisions>),
}
