//! A GPU's mailbox as Python holds it: tickets by tag, problems, and what captured launches read.

use std::collections::BTreeMap;
use std::sync::Arc;

use lossfeed::Error;
use lossfeed::engine::ScoreMailbox;
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::engine::Ticket;
use crate::errors::{caught, outside, raise};

/// A mailbox on a GPU, of one engine.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct Mailbox {
    core: Arc<ScoreMailbox>,
    pid: u32,
    /// What captured launches to this mailbox read, by its address: their graphs may be replayed as long as mail is taken.
    kept: Mutex<BTreeMap<u64, Py<PyAny>>>,
}

impl Mailbox {
    pub(crate) fn new(core: ScoreMailbox) -> Self {
        Self { core: Arc::new(core), pid: std::process::id(), kept: Mutex::default() }
    }

    /// Ends it, and lets go of what was kept. A device that could not be waited for may still be reading that: then it stays for ever.
    fn end(&self, py: Python<'_>) -> PyResult<bool> {
        let core = Arc::clone(&self.core);
        // Closing waits for the device and for the thread, which may be inside a call that needs the interpreter.
        let idle = py.detach(move || caught(|| Ok(core.close()))).map_err(raise)?;
        let kept = std::mem::take(&mut *self.kept.lock());
        if !idle {
            std::mem::forget(kept);
        }
        Ok(idle)
    }

    fn same_process(&self) -> PyResult<()> {
        if self.pid == std::process::id() {
            return Ok(());
        }
        Err(raise(Error::usage("this mailbox was made in another process: make a loader in the child")))
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            // An error here has nobody to go to.
            let _ = Python::attach(|py| self.end(py));
        } else {
            std::mem::forget((Arc::clone(&self.core), std::mem::take(&mut *self.kept.lock())));
        }
    }
}

#[pymethods]
impl Mailbox {
    /// What calls name it by (`mail=`). Valid for ever; after `close` mail to it is dropped.
    #[getter]
    pub(crate) fn address(&self) -> u64 {
        self.core.address()
    }

    /// The tag to launch with (`tag=`): mail that brings it is credited to this ticket's batch. Without one (tag 0), mail is
    /// credited to its ids.
    pub(crate) fn register(&self, ticket: &Ticket) -> PyResult<u64> {
        self.same_process()?;
        Ok(self.core.credits().register(ticket.0.clone()))
    }

    /// Keeps `owner` of the memory at `address`, which a captured launch reads, until the mailbox takes no more mail.
    fn keep(&self, address: u64, owner: Py<PyAny>) -> PyResult<()> {
        self.same_process()?;
        let before = self.kept.lock().insert(address, owner);
        // After the lock: what it owns may end here, and run anybody's code.
        drop(before);
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

    /// Refuses further mail, waits for the work the device has been given, credits what came. False if the device could not
    /// be asked. Twice is fine.
    fn close(&self, py: Python<'_>) -> PyResult<bool> {
        self.same_process()?;
        self.end(py)
    }
}
