//! What a tier between the cache and a source is: a place that may have a sample, and may keep one.
//!
//! A sample's way has tiers of three kinds. The *cache* is no [`Tier`]: what it has is decided with the batch, in the
//! order of the batches, and read by pins; nothing may come between. The last tier is the [`Source`](crate::sample::Source),
//! which has everything and says why not. What stands between them implements this trait, knows nothing of shapes,
//! names or labels, and is asked by [`Tiered`](crate::wrap::tiered::Tiered), which makes a source of the two.

use std::ops::ControlFlow;
use std::time::Duration;

use lossfeed_disk::{Numbers, Whose};

use crate::error::{Error, Result};
use crate::sample::{PoolNumbers, Source};
use crate::tune::circuit::Outcome;
use crate::tune::decided::Knob;
use crate::types::{SampleId, TensorSpec};

/// See the module's head.
///
/// An implementation must be callable from several threads at once. Bytes that it gives are those that it was offered,
/// or they are not given; what it does not give is fetched from the source. Nothing here may wait but [`Self::read`],
/// and that no longer than its caller says.
pub(crate) trait Tier: Send + Sync {
    /// A call that is to fetch samples, where other processes share the tier.
    type Flight;

    /// What it is, in words for log lines.
    fn name(&self) -> &'static str;

    /// Its counts.
    fn counted(&self) -> TierNumbers;

    /// Whether it has a sample, as far as it knows without asking anybody.
    fn has(&self, id: SampleId) -> bool;

    /// True if asking it for a sample may bring one, though it does not know.
    fn may_have(&self, id: SampleId) -> bool {
        self.has(id)
    }

    /// See [`Source::is_near`].
    fn is_near(&self, _: SampleId) -> bool {
        false
    }

    /// The source's mean time in µs for the samples that it gave, as recorded when they were kept; `None`: not known.
    fn fetched_in_us(&self) -> Option<f64> {
        None
    }

    /// Gives what it has of `ids`: `sink(k, data)` once for a position `k`, in any order, on the calling thread, until
    /// the sink breaks. Waits no longer in all than `patience` of the number of samples that have come so far, and looks
    /// at `stopped` meanwhile.
    fn read(
        &self,
        ids: &[SampleId],
        patience: &dyn Fn(usize) -> Duration,
        stopped: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(usize, &[u8]) -> ControlFlow<()>,
    ) -> Outcome;

    /// Begins such a call: see [`Self::claim`].
    fn flight(&self) -> Option<Self::Flight> {
        None
    }

    /// Claims the fetches of `ids`, as [`lossfeed_disk::Flight::claim`].
    fn claim(&self, _: &mut Self::Flight, ids: &[SampleId], _stopped: &dyn Fn() -> bool) -> Vec<Whose> {
        vec![Whose::Ours; ids.len()]
    }

    /// A sample was fetched by a call, which took `cost`. Advice: it may be kept.
    fn offer(&self, flight: Option<&mut Self::Flight>, id: SampleId, cost: Duration, data: &[u8]);

    /// What was kept of these samples is not what it should be: it is not given again.
    fn forget(&self, ids: &[SampleId]);

    /// See [`News::Importances`](crate::sample::News::Importances). Advice: a tier may keep what is important.
    fn rate(&self, _run: &str, _importances: &[f32]) {}
}

/// The numbers of a tier, by its kind.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TierNumbers {
    Disk(Numbers),
    #[cfg_attr(not(feature = "cloud"), allow(dead_code))]
    Pool(PoolNumbers),
    Node(lossfeed_node::Numbers),
}

impl TierNumbers {
    /// The knob of its circuit breaker.
    pub(crate) fn knob(&self) -> Knob {
        match self {
            Self::Disk(_) => Knob::Disk,
            Self::Pool(_) => Knob::Pool,
            Self::Node(_) => Knob::Node,
        }
    }
}

/// # Errors
/// `Settings` for a source whose samples no tier can keep: labels are not known without reading, sizes are not, or
/// nothing tells samples from their next version. `keyword` asked for the tier.
pub(crate) fn check_kept(source: &dyn Source, keyword: &str) -> Result<()> {
    let place = match keyword {
        "disk" => "on disk",
        "share" => "in the node cache",
        _ => "in a pool",
    };
    let known = match source.labels() {
        Some(_) => *source.target_spec() == TensorSpec::class_index(),
        None => *source.target_spec() == TensorSpec::no_target(),
    };
    // An empty sample has no proof, as it has no bytes.
    let some = (0..source.len() as SampleId).find(|&id| source.payload_bytes(id) > 0);
    if !source.facts().sized {
        return Err(Error::settings(format!(
            "{} cannot be kept {place}: the size of a row is not known before it was read; leave `{keyword}` out, or \
             pack it into tar shards",
            source.describe()
        )));
    }
    if !known || some.is_some_and(|id| source.proof(id).is_none()) {
        return Err(Error::settings(format!(
            "{} cannot be kept {place}: its store tells neither entity tags nor dates, so nothing would tell a \
             changed object from the one that was kept; leave `{keyword}` out",
            source.describe()
        )));
    }
    Ok(())
}
