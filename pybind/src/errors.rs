//! The one place where an engine error becomes a Python exception.

use std::cell::Cell;
use std::error::Error as StdError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use lossfeed::{Error, ErrorKind, Result};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::logging;

/// The class in `lossfeed._base.errors` that stands for `kind`.
fn class_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Settings => "SettingsError",
        ErrorKind::Source => "SourceError",
        ErrorKind::Outage => "OutageError",
        ErrorKind::Sample => "SampleError",
        ErrorKind::Memory => "MemoryLimitError",
        ErrorKind::Device => "DeviceError",
        ErrorKind::Usage => "UsageError",
        ErrorKind::Timeout => "TimeoutError",
        // Only if no Python exception stands behind it: else that one passes through as itself.
        ErrorKind::Interrupted => "UsageError",
        ErrorKind::Internal => "InternalError",
    }
}

/// What a dataset raised, with its words: a loader thread that shows them must not enter the interpreter for it.
#[derive(Debug, Clone)]
pub(crate) struct Raised {
    pub(crate) error: Arc<PyErr>,
    pub(crate) text: String,
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for Raised {}

/// The Python exception for `error`; a Python exception anywhere among its causes becomes `__cause__`.
/// KeyboardInterrupt, SystemExit and their like pass through as themselves.
pub(crate) fn raise(error: Error) -> PyErr {
    Python::attach(|py| {
        if error.kind() == ErrorKind::Interrupted
            && let Some(raised) = python_cause(py, &error)
        {
            return raised;
        }
        let class = match py.import("lossfeed._base.errors").and_then(|m| m.getattr(class_name(error.kind()))) {
            Ok(class) => class,
            Err(import) => return import,
        };
        let raised = match class.call1((error.to_string(),)) {
            Ok(instance) => PyErr::from_value(instance),
            Err(construction) => return construction,
        };
        raised.set_cause(py, python_cause(py, &error));
        raised
    })
}

/// The first Python exception in the chain of causes.
fn python_cause(py: Python<'_>, error: &Error) -> Option<PyErr> {
    let mut cause: Option<&(dyn StdError + 'static)> = error.source();
    while let Some(current) = cause {
        if let Some(found) = current.downcast_ref::<Raised>() {
            return Some(found.error.clone_ref(py));
        }
        if let Some(found) = current.downcast_ref::<PyErr>() {
            return Some(found.clone_ref(py));
        }
        cause = current.source();
    }
    None
}

/// Runs `work` without the interpreter lock; an error or a panic in it becomes a named exception. Warnings that the
/// engine has had meanwhile go to Python's `logging`; what a signal handler raises in there is raised here.
pub(crate) fn outside<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    let result = py.detach(|| {
        let before = PYTHONS.replace(true);
        let done = caught(work);
        PYTHONS.set(before);
        done
    });
    let result = result.map_err(raise);
    // As if the signal had come after the call.
    if let Err(signal) = logging::deliver(py) {
        signal.set_cause(py, result.err());
        return Err(signal);
    }
    result
}

thread_local! {
    static PYTHONS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread has come from Python and is outside of it for a while. The others are the engine's own.
pub(crate) fn came_from_python() -> bool {
    PYTHONS.get()
}

/// The exception of a signal's handler, run on a Python thread that waits for a source.
pub(crate) fn interrupted() -> Option<Error> {
    let raised = came_from_python().then(|| Python::try_attach(|py| py.check_signals()))??.err()?;
    let text = raised.to_string();
    Some(
        Error::new(ErrorKind::Interrupted, "a signal's handler raised")
            .because(Raised { error: Arc::new(raised), text }),
    )
}

/// Runs `work`; a panic in it becomes an internal error, since nothing may unwind into Python.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let what = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Err(Error::internal(format!("the engine broke an invariant of its own ({what}); please report this")))
    })
}

/// For arguments that only our own Python layer passes: a mismatch there is a bug of ours, not of the user.
pub(crate) fn contract(message: impl Into<String>) -> PyErr {
    PyRuntimeError::new_err(message.into())
}
