//! Threads of ours in the interpreter, which must be out of it before it goes; and signals that fall into it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pyo3::prelude::*;

/// Set when the interpreter is about to go: no thread may enter it any more.
static LEAVING: AtomicBool = AtomicBool::new(false);
/// Threads of ours inside the interpreter, or about to enter it.
static INSIDE: AtomicUsize = AtomicUsize::new(0);
/// Whether the interpreter is about to go.
pub(crate) fn leaving() -> bool {
    LEAVING.load(Ordering::SeqCst)
}

/// A thread's stay in the interpreter.
struct Stay;

impl Drop for Stay {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs `work` in the interpreter, unless that is about to go. `work` must be short: the exit waits for it.
pub(crate) fn enter<T>(work: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    INSIDE.fetch_add(1, Ordering::SeqCst);
    let _stay = Stay;
    if leaving() { None } else { Python::try_attach(work) }
}

/// Lets no further thread in.
pub(crate) fn close() {
    LEAVING.store(true, Ordering::SeqCst);
}

/// How many threads of ours are in it, or about to enter it.
pub(crate) fn inside() -> usize {
    INSIDE.load(Ordering::SeqCst)
}

/// For a forked child, in which none of them exists.
pub(crate) fn forked() {
    INSIDE.store(0, Ordering::SeqCst);
}

/// Whether a signal handler raised it, and not the code that it fell into.
pub(crate) fn of_signal(py: Python<'_>, raised: &PyErr) -> bool {
    // What was raised into native code has its traceback beside it.
    let traced = raised.traceback(py).map_or(Ok(()), |trace| raised.value(py).setattr("__traceback__", trace));
    let asked = traced.and_then(|()| py.import("lossfeed._base.signals"));
    let asked = asked.and_then(|m| m.call_method1("of_signal", (raised.value(py),)));
    asked.and_then(|answer| answer.is_truthy()).unwrap_or(false)
}
