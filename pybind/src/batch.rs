//! A batch as Python holds it: its memory, and whom it is about.

use std::ops::Range;
use std::sync::Arc;

use lossfeed::loader::Ticket as CoreTicket;
use lossfeed::staging::BatchSlot;
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::errors::raise;
use crate::process::Process;
use crate::tails::Tails;

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

    /// Where the fields of the data lie, then target, ids and weight.
    fn places(&self) -> impl Iterator<Item = Range<usize>> {
        let (layout, rows) = (self.slot.layout(), self.slot.rows());
        let others = [layout.target_range(rows), layout.ids_range(rows), layout.weight_range(rows)];
        layout.fields().iter().map(move |field| layout.field_range(field, rows)).chain(others)
    }

    fn view(&self, range: Range<usize>) -> Buffer {
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

    /// The bytes of each field of the data, then of target, ids (int64) and weight (float32), without a copy.
    fn fields(&self) -> PyResult<Vec<Buffer>> {
        self.slot.data().map_err(raise)?;
        Ok(self.places().map(|range| self.view(range)).collect())
    }

    /// What the samples have of no fixed size: arrays of these dtypes and numbers of dimensions.
    fn tails(&self, kinds: Vec<(String, usize)>) -> PyResult<Tails> {
        Tails::of(&self.slot, kinds).map_err(raise)
    }

    /// Whether the consumer holds so many slots that the loader has fewer left than it began with.
    fn is_scarce(&self) -> bool {
        self.slot.is_scarce()
    }

    /// Bytes of the slot, all parts.
    #[getter]
    fn total_bytes(&self) -> usize {
        self.slot.layout().total_bytes()
    }

    /// (start, end) of each field of the data, then of target, ids and weight, in the block.
    fn ranges(&self) -> Vec<(usize, usize)> {
        self.places().map(|range| (range.start, range.end)).collect()
    }
}
