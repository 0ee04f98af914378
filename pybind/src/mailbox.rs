//! A GPU's mailbox as Python holds it: tickets by tag, problems, and what captured launches read.

use std::sync::Arc;

use lossfeed::engine::ScoreMailbox;
use pyo3::prelude::*;

use crate::batch::Ticket;
use crate::errors::{outside, raise};
use crate::process::Process;

/// A mailbox on a GPU, of one engine.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct Mailbox {
    core: Arc<ScoreMailbox>,
    home: Process,
}

impl Mailbox {
    pub(crate) fn new(core: ScoreMailbox) -> Self {
        Self { core: Arc::new(core), home: Process::this() }
    }

    fn same_process(&self) -> PyResult<()> {
        self.home.check("this mailbox")
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        // A collection may come at any time, in the middle of a capture too: dropping waits for nothing.
        self.home.leak_elsewhere(&self.core);
    }
}

#[pymethods]
impl Mailbox {
    /// What calls name it by (`mail=`). Valid for ever; after `close` mail to it is dropped.
    #[getter]
    pub(crate) fn address(&self) -> u64 {
        self.core.address()
    }

    /// The tag to launch with (`tag=`): mail that brings it is credited to this ticket's batch. Without one (tag 0),
    /// mail is credited to its ids.
    pub(crate) fn register(&self, ticket: &Ticket) -> PyResult<u64> {
        self.same_process()?;
        Ok(self.core.credits().register(ticket.0.clone()))
    }

    /// Whether losses are all that has to come home: the run looks at neither gradient norms nor entropies.
    pub(crate) fn losses_suffice(&self) -> PyResult<bool> {
        self.same_process()?;
        Ok(self.core.credits().losses_suffice())
    }

    /// Keeps `owner` of the memory at `address`, which a captured launch reads, as long as mail may come.
    fn keep(&self, address: u64, owner: Py<PyAny>) -> PyResult<()> {
        self.same_process()?;
        // What was kept for that address before ends here, after the lock: it may run anybody's code.
        drop(self.core.credits().keep(address, Box::new(owner)));
        Ok(())
    }

    /// Raises the first problem met since the last call: a target that names no class, scores that fit no batch.
    pub(crate) fn check(&self) -> PyResult<()> {
        self.same_process()?;
        self.core.credits().take_problem().map_or(Ok(()), |problem| Err(raise(problem)))
    }

    /// Batches that came home (wraps at 2^32).
    #[getter]
    fn delivered_total(&self) -> PyResult<u32> {
        self.same_process()?;
        Ok(self.core.delivered_total())
    }

    /// Waits for the work the device has been given, and until its scores have been credited.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        self.same_process()?;
        outside(py, || self.core.settle())
    }

    /// Refuses further mail, credits what is on its way, and lets go of what was kept. False if the device does not
    /// answer: then that stays for ever, for a kernel may still be reading it. Twice is fine.
    fn close(&self, py: Python<'_>) -> PyResult<bool> {
        self.same_process()?;
        let idle = outside(py, || Ok(self.core.close()))?;
        let kept = self.core.credits().take_kept();
        if !idle {
            std::mem::forget(kept);
        }
        Ok(idle)
    }
}
