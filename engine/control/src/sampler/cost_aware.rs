//! Least gradient variance per byte fetched.
//!
//! Drawing i with chance q_i and weight 1/(N q_i), the estimate's second moment is Σ g_i²/q_i (over N²), g_i bounding
//! the gradient's norm, and a draw costs Σ q_i c_i. By Cauchy–Schwarz their product is least at q_i ∝ g_i/√c_i: what is
//! in the cache may be drawn more often, and its smaller weight pays for it.

use serde::{Deserialize, Serialize};

use super::tilt::{self, random_belief};
use super::{Order, Outlook, Sampler, mixed};
use crate::error::{Error, Result};

/// q ∝ g/√c over the rank's own samples: g as in [`Importance`](super::Importance), c = 1 for residents and κ for the
/// rest. Systematic resampling, weights W/(N q), mixed evenly over the epoch (`mixed.rs`). No sample's share is above
/// [`MAX_GAIN`](super::MAX_GAIN) × √κ over the number of samples. While nothing is scored: one shuffled pass.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CostAware {
    /// Share of the gains that is spread evenly, in (0, 1]. Default 0.2.
    pub floor: f32,
    /// What fetching a sample costs, in uses of a resident; at least 1. 1 ignores the cache; the chances of residents
    /// rise with its square root, and with them the variance. Default 100, with which CIFAR-10 without augmentation was
    /// learnt nearly as well as by `uniform`, at a third of its fetches. With augmentation that loses 2 points or
    /// more, and 16 a tenth of one (`benches/README.md`): there `replay` does better.
    pub kappa: f32,
    /// The part of the draws that may miss, above 0 and at most 1: each epoch κ is then the one with which so many do,
    /// or 1 if fewer would anyway. `None`: as `kappa` says.
    pub fetches: Option<f32>,
    /// Replaces every belief by noise fixed by (seed, id): the control that tells what the cost tilt does alone. A live
    /// engine then keeps the noise in its score table too, so that the cache policy knows no more than the sampler.
    pub random_scores: bool,
}

impl Default for CostAware {
    fn default() -> Self {
        Self { floor: 0.2, kappa: 100.0, fetches: None, random_scores: false }
    }
}

/// What the chances of those that are not resident are multiplied with, so that `fetches` of the draws are theirs: with
/// gains R of the residents and M of the others, M × d / (R + M × d) = fetches. At most 1, and above 0.
fn discount(outlook: &Outlook<'_>, gains: &[f32], fetches: f32) -> f32 {
    let (mut residents, mut others) = (0.0f64, 0.0f64);
    for (&gain, &id) in gains.iter().zip(outlook.owned) {
        *if (outlook.resident)(id) { &mut residents } else { &mut others } += f64::from(gain);
    }
    let fetches = f64::from(fetches);
    let wanted = fetches * residents / ((1.0 - fetches) * others);
    // With nobody to tell apart any number will do. Beyond a millionth weights would carry a run by a few samples.
    if wanted.is_finite() && residents > 0.0 { wanted.clamp(1e-6, 1.0) as f32 } else { 1.0 }
}

impl Sampler for CostAware {
    fn name(&self) -> &'static str {
        "cost-aware"
    }
    fn random_scores(&self) -> bool {
        self.random_scores
    }
    fn check(&self) -> Result<()> {
        tilt::check_floor("cost-aware", self.floor)?;
        if !(1.0..=1e6).contains(&self.kappa) {
            return Err(Error::settings(format!(
                "cost-aware: kappa is {}: give what a fetch costs in uses of a cached sample, 1 to 1000000",
                self.kappa
            )));
        }
        if let Some(fetches) = self.fetches.filter(|f| !(*f > 0.0 && *f <= 1.0)) {
            return Err(Error::settings(format!(
                "cost-aware: fetches is {fetches}: give the part of the draws that may miss, above 0 and at most 1"
            )));
        }
        Ok(())
    }
    fn draw(&self, outlook: &Outlook<'_>) -> Result<Order> {
        let gains =
            tilt::gains(
                outlook,
                self.floor,
                |id, belief| {
                    if self.random_scores { random_belief(outlook.seed, id) } else { belief }
                },
            );
        let Some(mut chances) = gains else { return Ok(tilt::first_pass(outlook)) };
        let discount = match self.fetches {
            Some(fetches) => discount(outlook, &chances, fetches),
            None => 1.0 / self.kappa.sqrt(),
        };
        for (chance, &id) in chances.iter_mut().zip(outlook.owned) {
            if !(outlook.resident)(id) {
                *chance *= discount;
            }
        }
        Ok(mixed::evenly(outlook, tilt::weighted_draws(outlook, chances)))
    }
}
