//! The scoring pass as candle's custom op: (logits, targets) → (3, rows): terms of the loss, then maxima and log-sums of the rows.
//!
//! Only the terms are differentiable: the other two are what the backward finds a softmax from, and no gradient that comes down
//! through them is heeded. They stay apart because their sum, the log-sum-exp, is rounded to the last place of the logits' offset.
//!
//! Everything else that the pass finds goes into a side cell, since an op has one result. The cell is emptied once by the
//! caller, so that a graph kept alive keeps no scores alive.

use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, DType, Error, Layout, Result, Shape, Tensor, WithDType};
use half::{bf16, f16};
use lossfeed_kernels::{AnyTerms, Dtype, Objective, ObjectiveError, Reals, Rows, Softmax, fast};
use parking_lot::Mutex;

use crate::gradient;
use crate::scores::Side;

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

/// A 2-D layout as (rows, classes, elements between rows); classes lie side by side.
pub(crate) fn row_shape(layout: &Layout) -> Result<(usize, usize, usize)> {
    let (rows, classes) = layout.shape().dims2()?;
    let strides = layout.stride();
    if classes > 1 && strides[1] != 1 {
        return Err(Error::msg(format!("the classes of a row are {} elements apart, expected 1", strides[1])).bt());
    }
    // The stride of a single row means nothing.
    Ok((rows, classes, if rows > 1 { strides[0] } else { classes }))
}

/// The elements of a contiguous tensor.
pub(crate) fn contiguous<'a, T: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    let (from, to) =
        layout.contiguous_offsets().ok_or_else(|| Error::RequiresContiguous { op: "lossfeed-score-rows" }.bt())?;
    Ok(&storage.as_slice::<T>()?[from..to])
}

/// Calls `f` with CPU logits as the kernels see them, without a copy.
pub(crate) fn with_rows<R>(storage: &CpuStorage, layout: &Layout, f: impl FnOnce(&Rows<'_>) -> Result<R>) -> Result<R> {
    fn bytes<T: WithDType + bytemuck::Pod>(storage: &CpuStorage, start: usize) -> Result<&[u8]> {
        // An empty tensor may start behind its buffer's end.
        Ok(bytemuck::cast_slice(storage.as_slice::<T>()?.get(start..).unwrap_or_default()))
    }
    let start = layout.start_offset();
    let (bytes, dtype) = match storage.dtype() {
        DType::F16 => (bytes::<f16>(storage, start)?, Dtype::F16),
        DType::BF16 => (bytes::<bf16>(storage, start)?, Dtype::BF16),
        DType::F32 => (bytes::<f32>(storage, start)?, Dtype::F32),
        DType::F64 => (bytes::<f64>(storage, start)?, Dtype::F64),
        other => return Err(Error::UnsupportedDTypeForOp(other, "lossfeed-score-rows").bt()),
    };
    let (rows, classes, row_stride) = row_shape(layout)?;
    f(&Rows::new(bytes, dtype, rows, classes, row_stride).map_err(Error::wrap)?)
}
