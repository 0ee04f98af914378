//! Calls of the engine's threads into Python: never on their own stacks, so that none of them is lost with the
//! interpreter.
//!
//! A thread that returns into an interpreter that is going away is ended by it on the spot. In the middle of our frames
//! that would abort the process. So a loader thread hands its call to a thread that Python has made
//! (`lossfeed/_readers.py`) and waits outside of the interpreter; it enters only for the moment it takes to hand over.
//! A call that hangs holds up nobody's exit.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lossfeed::SampleId;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::buffer::Input;
use crate::errors::{Raised, contract};
use crate::interpreter::{self, enter, leaving};
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

/// One sample's bytes, or what reading it raised and whether that asks for the end of everything.
pub(crate) enum Item {
    Sample(Vec<u8>, Vec<u8>),
    /// Our own words, which say what is wrong with the item.
    Bad(String),
    Raised(Raised),
    Fatal(Raised),
}

/// The items of the first ids asked for, at least one of them; or what concerns all.
pub(crate) type Answer = PyResult<Vec<Item>>;

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

    /// The call is over: a list of items (see [`items`]), or the exception it raised.
    fn answer(&self, answer: &Bound<'_, PyAny>) {
        self.finish(items(answer, self.ids.len()));
    }
}

/// What an adaptor's answer says: for each of the first ids `(data, target)` as contiguous buffers, or `(words,
/// exception, fatal)`, without an exception where the words are ours. An exception in place of the list concerns all.
pub(crate) fn items(answer: &Bound<'_, PyAny>, asked: usize) -> Answer {
    let Ok(list) = answer.cast::<PyList>() else { return Err(PyErr::from_value(answer.clone())) };
    if list.is_empty() || list.len() > asked {
        return Err(contract(format!("{} items for {asked} ids", list.len())));
    }
    list.iter().map(|item| one(&item)).collect()
}

fn bytes(part: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    match part.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes.as_bytes().to_vec()),
        Err(_) => Ok(Input::get(part)?.bytes().to_vec()),
    }
}

fn one(item: &Bound<'_, PyAny>) -> PyResult<Item> {
    let item = item.cast::<PyTuple>()?;
    if item.len() == 2 {
        return Ok(Item::Sample(bytes(&item.get_item(0)?)?, bytes(&item.get_item(1)?)?));
    }
    let (text, error, fatal): (String, Bound<'_, PyAny>, bool) = item.extract()?;
    if error.is_none() {
        return Ok(Item::Bad(text));
    }
    let raised = Raised { error: Arc::new(PyErr::from_value(error)), text };
    Ok(if fatal { Item::Fatal(raised) } else { Item::Raised(raised) })
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
