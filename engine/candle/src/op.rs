//! The scoring pass as candle's custom op: (logits, targets) → (3, rows): terms of the loss, then maxima and log-sums
//! of the rows.
//!
//! Only the terms are differentiable: the other two are what the backward finds a softmax from, and no gradient that
//! comes down through them is heeded. They stay apart because their sum, the log-sum-exp, is rounded to the last place
//! of the logits' offset.
//!
//! Everything else that the pass finds goes into a side cell, since an op has one result. The cell is emptied once by
//! the caller, so that a graph kept alive keeps no scores alive.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp2, Error, Layout, Result, Shape, Tensor};
use lossfeed_kernels::{AnyTerms, Objective, ObjectiveError, Reals, Softmax, fast};
use lossfeed_sync::Mutex;

use crate::gradient;
use crate::scores::Side;
use crate::shape::{contiguous, with_rows};

/// One scoring pass over one batch.
pub(crate) struct ScoreRows {
    ignore_index: i64,
    label_smoothing: f64,
    rank_base: f32,
    side: Arc<Mutex<Option<Side>>>,
}

impl ScoreRows {
    pub(crate) fn new(ignore_index: i64, label_smoothing: f64, rank_base: f32) -> Self {
        Self { ignore_index, label_smoothing, rank_base, side: Arc::default() }
    }

    fn objective(&self) -> Objective<'static> {
        Objective { ignore_index: self.ignore_index, label_smoothing: self.label_smoothing, class_weight: None }
    }

    /// Where the scores will be once the op has been applied.
    pub(crate) fn side(&self) -> Arc<Mutex<Option<Side>>> {
        Arc::clone(&self.side)
    }
}

impl CustomOp2 for ScoreRows {
    fn name(&self) -> &'static str {
        "lossfeed-score-rows"
    }

    fn cpu_fwd(
        &self,
        logits: &CpuStorage,
        logits_layout: &Layout,
        targets: &CpuStorage,
        targets_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let targets = contiguous::<i64>(targets, targets_layout)?;
        let (scores, terms) = with_rows(logits, logits_layout, |rows| {
            fast::forward(rows, targets, &self.objective(), self.rank_base).map_err(refused)
        })?;
        let found = match (scores.softmax(), &terms) {
            (Softmax { max: Reals::F32(max), log_sum: Reals::F32(log_sum) }, AnyTerms::F32(terms)) => {
                CpuStorage::F32([terms.term.as_slice(), max, log_sum].concat())
            }
            (Softmax { max: Reals::F64(max), log_sum: Reals::F64(log_sum) }, AnyTerms::F64(terms)) => {
                CpuStorage::F64([terms.term.as_slice(), max, log_sum].concat())
            }
            _ => return Err(Error::msg("scores and terms differ in precision").bt()),
        };
        let shape = Shape::from((3, scores.len()));
        *self.side.lock() = Some(Side::Host(scores));
        Ok((found, shape))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        logits: &candle_core::CudaStorage,
        logits_layout: &Layout,
        targets: &candle_core::CudaStorage,
        targets_layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let args = (self.ignore_index, self.label_smoothing, self.rank_base);
        let (found, shape, side) = crate::cuda::score(logits, logits_layout, targets, targets_layout, args)?;
        *self.side.lock() = Some(Side::Cuda(side));
        Ok((found, shape))
    }

    fn bwd(
        &self,
        logits: &Tensor,
        targets: &Tensor,
        found: &Tensor,
        grad_found: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradient = if logits.device().is_cpu() {
            gradient::fused(logits, targets, found, grad_found, &self.objective())?
        } else {
            gradient::composed(logits, targets, found, grad_found, &self.objective())?
        };
        Ok((Some(gradient), None))
    }
}

/// The kernels' refusal as a user finds it: a target's is a `ScoreError`.
fn refused(error: ObjectiveError) -> Error {
    match error {
        ObjectiveError::Score(error) => Error::wrap(error),
        other => Error::wrap(other),
    }
}
