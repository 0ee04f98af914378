//! The sampler that is chosen from what a loader knows of its run.
//!
//! What was measured decides (`benches/record`, CIFAR-10, the tables in `benches/README.md`): with pictures that are
//! shifted and mirrored anew for every delivery, a buffer that turns over did best at few fetches; without, what is
//! used again is overfitted, and samples that hardly leave, drawn by their worth and their cost, did best.

use serde::{Deserialize, Serialize};

use super::{Block, Budget, EpochSize, Neighbours, Pace};
use crate::error::{Error, Result};
use crate::tune::LEAST_PART;

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
    /// has it; without one it is not known, and fetches are saved with more care ([`CAREFUL_KAPPA`]). Say so if the
    /// training loop augments batches itself.
    pub augmented: Option<bool>,
    /// The part of the rows that may be fetched once the cache is full, above 0 and at most 1: the fewer, the less is
    /// read and the further accuracy may fall. `None`: a quarter for `replay`, and for `cost-aware` what its κ comes to
    /// (a fifth and a little more on CIFAR-10).
    pub fetches: Option<f32>,
    /// The part of the time that training may wait for the source, above 0 and below 1. Before each epoch the part of
    /// the rows that may be fetched is then set by what the epoch before it was seen to wait ([`Pace`]), up to
    /// `fetches`, or to all of them: where the source is fast nothing is used twice without need. Orders then depend
    /// on how fast the source was; a state has what was set. `None`: `fetches` as it is.
    ///
    /// [`Pace`]: super::Pace
    pub stall: Option<f32>,
    /// The bytes that the run may read from its source, all ranks together, in [`Auto::epochs`] epochs. Before each
    /// epoch the part of the rows that may be fetched is set so that the rest of the budget lasts ([`Budget`]), up to
    /// `fetches`, and to what `stall` allows. At least a sixty-fourth of the rows is fetched, so a budget that is spent
    /// too soon is overdrawn by that. What a disk tier has costs nothing. A run without augmentation whose loop never
    /// reads weights trains on everything, whatever its budget. `None`: as much as the others say.
    ///
    /// [`Budget`]: super::Budget
    pub bytes: Option<u64>,
    /// How many epochs the run has: only `bytes` asks for it.
    pub epochs: Option<u32>,
    /// [`Replay::block`](super::Replay::block), where `replay` is chosen. `None`: [`Block::Auto`] where that saves
    /// requests and the labels of neighbours are known and mixed, else one by one.
    pub block: Option<Block>,
}

/// What [`Auto::choose`] goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Circumstances {
    /// Bytes that the whole dataset takes in the cache.
    pub dataset_bytes: u64,
    /// Bytes of a rank's cache; 0 for none.
    pub cache_bytes: u64,
    /// Whether the loader's own transform draws chance; `None` without one.
    pub augmented: Option<bool>,
    /// Labels of neighbours, if reading them together would save requests; else unknown.
    pub neighbours: Neighbours,
}

/// The sampler that is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Chosen {
    /// [`Uniform`](super::Uniform): nothing is gained by drawing unevenly.
    Uniform,
    /// [`Replay`](super::Replay), with so many new rows if that is said.
    Replay {
        /// [`Auto::fetches`].
        fetches: Option<f32>,
        /// [`Auto::block`].
        block: Block,
    },
    /// [`CostAware`](super::CostAware), with so many misses if that is said.
    CostAware {
        /// [`Auto::fetches`].
        fetches: Option<f32>,
        /// [`CostAware::kappa`](super::CostAware::kappa); `None`: its default.
        kappa: Option<f32>,
    },
}

/// What a fetch costs where nobody knows whether deliveries vary by chance. On CIFAR-10 it loses little in either case;
/// `cost-aware`'s default lost 2.1 to 2.8 points where they do, and `replay` 1.6 to 2.4 where they do not
/// (`benches/README.md`).
pub const CAREFUL_KAPPA: f32 = 16.0;

/// The part of the rows that may be fetched until something was seen.
const FIRST: f64 = 0.25;

impl Auto {
    /// What follows [`Auto::stall`] and [`Auto::bytes`], if there is one of them, in a run that is drawn by `chosen`;
    /// `None` under `uniform`, which has nothing to set.
    ///
    /// # Errors
    /// `Settings` if the one is no part of a run's time, or the other cannot be kept.
    pub fn pace(&self, chosen: Chosen, run: Circumstances, size: EpochSize) -> Result<Option<Pace>> {
        let budget = match (self.bytes, self.epochs) {
            (None, None) => None,
            (Some(bytes), Some(epochs)) => {
                let (least, reads_all) = match chosen {
                    Chosen::Replay { .. } => (LEAST_PART, false),
                    // Until scores are there every sample comes once.
                    Chosen::CostAware { .. } => (LEAST_PART, true),
                    // A cache that holds everything is filled once; without one everything is read each time.
                    Chosen::Uniform => (if run.cache_bytes > 0 { 0.0 } else { 1.0 }, true),
                };
                Some(Budget::new(bytes, epochs, size, least, reads_all)?)
            }
            (given, _) => {
                let (given, missing) = if given.is_some() { ("bytes", "epochs") } else { ("epochs", "bytes") };
                return Err(Error::settings(format!(
                    "auto: {given} is set without {missing}: a budget is so many bytes in so many epochs, so give both or none"
                )));
            }
        };
        if self.stall.is_none() && budget.is_none() {
            return Ok(None);
        }
        let pace = Pace::new(self.stall, FIRST, self.fetches.map_or(1.0, f64::from), budget)?;
        // Nothing can be set where every sample comes once.
        Ok((chosen != Chosen::Uniform).then_some(pace))
    }

    /// `uniform` without a cache, or with one that holds everything. Else `replay` if deliveries vary by chance,
    /// `cost-aware` if they do not, and the same with [`CAREFUL_KAPPA`] if that is not known. The number of ranks
    /// decides nothing, so that a run goes on with another one.
    pub fn choose(&self, run: Circumstances) -> Chosen {
        if run.cache_bytes == 0 || run.dataset_bytes <= run.cache_bytes {
            return Chosen::Uniform;
        }
        match self.augmented.or(run.augmented) {
            Some(true) => {
                let mixed = run.neighbours == Neighbours::Mixed;
                let block = self.block.unwrap_or(if mixed { Block::Auto } else { Block::default() });
                Chosen::Replay { fetches: self.fetches, block }
            }
            Some(false) => Chosen::CostAware { fetches: self.fetches, kappa: None },
            None => Chosen::CostAware { fetches: self.fetches, kappa: Some(CAREFUL_KAPPA) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_the_run_decides() {
        let run = |cache_bytes, augmented| Circumstances {
            dataset_bytes: 100,
            cache_bytes,
            augmented: Some(augmented),
            neighbours: Neighbours::Alike,
        };
        let (replay, cost_aware) = (
            Chosen::Replay { fetches: None, block: Block::default() },
            Chosen::CostAware { fetches: None, kappa: None },
        );
        let unsaid = Auto::default();
        assert_eq!(unsaid.choose(run(0, true)), Chosen::Uniform);
        assert_eq!(unsaid.choose(run(100, true)), Chosen::Uniform);
        assert_eq!(unsaid.choose(run(99, true)), replay);
        assert_eq!(unsaid.choose(run(99, false)), cost_aware);
        let said = |augmented| Auto { augmented: Some(augmented), ..unsaid };
        assert_eq!(said(true).choose(run(99, false)), replay);
        assert_eq!(said(false).choose(run(99, true)), cost_aware);
        let few = Auto { fetches: Some(0.1), block: Some(Block::Auto), ..unsaid };
        assert_eq!(few.choose(run(99, true)), Chosen::Replay { fetches: Some(0.1), block: Block::Auto });
        assert_eq!(few.choose(run(99, false)), Chosen::CostAware { fetches: Some(0.1), kappa: None });
        let among = |neighbours, block| {
            Auto { block, ..unsaid }.choose(Circumstances { neighbours, ..run(99, true) }) == replay
        };
        assert!(among(Neighbours::Unknown, None) && among(Neighbours::Alike, None) && !among(Neighbours::Mixed, None));
        assert!(among(Neighbours::Mixed, Some(Block::Of(1))) && !among(Neighbours::Alike, Some(Block::Of(64))));
        let unknown = Circumstances { augmented: None, ..run(99, true) };
        assert_eq!(unsaid.choose(unknown), Chosen::CostAware { fetches: None, kappa: Some(CAREFUL_KAPPA) });
        assert_eq!(said(true).choose(unknown), replay);
        assert_eq!(said(false).choose(unknown), cost_aware);
    }
}
