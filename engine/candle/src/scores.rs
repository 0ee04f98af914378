//! Scores of a batch, where they were measured.

use std::sync::Arc;

use candle_core::{Error, Result, Tensor};
use lossfeed_kernels::AnyScores;
use lossfeed_sync::Mutex;

/// What the op leaves beside its result.
pub(crate) enum Side {
    /// All of the scores, on the host.
    Host(AnyScores),
    /// Everything but maxima and log-sums, on the device.
    #[cfg(feature = "cuda")]
    Cuda(crate::cuda::SideScores),
}

/// Scores of one batch: loss, maximum and log-sum, gradient-norm bound, entropy, correct, rank count and rank score a
/// row. Their meaning is `lossfeed_kernels`'s; for f64 logits they are f64.
pub struct Scores {
    side: Side,
    /// What the op returned, outside the graph: (3, rows) of term, max, log_sum.
    #[cfg(feature = "cuda")]
    found: Tensor,
    rows: usize,
}

impl Scores {
    pub(crate) fn new(side: Arc<Mutex<Option<Side>>>, found: &Tensor) -> Result<Self> {
        let side = side.lock().take().ok_or_else(|| Error::msg("the scoring op left no scores").bt())?;
        Ok(Self {
            side,
            #[cfg(feature = "cuda")]
            found: found.detach(),
            rows: found.dim(1)?,
        })
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether the batch had no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Whether [`Scores::to_host`] would not have to wait. Always on the CPU.
    ///
    /// # Errors
    /// What a CUDA driver says.
    pub fn is_ready(&self) -> Result<bool> {
        match &self.side {
            Side::Host(_) => Ok(true),
            #[cfg(feature = "cuda")]
            Side::Cuda(side) => side.is_ready(),
        }
    }

    /// The scores on the host. On CUDA this waits for the pass that measures them and copies a few bytes a row.
    ///
    /// # Errors
    /// On CUDA, a target that names no class, with its row; and what the driver says.
    pub fn to_host(&self) -> Result<AnyScores> {
        match &self.side {
            Side::Host(scores) => Ok(scores.clone()),
            #[cfg(feature = "cuda")]
            Side::Cuda(side) => side.to_host(&self.found),
        }
    }
}

impl std::fmt::Debug for Scores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scores").field("rows", &self.rows).finish_non_exhaustive()
    }
}
