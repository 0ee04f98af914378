//! Who stays: cache policies, one file each.

mod belady;
mod fifo;
mod importance;
mod list;
mod lru;
mod minio;
mod shade;

pub use belady::Belady;
pub use fifo::Fifo;
pub use importance::Importance;
pub use lru::Lru;
pub use minio::MinIo;
pub use shade::Shade;

use crate::error::{Error, Result};
use crate::index::ScoreTable;
use crate::types::SampleId;

/// The names [`from_name`] knows.
pub const NAMES: [&str; 6] = ["lru", "fifo", "minio", "shade", "belady", "importance"];

/// The policy of that name, empty, for ids `0..samples`.
///
/// # Errors
/// `Settings` if there is no such policy.
pub fn from_name(name: &str, samples: usize) -> Result<Box<dyn Policy>> {
    Ok(match name {
        "lru" => Box::new(Lru::new(samples)),
        "fifo" => Box::new(Fifo::new(samples)),
        "minio" => Box::new(MinIo::default()),
        "shade" => Box::new(Shade::new(samples)),
        "belady" => Box::new(Belady::new(samples)),
        "importance" => Box::new(Importance::new(samples)),
        _ => {
            return Err(Error::settings(format!(
                "there is no cache policy {name:?}: choose one of {}",
                NAMES.join(", ")
            )));
        }
    })
}

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
    /// Reads what [`Policy::access`] and [`Policy::insert`] will need of `ids`, and does nothing with it: see
    /// [`Ledger::prefetch`](crate::ledger::Ledger::prefetch).
    fn prefetch(&self, _ids: &[SampleId]) {}
    /// Heap bytes of this policy's own state, for honest metadata accounting.
    fn metadata_bytes(&self) -> usize;
    /// Recounts this policy's state from scratch: it must hold exactly the `count` ids that `resident` answers true
    /// for. O(samples), for tests.
    fn check(&self, resident: &dyn Fn(SampleId) -> bool, count: usize) -> Result<(), String>;
}

/// The part of [`Policy::check`] that every policy shares.
fn check_members(
    ids: impl Iterator<Item = SampleId>,
    resident: &dyn Fn(SampleId) -> bool,
    count: usize,
) -> Result<(), String> {
    let mut ids: Vec<_> = ids.collect();
    ids.sort_unstable();
    let members = ids.len();
    ids.dedup();
    if ids.len() != members || members != count {
        return Err(format!("the policy holds {members} ids ({} distinct) of {count} residents", ids.len()));
    }
    match ids.into_iter().find(|&id| !resident(id)) {
        Some(id) => Err(format!("the policy holds {id}, which is no resident")),
        None => Ok(()),
    }
}
