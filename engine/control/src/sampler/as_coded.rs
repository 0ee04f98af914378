//! SHADE's sampler as its public code has it, to be compared with: [`Pads`] has the departures that this undoes.
//!
//! The lab's `ShadeAsCoded` is the whole of that code, cache included, as a simulation. This is what
//! of it is a sampler.

use serde::{Deserialize, Serialize};

use super::pads::check_repeats;
use super::{Order, Outlook, Pads, Sampler};
use crate::error::Result;
use crate::index::ScoreTable;
use crate::random::{Purpose, generator, shuffle_large};

/// Draws with replacement from the first epoch on; hits come `repeats` times and all before the misses, which get what
/// is left of the epoch, if anything: where repeats × hits reach an epoch's length, the rest of the data is never met
/// again. Biased.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PadsAsCoded {
    /// How often a draw that hits is delivered: 1 to 64 in steps of a half. Default 3, the code's.
    pub repeats: f64,
    /// Give every scored sample the score of another one, drawn anew each epoch. The code writes a batch's ranks to the
    /// positions of another list, so that scores say nothing of the samples that have them. Default true. The cache
    /// policy keeps by the right scores either way.
    pub misplaced: bool,
}

impl Default for PadsAsCoded {
    fn default() -> Self {
        Self { repeats: 3.0, misplaced: true }
    }
}

impl PadsAsCoded {
    /// The rank's scores, dealt out anew among the samples that have one.
    fn misplace(&self, outlook: &Outlook<'_>) -> ScoreTable {
        let scored = || outlook.owned.iter().filter_map(|&id| Some((id, outlook.scores.importance(id)?)));
        let rng = &mut generator(outlook.seed, outlook.epoch, outlook.rank, Purpose::Misplace);
        let beliefs = shuffle_large(scored().map(|(_, belief)| belief).collect(), rng);
        let mut scores = ScoreTable::new(outlook.scores.len(), 0.0);
        for ((id, _), belief) in scored().zip(beliefs) {
            scores.record(id, belief, 0);
        }
        scores
    }
}

impl Sampler for PadsAsCoded {
    fn name(&self) -> &'static str {
        "shade-as-coded"
    }
    fn by_batch_rank(&self) -> bool {
        true
    }
    fn check(&self) -> Result<()> {
        check_repeats("shade-as-coded", self.repeats)
    }
    fn biased(&self) -> bool {
        true
    }
    fn draw(&self, outlook: &Outlook<'_>) -> Result<Order> {
        let pads = Pads::as_coded(self.repeats);
        if !self.misplaced {
            return pads.draw(outlook);
        }
        let scores = &self.misplace(outlook);
        let &Outlook { owned, samples, epoch, seed, rank, world_size, resident, .. } = outlook;
        pads.draw(&Outlook { owned, samples, epoch, seed, rank, world_size, scores, resident })
    }
}
