//! Who matters more comes more often, unbiased.

use serde::{Deserialize, Serialize};

use super::{Order, Outlook, Sampler, mixed, tilt};
use crate::error::Result;

/// q ∝ floor + (1 − floor) × importance / mean importance over the rank's own samples, as many draws as it owns, by
/// systematic resampling; weights W/(N q), at most about 1/floor, mixed evenly over the epoch (`mixed.rs`). No sample
/// is worth more than [`MAX_GAIN`](super::MAX_GAIN) average ones, so none is drawn more often than that an epoch (but
/// for the rounding up of its mean). While nothing is scored: one shuffled pass.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Importance {
    /// Share of the chances that is spread evenly, in (0, 1]: 1 is a uniform order, near 0 trusts beliefs blindly.
    /// Default 0.2.
    pub floor: f32,
}

impl Default for Importance {
    fn default() -> Self {
        Self { floor: 0.2 }
    }
}

impl Sampler for Importance {
    fn name(&self) -> &'static str {
        "importance"
    }
    fn check(&self) -> Result<()> {
        tilt::check_floor("importance", self.floor)
    }
    fn draw(&self, outlook: &Outlook<'_>) -> Result<Order> {
        Ok(match tilt::gains(outlook, self.floor, |_, belief| belief) {
            Some(chances) => mixed::evenly(outlook, tilt::weighted_draws(outlook, chances)),
            None => tilt::first_pass(outlook),
        })
    }
}
