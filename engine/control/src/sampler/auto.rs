//! The sampler that is chosen from what a loader knows of its run.
//!
//! What was measured decides (`benches/record`, CIFAR-10, the table in the README): with pictures that are shifted and
//! mirrored anew for every delivery, a buffer that turns over did best at few fetches; without, what is used again is
//! overfitted, and samples that hardly leave, drawn by their worth and their cost, did best.

use serde::{Deserialize, Serialize};

/// Chooses among `uniform`, `replay` and `cost-aware` when a run begins; see [`Auto::choose`].
///
/// A run under it begins without weights: every sample counts alike, whatever its score. It draws by score from the
/// first epoch on that begins after the training loop was seen to read a batch's weights, for without them such draws
/// would be biased. A loop that never reads them goes on as it began: `replay` as `echo`, `cost-aware`
/// as one shuffled pass an epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Auto {
    /// Whether chance changes every delivery of a sample, as augmentation does. `None`: as the loader's own transform
    /// has it. Say so if the training loop augments batches itself.
    pub augmented: Option<bool>,
}

/// What [`Auto::choose`] goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Circumstances {
    /// Bytes that the whole dataset takes in the cache.
    pub dataset_bytes: u64,
    /// Bytes of the cache; 0 for none.
    pub cache_bytes: u64,
    /// Whether the loader's own transform draws chance.
    pub augmented: bool,
}

/// The sampler that is chosen, with its default options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen {
    /// [`Uniform`](super::Uniform): nothing is gained by drawing unevenly.
    Uniform,
    /// [`Replay`](super::Replay).
    Replay,
    /// [`CostAware`](super::CostAware).
    CostAware,
}

impl Auto {
    /// `uniform` without a cache, or with one that holds everything. Else `replay` if deliveries vary by chance, and
    /// `cost-aware` if they do not.
    pub fn choose(&self, run: Circumstances) -> Chosen {
        if run.cache_bytes == 0 || run.dataset_bytes <= run.cache_bytes {
            Chosen::Uniform
        } else if self.augmented.unwrap_or(run.augmented) {
            Chosen::Replay
        } else {
            Chosen::CostAware
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_the_run_decides() {
        let run = |cache_bytes, augmented| Circumstances { dataset_bytes: 100, cache_bytes, augmented };
        let unsaid = Auto::default();
        assert_eq!(unsaid.choose(run(0, true)), Chosen::Uniform);
        assert_eq!(unsaid.choose(run(100, true)), Chosen::Uniform);
        assert_eq!(unsaid.choose(run(99, true)), Chosen::Replay);
        assert_eq!(unsaid.choose(run(99, false)), Chosen::CostAware);
        let said = |augmented| Auto { augmented: Some(augmented) };
        assert_eq!(said(true).choose(run(99, false)), Chosen::Replay);
        assert_eq!(said(false).choose(run(99, true)), Chosen::CostAware);
    }
}
