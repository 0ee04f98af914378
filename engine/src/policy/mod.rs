//! Who stays: cache policies, one file each.

use crate::index::ScoreTable;
use crate::types::SampleId;

/// A cache policy: it orders residents and says who gives way. It owns no byte and does not count: the
/// [`Ledger`](crate::ledger::Ledger) does, and calls it in this order.
///
/// For every access of the stream, in order: [`access`](Policy::access); on a miss, while there is no room,
/// [`victim`](Policy::victim) until there is room or it answers `None` (then every victim taken for this candidate is
/// put back with [`insert`](Policy::insert)); on admission [`insert`](Policy::insert). After a batch's accesses, its
/// scores come through [`rescore`](Policy::rescore). The implementation must keep exactly the residents it was told
/// of: `insert` adds, `victim` and `remove` take away, nothing else does.
pub trait Policy: Send {
    /// The name users type.
    fn name(&self) -> &'static str;
    /// `id` is being asked for; `resident` says whether this is a hit. Called for every access, before anything else.
    fn access(&mut self, id: SampleId, resident: bool);
    /// Takes out and returns the resident that gives way to `candidate`, or `None` to let the candidate pass through
    /// uncached.
    fn victim(&mut self, candidate: SampleId, scores: &ScoreTable) -> Option<SampleId>;
    /// Whether `candidate` may enter while there is room. Most policies take everything.
    fn admits(&mut self, _candidate: SampleId, _scores: &ScoreTable) -> bool {
        true
    }
    /// `id` becomes a resident.
    fn insert(&mut self, id: SampleId, scores: &ScoreTable);
    /// The resident `id` leaves for a reason outside the policy (its bytes never came, or could not be kept).
    fn remove(&mut self, id: SampleId);
    /// The belief about `id` (resident or not) is now `importance`.
    fn rescore(&mut self, _id: SampleId, _importance: f32) {}
    /// The accesses to come, in order: the rest of this epoch as far as it is planned. Replaces any earlier plan.
    fn plan(&mut self, _order: &[SampleId]) {}
    /// Heap bytes of this policy's own state, for honest metadata accounting.
    fn metadata_bytes(&self) -> usize;
}
