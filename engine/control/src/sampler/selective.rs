//! Selective-Backprop (Jiang et al., arXiv 1910.00762): train on the samples with the largest losses.
//!
//! The original computes every sample's loss and propagates back only some; its stale variant takes losses of up to
//! three epochs ago, and so can a sampler, which then fetches only those. Departures:
//! 1. the epoch that renews the losses trains on every sample, because a loss is only known of what is delivered;
//! 2. an epoch is as long as any other: where the original does less, this walks on into further passes, or draws by
//!    the same chances where those would be more than 128. `short: true` ends it after one pass;
//! 3. percentiles are among all of the rank's samples; its code takes them among the last 1,024 losses.

use serde::{Deserialize, Serialize};

use super::percentile::Passes;
use super::{Order, Outlook, Sampler, tilt};
use crate::error::{Error, Result};

/// Keeps a sample with chance percentile^β, its loss's percentile among the rank's samples. Biased towards hard samples
/// on purpose: no weight makes up for those left out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Selective {
    /// How much harder the hard samples are preferred, above 0 and at most 64. Default 3, the authors' code's: one
    /// sample in four.
    pub beta: f32,
    /// Every so many-th epoch trains on every sample once, which renews all losses; 1 makes all of them so. Default 3.
    pub stale: u64,
    /// End the other epochs after one pass, as published: fewer steps, no sample twice. Default false.
    pub short: bool,
}

impl Default for Selective {
    fn default() -> Self {
        Self { beta: 3.0, stale: 3, short: false }
    }
}

impl Selective {
    fn passes(&self) -> Passes {
        Passes { beta: self.beta }
    }
}

impl Sampler for Selective {
    fn name(&self) -> &'static str {
        "selective"
    }
    fn check(&self) -> Result<()> {
        self.passes().check("selective")?;
        if self.stale == 0 {
            return Err(Error::settings("selective: stale is 0: give 1 (every epoch renews all losses) or more"));
        }
        Ok(())
    }
    fn biased(&self) -> bool {
        true
    }
    fn is_short(&self) -> bool {
        self.short
    }
    fn draw(&self, outlook: &Outlook<'_>) -> Result<Order> {
        if outlook.epoch.is_multiple_of(self.stale) {
            return Ok(Order::unweighted(tilt::first_pass(outlook).ids));
        }
        if self.short {
            return Ok(Order::unweighted(self.passes().one(outlook)));
        }
        Ok(self.passes().epoch(outlook))
    }
}
