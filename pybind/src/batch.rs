//! A batch as Python holds it: its memory, and whom it is about.

use std::sync::Arc;

use lossfeed::loader::Ticket as CoreTicket;
use lossfeed::staging::BatchSlot;
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::errors::raise;
use crate::process::Process;

/// Which samples a batch delivers; scores are credited to exactly these.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct Ticket(pub(crate) CoreTicket);

#[pymethods]
impl Ticket {
    /// The epoch the batch belongs to.
    #[getter]
    fn epoch(&self) -> u64 {
        self.0.epoch
    }

    /// Its position in the epoch, from 0.
    #[getter]
    fn number(&self) -> usize {
        self.0.number
    }

    fn __len__(&self) -> usize {
        self.0.ids.len()
    }
}

/// A filled batch slot. It returns to its pool when this object and every view of it are gone.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct Slot {
    pub(crate) slot: Arc<BatchSlot>,
    home: Process,
}

impl Slot {
    pub(crate) fn new(slot: BatchSlot) -> Self {
        Self { slot: Arc::new(slot), home: Process::this() }
    }

    fn view(&self, range: std::ops::Range<usize>) -> Buffer {
        Buffer::of_slot(&self.slot, range)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.home.leak_elsewhere(&self.slot);
    }
}

#[pymethods]
impl Slot {
    /// Rows filled.
    #[getter]
    fn rows(&self) -> usize {
        self.slot.rows()
    }

    /// The bytes of data, target, ids (int64) and weight (float32), without a copy.
    fn fields(&self) -> PyResult<(Buffer, Buffer, Buffer, Buffer)> {
        let (layout, rows) = (self.slot.layout(), self.slot.rows());
        self.slot.data().map_err(raise)?;
        Ok((
            self.view(layout.data_range(rows)),
            self.view(layout.target_range(rows)),
            self.view(layout.ids_range(rows)),
            self.view(layout.weight_range(rows)),
        ))
    }

    /// Bytes of the slot, all four parts.
    #[getter]
    fn total_bytes(&self) -> usize {
        self.slot.layout().total_bytes()
    }

    /// (start, end) of data, target, ids and weight in the block.
    fn ranges(&self) -> [(usize, usize); 4] {
        let (layout, rows) = (self.slot.layout(), self.slot.rows());
        [layout.data_range(rows), layout.target_range(rows), layout.ids_range(rows), layout.weight_range(rows)]
            .map(|r| (r.start, r.end))
    }
}
