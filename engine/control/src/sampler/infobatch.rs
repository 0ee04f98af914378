//! InfoBatch (Qin et al., ICLR'24): part of the samples that are easier than the mean are left out, and those that stay
//! weigh more for it.
//!
//! Departures: an epoch is as long as any other. Where the paper saves steps, all samples come more often here, in the
//! proportion that it gives them. Weights are then the paper's (1/(1 − r) for the easy ones, 1 for the hard ones) times
//! the mean chance, so that they average 1 and the learning rate means the same. Which of the easy ones come is drawn
//! by systematic resampling. `short: true` undoes all of this.

use serde::{Deserialize, Serialize};

use super::{Order, Outlook, Sampler, percentile, tilt};
use crate::error::{Error, Result};
use crate::index::Standing;

/// q ∝ 1 − ratio for samples whose belief is below the mean, 1 for all others; weights W/(N q).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InfoBatch {
    /// The part of the easy samples that is left out, in [0, 1). Default 0.5.
    pub ratio: f32,
    /// Epochs of the run. The last of them are full; without it none is.
    pub epochs: Option<u64>,
    /// The part of the epochs after which they are full, in [0, 1]. Default 0.875.
    pub delta: f64,
    /// End the epoch after one pass, as published: fewer steps, no sample twice, weights 1/(1 − ratio) and 1. Of the
    /// whole epoch then the sum is unbiased, and not the mean. Default false.
    pub short: bool,
}

impl Default for InfoBatch {
    fn default() -> Self {
        Self { ratio: 0.5, epochs: None, delta: 0.875, short: false }
    }
}

impl InfoBatch {
    fn is_full(&self, epoch: u64) -> bool {
        self.epochs.is_some_and(|epochs| epoch as f64 >= self.delta * epochs as f64)
    }
}

impl Sampler for InfoBatch {
    fn name(&self) -> &'static str {
        "infobatch"
    }
    fn is_short(&self) -> bool {
        self.short
    }
    fn check(&self) -> Result<()> {
        if !(0.0..1.0).contains(&self.ratio) {
            return Err(Error::settings(format!(
                "infobatch: ratio is {}: give the part of the easy samples to leave out, 0 up to but not including 1",
                self.ratio
            )));
        }
        if !(0.0..=1.0).contains(&self.delta) {
            return Err(Error::settings(format!(
                "infobatch: delta is {}: give the part of the epochs after which they are full, 0 to 1",
                self.delta
            )));
        }
        Ok(())
    }
    fn draw(&self, outlook: &Outlook<'_>) -> Result<Order> {
        let scored = || outlook.owned.iter().filter_map(|&id| outlook.scores.importance(id)).map(f64::from);
        let count = scored().count();
        if count == 0 || self.is_full(outlook.epoch) {
            return Ok(tilt::first_pass(outlook));
        }
        let mean = scored().sum::<f64>() / count as f64;
        let chance = |&id| match outlook.scores.standing(id) {
            Standing::Scored(belief) if f64::from(belief) < mean => 1.0 - self.ratio,
            _ => 1.0,
        };
        let chances: Vec<f32> = outlook.owned.iter().map(chance).collect();
        if self.short {
            return Ok(percentile::kept(outlook, chances));
        }
        Ok(tilt::weighted_order(outlook, chances))
    }
}
