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

/// Where the next column starts: torch's allocator gives out memory at such multiples, and the kernels want their
/// scratch there.
const ALIGNMENT: usize = 256;

/// What both plans decide once: the kernels, the rows they read, and where columns lie in the scratch of a call.
struct Rows {
    device: Arc<Device>,
    dtype: Dtype,
    /// The forward without its addresses.
    score: Score,
    /// Bytes of a real (the precision of the arithmetic), of a column of them, and of the rank counts behind three
    /// columns.
    real: usize,
    column: usize,
    counts: usize,
}

impl Rows {
    fn new(kernels: &CudaKernels, dtype_name: &str, score: Score) -> PyResult<Self> {
        let dtype = dtype(dtype_name)?;
        let real = if dtype == Dtype::F64 { 8 } else { 4 };
        let bytes = |each: usize| (score.rows * each).next_multiple_of(ALIGNMENT);
        Ok(Self { device: kernels.device(), dtype, real, column: bytes(real), counts: bytes(4), score })
    }

    fn scratch_bytes(&self) -> usize {
        3 * self.column + self.counts + launch::scratch_bytes(self.score.rows, self.score.classes)
    }

    /// Where column `number` lies; the rank counts are the fourth.
    fn column(&self, scratch: u64, number: usize) -> u64 {
        scratch + (number * self.column) as u64
    }

    /// `batch` with scores that go home: to the batch of `ticket`, or to the ids that lie at `ids` when a captured
    /// launch is replayed.
    fn mailed(
        &self,
        batch: Score,
        mailbox: &Mailbox,
        ticket: Option<&Ticket>,
        ids: u64,
        scratch: u64,
    ) -> PyResult<Score> {
        let tag = ticket.map_or(Ok(0), |ticket| mailbox.register(ticket))?;
        let home = Home { count: self.column(scratch, 3), mail: mailbox.address(), tag, ids, ..self.score.home };
        if mailbox.losses_suffice()? {
            return Ok(Score { home, ..batch });
        }
        let [grad_norm, entropy] = [1, 2].map(|number| self.column(scratch, number));
        Ok(Score { home, grad_norm, entropy, ..batch })
    }

    /// # Safety
    /// As for the kernels' forward: the addresses in `batch` and `scratch` are of memory that stays until `stream` is
    /// done with it.
    unsafe fn launch(&self, py: Python<'_>, stream: u64, batch: &Score, scratch: u64) -> PyResult<()> {
        let rest = self.column(scratch, 3) + self.counts as u64;
        outside(py, || {
            let _alone = self.device.launching.lock();
            // SAFETY: as the caller promises.
            unsafe { self.device.core.forward(stream, self.dtype, batch, rest) }
        })
    }
}

/// `loader.score` for logits of one shape and type, a row a sample.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct ScorePlan(Rows);

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
        let home = Home { b0, ..Home::default() };
        let score = Score { rows, classes, row_stride, ignore_index, home, ..Score::default() };
        Rows::new(kernels, dtype_name, score).map(Self)
    }

    /// Bytes of scratch, of any content, that `launch` wants on its stream.
    #[getter]
    fn scratch_bytes(&self) -> usize {
        self.0.scratch_bytes()
    }

    /// Scores a batch and mails the scores on the account of `ticket`, or to the ids at `ids`; raises what earlier
    /// calls found. False, and nothing is done, where a graph is being captured on `stream` and there are no `ids`
    /// for it.
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
        let rows = &self.0;
        if ids == 0 && rows.device.is_capturing(stream)? {
            return Ok(false);
        }
        rows.device.check(stream, Some(mailbox))?;
        let batch = Score { logits, targets, loss: rows.column(scratch, 0), ..rows.score };
        let batch = rows.mailed(batch, mailbox, ticket, ids, scratch)?;
        // SAFETY: the Python layer hands in addresses of tensors that it keeps until the stream is done with them,
        // scratch of that stream, and the stream that is current.
        unsafe { rows.launch(py, stream, &batch, scratch) }?;
        Ok(true)
    }
}

/// A cross entropy of one shape, type and set of keywords that ends in one number, and its gradient.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct LossPlan {
    rows: Rows,
    /// The backward without its addresses.
    gradient: Gradient,
}

#[pymethods]
impl LossPlan {
    /// `narrow`: the loss has the logits' type, else that of the arithmetic. `mean`: over what the rows share; else
    /// the sum.
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
        Ok(Self { rows: Rows::new(kernels, dtype_name, score)?, gradient })
    }

    /// Bytes of scratch, of any content, that `forward` wants on its stream.
    #[getter]
    fn scratch_bytes(&self) -> usize {
        self.rows.scratch_bytes()
    }

    /// (`ignore_index`, whether it is the mean, `label_smoothing`).
    #[getter]
    fn settings(&self) -> (i64, bool, f64) {
        let score = &self.rows.score;
        (score.ignore_index, score.reduction.mean, score.label_smoothing)
    }

    /// Writes the loss to `out`, and to `kept` what the backward needs: 2 R + 1 reals. `sample_weight`: float32, a
    /// factor of each row's term, or 0. With a mailbox the scores go home on the account of `ticket`, or to the ids
    /// at `ids`. Raises what earlier calls found. False, and nothing is done, where a graph is being captured on
    /// `stream` and `captured` does not say so.
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
        let rows = &self.rows;
        if !captured && rows.device.is_capturing(stream)? {
            return Ok(false);
        }
        rows.device.check(stream, mailbox)?;
        let (max, log_sum, divisor) = self.kept(kept);
        let reduction = Reduction { out, divisor, sample_weight, ..rows.score.reduction };
        let mut batch = Score { logits, targets, loss: rows.column(scratch, 0), max, log_sum, reduction, ..rows.score };
        if let Some(mailbox) = mailbox {
            batch = rows.mailed(batch, mailbox, ticket, ids, scratch)?;
        }
        // SAFETY: as for `ScorePlan::launch`; `out` and `kept` belong to tensors that the caller keeps.
        unsafe { rows.launch(py, stream, &batch, scratch) }?;
        Ok(true)
    }

    /// Writes the gradient at the logits (contiguous) to `gradient`, which may be `logits`. `upstream`: one number of
    /// the loss's type.
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
        let rows = &self.rows;
        let (max, log_sum, divisor) = self.kept(kept);
        let divisor = if rows.score.reduction.mean { divisor } else { 0 };
        let batch =
            Gradient { logits, targets, max, log_sum, upstream, divisor, sample_weight, gradient, ..self.gradient };
        // SAFETY: as for `forward`.
        outside(py, || unsafe { rows.device.core.backward(stream, rows.dtype, &batch) })
    }
}

impl LossPlan {
    /// What lies at `kept`: the rows' maxima, their log-sums, and the divisor of the mean.
    fn kept(&self, kept: u64) -> (u64, u64, u64) {
        let column = (self.rows.score.rows * self.rows.real) as u64;
        (kept, kept + column, kept + 2 * column)
    }
}
