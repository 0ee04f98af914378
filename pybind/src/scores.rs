//! The kernels on borrowed buffers of logits.

use lossfeed::{Error, Result};
use lossfeed_kernels::{
    AnyScores, AnyTerms, Dtype, Objective, ObjectiveError, Reals, Rows, ScoreError, Scores, Softmax, Terms, Upstream,
    fast, rank,
};
use pyo3::prelude::*;

use crate::buffer::{Buffer, Input, Output};
use crate::errors::{contract, outside};

/// The terms; six columns of reals one after the other (share, loss, max, log_sum, grad_norm, entropy); correct, count,
/// rank_score.
type Columns = (Buffer, Buffer, Buffer, Buffer, Buffer);

pub(crate) fn dtype(name: &str) -> PyResult<Dtype> {
    match name {
        "float16" => Ok(Dtype::F16),
        "bfloat16" => Ok(Dtype::BF16),
        "float32" => Ok(Dtype::F32),
        "float64" => Ok(Dtype::F64),
        other => Err(contract(format!("{other} is no float type of the kernels"))),
    }
}

fn refused(error: ObjectiveError) -> Error {
    match error {
        ObjectiveError::Score(ScoreError::TargetOutOfRange { .. }) => Error::sample(error.to_string()),
        _ => Error::settings(error.to_string()),
    }
}

/// Numbers in the precision of the logits' arithmetic, copied out of a buffer: there are as many as rows or classes.
enum Numbers {
    F32(Vec<f32>),
    F64(Vec<f64>),
}

impl Numbers {
    fn get(object: &Bound<'_, PyAny>, dtype: Dtype) -> PyResult<Self> {
        let input = Input::get(object)?;
        Ok(if dtype == Dtype::F64 { Self::F64(input.to_vec()) } else { Self::F32(input.to_vec()) })
    }
    fn reals(&self) -> Reals<'_> {
        match self {
            Self::F32(values) => Reals::F32(values),
            Self::F64(values) => Reals::F64(values),
        }
    }
    /// Of `rows` maxima with their log-sums behind them. Where there are more or fewer, the kernels refuse them by
    /// their numbers.
    fn softmax(&self, rows: usize) -> Softmax<'_> {
        match self {
            Self::F32(values) => {
                let (max, log_sum) = values.split_at(rows.min(values.len()));
                Softmax { max: Reals::F32(max), log_sum: Reals::F32(log_sum) }
            }
            Self::F64(values) => {
                let (max, log_sum) = values.split_at(rows.min(values.len()));
                Softmax { max: Reals::F64(max), log_sum: Reals::F64(log_sum) }
            }
        }
    }
}

fn columns<R: bytemuck::Pod + Send + Sync>(scores: Scores<R>, terms: Terms<R>) -> Columns {
    let rest = [terms.share, scores.loss, scores.max, scores.log_sum, scores.grad_norm, scores.entropy].concat();
    (
        Buffer::from_vec(terms.term),
        Buffer::from_vec(rest),
        Buffer::from_vec(scores.correct),
        Buffer::from_vec(scores.count),
        Buffer::from_vec(scores.rank_score),
    )
}

/// Scores `rows` × `classes` logits that start at the buffer's first byte, and their terms of the objective;
/// `row_stride` counts elements. Targets are int64, class weights float32 (float64 for float64 logits). Computes
/// without the interpreter lock.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub(crate) fn forward_rows(
    py: Python<'_>,
    logits: &Bound<'_, PyAny>,
    dtype_name: &str,
    rows: usize,
    classes: usize,
    row_stride: usize,
    targets: &Bound<'_, PyAny>,
    ignore_index: i64,
    b0: f32,
    weight: Option<&Bound<'_, PyAny>>,
    label_smoothing: f64,
) -> PyResult<Columns> {
    let dtype = dtype(dtype_name)?;
    let (logits, targets) = (Input::get(logits)?, Input::get(targets)?.to_vec::<i64>());
    let weight = weight.map(|w| Numbers::get(w, dtype)).transpose()?;
    let (scores, terms) = outside(py, || {
        let rows = view(&logits, dtype, rows, classes, row_stride)?;
        let objective = Objective { ignore_index, class_weight: weight.as_ref().map(Numbers::reals), label_smoothing };
        fast::forward(&rows, &targets, &objective, b0).map_err(refused)
    })?;
    match (scores, terms) {
        (AnyScores::F32(scores), AnyTerms::F32(terms)) => Ok(columns(scores, terms)),
        (AnyScores::F64(scores), AnyTerms::F64(terms)) => Ok(columns(scores, terms)),
        _ => Err(contract("scores and terms differ in precision".to_owned())),
    }
}

/// The gradient of Σ upstream · term at the logits, written to `out` (contiguous, the logits' dtype). `softmax` has the
/// rows' maxima, then their log-sums. Without `logits`, `out` holds them (contiguous) and the gradient takes their
/// place. `upstream` has one number a row, or one for all.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub(crate) fn backward_rows(
    py: Python<'_>,
    logits: Option<&Bound<'_, PyAny>>,
    dtype_name: &str,
    rows: usize,
    classes: usize,
    row_stride: usize,
    softmax: &Bound<'_, PyAny>,
    targets: &Bound<'_, PyAny>,
    ignore_index: i64,
    weight: Option<&Bound<'_, PyAny>>,
    label_smoothing: f64,
    upstream: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let dtype = dtype(dtype_name)?;
    let targets = Input::get(targets)?.to_vec::<i64>();
    let (softmax, upstream) = (Numbers::get(softmax, dtype)?, Numbers::get(upstream, dtype)?);
    let weight = weight.map(|w| Numbers::get(w, dtype)).transpose()?;
    let logits = logits.map(Input::get).transpose()?;
    let mut out = Output::get(out, logits.as_slice())?;
    outside(py, || {
        let objective = Objective { ignore_index, class_weight: weight.as_ref().map(Numbers::reals), label_smoothing };
        let upstream = Upstream { term: upstream.reals(), lse: None };
        let (softmax, out) = (softmax.softmax(rows), out.bytes());
        match &logits {
            Some(logits) => {
                let rows = view(logits, dtype, rows, classes, row_stride)?;
                fast::backward(&rows, &softmax, &targets, &objective, &upstream, out)
            }
            None => fast::backward_in_place(out, dtype, rows, classes, &softmax, &targets, &objective, &upstream),
        }
        .map_err(refused)
    })
}

fn view(logits: &Input, dtype: Dtype, rows: usize, classes: usize, row_stride: usize) -> Result<Rows<'_>> {
    Rows::new(logits.bytes(), dtype, rows, classes, row_stride).map_err(|e| Error::settings(e.to_string()))
}

/// In-batch rank counts (int32) of float32 losses.
#[pyfunction]
pub(crate) fn rank_counts(py: Python<'_>, losses: &Bound<'_, PyAny>) -> PyResult<Buffer> {
    let losses = Input::get(losses)?.to_vec::<f32>();
    outside(py, || Ok(rank::counts(&losses))).map(Buffer::from_vec)
}
