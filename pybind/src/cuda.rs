//! The GPU's kernels on raw addresses and a raw stream, as the Python layer takes them from tensors.
#![allow(unsafe_code)]

use std::sync::Arc;

use lossfeed::Error;
use lossfeed::device::Cuda;
use lossfeed::device::cuda;
use lossfeed::device::cuda::CudaKernels as Core;
use lossfeed_kernels::launch::{
    self, Gradient, Home, Probabilities, ProbabilityGradient, RankBy, Reduction, Score, Sequences,
};
use lossfeed_sync::Mutex;
use pyo3::prelude::*;

use crate::errors::{contract, outside, raise};
use crate::mailbox::Mailbox;
use crate::scores::dtype;

/// Bytes of scratch (256-aligned device memory, any content) for a call on `rows` rows of `classes` classes; for
/// sequences and ranks `classes` is 1.
#[pyfunction]
pub(crate) fn scratch_bytes(rows: usize, classes: usize) -> usize {
    launch::scratch_bytes(rows, classes)
}

/// A device's kernels, as the calls of this process share them.
pub(crate) struct Device {
    pub(crate) core: Arc<Core>,
    /// Held through the launches of one call: scratch of a stream serves whole calls, whichever threads make them.
    pub(crate) launching: Mutex<()>,
}

impl Device {
    /// Whether a graph is being captured on `stream`.
    pub(crate) fn is_capturing(&self, stream: u64) -> PyResult<bool> {
        // SAFETY: the Python layer hands in the stream that is current.
        unsafe { self.core.is_capturing(stream) }.map_err(raise)
    }

    /// Raises what earlier calls on `stream` found in their targets. The mail, if it is home, says which batch it
    /// was: it goes first.
    pub(crate) fn check(&self, stream: u64, mailbox: Option<&Mailbox>) -> PyResult<()> {
        // Taken even if the mail has words of its own about it: told once.
        let row = self.core.take_error(stream);
        if let Some(mailbox) = mailbox {
            mailbox.check()?;
        }
        row.map_or(Ok(()), |row| {
            Err(raise(Error::sample(format!(
                "a target of an earlier batch on this stream (row {row}) is outside the classes: fix the label, or \
                 pass it as ignore_index"
            ))))
        })
    }
}

/// The kernels of one CUDA device. Addresses are integers; 0 where an output is not wanted or an input is not given.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct CudaKernels(Arc<Device>);

impl CudaKernels {
    pub(crate) fn device(&self) -> Arc<Device> {
        Arc::clone(&self.0)
    }
}

#[pymethods]
impl CudaKernels {
    /// Loads them at the first call for a device in this process.
    #[new]
    fn new(py: Python<'_>, ordinal: usize) -> PyResult<Self> {
        let core = outside(py, || Cuda::open(ordinal)?.kernels())?;
        Ok(Self(Arc::new(Device { core, launching: Mutex::new(()) })))
    }

    /// Multiprocessors of the GPU.
    #[getter]
    fn multiprocessors(&self) -> u32 {
        self.0.core.multiprocessors()
    }

    /// Scores logits against int64 class indices. Ranks are taken where `count`, `rank_score` or `mail` asks for
    /// them. `reduced`: where the mean (or sum) of the terms goes, in the logits' type if `narrow`; `divisor`: where
    /// the mean's.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (stream, dtype_name, rows, classes, row_stride, logits, targets, scratch, *, loss, max=0, log_sum=0,
        grad_norm=0, entropy=0, correct=0, count=0, rank_score=0, weight=0, weight_sum=0, term=0, share=0, reduced=0, mean=true,
        narrow=false, divisor=0, sample_weight=0, sample_rows=1, error=0, mail=0, tag=0, ids=0, ignore_index=-100, label_smoothing=0.0,
        b0=10.0))]
    fn forward(
        &self,
        py: Python<'_>,
        stream: u64,
        dtype_name: &str,
        rows: usize,
        classes: usize,
        row_stride: i64,
        logits: u64,
        targets: u64,
        scratch: u64,
        loss: u64,
        max: u64,
        log_sum: u64,
        grad_norm: u64,
        entropy: u64,
        correct: u64,
        count: u64,
        rank_score: u64,
        weight: u64,
        weight_sum: u64,
        term: u64,
        share: u64,
        reduced: u64,
        mean: bool,
        narrow: bool,
        divisor: u64,
        sample_weight: u64,
        sample_rows: usize,
        error: u64,
        mail: u64,
        tag: u64,
        ids: u64,
        ignore_index: i64,
        label_smoothing: f64,
        b0: f32,
    ) -> PyResult<()> {
        let dtype = dtype(dtype_name)?;
        let home = Home { count, rank_score, b0, mail, tag, ids };
        let batch = Score {
            logits,
            targets,
            rows,
            classes,
            row_stride,
            ignore_index,
            loss,
            max,
            log_sum,
            grad_norm,
            entropy,
            correct,
            weight,
            weight_sum,
            label_smoothing,
            term,
            share,
            reduction: Reduction { out: reduced, narrow, mean, divisor, sample_weight, sample_rows },
            error,
            home,
            ..Score::default()
        };
        // SAFETY: the Python layer hands in addresses of tensors that it keeps until the stream is done with them,
        // and the stream they are used on.
        outside(py, || unsafe { self.0.core.forward(stream, dtype, &batch, scratch) })
    }

    /// The gradient over class indices. `upstream` has the logits' type if `upstream_narrow`; each is divided by
    /// `divisor` and multiplied with its sample's weight.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (stream, dtype_name, rows, classes, row_stride, logits, targets, *, max, log_sum, upstream, upstream_stride,
        gradient, gradient_stride, upstream_narrow=false, divisor=0, sample_weight=0, sample_rows=1, upstream_lse=0,
        upstream_lse_stride=0, weight=0, weight_sum=0, ignore_index=-100, label_smoothing=0.0))]
    fn backward(
        &self,
        py: Python<'_>,
        stream: u64,
        dtype_name: &str,
        rows: usize,
        classes: usize,
        row_stride: i64,
        logits: u64,
        targets: u64,
        max: u64,
        log_sum: u64,
        upstream: u64,
        upstream_stride: i32,
        gradient: u64,
        gradient_stride: i64,
        upstream_narrow: bool,
        divisor: u64,
        sample_weight: u64,
        sample_rows: usize,
        upstream_lse: u64,
        upstream_lse_stride: i32,
        weight: u64,
        weight_sum: u64,
        ignore_index: i64,
        label_smoothing: f64,
    ) -> PyResult<()> {
        let dtype = dtype(dtype_name)?;
        let batch = Gradient {
            logits,
            targets,
            max,
            log_sum,
            upstream,
            upstream_stride,
            upstream_narrow,
            divisor,
            sample_weight,
            sample_rows,
            upstream_lse,
            upstream_lse_stride,
            weight,
            weight_sum,
            label_smoothing,
            gradient,
            rows,
            classes,
            row_stride,
            gradient_stride,
            ignore_index,
        };
        // SAFETY: as for `forward`.
        outside(py, || unsafe { self.0.core.backward(stream, dtype, &batch) })
    }

    /// Scores logits against probabilities of the same type.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (stream, dtype_name, rows, classes, row_stride, logits, probabilities, probability_stride, scratch, *,
        loss, max=0, log_sum=0, grad_norm=0, entropy=0, mass=0, count=0, rank_score=0, weight=0, mail=0, tag=0, ids=0,
        label_smoothing=0.0, b0=10.0))]
    fn probabilities(
        &self,
        py: Python<'_>,
        stream: u64,
        dtype_name: &str,
        rows: usize,
        classes: usize,
        row_stride: i64,
        logits: u64,
        probabilities: u64,
        probability_stride: i64,
        scratch: u64,
        loss: u64,
        max: u64,
        log_sum: u64,
        grad_norm: u64,
        entropy: u64,
        mass: u64,
        count: u64,
        rank_score: u64,
        weight: u64,
        mail: u64,
        tag: u64,
        ids: u64,
        label_smoothing: f64,
        b0: f32,
    ) -> PyResult<()> {
        let dtype = dtype(dtype_name)?;
        let home = Home { count, rank_score, b0, mail, tag, ids };
        let batch = Probabilities {
            logits,
            probabilities,
            rows,
            classes,
            row_stride,
            probability_stride,
            loss,
            max,
            log_sum,
            grad_norm,
            entropy,
            mass,
            weight,
            label_smoothing,
            home,
        };
        // SAFETY: as for `forward`.
        outside(py, || unsafe { self.0.core.probabilities(stream, dtype, &batch, scratch) })
    }

    /// The gradient over probabilities.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (stream, dtype_name, rows, classes, row_stride, logits, probabilities, probability_stride, *, max,
        log_sum, mass, upstream, upstream_stride, gradient, gradient_stride, weight=0, label_smoothing=0.0))]
    fn backward_probabilities(
        &self,
        py: Python<'_>,
        stream: u64,
        dtype_name: &str,
        rows: usize,
        classes: usize,
        row_stride: i64,
        logits: u64,
        probabilities: u64,
        probability_stride: i64,
        max: u64,
        log_sum: u64,
        mass: u64,
        upstream: u64,
        upstream_stride: i32,
        gradient: u64,
        gradient_stride: i64,
        weight: u64,
        label_smoothing: f64,
    ) -> PyResult<()> {
        let dtype = dtype(dtype_name)?;
        let batch = ProbabilityGradient {
            logits,
            probabilities,
            max,
            log_sum,
            mass,
            upstream,
            upstream_stride,
            weight,
            label_smoothing,
            gradient,
            rows,
            classes,
            row_stride,
            probability_stride,
            gradient_stride,
        };
        // SAFETY: as for `forward`.
        outside(py, || unsafe { self.0.core.backward_probabilities(stream, dtype, &batch) })
    }

    /// Scores sequences from the scores of their tokens. `rank_by`: "mean", "max" or "sum".
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (stream, double, sequences, length, loss, correct, scratch, *, mean, grad_norm=0, entropy=0, max=0, sum=0,
        mean_grad_norm=0, mean_entropy=0, counted=0, count=0, rank_score=0, mail=0, tag=0, ids=0, rank_by="mean", b0=10.0))]
    fn sequences(
        &self,
        py: Python<'_>,
        stream: u64,
        double: bool,
        sequences: usize,
        length: usize,
        loss: u64,
        correct: u64,
        scratch: u64,
        mean: u64,
        grad_norm: u64,
        entropy: u64,
        max: u64,
        sum: u64,
        mean_grad_norm: u64,
        mean_entropy: u64,
        counted: u64,
        count: u64,
        rank_score: u64,
        mail: u64,
        tag: u64,
        ids: u64,
        rank_by: &str,
        b0: f32,
    ) -> PyResult<()> {
        let (rank_by, ranked) = match rank_by {
            "mean" => (RankBy::Mean, mean),
            "max" => (RankBy::Max, max),
            "sum" => (RankBy::Sum, sum),
            other => return Err(contract(format!("sequences are not ranked by {other:?}"))),
        };
        if ranked == 0 {
            return Err(contract("the column to rank by was not requested"));
        }
        let home = Home { count, rank_score, b0, mail, tag, ids };
        let batch = Sequences {
            sequences,
            length,
            loss,
            grad_norm,
            entropy,
            correct,
            mean,
            max,
            sum,
            mean_grad_norm,
            mean_entropy,
            counted,
            rank_by,
            home,
        };
        // SAFETY: as for `forward`.
        outside(py, || unsafe { self.0.core.sequences(stream, double, &batch, scratch) })
    }

    /// Ranks float32 losses; with `mail` they and the columns given go home.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (stream, rows, losses, scratch, *, grad_norm=0, entropy=0, count=0, rank_score=0, mail=0, tag=0, ids=0,
        b0=10.0))]
    fn ranks(
        &self,
        py: Python<'_>,
        stream: u64,
        rows: usize,
        losses: u64,
        scratch: u64,
        grad_norm: u64,
        entropy: u64,
        count: u64,
        rank_score: u64,
        mail: u64,
        tag: u64,
        ids: u64,
        b0: f32,
    ) -> PyResult<()> {
        let home = Home { count, rank_score, b0, mail, tag, ids };
        // SAFETY: as for `forward`.
        outside(py, || unsafe { self.0.core.ranks(stream, rows, [losses, grad_norm, entropy], &home, scratch) })
    }

    /// Raises what earlier calls on `stream` that have run since found in their targets, and what `mailbox` has
    /// heard; waits for nothing.
    #[pyo3(signature = (stream, mailbox=None))]
    fn check(&self, stream: u64, mailbox: Option<&Mailbox>) -> PyResult<()> {
        self.0.check(stream, mailbox)
    }
}

/// Lets the calling thread, until it ends, allocate and page-lock memory while another thread captures a graph.
#[pyfunction]
pub(crate) fn relax_captures(py: Python<'_>) -> PyResult<()> {
    outside(py, cuda::relax_captures)
}
