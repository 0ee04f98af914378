//! The one place where an engine error becomes a Python exception.

use std::error::Error as StdError;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lossfeed::{Error, ErrorKind, Result};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// The class in `lossfeed._errors` that stands for `kind`.
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
        ErrorKind::Internal => "InternalError",
    }
}

/// The Python exception for `error`; a Python exception anywhere among its causes becomes `__cause__`.
pub(crate) fn raise(error: Error) -> PyErr {
    Python::attach(|py| {
        let class = match py.import("lossfeed._errors").and_then(|m| m.getattr(class_name(error.kind()))) {
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
        if let Some(found) = current.downcast_ref::<PyErr>() {
            return Some(found.clone_ref(py));
        }
        cause = current.source();
    }
    None
}

/// Runs `work` without the interpreter lock; an error or a panic in it becomes a named exception.
pub(crate) fn outside<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(|| caught(work)).map_err(raise)
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
