//! Samplers that train on a buffer which turns over: every batch takes some new samples from a shuffled stream of the
//! dataset, and uses again what the cache holds. What is used again is decided with the batch, not with the epoch.
//!
//! The promise is another one than that of an epoch's sampler: exact for the mean over the buffer at every batch, and
//! for the dataset's mean over complete stays, because every sample stays until the same number of others has come.

use serde::{Deserialize, Serialize};

use super::{Order, Outlook, Sampler, tilt};
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
}

impl Default for Echo {
    fn default() -> Self {
        Self { fresh: 0.25, lag: 64 }
    }
}

impl Default for Replay {
    fn default() -> Self {
        Self { fresh: 0.25, lag: 64, random_scores: false }
    }
}

impl Echo {
    /// How it runs.
    pub fn options(&self) -> BufferOptions {
        BufferOptions { fresh: self.fresh, lag: u64::from(self.lag), by_score: false }
    }
}

impl Replay {
    /// How it runs.
    pub fn options(&self) -> BufferOptions {
        BufferOptions { fresh: self.fresh, lag: u64::from(self.lag), by_score: true }
    }
}

impl BufferOptions {
    pub(super) fn check(&self, name: &str) -> Result<()> {
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
        Ok(())
    }
}

/// The stream: one shuffled pass over the owned samples after the other. The epoch to draw is the number of the pass.
impl Sampler for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }
    fn adaptive(&self) -> bool {
        false
    }
    fn draw(&self, outlook: &Outlook<'_>) -> Result<Order> {
        Ok(tilt::first_pass(outlook))
    }
}

/// As [`Echo`]'s.
impl Sampler for Replay {
    fn name(&self) -> &'static str {
        "replay"
    }
    fn adaptive(&self) -> bool {
        false
    }
    fn draw(&self, outlook: &Outlook<'_>) -> Result<Order> {
        Ok(tilt::first_pass(outlook))
    }
}
