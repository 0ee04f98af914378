//! Where the truth lies: a dataset's bytes and labels, read on demand and by id.
//!
//! A [`Source`] knows how many samples it holds, what each is called and how large it is, and hands out their
//! *payloads*: the bytes as they are stored (an encoded image, or a row of an array) and the target beside them. It
//! keeps nothing: what stays in memory is the cache's decision.
//!
//! ```text
//! pieces.rs       what samples of several parts are made of      payload.rs  and what they are as bytes
//! fields.rs       rows of several arrays
//! probe.rs        the shape of a dataset's images
//! fingerprint.rs  what a dataset holds, in 32 characters
//! tiers.rs        counts of tiers before a source
//! decisions.rs    what was decided about reading, for the run's journal
//! ```

mod decisions;
mod fields;
mod fingerprint;
pub(crate) mod payload;
mod pieces;
mod probe;
mod tiers;

pub use decisions::Decisions;
pub(crate) use decisions::Listeners;
pub use fields::Fields;
pub use fingerprint::Fingerprint;
pub use payload::{apart, picture_and_tail};
pub use pieces::{Piece, PieceKind};
pub use probe::sizes;
pub use tiers::{CircuitNumbers, PoolNumbers};

use crate::error::Result;
use crate::tune::fetch_plan::{Ask, Plan};
pub use crate::types::SIZE_UNKNOWN;
use crate::types::{SampleId, TensorSpec};
use std::ops::{AddAssign, ControlFlow};
use std::sync::Arc;
use std::time::Duration;

/// The origin of a limit, for [`Source::limit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitBy {
    /// The program that opened the source.
    User,
    /// Another program, which divides the link among several runs.
    Outside,
}

/// What a source's payloads are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// Encoded images of any size and of any format that is read; [`Decoder`] makes pixels of them.
    Images {
        /// Whether a tail follows the image, and then the image's length (a `u64`).
        tailed: bool,
    },
    /// Rows of one shape, ready to travel: [`Payload::data`] has exactly the spec's bytes.
    Rows(TensorSpec),
    /// Rows of several arrays: [`Payload::data`] has exactly the bytes of all of them, and then the tail, if there is
    /// one.
    Fields(Fields),
}

impl Form {
    /// Whether samples have something of any length, which is delivered as it is.
    pub fn tailed(&self) -> bool {
        match self {
            Self::Images { tailed } => *tailed,
            Self::Rows(_) => false,
            Self::Fields(fields) => fields.tailed(),
        }
    }
}

/// One sample as it is stored, borrowed for the length of a sink call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload<'a> {
    /// The encoded image or the row.
    pub data: &'a [u8],
    /// `target_spec().bytes()` bytes, native endian.
    pub target: &'a [u8],
    /// Whether it lay ready: read ahead, or in a tier before its source. What lies in the source's own memory does so
    /// anyway ([`Source::in_memory`]).
    pub near: bool,
}

impl<'a> Payload<'a> {
    /// A sample that its source has brought.
    pub fn new(data: &'a [u8], target: &'a [u8]) -> Self {
        Self { data, target, near: false }
    }
}

/// What reading took of a store. All zero for what lies in memory or in files of this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests sent, those that were repeated included.
    pub requests: u64,
    /// Bytes that lay between samples which one request brought, and that nobody wanted.
    pub vain_bytes: u64,
    /// Samples that were not read, because they had been read ahead for the epoch before and were kept for this one.
    pub repeated_samples: u64,
    /// Their bytes.
    pub repeated_bytes: u64,
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, more: Self) {
        self.requests += more.requests;
        self.vain_bytes += more.vain_bytes;
        self.repeated_samples += more.repeated_samples;
        self.repeated_bytes += more.repeated_bytes;
    }
}

/// A dataset that can be read by id. Ids are `0..len()` and never change their meaning while the source is open;
/// opening the same data again gives the same ids.
///
/// An implementation must be callable from several threads at once, and must answer every position it was asked for,
/// until the sink breaks: a sample that cannot be read is an `Err` handed to the sink, never a panic and never a
/// position left out.
pub trait Source: Send + Sync {
    /// Number of samples.
    fn len(&self) -> usize;

    /// Whether there is no sample (a source refuses to open when empty, so this is false).
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The dataset in words for people: its URL without credentials or query, or what it is made of.
    fn describe(&self) -> String;

    /// Size of the stored sample in bytes, without its target; 0 for an id out of range. Where samples are not
    /// [`Self::sized`] it is [`SIZE_UNKNOWN`] until the sample is read, and does not change once it is known.
    fn payload_bytes(&self, id: SampleId) -> u64;

    /// Whether the size of every sample is known before it is read.
    fn sized(&self) -> bool {
        !self.form().tailed()
    }

    /// What the size of a sample will be about, target apart: what room is kept by while it is on its way. `None` where
    /// nothing is known of that, and such samples are not read ahead.
    fn expected_bytes(&self, id: SampleId) -> Option<u64> {
        self.sized().then(|| self.payload_bytes(id))
    }

    /// Sample `id` was delivered, and this is its payload. Where samples are not [`Self::sized`] this is when its size
    /// becomes known, and not when it is read: that may be at any time before.
    fn delivered(&self, _id: SampleId, _payload: &[u8]) {}

    /// What [`Self::payload_bytes`] and [`Self::tail_bytes`] said of a sample in the process that a run goes on from. It
    /// is known from now on, as if the sample had been delivered. Nothing where samples are [`Self::sized`].
    fn remember(&self, _id: SampleId, _payload_bytes: u32, _tail_bytes: u32) {}

    /// Of encoded images with a tail: the tail's size in bytes, known when the payload's is.
    fn tail_bytes(&self, _: SampleId) -> u64 {
        0
    }

    /// What a person would call the sample: a path, a member of a shard, a row.
    fn name(&self, id: SampleId) -> String;

    /// What [`Payload::data`] is.
    fn form(&self) -> &Form;

    /// Element type and shape of every target.
    fn target_spec(&self) -> &TensorSpec;

    /// What samples are made of, where that is more than [`Self::form`] and a target say. Parts in the tail lie there
    /// in this order.
    fn pieces(&self) -> &[Piece] {
        &[]
    }

    /// The sources it is made of, one after the other, if it is made of several.
    fn parts(&self) -> Option<&[Arc<dyn Source>]> {
        None
    }

    /// Class names, indexed by label; empty when labels are plain numbers.
    fn classes(&self) -> &[String];

    /// The label of every sample where the source knows them without reading samples.
    fn labels(&self) -> Option<&[i64]>;

    /// Whether samples lie in memory, so that nobody gains by waiting for another's fetch of the same one. Such a
    /// source may be asked for an id several times at once.
    fn in_memory(&self) -> bool {
        false
    }

    /// What the dataset holds, as a fingerprint: equal for the same data opened again, wherever it lies, and different
    /// for other data. A run's state carries it, so that it is not resumed on another dataset, whose ids mean other
    /// samples.
    ///
    /// This one covers number, form, names, sizes, classes and labels. Contents are not read.
    fn digest(&self) -> String {
        let mut digest = Fingerprint::new(self.len(), self.form(), self.target_spec(), self.classes());
        for id in 0..self.len() as SampleId {
            digest.add(self.name(id).as_bytes());
            digest.add(&self.payload_bytes(id).to_le_bytes());
        }
        digest.add(bytemuck::cast_slice(self.labels().unwrap_or_default()));
        digest.finish()
    }

    /// What a sample's bytes depend on, as a digest: the object they lie in as it was when it was indexed, and where in
    /// it. Two samples of one source have the same only if they have the same bytes, and what was kept of a sample
    /// under it may be delivered in its place. `None` where nothing tells two versions of an object apart.
    fn proof(&self, _: SampleId) -> Option<[u8; 16]> {
        None
    }

    /// What a disk tier before this source has counted since the dataset was opened; `None` without one.
    fn disk(&self) -> Option<lossfeed_disk::Numbers> {
        None
    }

    /// Microseconds up to the first byte of a store's last answers: half of them took at most the first number, 99 of
    /// 100 the second. `None` without a store, or before it has answered often enough.
    fn answers(&self) -> Option<(u64, u64)> {
        None
    }

    /// What the circuit before that tier has counted; `None` without one.
    fn circuit(&self) -> Option<CircuitNumbers> {
        None
    }

    /// Counts of a pool before this source since the dataset was opened, and of its circuit; `None` without one.
    fn pool(&self) -> Option<(PoolNumbers, CircuitNumbers)> {
        None
    }

    /// Counts of the node cache before this source, and of its circuit; `None` without one.
    fn node(&self) -> Option<(lossfeed_node::Numbers, CircuitNumbers)> {
        None
    }

    /// A run that draws by importance begins an epoch: the importance of every sample by id, NaN without a score. All
    /// processes of a run give it one name. Advice for tiers.
    fn rate(&self, _run: &str, _importances: &[f32]) {}

    /// What is decided about reading from now on is told there too, as long as it lives.
    fn tell(&self, _decisions: &Arc<Decisions>) {}

    /// Requests for what nobody needs yet ([`Self::fetch_by`]) that this source has in flight at most, as its link is
    /// now. 0: it makes none.
    fn requests_ahead(&self) -> usize {
        0
    }

    /// What a request costs beside the samples that it brings: bytes that the link, as it is now, would have brought
    /// meanwhile, and bytes that are read in vain. By this a sampler has neighbours wanted together, which come with one
    /// request. 0: samples come alone, or those of any order come together.
    fn request_bytes(&self) -> u64 {
        0
    }

    /// Whether bytes that turn out not to be a sample may come right when they are fetched again: they came over a
    /// network.
    fn remote(&self) -> bool {
        false
    }

    /// The time for fetching such bytes again, counted from the first fetch. They are fetched twice in any case.
    fn retry_timeout(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether samples are read from files of this machine, one after the other on the calling thread, so that several
    /// threads bring more where a read waits for its device. Such a source asks `stopped` of [`Self::fetch_by`] before
    /// each read, and hands to the sink what it has read when the answer is yes.
    fn in_turn(&self) -> bool {
        false
    }

    /// Sets the most bytes a second that are read of a store, from now on and for requests under way too; `None`: no
    /// limit. The lower of the user's limit and the one from outside holds. False if nothing is limited: samples in
    /// memory and in files of this machine are read at once, and of several stores each has a limit of its own.
    fn limit(&self, _bytes_per_s: Option<u64>, _by: LimitBy) -> bool {
        false
    }

    /// The samples `ids` do not decode, as they came last. Whoever keeps bytes between here and the truth lets go of
    /// them, so that the next fetch reads them anew.
    fn doubt(&self, _ids: &[SampleId]) {}

    /// Reads the samples `ids` (without duplicates, but see [`Self::in_memory`]). `sink(k, result)` is called exactly
    /// once for every position `k` of `ids`, in any order, on the calling thread; the payload lives until the sink
    /// returns. Once it has returned `Break` nobody wants the rest: the source stops as soon as it can and leaves the
    /// other positions unanswered.
    fn fetch(&self, ids: &[SampleId], sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>);

    /// The same, for sources that may wait long before they have anything to hand to the sink: they look at `stopped`
    /// meanwhile, which says what the sink would. The others need not care. Tells what it took.
    ///
    /// The samples may come together by requests of about `request_bytes` at most: who asks for many needs the first
    /// ones soon. `u64::MAX`: they are needed now. All else is asked for ahead of need, and as many requests are in
    /// flight for it as the link has use for; each may bring more of what `ids` name one directly behind the other.
    fn fetch_by(
        &self,
        _request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        if !stopped() {
            self.fetch(ids, sink);
        }
        Traffic::default()
    }

    /// Which of `ids` from position `first` on would come with the requests for those before it, so that asking for
    /// them too costs little more than their bytes. Positions, ascending. `request_bytes` as in [`Self::fetch_by`].
    fn along(&self, _ids: &[SampleId], _first: usize, _request_bytes: u64) -> Vec<usize> {
        Vec::new()
    }

    /// The samples of `ids`, needed in this order and all with room, that are asked for by a call of
    /// [`Self::fetch_by`] with requests of [`Ask::range_bytes`]. `None`: those that are urgent, and who comes
    /// [`Self::along`].
    fn plan(&self, _ids: &[SampleId], _call: Ask) -> Option<Plan> {
        None
    }
}
