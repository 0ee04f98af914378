//! Calls of the engine's threads into Python: never on their own stacks, so that none of them is lost with the
//! interpreter.
//!
//! A thread that returns into an interpreter that is going away is ended by it on the spot. In the middle of our frames
//! that would abort the process. So a loader thread hands its call to a thread that Python has made
//! (`lossfeed/_data/reader_threads.py`) and waits outside of the interpreter; it enters only for the moment it takes to hand over.
//! A call that hangs holds up nobody's exit.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lossfeed::SampleId;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::errors::contract;
use crate::interpreter::{self, enter, leaving};
use crate::items::{Items, Rows};
use crate::process::Process;
use crate::turns::Held;

/// Calls that have not been answered.
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// How long a wait sleeps before it looks again.
const TICK: Duration = Duration::from_millis(2);
/// How long a loader thread waits for an answer before it looks whether the interpreter is going.
const PATIENCE: Duration = Duration::from_millis(50);

/// Ends all calls of loader threads into Python for good, and waits for those under way, `timeout_s` at most. Returns
/// how many have not come back. For interpreter exit.
#[pyfunction]
pub(crate) fn leave(py: Python<'_>, timeout_s: f64) -> PyResult<usize> {
    interpreter::close();
    let limit = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::MAX);
    let started = Instant::now();
    loop {
        let left = interpreter::inside() + CALLS.load(Ordering::SeqCst);
        if left == 0 || started.elapsed() >= limit {
            return Ok(left);
        }
        py.detach(|| std::thread::sleep(TICK));
        py.check_signals()?;
    }
}

/// For a forked child: the threads that would have answered do not exist there.
#[pyfunction]
pub(crate) fn forked() {
    interpreter::forked();
    CALLS.store(0, Ordering::SeqCst);
}

/// The items of the first ids asked for, at least one of them; or what concerns all.
pub(crate) type Answer = PyResult<Items>;

#[derive(Default)]
struct Progress {
    answer: Mutex<Option<Answer>>,
    answered: Condvar,
}

impl Progress {
    fn set(&self, answer: Answer) {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(answer);
        self.answered.notify_all();
    }
}

/// A call that a thread of Python's is to make.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct Call {
    ids: Vec<SampleId>,
    progress: Arc<Progress>,
    /// Held as long as the call lasts, whoever still waits for it.
    held: Mutex<Option<Held>>,
    pending: AtomicBool,
    home: Process,
}

impl Call {
    fn finish(&self, answer: Answer) {
        if !self.pending.swap(false, Ordering::SeqCst) || !self.home.is_this() {
            return;
        }
        drop(self.held.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.progress.set(answer);
        CALLS.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.finish(Err(contract("the thread that called the dataset has ended without an answer")));
    }
}

#[pymethods]
impl Call {
    /// The samples asked for.
    #[getter]
    fn ids(&self) -> Vec<SampleId> {
        self.ids.clone()
    }

    /// The call is over: its items (see [`items`]), or the exception it raised.
    fn answer(&self, answer: &Bound<'_, PyAny>) {
        self.finish(items(answer, self.ids.len()));
    }
}

/// What an adaptor's answer says: [`Rows`], or a list of what [`Items::put`] takes, for the first ids. An exception in
/// their place concerns all.
pub(crate) fn items(answer: &Bound<'_, PyAny>, asked: usize) -> Answer {
    let items = if let Ok(rows) = answer.cast_exact::<Rows>() {
        rows.try_borrow_mut()?.take()
    } else if let Ok(list) = answer.cast_exact::<PyList>() {
        let mut items = Items::default();
        list.iter().try_for_each(|item| items.put(item.cast()?))?;
        items
    } else {
        return Err(PyErr::from_value(answer.clone()));
    };
    if items.each.is_empty() || items.each.len() > asked {
        return Err(contract(format!("{} items for {asked} ids", items.each.len())));
    }
    Ok(items)
}

/// Has `readers` call `fetch(ids)` and waits for it. None if the interpreter is about to go.
pub(crate) fn call(readers: &Py<PyAny>, fetch: &Py<PyAny>, ids: &[SampleId], held: Held) -> Option<Answer> {
    let progress = Arc::new(Progress::default());
    let submitted = enter(|py| {
        CALLS.fetch_add(1, Ordering::SeqCst);
        let call = Call {
            ids: ids.to_vec(),
            progress: Arc::clone(&progress),
            held: Mutex::new(Some(held)),
            pending: AtomicBool::new(true),
            home: Process::this(),
        };
        readers.bind(py).call_method1("submit", (fetch.bind(py), call)).map(drop)
    })?;
    if let Err(raised) = submitted {
        return Some(Err(raised));
    }
    let mut answer = progress.answer.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(answer) = answer.take() {
            return Some(answer);
        }
        if leaving() {
            return None;
        }
        answer = progress.answered.wait_timeout(answer, PATIENCE).unwrap_or_else(PoisonError::into_inner).0;
    }
}
