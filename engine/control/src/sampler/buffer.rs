//! Samplers that train on a buffer which turns over: every batch takes some new samples from a shuffled stream of the
//! dataset, and uses again what the cache holds. What is used again is decided with the batch, not with the epoch.
//!
//! The promise is another one than that of an epoch's sampler: for the mean over the buffer at every batch, and for the
//! dataset's mean over complete stays, because every sample stays until the same number of others has come. Both are
//! exact for scores that do not follow from the draws. Replays by score are spread evenly over time
//! (`control/buffer/spread.rs`), which takes most of the luck out of what a sample weighs over its stay; where a score
//! falls because its sample was just drawn, that sample weighs up to four per cent too little.

use serde::{Deserialize, Serialize};

use super::{Block, Blocks, Order, Outlook, Sampler, tilt};
use crate::error::{Error, Result};

/// How a buffer sampler runs, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BufferOptions {
    /// The part of a batch that comes from the stream, above 0 and at most 1.
    pub fresh: f64,
    /// A batch is decided with the scores of the batches this many before it. At least 3.
    pub lag: u64,
    /// Whether scores choose what is used again.
    pub by_score: bool,
    /// How many neighbours come from the stream together.
    pub block: Block,
}

/// Data echoing (Choi et al. 2019) over the cache: what is used again comes in passes without replacement. No
/// weights, no scores.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Echo {
    /// The part of a batch that is new, above 0 and at most 1. Default 0.25: a sample is used 4 times while it stays.
    pub fresh: f64,
    /// How many batches pass until a batch's failures count. At least 3, and 2 more than the batches in preparation.
    /// Default 64.
    pub lag: u32,
    /// How many neighbouring samples are new together, so that a source reads them with one request (CorgiPile, Xu et
    /// al. 2022). Default 1. The samples that are new in a batch are then neighbours: where neighbours are alike, as in
    /// a dataset sorted by class, mix it first or leave this at 1. `auto`: as many as make a request cost a quarter of
    /// what its bytes do, up to 64, looked at before each epoch and changed between passes over the dataset
    /// ([`Blocks`]). Orders then depend on what requests were seen to cost; a state has what was found.
    ///
    /// [`Blocks`]: super::Blocks
    pub block: Block,
}

/// The same, but samples that matter more are used again more often: chance ∝ 0.2 + 0.8 × importance / mean
/// importance over the buffer, weight 1 over (residents × chance).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Replay {
    /// As [`Echo::fresh`].
    pub fresh: f64,
    /// How many batches pass until a batch's scores count, so that one seed gives one order with any number of
    /// threads. At least 3, and 2 more than the batches in preparation. Default 64.
    pub lag: u32,
    /// Replaces every score by noise fixed by (seed, id), as [`CostAware::random_scores`](super::CostAware) does: the
    /// control that tells what scores are worth here. A live engine keeps the noise in its score table.
    pub random_scores: bool,
    /// As [`Echo::block`].
    pub block: Block,
}

impl Default for Echo {
    fn default() -> Self {
        Self { fresh: 0.25, lag: 64, block: Block::default() }
    }
}

impl Default for Replay {
    fn default() -> Self {
        Self { fresh: 0.25, lag: 64, random_scores: false, block: Block::default() }
    }
}

impl Echo {
    /// How it runs.
    pub fn options(&self) -> BufferOptions {
        BufferOptions { fresh: self.fresh, lag: u64::from(self.lag), by_score: false, block: self.block }
    }
}

impl Replay {
    /// How it runs.
    pub fn options(&self) -> BufferOptions {
        BufferOptions { fresh: self.fresh, lag: u64::from(self.lag), by_score: true, block: self.block }
    }
}

impl BufferOptions {
    fn check(&self, name: &str) -> Result<()> {
        if !(self.fresh > 0.0 && self.fresh <= 1.0) {
            return Err(Error::settings(format!(
                "{name}: fresh is {}: give the part of a batch that is new, above 0 and at most 1",
                self.fresh
            )));
        }
        if !(3..=65_536).contains(&self.lag) {
            return Err(Error::settings(format!(
                "{name}: lag is {}: give the batches that pass until scores count, 3 to 65536",
                self.lag
            )));
        }
        self.block.check(name)
    }
}

/// The stream: one shuffled pass over the owned samples after the other. The epoch to draw is the number of the pass.
impl Sampler for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }
    fn buffer(&self) -> Option<BufferOptions> {
        Some(self.options())
    }
    fn check(&self) -> Result<()> {
        self.options().check("echo")
    }
    fn adaptive(&self) -> bool {
        false
    }
    fn draw(&self, outlook: &Outlook<'_>) -> Result<Order> {
        Ok(tilt::pass_in_blocks(outlook, Blocks::new(self.block).of(outlook.epoch)))
    }
}

/// As [`Echo`]'s.
impl Sampler for Replay {
    fn name(&self) -> &'static str {
        "replay"
    }
    fn buffer(&self) -> Option<BufferOptions> {
        Some(self.options())
    }
    fn random_scores(&self) -> bool {
        self.random_scores
    }
    fn check(&self) -> Result<()> {
        self.options().check("replay")
    }
    fn adaptive(&self) -> bool {
        false
    }
    fn draw(&self, outlook: &Outlook<'_>) -> Result<Order> {
        Ok(tilt::pass_in_blocks(outlook, Blocks::new(self.block).of(outlook.epoch)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::ScoreTable;
    use proptest::prelude::*;

    fn stream(owned: &[u32], block: u32, epoch: u64) -> Order {
        let scores = ScoreTable::new(0, 0.0);
        let outlook = Outlook {
            owned,
            samples: 400,
            epoch,
            seed: 5,
            rank: 0,
            world_size: 1,
            scores: &scores,
            resident: &|_| false,
        };
        Echo { block: Block::Of(block), ..Echo::default() }.draw(&outlook).unwrap()
    }

    proptest! {
        #[test]
        fn blocks_come_whole_and_everything_comes_once(
            owned in prop::collection::btree_set(0..400u32, 1..400),
            block in prop_oneof![1..70u32, Just(u32::MAX)],
            epoch in 0..4u64,
        ) {
            let owned: Vec<u32> = owned.into_iter().collect();
            let order = stream(&owned, block, epoch);
            let mut sorted = order.ids.clone();
            sorted.sort_unstable();
            prop_assert_eq!(&sorted, &owned);
            prop_assert_eq!(order.weights, vec![owned.len() as f32 / 400.0; owned.len()]);
            // The first of every block is followed by the rest of it, once the cut one is put together.
            let mut ids = order.ids;
            let cut = ids.iter().take_while(|&id| id / block == ids[0] / block).count();
            if ids[0] / block == ids[ids.len() - 1] / block {
                ids.rotate_left(cut);
            }
            let mut rest = ids.as_slice();
            while let Some(first) = rest.first() {
                let of_block: Vec<u32> = owned.iter().copied().filter(|id| id / block == first / block).collect();
                let whole = rest.starts_with(&of_block) || of_block.len() == owned.len();
                prop_assert!(block == 1 || whole, "{:?} does not begin with {:?}", rest, of_block);
                rest = &rest[if block == 1 { 1 } else { of_block.len() }..];
            }
        }
    }

    /// Every place of a pass is as likely any sample's, also where blocks are of several sizes: within six standard errors.
    #[test]
    fn no_place_of_a_pass_belongs_to_some_samples() {
        let (owned, passes) = ([0, 1, 2, 3, 4, 5, 6, 9, 12, 13, 14, 15, 16], 40_000u32);
        for block in [1, 2, 4, 7, 400] {
            let mut times = [[0u32; 17]; 13];
            for pass in 0..passes {
                stream(&owned, block, u64::from(pass))
                    .ids
                    .iter()
                    .zip(&mut times)
                    .for_each(|(&id, of)| of[id as usize] += 1);
            }
            let mean = f64::from(passes) / owned.len() as f64;
            for (place, of) in times.iter().enumerate() {
                for &id in &owned {
                    let off = (f64::from(of[id as usize]) - mean).abs() / mean.sqrt();
                    assert!(
                        off < 6.0,
                        "block {block}: sample {id} at place {place}: {} times of {mean:.0}",
                        of[id as usize]
                    );
                }
            }
        }
    }

    #[test]
    fn blocks_are_shuffled_anew_in_every_pass() {
        let owned: Vec<u32> = (0..400).collect();
        let passes: Vec<Vec<u32>> = (0..3).map(|epoch| stream(&owned, 8, epoch).ids).collect();
        assert!(passes[0] != passes[1] && passes[1] != passes[2]);
        assert!(passes.iter().all(|ids| !ids.is_sorted()));
    }
}
