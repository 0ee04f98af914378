//! Which rank may draw which samples.

use super::batches::share;
use crate::random::{Purpose, generator, shuffle};
use crate::types::SampleId;

/// The ids that `rank` owns, ascending. Over all ranks they are a partition of `0..samples`, the same in every epoch;
/// sizes differ by at most one, and the first `samples mod world_size` ranks have one more.
///
/// Seeded, not contiguous: a dataset sorted by class would give each rank its own classes. Fixed, so that a rank's
/// cache and its beliefs stay about the samples it draws. `rank` must be below `world_size`.
///
/// With a `block` above 1 a rank owns whole blocks of so many neighbours, as far as equal shares allow: all but the
/// two at the ends of its share.
pub fn owned_ids(samples: usize, seed: u64, rank: u32, world_size: u32, block: u32) -> Vec<SampleId> {
    if world_size <= 1 {
        return (0..samples as u32).collect();
    }
    let (count, block) = (samples as u32, block.max(1));
    let mut blocks: Vec<u32> = (0..count.div_ceil(block)).collect();
    shuffle(&mut blocks, &mut generator(seed, 0, 0, Purpose::Ownership));
    let of_block = |b: u32| b * block..(b * block).saturating_add(block).min(count);
    let shuffled = blocks.into_iter().flat_map(of_block);
    let mut owned = Vec::with_capacity(share(samples, rank, world_size));
    if block == 1 {
        owned.extend(shuffled.skip(rank as usize).step_by(world_size as usize));
    } else {
        let before = (0..rank).map(|other| share(samples, other, world_size)).sum();
        owned.extend(shuffled.skip(before).take(share(samples, rank, world_size)));
    }
    owned.sort_unstable();
    owned
}
