//! What a tier between the cache and a source is: a place that may have a sample, and may keep one.
//!
//! A sample's way has tiers of three kinds. The *cache* is no [`Tier`]: what it has is decided with the batch, in the
//! order of the batches, and read by pins; nothing may come between. The last tier is the [`Source`](crate::sample::Source),
//! which has everything and says why not. What stands between them implements this trait, knows nothing of shapes,
//! names or labels, and is asked by [`Tiered`](crate::wrap::tiered::Tiered), which makes a source of the two.

use std::ops::ControlFlow;
use std::time::Duration;

use lossfeed_disk::{Flight, Whose};

use crate::tune::circuit::Outcome;
use crate::types::SampleId;

/// See the module's head.
///
/// An implementation must be callable from several threads at once. Bytes that it gives are those that it was offered,
/// or they are not given; what it does not give is fetched from the source. Nothing here may wait but [`Self::read`],
/// and that no longer than its caller says.
pub(crate) trait Tier: Send + Sync {
    /// What it is, in words for log lines.
    fn name(&self) -> &'static str;

    /// Whether it has a sample, as far as it knows without asking anybody.
    fn has(&self, id: SampleId) -> bool;

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

    /// A call that is to fetch samples, where other processes share the tier: see [`Self::claim`].
    fn flight(&self) -> Option<Flight> {
        None
    }

    /// Claims the fetches of `ids`, as [`Flight::claim`].
    fn claim(&self, _: &mut Flight, ids: &[SampleId], _stopped: &dyn Fn() -> bool) -> Vec<Whose> {
        vec![Whose::Ours; ids.len()]
    }

    /// A sample was fetched, which took `cost`. Advice: it may be kept.
    fn offer(&self, id: SampleId, cost: Duration, data: &[u8]);

    /// What was kept of these samples is not what it should be: it is not given again.
    fn forget(&self, ids: &[SampleId]);
}
