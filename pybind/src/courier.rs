//! Batches on their way to a GPU: addresses of the framework's memory, and the streams they are used on.
#![allow(unsafe_code)]

use std::sync::Arc;

use lossfeed::device::cuda::CopyEvent;
use lossfeed::engine::{Courier as Core, ImagesTo};
use pyo3::prelude::*;

use crate::batch::Slot;
use crate::errors::outside;
use crate::images::ImageTransform;

/// See the engine's courier.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct Courier(pub(crate) Arc<Core>);

/// The end of what was sent.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct Sent {
    courier: Arc<Core>,
    event: CopyEvent,
}

#[pymethods]
impl Courier {
    /// Raw handle of the stream that everything is sent on.
    #[getter]
    fn stream(&self) -> u64 {
        self.0.stream()
    }

    /// Copies the whole slot to `block`, after what the stream `after` has been given so far.
    fn send(&self, py: Python<'_>, slot: &Slot, block: u64, after: u64) -> PyResult<Sent> {
        let (courier, slot) = (Arc::clone(&self.0), Arc::clone(&slot.slot));
        // SAFETY: the Python layer hands in addresses of tensors that belong to `after` and are recorded on this
        // stream, so that they outlive the work, and the stream that is current.
        let event = outside(py, || unsafe { self.0.send(slot, block, after) })?;
        Ok(Sent { courier, event })
    }

    /// Copies the slot from its target on to `rest` and its rows' samples to `pixels`, and makes images of them at
    /// `made`, by the draws of `key` on `rank`.
    #[allow(clippy::too_many_arguments)]
    fn send_images(
        &self,
        py: Python<'_>,
        slot: &Slot,
        transform: &ImageTransform,
        key: u64,
        rank: u32,
        rest: u64,
        pixels: u64,
        made: u64,
        after: u64,
    ) -> PyResult<Sent> {
        let (courier, slot) = (Arc::clone(&self.0), Arc::clone(&slot.slot));
        let to = ImagesTo { rest, pixels, made };
        let by = transform.on_the_device(key, rank)?;
        // SAFETY: as for `send`; `pixels` belongs to this stream.
        let event = outside(py, || unsafe { self.0.send_images(slot, &by, &to, after) })?;
        Ok(Sent { courier, event })
    }
}

#[pymethods]
impl Sent {
    /// Makes a stream, not the CPU, wait for it.
    fn wait_on(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        // SAFETY: the Python layer hands in the stream that is current.
        outside(py, || unsafe { self.courier.wait(stream, &self.event) })
    }
}
