//! Where the truth lies: a dataset's bytes and labels, read on demand and by id.
//!
//! A [`Source`] knows how many samples it holds, what each is called and how large it is, and hands out their
//! *payloads*: the bytes as they are stored (an encoded image, or a row of an array) and the target beside them. It
//! keeps nothing: what stays in memory is the cache's decision.
//!
//! ```text
//! pieces.rs       what samples of several parts are made of      payload.rs  and what they are as bytes
//! fields.rs       rows of several arrays                         facts.rs    what a source says of itself
//! probe.rs        the shape of a dataset's images
//! fingerprint.rs  what a dataset holds, in 32 characters
//! tiers.rs        counts of tiers before a source
//! decisions.rs    what was decided about reading, for the run's journal
//! ```

mod decisions;
mod facts;
mod fields;
mod fingerprint;
pub(crate) mod payload;
mod pieces;
mod probe;
mod tiers;

pub use decisions::Decisions;
pub(crate) use decisions::Listeners;
pub use facts::{Counted, Facts, Link, News, Size};
pub use fields::Fields;
pub use fingerprint::Fingerprint;
pub use payload::{apart, picture_and_tail};
pub use pieces::{Piece, PieceKind};
pub use probe::{decoder_of, sizes};
pub use tiers::{CircuitNumbers, PoolNumbers};

use crate::error::Result;
use crate::tune::fetch_plan::{Ask, Plan};
pub use crate::types::SIZE_UNKNOWN;
use crate::types::{SampleId, TensorSpec};
use std::ops::{AddAssign, ControlFlow};
use std::sync::Arc;

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
    /// anyway ([`Facts::in_memory`]).
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

/// A dataset that can be read by id. Ids are `0..samples` and never change their meaning while the source is open;
/// opening the same data again gives the same ids.
///
/// An implementation must be callable from several threads at once, and must answer every position it was asked for,
/// until the sink breaks: a sample that cannot be read is an `Err` handed to the sink, never a panic and never a
/// position left out.
///
/// A source has [`Self::facts`], [`Self::name`], [`Self::size`] and [`Self::fetch_by`]; all else is for stores, for
/// rows whose size is not known, and for what stands before other sources.
pub trait Source: Send + Sync {
    /// The facts that hold for all samples.
    fn facts(&self) -> &Facts;

    /// The sample's name for people: a path, a member of a shard, a row. Empty for an id out of range.
    fn name(&self, id: SampleId) -> String;

    /// The sample's bytes, without its target.
    fn size(&self, id: SampleId) -> Size;

    /// Reads the samples `ids` (without duplicates, but see [`Facts::in_memory`]). `sink(k, result)` is called exactly
    /// once for every position `k` of `ids`, in any order, on the calling thread; the payload lives until the sink
    /// returns. Once it has returned `Break` the source stops as soon as it can and leaves the other positions
    /// unanswered. It stops likewise when `stopped` answers yes: a source that waits long for its store asks it
    /// meanwhile. Returns what the reading took.
    ///
    /// One request brings about `request_bytes` at most, so that the first of many samples come soon. `u64::MAX`: the
    /// samples are needed now. Any other number: they are asked for ahead of need, with as many requests in flight as
    /// the link has use for, and a request may also bring others of `ids` that follow directly.
    fn fetch_by(
        &self,
        request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic;

    /// The label of every sample where the source knows them without reading samples.
    fn labels(&self) -> Option<&[i64]> {
        None
    }

    /// The size of a sample is known from now on: it was delivered, or the run that this one goes on from knew it.
    /// `u32::MAX` and more is unknown. Does nothing where samples are [`Facts::sized`].
    fn remember(&self, _id: SampleId, _payload_bytes: u32, _tail_bytes: u32) {}

    /// The sources it is made of, one after the other, if it is made of several.
    fn parts(&self) -> Option<&[Arc<dyn Source>]> {
        None
    }

    /// What the dataset holds, as a fingerprint: equal for the same data opened again, wherever it lies, and different
    /// for other data. A run's state carries it, so that it is not resumed on another dataset, whose ids mean other
    /// samples.
    ///
    /// This one covers number, form, names, sizes, classes and labels. Contents are not read.
    fn digest(&self) -> String {
        let facts = self.facts();
        let mut digest = Fingerprint::of(facts);
        for id in 0..facts.samples as SampleId {
            digest.add(self.name(id).as_bytes());
            digest.add(&self.size(id).payload.to_le_bytes());
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

    /// Counts of its store and of the tiers before it since the dataset was opened.
    fn counted(&self) -> Counted {
        Counted::default()
    }

    /// The link to its store, as it is now.
    fn link(&self) -> Link {
        Link::default()
    }

    /// Sets the most bytes a second that are read of a store, from now on and for requests under way too; `None`: no
    /// limit. The lower of the user's limit and the one from outside holds. False if nothing is limited: samples in
    /// memory and in files of this machine are read at once, and of several stores each has a limit of its own.
    fn limit(&self, _bytes_per_s: Option<u64>, _by: LimitBy) -> bool {
        false
    }

    /// Something that may be of use to it, or to a tier before it.
    fn tell(&self, _: News<'_>) {}

    /// True if a fetch of the sample sends no request and does not wait: it is in this machine's memory.
    fn is_near(&self, _: SampleId) -> bool {
        false
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

/// What follows from the above, in short words.
impl dyn Source + '_ {
    /// Number of samples.
    #[allow(clippy::len_without_is_empty)] // a source without samples is refused
    pub fn len(&self) -> usize {
        self.facts().samples
    }

    /// See [`Facts::description`].
    pub fn describe(&self) -> &str {
        &self.facts().description
    }

    /// See [`Facts::form`].
    pub fn form(&self) -> &Form {
        &self.facts().form
    }

    /// See [`Facts::target`].
    pub fn target_spec(&self) -> &TensorSpec {
        &self.facts().target
    }

    /// See [`Facts::pieces`].
    pub fn pieces(&self) -> &[Piece] {
        &self.facts().pieces
    }

    /// See [`Facts::classes`].
    pub fn classes(&self) -> &[String] {
        &self.facts().classes
    }

    /// See [`Size::payload`].
    pub fn payload_bytes(&self, id: SampleId) -> u64 {
        self.size(id).payload
    }

    /// Sample `id` was delivered, and this is its payload. Where samples are not [`Facts::sized`] this is when its size
    /// becomes known, and not when it is read: that may be at any time before.
    pub fn delivered(&self, id: SampleId, payload: &[u8]) {
        let facts = self.facts();
        if facts.sized {
            return;
        }
        let tail = match facts.form {
            Form::Images { tailed: true } => payload::picture_and_tail(payload).map_or(0, |(_, tail)| tail.len()),
            _ => 0,
        };
        let [payload, tail] = [payload.len(), tail].map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        self.remember(id, payload, tail);
    }

    /// [`Source::fetch_by`] of samples that are needed now, to the end.
    pub fn fetch(&self, ids: &[SampleId], sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>) {
        self.fetch_by(u64::MAX, &|| false, ids, sink);
    }
}
