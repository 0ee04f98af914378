//! The GPU's kernels on raw addresses and a raw stream, as the Python layer takes them from tensors.
#![allow(unsafe_code)]

use std::sync::Arc;

use lossfeed::Error;
use lossfeed::device::Cuda;
use lossfeed::device::cuda;
use lossfeed::device::cuda::CudaKernels as Core;
use lossfeed_kernels::launch::{self, Gradient, Home, Probabilities, ProbabilityGradient, RankBy, Score, Sequences};
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

/// The calls of the kernels: each a structure of `lossfeed_kernels::launch` that is filled and launched. Of its
/// arguments the first ones are about the launch; those behind the first semicolon are fields and go by position, those
/// behind the second go by name. A field within a field has its path behind an arrow.
macro_rules! kernels {
    (
        { $($others:tt)* }
        $(
            $(#[$about:meta])*
            fn $call:ident(
                $self:ident, $py:ident, $($launch:ident: $Launch:ty),+;
                $($field:ident: $Field:ty),+;
                $($name:ident: $Name:ty $(= $default:expr)? $(=> $place:ident.$part:ident)?),+ $(,)?
            ) -> $batch:ident: $Batch:ident $body:block
        )+
    ) => {
        #[pymethods]
        impl CudaKernels {
            $($others)*
            $(
                $(#[$about])*
                #[allow(clippy::too_many_arguments)]
                #[pyo3(signature = ($($launch,)+ $($field,)+ *, $($name $(= $default)?),+))]
                fn $call(
                    &$self,
                    $py: Python<'_>,
                    $($launch: $Launch,)+
                    $($field: $Field,)+
                    $($name: $Name,)+
                ) -> PyResult<()> {
                    let mut $batch = $Batch::default();
                    $($batch.$field = $field;)+
                    $(kernels!(@set $batch $name $($place.$part)?);)+
                    $body
                }
            )+
        }
    };
    (@set $batch:ident $name:ident) => { $batch.$name = $name; };
    (@set $batch:ident $name:ident $place:ident.$part:ident) => { $batch.$place.$part = $name; };
}

kernels! {
    {
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

        /// Raises what earlier calls on `stream` that have run since found in their targets, and what `mailbox` has
        /// heard; waits for nothing.
        #[pyo3(signature = (stream, mailbox=None))]
        fn check(&self, stream: u64, mailbox: Option<&Mailbox>) -> PyResult<()> {
            self.0.check(stream, mailbox)
        }
    }

    /// Scores logits against int64 class indices. Ranks are taken where `count`, `rank_score` or `mail` asks for
    /// them. `reduced`: where the mean (or sum) of the terms goes, in the logits' type if `narrow`; `divisor`: where
    /// the mean's.
    fn forward(
        self, py, stream: u64, dtype_name: &str, scratch: u64;
        rows: usize, classes: usize, row_stride: i64, logits: u64, targets: u64;
        loss: u64, max: u64 = 0, log_sum: u64 = 0, grad_norm: u64 = 0, entropy: u64 = 0, correct: u64 = 0,
        count: u64 = 0 => home.count, rank_score: u64 = 0 => home.rank_score, weight: u64 = 0, weight_sum: u64 = 0,
        term: u64 = 0, share: u64 = 0, reduced: u64 = 0 => reduction.out, mean: bool = true => reduction.mean,
        narrow: bool = false => reduction.narrow, divisor: u64 = 0 => reduction.divisor,
        sample_weight: u64 = 0 => reduction.sample_weight, sample_rows: usize = 1 => reduction.sample_rows,
        error: u64 = 0, mail: u64 = 0 => home.mail, tag: u64 = 0 => home.tag, ids: u64 = 0 => home.ids,
        ignore_index: i64 = -100, label_smoothing: f64 = 0.0, b0: f32 = 10.0 => home.b0,
    ) -> batch: Score {
        let dtype = dtype(dtype_name)?;
        // SAFETY: the Python layer hands in addresses of tensors that it keeps until the stream is done with them,
        // and the stream they are used on.
        outside(py, || unsafe { self.0.core.forward(stream, dtype, &batch, scratch) })
    }

    /// The gradient over class indices. `upstream` has the logits' type if `upstream_narrow`; each is divided by
    /// `divisor` and multiplied with its sample's weight.
    fn backward(
        self, py, stream: u64, dtype_name: &str;
        rows: usize, classes: usize, row_stride: i64, logits: u64, targets: u64;
        max: u64, log_sum: u64, upstream: u64, upstream_stride: i32, gradient: u64, gradient_stride: i64,
        upstream_narrow: bool = false, divisor: u64 = 0, sample_weight: u64 = 0, sample_rows: usize = 1,
        upstream_lse: u64 = 0, upstream_lse_stride: i32 = 0, weight: u64 = 0, weight_sum: u64 = 0,
        ignore_index: i64 = -100, label_smoothing: f64 = 0.0,
    ) -> batch: Gradient {
        let dtype = dtype(dtype_name)?;
        // SAFETY: as for `forward`.
        outside(py, || unsafe { self.0.core.backward(stream, dtype, &batch) })
    }

    /// Scores logits against probabilities of the same type.
    fn probabilities(
        self, py, stream: u64, dtype_name: &str, scratch: u64;
        rows: usize, classes: usize, row_stride: i64, logits: u64, probabilities: u64, probability_stride: i64;
        loss: u64, max: u64 = 0, log_sum: u64 = 0, grad_norm: u64 = 0, entropy: u64 = 0, mass: u64 = 0,
        count: u64 = 0 => home.count, rank_score: u64 = 0 => home.rank_score, weight: u64 = 0,
        mail: u64 = 0 => home.mail, tag: u64 = 0 => home.tag, ids: u64 = 0 => home.ids,
        label_smoothing: f64 = 0.0, b0: f32 = 10.0 => home.b0,
    ) -> batch: Probabilities {
        let dtype = dtype(dtype_name)?;
        // SAFETY: as for `forward`.
        outside(py, || unsafe { self.0.core.probabilities(stream, dtype, &batch, scratch) })
    }

    /// The gradient over probabilities.
    fn backward_probabilities(
        self, py, stream: u64, dtype_name: &str;
        rows: usize, classes: usize, row_stride: i64, logits: u64, probabilities: u64, probability_stride: i64;
        max: u64, log_sum: u64, mass: u64, upstream: u64, upstream_stride: i32, gradient: u64, gradient_stride: i64,
        weight: u64 = 0, label_smoothing: f64 = 0.0,
    ) -> batch: ProbabilityGradient {
        let dtype = dtype(dtype_name)?;
        // SAFETY: as for `forward`.
        outside(py, || unsafe { self.0.core.backward_probabilities(stream, dtype, &batch) })
    }

    /// Scores sequences from the scores of their tokens, and ranks them by their "mean", "max" or "sum".
    fn sequences(
        self, py, stream: u64, double: bool, rank_by: &str, scratch: u64;
        sequences: usize, length: usize, loss: u64, correct: u64;
        mean: u64, grad_norm: u64 = 0, entropy: u64 = 0, max: u64 = 0, sum: u64 = 0, mean_grad_norm: u64 = 0,
        mean_entropy: u64 = 0, counted: u64 = 0, count: u64 = 0 => home.count, rank_score: u64 = 0 => home.rank_score,
        mail: u64 = 0 => home.mail, tag: u64 = 0 => home.tag, ids: u64 = 0 => home.ids, b0: f32 = 10.0 => home.b0,
    ) -> batch: Sequences {
        let ranked;
        (batch.rank_by, ranked) = match rank_by {
            "mean" => (RankBy::Mean, mean),
            "max" => (RankBy::Max, max),
            "sum" => (RankBy::Sum, sum),
            other => return Err(contract(format!("sequences are not ranked by {other:?}"))),
        };
        if ranked == 0 {
            return Err(contract("the column to rank by was not requested"));
        }
        // SAFETY: as for `forward`.
        outside(py, || unsafe { self.0.core.sequences(stream, double, &batch, scratch) })
    }

    /// Ranks float32 losses; with `mail` they and the columns given go home.
    fn ranks(
        self, py, stream: u64, rows: usize, scratch: u64;
        loss: u64;
        grad_norm: u64 = 0, entropy: u64 = 0, count: u64 = 0 => home.count, rank_score: u64 = 0 => home.rank_score,
        mail: u64 = 0 => home.mail, tag: u64 = 0 => home.tag, ids: u64 = 0 => home.ids, b0: f32 = 10.0 => home.b0,
    ) -> batch: Ranks {
        let columns = [batch.loss, batch.grad_norm, batch.entropy];
        // SAFETY: as for `forward`.
        outside(py, || unsafe { self.0.core.ranks(stream, rows, columns, &batch.home, scratch) })
    }
}

/// Columns to rank and to mail.
#[derive(Default)]
struct Ranks {
    loss: u64,
    grad_norm: u64,
    entropy: u64,
    home: Home,
}

/// Lets the calling thread, until it ends, allocate and page-lock memory while another thread captures a graph.
#[pyfunction]
pub(crate) fn relax_captures(py: Python<'_>) -> PyResult<()> {
    outside(py, cuda::relax_captures)
}
