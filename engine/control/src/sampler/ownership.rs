//! Which rank may draw which samples.

use super::batches::share;
use crate::random::{Purpose, generator, shuffle};
use crate::types::SampleId;

/// The ids that `rank` owns, ascending. Over all ranks they are a partition of `0..samples`, the same in every epoch;
/// sizes differ by at most one, and the first `samples mod world_size` ranks have one more.
///
/// Seeded, not contiguous: a dataset sorted by class would give each rank its own classes. Fixed, so that a rank's
/// cache and its beliefs stay about the samples it draws. `rank` must be below `world_size`.
pub fn owned_ids(samples: usize, seed: u64, rank: u32, world_size: u32) -> Vec<SampleId> {
    let mut ids: Vec<SampleId> = (0..samples as u32).collect();
    if world_size > 1 {
        shuffle(&mut ids, &mut generator(seed, 0, 0, Purpose::Ownership));
        let mut owned = Vec::with_capacity(share(samples, rank, world_size));
        owned.extend(ids.into_iter().skip(rank as usize).step_by(world_size as usize));
        owned.sort_unstable();
        return owned;
    }
    ids
}
