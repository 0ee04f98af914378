//! Every sample alike.

use serde::{Deserialize, Serialize};

use super::{Order, Outlook, Sampler, tilt};
use crate::error::{Error, Result};
use crate::random::{Purpose, below, generator, shuffle};

/// One permutation of the whole dataset an epoch, rank r taking positions r, r + world size, …: every sample once, over
/// all ranks together. Weights are 1.
///
/// With `replacement` each rank draws its share from all ids instead; then one epoch meets 26.4 % of them twice or more
/// and 36.8 % not at all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Uniform {
    /// Draw with replacement.
    pub replacement: bool,
    /// Walk the ids in ascending order instead of permuting them (evaluation, debugging). Not with `replacement`.
    pub in_order: bool,
    /// With several ranks: every rank permutes a share of its own, the same in every epoch, instead of sharing one
    /// permutation of everything. Its cache then holds that many times as much of what it draws; samples of different
    /// ranks are never in one rank's batch. Every sample comes once an epoch all the same, with weights for shares of
    /// unequal size.
    pub fixed_shares: bool,
    /// The order comes from the node cache, so that the jobs of a machine read the same samples at about the same time.
    /// If it gives none, the order is drawn as without this. For one rank, and not with the options above.
    pub by_node: bool,
}

impl Sampler for Uniform {
    fn name(&self) -> &'static str {
        "uniform"
    }
    fn check(&self) -> Result<()> {
        let set = match self {
            Self { by_node: true, replacement: false, in_order: false, fixed_shares: false } => return Ok(()),
            Self { by_node: true, .. } => {
                return Err(Error::settings(
                    "uniform: by_node is set beside replacement, in_order or fixed_shares: the node cache gives every \
                     sample once, in an order of its own, so leave the other out",
                ));
            }
            Self { fixed_shares: true, replacement: true, .. } => "replacement",
            Self { fixed_shares: true, in_order: true, .. } => "in_order",
            Self { replacement: true, in_order: true, .. } => {
                return Err(Error::settings(
                    "uniform: replacement and in_order are both set: draws with replacement have no order to keep, so leave one out",
                ));
            }
            _ => return Ok(()),
        };
        Err(Error::settings(format!(
            "uniform: fixed_shares is set beside {set}: draws with replacement are from all samples, and a walk in order has fixed shares already, so leave one out"
        )))
    }
    fn adaptive(&self) -> bool {
        self.by_node
    }
    fn shares_one_list(&self) -> bool {
        !self.replacement && !self.fixed_shares && !self.by_node
    }
    fn draw(&self, outlook: &Outlook<'_>) -> Result<Order> {
        let &Outlook { samples, epoch, seed, rank, world_size, .. } = outlook;
        if self.fixed_shares && world_size > 1 {
            return Ok(tilt::first_pass(outlook));
        }
        let share = super::batches::share(samples as usize, rank, world_size);
        let ids = if self.replacement {
            let rng = &mut generator(seed, epoch, rank, Purpose::Draw);
            (0..share).map(|_| below(rng, samples)).collect()
        } else {
            // Rank 0's stream on every rank: all must see one permutation to share it.
            let mut all: Vec<_> = (0..samples).collect();
            if !self.in_order {
                shuffle(&mut all, &mut generator(seed, epoch, 0, Purpose::Order));
            }
            if world_size == 1 {
                all
            } else {
                all.into_iter().skip(rank as usize).step_by(world_size as usize).collect()
            }
        };
        Ok(Order { weights: vec![1.0; share], ids })
    }
}
