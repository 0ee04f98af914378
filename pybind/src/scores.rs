//! The kernels on a borrowed buffer of logits.

use lossfeed::{Error, Result};
use lossfeed_kernels::{AnyScores, Dtype, Rows, ScoreError, fast, rank};
use pyo3::prelude::*;

use crate::buffer::{Buffer, Input};
use crate::errors::{contract, outside};

/// loss, lse, grad_norm, entropy, correct, count, rank_score.
type Columns = (Buffer, Buffer, Buffer, Buffer, Buffer, Buffer, Buffer);

pub(crate) fn dtype(name: &str) -> PyResult<Dtype> {
    match name {
        "float16" => Ok(Dtype::F16),
        "bfloat16" => Ok(Dtype::BF16),
        "float32" => Ok(Dtype::F32),
        "float64" => Ok(Dtype::F64),
        other => Err(contract(format!("{other} is no float type of the kernels"))),
    }
}

fn refused(error: ScoreError) -> Error {
    match error {
        ScoreError::TargetOutOfRange { .. } => Error::sample(error.to_string()),
        _ => Error::settings(error.to_string()),
    }
}

/// Scores `rows` × `classes` logits that start at the buffer's first byte; `row_stride` counts elements. Targets are
/// int64. Returns seven buffers, one a column, without the interpreter lock while it computes.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub(crate) fn score_rows(
    py: Python<'_>,
    logits: &Bound<'_, PyAny>,
    dtype_name: &str,
    rows: usize,
    classes: usize,
    row_stride: usize,
    targets: &Bound<'_, PyAny>,
    ignore_index: i64,
    b0: f32,
) -> PyResult<Columns> {
    let (logits, targets, dtype) = (Input::get(logits)?, Input::get(targets)?.to_vec::<i64>(), dtype(dtype_name)?);
    let scores = outside(py, || -> Result<AnyScores> {
        let rows =
            Rows::new(logits.bytes(), dtype, rows, classes, row_stride).map_err(|e| Error::settings(e.to_string()))?;
        fast::score(&rows, &targets, ignore_index, b0).map_err(refused)
    })?;
    Ok(match scores {
        AnyScores::F32(s) => (
            Buffer::from_vec(s.loss),
            Buffer::from_vec(s.lse),
            Buffer::from_vec(s.grad_norm),
            Buffer::from_vec(s.entropy),
            Buffer::from_vec(s.correct),
            Buffer::from_vec(s.count),
            Buffer::from_vec(s.rank_score),
        ),
        AnyScores::F64(s) => (
            Buffer::from_vec(s.loss),
            Buffer::from_vec(s.lse),
            Buffer::from_vec(s.grad_norm),
            Buffer::from_vec(s.entropy),
            Buffer::from_vec(s.correct),
            Buffer::from_vec(s.count),
            Buffer::from_vec(s.rank_score),
        ),
    })
}

/// In-batch rank counts (int32) of float32 losses.
#[pyfunction]
pub(crate) fn rank_counts(py: Python<'_>, losses: &Bound<'_, PyAny>) -> PyResult<Buffer> {
    let losses = Input::get(losses)?.to_vec::<f32>();
    outside(py, || Ok(rank::counts(&losses))).map(Buffer::from_vec)
}
