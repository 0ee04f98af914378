//! The hooks' short way: what a call decides from shapes and keywords is decided once, and a call brings the addresses.
#![allow(unsafe_code)]

use std::sync::Arc;

use lossfeed_kernels::Dtype;
use lossfeed_kernels::launch::{self, Home, Score};
use pyo3::prelude::*;

use crate::cuda::{CudaKernels, Device};
use crate::engine::Ticket;
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
        let real = if dtype == Dtype::F64 { 8 } else { 4 };
        let column = (rows * real).next_multiple_of(ALIGNMENT);
        let counts = (rows * 4).next_multiple_of(ALIGNMENT);
        Ok(Self { device: kernels.device(), dtype, batch, column, counts })
    }

    /// Bytes of scratch, of any content, that `launch` wants on its stream.
    #[getter]
    fn scratch_bytes(&self) -> usize {
        3 * self.column + self.counts + launch::scratch_bytes(self.batch.rows, self.batch.classes)
    }

    /// Scores a batch and mails the scores on the account of `ticket`; raises what earlier calls found. False, and nothing is done,
    /// where the ticket is of another number of samples or a graph is being captured on `stream`.
    #[allow(clippy::too_many_arguments)]
    fn launch(
        &self,
        py: Python<'_>,
        mailbox: &Mailbox,
        ticket: &Ticket,
        stream: u64,
        logits: u64,
        targets: u64,
        scratch: u64,
    ) -> PyResult<bool> {
        if ticket.0.ids.len() != self.batch.rows || self.device.is_capturing(stream)? {
            return Ok(false);
        }
        self.device.check(stream, Some(mailbox))?;
        let tag = mailbox.register(ticket)?;
        let column = |number: usize| scratch + (number * self.column) as u64;
        let counts = column(3);
        let batch = Score {
            logits,
            targets,
            loss: column(0),
            grad_norm: column(1),
            entropy: column(2),
            home: Home { count: counts, mail: mailbox.address(), tag, ..self.batch.home },
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
