//! Threads of ours in the interpreter, which must be out of it before it goes; and signals that fall into it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// Set when the interpreter is about to go: no thread may enter it any more.
static LEAVING: AtomicBool = AtomicBool::new(false);
/// Threads of ours inside the interpreter, or about to enter it.
static INSIDE: AtomicUsize = AtomicUsize::new(0);
/// Threads of ours that are being given a place in the interpreter.
static ENTERING: AtomicUsize = AtomicUsize::new(0);
/// Forks that are about to happen.
static FORKS: AtomicUsize = AtomicUsize::new(0);
/// The longest that a fork and an entry wait for each other.
const FORK_WAITS: Duration = Duration::from_secs(1);
const ENTRY_WAITS: Duration = Duration::from_millis(200);

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
    if leaving() {
        return None;
    }
    let entry = Entry::begin();
    Python::try_attach(|py| {
        drop(entry);
        work(py)
    })
}

/// The making of a thread's place. It takes a lock of the interpreter without holding the GIL; a child forked meanwhile
/// waits for that lock for ever: <https://github.com/python/cpython/issues/112275>, in Python 3.11 before
/// 3.11.10.
struct Entry;

impl Entry {
    fn begin() -> Self {
        let until = Instant::now() + ENTRY_WAITS;
        loop {
            ENTERING.fetch_add(1, Ordering::SeqCst);
            // A thread that has its place already may hold the GIL, which the fork waits for: it waits briefly.
            if FORKS.load(Ordering::SeqCst) == 0 || Instant::now() > until {
                return Self;
            }
            ENTERING.fetch_sub(1, Ordering::SeqCst);
            thread::sleep(Duration::from_micros(50));
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        ENTERING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Before a fork: no thread of ours is on its way into the interpreter until it is over.
#[pyfunction]
pub(crate) fn fork_begins(py: Python<'_>) {
    FORKS.fetch_add(1, Ordering::SeqCst);
    if ENTERING.load(Ordering::SeqCst) > 0 {
        py.detach(|| {
            let until = Instant::now() + FORK_WAITS;
            while ENTERING.load(Ordering::SeqCst) > 0 && Instant::now() < until {
                thread::sleep(Duration::from_micros(50));
            }
        });
    }
}

/// After a fork, in the parent.
#[pyfunction]
pub(crate) fn fork_ends() {
    FORKS.fetch_sub(1, Ordering::SeqCst);
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
    ENTERING.store(0, Ordering::SeqCst);
    FORKS.store(0, Ordering::SeqCst);
}

/// Whether a signal handler raised it, and not the code that it fell into.
pub(crate) fn of_signal(py: Python<'_>, raised: &PyErr) -> bool {
    // What was raised into native code has its traceback beside it.
    let traced = raised.traceback(py).map_or(Ok(()), |trace| raised.value(py).setattr("__traceback__", trace));
    let asked = traced.and_then(|()| py.import("lossfeed._base.signals"));
    let asked = asked.and_then(|m| m.call_method1("of_signal", (raised.value(py),)));
    asked.and_then(|answer| answer.is_truthy()).unwrap_or(false)
}
