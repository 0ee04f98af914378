//! What was recorded of each sample in the epoch at hand, for policies that deliver it at another time.

use lossfeed_kernels::rank;

use super::trace::B0;
use crate::control::Row;
use crate::types::SampleId;

/// Losses by sample, and how often another one was delivered than was asked for.
pub(super) struct OwnLosses {
    /// By id; NaN if the epoch has none.
    losses: Vec<f32>,
    pub(super) substituted: u64,
}

impl OwnLosses {
    pub(super) fn new(samples: usize) -> Self {
        Self { losses: vec![f32::NAN; samples], substituted: 0 }
    }
    pub(super) fn begin_epoch(&mut self, ids: &[SampleId], losses: &[f32]) {
        self.losses.fill(f32::NAN);
        ids.iter().zip(losses).for_each(|(&id, &loss)| self.losses[id as usize] = loss);
    }
    /// The scores of a batch as it was delivered; `None` if it is the one that the trace has there.
    pub(super) fn scores(&mut self, rows: &[Row]) -> Option<Vec<f32>> {
        let substituted = rows.iter().filter(|row| row.drawn != row.delivered).count() as u64;
        self.substituted += substituted;
        if substituted == 0 {
            return None;
        }
        let losses: Vec<f32> = rows.iter().map(|row| self.losses[row.delivered as usize]).collect();
        Some(rank::scores(&rank::counts(&losses), B0))
    }
}
