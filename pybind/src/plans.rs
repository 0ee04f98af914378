//! The hooks' short way: what a call decides from shapes and keywords is decided once, and a call brings the addresses.
#![allow(unsafe_code)]

use std::sync::Arc;

use lossfeed_kernels::Dtype;
use lossfeed_kernels::launch::{self, Gradient, Home, Reduction, Score};
use pyo3::prelude::*;

use crate::batch::Ticket;
use crate::cuda::{CudaKernels, Device};
use crate::errors::outside;
use crate::mailbox::Mailbox;
use crate::scores::dtype;

/// Where the next column starts: torch's allocator gives out memory at such multiples, and the kernels want their scratch there.
const ALIGNMENT: usize = 256;

/// `loader.score` for logits of one shape and type, a row a sample.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct ScorePlan {
    device: Arc<Device>,
    dtype: Dtype,
    /// Everything but addresses.
    batch: Score,
    /// Bytes of a column of reals.
    column: usize,
    /// Of the rank counts behind three of them.
    counts: usize,
}

#[pymethods]
impl ScorePlan {
    #[new]
    fn new(
        kernels: &CudaKernels,
        dtype_name: &str,
        rows: usize,
        classes: usize,
        row_stride: i64,
        ignore_index: i64,
        b0: f32,
    ) -> PyResult<Self> {
        let dtype = dtype(dtype_name)?;
        let home = Home { b0, ..Home::default() };
        let batch = Score { rows, classes, row_stride, ignore_index, home, ..Score::default() };
        let column = (rows * real_bytes(dtype)).next_multiple_of(ALIGNMENT);
        let counts = (rows * 4).next_multiple_of(ALIGNMENT);
        Ok(Self { device: kernels.device(), dtype, batch, column, counts })
    }

    /// Bytes of scratch, of any content, that `launch` wants on its stream.
    #[getter]
    fn scratch_bytes(&self) -> usize {
        3 * self.column + self.counts + launch::scratch_bytes(self.batch.rows, self.batch.classes)
    }

    /// Scores a batch and mails the scores on the account of `ticket`, or to the ids at `ids`; raises what earlier calls found. False,
    /// and nothing is done, where a graph is being captured on `stream` and there are no `ids` for it.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (mailbox, ticket, stream, logits, targets, scratch, ids=0))]
    fn launch(
        &self,
        py: Python<'_>,
        mailbox: &Mailbox,
        ticket: Option<&Ticket>,
        stream: u64,
        logits: u64,
        targets: u64,
        scratch: u64,
        ids: u64,
    ) -> PyResult<bool> {
        if ids == 0 && self.device.is_capturing(stream)? {
            return Ok(false);
        }
        self.device.check(stream, Some(mailbox))?;
        let column = |number: usize| scratch + (number * self.column) as u64;
        let counts = column(3);
        let batch = Score {
            logits,
            targets,
            loss: column(0),
            grad_norm: column(1),
            entropy: column(2),
            home: home(mailbox, ticket, ids, counts, self.batch.home)?,
            ..self.batch
        };
        // SAFETY: the Python layer hands in addresses of tensors that it keeps until the stream is done with them, scratch of that
        // stream, and the stream that is current.
        outside(py, || unsafe {
            let _alone = self.device.launching.lock();
            self.device.core.forward(stream, self.dtype, &batch, counts + self.counts as u64)
        })?;
        Ok(true)
    }
}

/// A cross entropy of one shape, type and set of keywords that ends in one number, and its gradient.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct LossPlan {
    device: Arc<Device>,
    dtype: Dtype,
    /// Everything but addresses, of the forward and of the backward.
    score: Score,
    gradient: Gradient,
    /// Bytes of a real, of a column of them, and of the rank counts.
    real: usize,
    column: usize,
    counts: usize,
}

#[pymethods]
impl LossPlan {
    /// `narrow`: the loss has the logits' type, else that of the arithmetic. `mean`: over what the rows share; else the sum.
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        kernels: &CudaKernels,
        dtype_name: &str,
        rows: usize,
        classes: usize,
        row_stride: i64,
        ignore_index: i64,
        label_smoothing: f64,
        mean: bool,
        narrow: bool,
        b0: f32,
    ) -> PyResult<Self> {
        let dtype = dtype(dtype_name)?;
        let real = real_bytes(dtype);
        let reduction = Reduction { mean, narrow, ..Reduction::default() };
        let home = Home { b0, ..Home::default() };
        let score =
            Score { rows, classes, row_stride, ignore_index, label_smoothing, reduction, home, ..Score::default() };
        let gradient = Gradient {
            rows,
            classes,
            row_stride,
            ignore_index,
            label_smoothing,
            upstream_narrow: narrow,
            gradient_stride: classes as i64,
            ..Gradient::default()
        };
        let column = (rows * real).next_multiple_of(ALIGNMENT);
        let counts = (rows * 4).next_multiple_of(ALIGNMENT);
        Ok(Self { device: kernels.device(), dtype, score, gradient, real, column, counts })
    }

    /// Bytes of scratch, of any content, that `forward` wants on its stream.
    #[getter]
    fn scratch_bytes(&self) -> usize {
        3 * self.column + self.counts + launch::scratch_bytes(self.score.rows, self.score.classes)
    }

    /// (`ignore_index`, whether it is the mean, `label_smoothing`).
    #[getter]
    fn settings(&self) -> (i64, bool, f64) {
        (self.score.ignore_index, self.score.reduction.mean, self.score.label_smoothing)
    }

    /// Writes the loss to `out`, and to `kept` what the backward needs: 2 R + 1 reals. `sample_weight`: float32, a factor of each
    /// row's term, or 0. With a mailbox the scores go home on the account of `ticket`, or to the ids at `ids`. Raises what earlier calls
    /// found. False, and nothing is done, where a graph is being captured on `stream` and `captured` does not say so.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (mailbox, ticket, stream, logits, targets, sample_weight, out, kept, scratch, captured=false, ids=0))]
    fn forward(
        &self,
        py: Python<'_>,
        mailbox: Option<&Mailbox>,
        ticket: Option<&Ticket>,
        stream: u64,
        logits: u64,
        targets: u64,
        sample_weight: u64,
        out: u64,
        kept: u64,
        scratch: u64,
        captured: bool,
        ids: u64,
    ) -> PyResult<bool> {
        if !captured && self.device.is_capturing(stream)? {
            return Ok(false);
        }
        let rows = self.score.rows;
        self.device.check(stream, mailbox)?;
        let column = |number: usize| scratch + (number * self.column) as u64;
        let counts = column(3);
        let log_sum = kept + (rows * self.real) as u64;
        let divisor = kept + (2 * rows * self.real) as u64;
        let mut batch = Score {
            logits,
            targets,
            loss: column(0),
            max: kept,
            log_sum,
            reduction: Reduction { out, divisor, sample_weight, ..self.score.reduction },
            ..self.score
        };
        if let Some(mailbox) = mailbox {
            batch.home = home(mailbox, ticket, ids, counts, self.score.home)?;
            (batch.grad_norm, batch.entropy) = (column(1), column(2));
        }
        // SAFETY: as for `ScorePlan::launch`; `out` and `kept` belong to tensors that the caller keeps.
        outside(py, || unsafe {
            let _alone = self.device.launching.lock();
            self.device.core.forward(stream, self.dtype, &batch, counts + self.counts as u64)
        })?;
        Ok(true)
    }

    /// Writes the gradient at the logits (contiguous) to `gradient`, which may be `logits`. `upstream`: one number of the loss's type.
    #[allow(clippy::too_many_arguments)]
    fn backward(
        &self,
        py: Python<'_>,
        stream: u64,
        logits: u64,
        targets: u64,
        sample_weight: u64,
        kept: u64,
        upstream: u64,
        gradient: u64,
    ) -> PyResult<()> {
        let rows = self.score.rows;
        let divisor = if self.score.reduction.mean { kept + (2 * rows * self.real) as u64 } else { 0 };
        let log_sum = kept + (rows * self.real) as u64;
        let batch = Gradient {
            logits,
            targets,
            max: kept,
            log_sum,
            upstream,
            divisor,
            sample_weight,
            gradient,
            ..self.gradient
        };
        // SAFETY: as for `forward`.
        outside(py, || unsafe { self.device.core.backward(stream, self.dtype, &batch) })
    }
}

/// Where scores go: to the batch of `ticket`, or to the ids that lie at `ids` when a captured launch is replayed.
fn home(mailbox: &Mailbox, ticket: Option<&Ticket>, ids: u64, count: u64, like: Home) -> PyResult<Home> {
    let tag = ticket.map_or(Ok(0), |ticket| mailbox.register(ticket))?;
    Ok(Home { count, mail: mailbox.address(), tag, ids, ..like })
}

/// Bytes of a real: the precision of the arithmetic.
fn real_bytes(dtype: Dtype) -> usize {
    if dtype == Dtype::F64 { 8 } else { 4 }
}
