//! The loss as a user calls it: checks, the scoring op, and what candle's own operations add around it.

use candle_core::{DType, Error, Result, Tensor};
use lossfeed::scoring::RANK_OFFSET;
use lossfeed_kernels::Rows;

use crate::Scores;
use crate::op::ScoreRows;

/// What becomes of the rows' losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reduction {
    /// Their sum over the number of rows that are not ignored; NaN when all are, as elsewhere.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// Nothing: one loss a row, 0 where ignored.
    None,
}

/// How a cross entropy is taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Rows with this target have no loss, no gradient and no score.
    pub ignore_index: i64,
    /// Share of the target that is spread evenly over all classes, in 0..=1. Scores are those of the plain loss.
    pub label_smoothing: f64,
    /// Mean, sum or none.
    pub reduction: Reduction,
    /// Added to a rank count before the logarithm, above 0 (10 in SHADE's code).
    pub rank_base: f32,
}

impl Default for Options {
    /// `ignore_index` −100, no smoothing, mean, `rank_base` 10.
    fn default() -> Self {
        Self { ignore_index: -100, label_smoothing: 0.0, reduction: Reduction::Mean, rank_base: RANK_OFFSET }
    }
}

/// Cross entropy of class logits, differentiable, and the scores of its rows from the same read.
///
/// `logits`: (rows, classes), f16, bf16, f32 or f64. Rows may be strided or repeated (broadcast); if the classes of a
/// row do not lie side by side the logits are copied once. `targets`: (rows), class indices of any integer type, on the
/// same device.
///
/// Returns the loss (a scalar, or (rows) for [`Reduction::None`]; f32, or f64 for f64 logits) and the [`Scores`]. The
/// gradient has the logits' type and reads them once more. On the CPU nothing else of their size is made; on CUDA the
/// gradient is composed of candle's operations.
///
/// # Errors
/// Shapes, types or devices that do not fit, with both; `label_smoothing` outside 0..=1; `rank_base` not above 0; a
/// target outside `0..classes` that is not `ignore_index`, with its row. On CUDA the last is found on the device and
/// told by [`Scores::to_host`], since finding it here would have to wait; its row's loss is NaN.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor, options: &Options) -> Result<(Tensor, Scores)> {
    weighted_cross_entropy(logits, targets, None, options)
}

/// The same with a weight a row, (rows), which multiplies its loss. A mean is still over the number of rows, so that
/// unbiased weights give an unbiased mean.
pub(crate) fn weighted_cross_entropy(
    logits: &Tensor,
    targets: &Tensor,
    weights: Option<&Tensor>,
    options: &Options,
) -> Result<(Tensor, Scores)> {
    let smoothing = options.label_smoothing;
    if !(0.0..=1.0).contains(&smoothing) {
        return Err(Error::msg(format!("label_smoothing is {smoothing}: it must lie in 0..=1")));
    }
    let (logits, targets) = prepared(logits, targets)?;
    let rows = logits.dim(0)?;
    let op = ScoreRows::new(options.ignore_index, smoothing, options.rank_base);
    let side = op.side();
    let found = logits.apply_op2(&targets, op)?;
    let scores = Scores::new(side, &found)?;
    let real = found.dtype();
    let mut terms = found.narrow(0, 0, 1)?.reshape(rows)?;
    let scored = targets.ne(options.ignore_index)?;
    if let Some(weights) = weights {
        terms = (terms * weights.to_dtype(real)?)?;
    }
    let loss = match options.reduction {
        Reduction::None => terms,
        Reduction::Sum => terms.sum_all()?,
        Reduction::Mean => (terms.sum_all()? / scored.to_dtype(real)?.sum_all()?)?,
    };
    Ok((loss, scores))
}

/// The scores alone, of logits that need no gradient (or whose loss is taken elsewhere). Uses `ignore_index` and
/// `rank_base` of `options`.
///
/// # Errors
/// As [`cross_entropy`].
pub fn sample_scores(logits: &Tensor, targets: &Tensor, options: &Options) -> Result<Scores> {
    let (logits, targets) = prepared(&logits.detach(), targets)?;
    let op = ScoreRows::new(options.ignore_index, 0.0, options.rank_base);
    let side = op.side();
    let found = logits.apply_op2_no_bwd(&targets, &op)?;
    Scores::new(side, &found)
}

/// Logits whose rows hold their classes side by side, and targets as contiguous int64.
fn prepared(logits: &Tensor, targets: &Tensor) -> Result<(Tensor, Tensor)> {
    let shapes = || format!("logits {:?}, targets {:?}", logits.shape(), targets.shape());
    let &[rows, classes] = logits.dims() else {
        return Err(Error::msg(format!(
            "logits must be (rows, classes) and targets (rows); got {}: flatten the leading dimensions",
            shapes()
        )));
    };
    if targets.dims() != [rows] {
        return Err(Error::msg(format!(
            "one target a row: logits (rows, classes) and targets (rows); got {}",
            shapes()
        )));
    }
    if !matches!(logits.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
        return Err(Error::msg(format!("logits of {:?} cannot be scored: use f16, bf16, f32 or f64", logits.dtype())));
    }
    if !targets.dtype().is_int() {
        return Err(Error::msg(format!("targets of {:?}: give class indices of an integer type", targets.dtype())));
    }
    if !logits.device().same_device(targets.device()) {
        return Err(Error::msg(format!(
            "logits are on {:?}, targets on {:?}: bring them to one device",
            logits.device().location(),
            targets.device().location()
        )));
    }
    if classes == 0 || rows > Rows::MAX || classes > Rows::MAX {
        return Err(Error::msg(format!("{}: need 1 to {} classes and at most as many rows", shapes(), Rows::MAX)));
    }
    let side_by_side = classes == 1 || logits.stride()[1] == 1;
    let logits = if side_by_side { logits.clone() } else { logits.force_contiguous()? };
    Ok((logits, targets.to_dtype(DType::I64)?.contiguous()?))
}
