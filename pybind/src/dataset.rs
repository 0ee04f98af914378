//! A Python dataset behind the engine's source trait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lossfeed::source::{Form, Payload, Source as EngineSource};
use lossfeed::{Error, ErrorKind, Result, SampleId, TensorSpec};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::buffer::Input;
use crate::errors::contract;
use crate::source::Source;
use crate::spec::{self, PySpec};

/// Set when the interpreter is about to go: no thread may enter it any more.
static LEAVING: AtomicBool = AtomicBool::new(false);
/// Threads inside the interpreter, or about to enter it.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// A thread's stay in the interpreter. One that is still there while the interpreter is torn down would be killed in the
/// middle of our frames.
struct Stay;

impl Stay {
    fn enter() -> Option<Self> {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        let stay = Self;
        (!LEAVING.load(Ordering::SeqCst)).then_some(stay)
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Ends all calls from loader threads into Python for good, and waits for those under way. For interpreter exit.
#[pyfunction]
pub(crate) fn leave(py: Python<'_>) -> PyResult<()> {
    LEAVING.store(true, Ordering::SeqCst);
    while INSIDE.load(Ordering::SeqCst) > 0 {
        py.detach(|| std::thread::sleep(Duration::from_millis(2)));
        py.check_signals()?;
    }
    Ok(())
}

/// Samples come from `fetch(ids)`, which returns for every id a pair of contiguous buffers, or the exception that
/// reading it raised. Loader threads call it, one at a time as far as the interpreter lock makes them.
struct Callback {
    fetch: Py<PyAny>,
    samples: usize,
    form: Form,
    data_bytes: usize,
    target: TensorSpec,
    description: String,
    classes: Vec<String>,
}

/// One sample's bytes, copied out: the sink runs without the interpreter lock, since it may wait for the engine's.
type Item = Result<(Vec<u8>, Vec<u8>)>;

impl Callback {
    /// Calls Python for `ids`. The outer error concerns all of them.
    fn call(&self, py: Python<'_>, ids: &[SampleId]) -> PyResult<Vec<Item>> {
        let answer = self.fetch.bind(py).call1((PyList::new(py, ids)?,))?;
        let answer = answer.cast_into::<PyList>().map_err(PyErr::from)?;
        if answer.len() != ids.len() {
            return Err(contract(format!("{} items for {} ids", answer.len(), ids.len())));
        }
        answer.iter().zip(ids).map(|(item, &id)| self.item(py, &item, id)).collect()
    }

    fn item(&self, py: Python<'_>, item: &Bound<'_, PyAny>, id: SampleId) -> PyResult<Item> {
        if let Ok(pair) = item.cast::<PyTuple>() {
            let (data, target) = (Input::get(&pair.get_item(0)?)?, Input::get(&pair.get_item(1)?)?);
            return Ok(Ok((data.bytes().to_vec(), target.bytes().to_vec())));
        }
        let raised = PyErr::from_value(item.clone());
        let ours = py.import("lossfeed._errors")?.getattr("SampleError")?;
        // Our own message already says what is wrong with the item; anything else is the dataset's exception.
        if item.is_instance(&ours)? {
            return Ok(Err(Error::new(ErrorKind::Sample, raised.value(py).to_string())));
        }
        Ok(Err(Error::sample(format!("dataset item {id} raised")).because(raised)))
    }
}

impl EngineSource for Callback {
    fn len(&self) -> usize {
        self.samples
    }

    fn describe(&self) -> String {
        self.description.clone()
    }

    fn payload_bytes(&self, id: SampleId) -> u64 {
        if (id as usize) < self.samples { self.data_bytes as u64 } else { 0 }
    }

    fn name(&self, id: SampleId) -> String {
        format!("item {id}")
    }

    fn form(&self) -> &Form {
        &self.form
    }

    fn target_spec(&self) -> &TensorSpec {
        &self.target
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn labels(&self) -> Option<&[i64]> {
        None
    }

    fn fetch(&self, ids: &[SampleId], sink: &mut dyn FnMut(usize, Result<Payload<'_>>)) {
        let answer = Stay::enter().and_then(|_stay| Python::try_attach(|py| self.call(py, ids)));
        let Some(answer) = answer else {
            for k in 0..ids.len() {
                sink(k, Err(Error::usage("the interpreter is shutting down: close the loader before it does")));
            }
            return;
        };
        match answer {
            Ok(items) => {
                for (k, item) in items.into_iter().enumerate() {
                    match item {
                        Ok((data, target)) => sink(k, Ok(Payload { data: &data, target: &target })),
                        Err(error) => sink(k, Err(error)),
                    }
                }
            }
            Err(raised) => {
                let raised = Arc::new(raised);
                for k in 0..ids.len() {
                    sink(
                        k,
                        Err(Error::unreadable("the dataset could not be read").because(Shared(Arc::clone(&raised)))),
                    );
                }
            }
        }
    }
}

/// One Python exception as the cause of several errors.
#[derive(Debug)]
struct Shared(Arc<PyErr>);

impl std::fmt::Display for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the batch callback raised")
    }
}

impl std::error::Error for Shared {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

/// A dataset whose samples come from the Python callable `fetch`.
#[pyfunction]
pub(crate) fn dataset_source(
    py: Python<'_>,
    fetch: Py<PyAny>,
    samples: usize,
    data_spec: PySpec,
    target_spec: PySpec,
    description: String,
    classes: Vec<String>,
) -> PyResult<Source> {
    let (data, target) = (spec::from_python(data_spec)?, spec::from_python(target_spec)?);
    let data_bytes = data.bytes();
    let source = Callback { fetch, samples, form: Form::Rows(data), data_bytes, target, description, classes };
    Source::wrap(py, Arc::new(source), "auto", None)
}
