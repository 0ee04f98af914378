//! Importance-informed selection, the sampler of iCACHE (Chen et al., HPCA'23): easy samples are passed over.
//!
//! As published, a pass keeps a sample with chance percentile^β, its loss's percentile among the last 1,024 met (the
//! rule of Selective-Backprop, applied to losses of earlier epochs). The first `warm_up` epochs and every `reuse`-th
//! are full, and no weight corrects what is left out. The public code has β = 1, and on its command line values with
//! which no sample is ever passed over (`reuse` 1). Departures, of which `corrected: false` undoes the last two, and
//! `short: true` all but the second:
//! 1. an epoch is as long as any other, so that ranks step alike and trainings compare at equal steps: where the paper
//!    saves steps, this walks on and meets the hard samples again, or draws by the same chances where it would take
//!    more than 128 passes;
//! 2. percentiles are among all of the rank's samples;
//! 3. draws are made by systematic resampling: each sample comes as often as its chance says, rounded up or down;
//! 4. weights W/(N q) undo the tilt, and a floor keeps every chance above 0, so that the mean is unbiased.

use serde::{Deserialize, Serialize};

use super::percentile::{Passes, percentiles};
use super::{Order, Outlook, Sampler, tilt};
use crate::error::{Error, Result};

/// q ∝ floor + (1 − floor) × percentile^β, in epochs that are not full; weights W/(N q).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Iis {
    /// How much harder the hard samples are preferred, above 0 and at most 64. Default 1, which passes over half of
    /// the samples.
    pub beta: f32,
    /// Full epochs at the start. Default 5.
    pub warm_up: u64,
    /// Every so many-th epoch is full; 1 makes all of them so. Default 3.
    pub reuse: u64,
    /// Share of the chances that is spread evenly, in (0, 1]; weights are below its inverse. Default 0.1.
    pub floor: f32,
    /// Weigh the draws so that the mean is unbiased. Default true; false is what was published.
    pub corrected: bool,
    /// End the epoch after one pass, as published: fewer steps, no sample twice, no weights. Default false.
    pub short: bool,
}

impl Default for Iis {
    fn default() -> Self {
        Self { beta: 1.0, warm_up: 5, reuse: 3, floor: 0.1, corrected: true, short: false }
    }
}

impl Iis {
    fn passes(&self) -> Passes {
        Passes { beta: self.beta }
    }
    fn is_full(&self, epoch: u64) -> bool {
        epoch < self.warm_up || epoch.is_multiple_of(self.reuse)
    }
}

impl Sampler for Iis {
    fn name(&self) -> &'static str {
        "iis"
    }
    fn check(&self) -> Result<()> {
        self.passes().check("iis")?;
        tilt::check_floor("iis", self.floor)?;
        if self.reuse == 0 {
            return Err(Error::settings("iis: reuse is 0: give 1 (every epoch is full) or more"));
        }
        Ok(())
    }
    fn biased(&self) -> bool {
        !self.corrected || self.short
    }
    fn is_short(&self) -> bool {
        self.short
    }
    fn draw(&self, outlook: &Outlook<'_>) -> Result<Order> {
        if self.is_full(outlook.epoch) {
            return Ok(tilt::first_pass(outlook));
        }
        if self.short {
            return Ok(Order::unweighted(self.passes().one(outlook)));
        }
        if !self.corrected {
            return Ok(self.passes().epoch(outlook));
        }
        let Some(mut chances) = percentiles(outlook) else { return Ok(tilt::first_pass(outlook)) };
        chances.iter_mut().for_each(|c| *c = self.floor + (1.0 - self.floor) * c.powf(self.beta));
        Ok(tilt::weighted_order(outlook, chances))
    }
}
