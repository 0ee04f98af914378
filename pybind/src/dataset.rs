//! A Python dataset behind the engine's source trait.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use lossfeed::source::{
    Facts, Fields, Fingerprint, Form, Payload, SIZE_UNKNOWN, Size, Source as EngineSource, Traffic,
};
use lossfeed::{Dtype, Error, ErrorKind, Result, SampleId, TensorSpec};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::calls::{self, Answer};
use crate::errors::{Raised, came_from_python, raise};
use crate::interpreter;
use crate::items::{Item, Items};
use crate::source::Source;
use crate::spec::{self, PySpec};
use crate::turns::{Held, Turns};

/// A size that is not known, or too large for a cache.
const UNKNOWN: u32 = u32::MAX;

/// Samples come from `fetch(ids)`, whose answer [`calls::items`] describes: it may stop after some of the ids, so that
/// a slow dataset is asked again and again and a pass that is over ends between two items. It is called when it is its
/// turn: on the consumer's own thread where that does the loading, else on one of `readers` (see [`calls`]).
struct Callback {
    fetch: Py<PyAny>,
    readers: Py<PyAny>,
    turns: Turns,
    facts: Facts,
    data_bytes: usize,
    /// Bytes of each sample when it was delivered last, tail included, and of the tail after its picture; none where
    /// all are alike.
    sizes: Vec<[AtomicU32; 2]>,
    /// Number of lengths in what Python packs of items with an encoded picture, which comes first.
    picture: Option<usize>,
}

/// Why no answer came.
enum Lost {
    /// The pass is over: nobody wants one.
    Stopped,
    /// The interpreter is going.
    Leaving,
    /// Ctrl-C, while the consumer's own thread waited for its turn.
    Signal(PyErr),
}

impl Callback {
    fn take_turn(&self, stopped: &dyn Fn() -> bool) -> Result<Held, Lost> {
        let mut lost = None;
        let held = self.turns.take(&mut || {
            if stopped() {
                lost = Some(Lost::Stopped);
            } else if interpreter::leaving() {
                lost = Some(Lost::Leaving);
            } else if came_from_python()
                && let Some(Err(raised)) = Python::try_attach(|py| py.check_signals())
            {
                lost = Some(Lost::Signal(raised));
            }
            lost.is_some()
        });
        held.ok_or(lost.unwrap_or(Lost::Leaving))
    }

    /// A sample as it travels, of what Python packed.
    fn sample<'a>(&self, packed: &'a [u8], room: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        let Some(lengths) = self.picture else { return Ok(packed) };
        picture_first(packed, lengths, self.facts.form.tailed(), room)
            .ok_or_else(|| Error::internal("an item without its picture"))?;
        Ok(room)
    }

    /// Calls Python for `ids`, on the thread that may.
    fn call(&self, ids: &[SampleId], held: Held) -> Result<Answer, Lost> {
        if came_from_python()
            && let Some(answer) = Python::try_attach(|py| self.call_here(py, ids)).ok_or(Lost::Leaving)?.transpose()
        {
            return Ok(answer);
        }
        calls::call(&self.readers, &self.fetch, ids, held).ok_or(Lost::Leaving)
    }

    /// On the consumer's own thread, unless that is a daemon: the interpreter's exit does not wait for those.
    fn call_here(&self, py: Python<'_>, ids: &[SampleId]) -> PyResult<Option<Items>> {
        let thread = py.import("threading")?.call_method0("current_thread")?;
        if thread.getattr("daemon")?.is_truthy()? {
            return Ok(None);
        }
        let answer = self.fetch.bind(py).call1((PyList::new(py, ids)?,))?;
        calls::items(&answer, ids.len()).map(Some)
    }

    /// As [`EngineSource::fetch_by`], of whatever size requests should be.
    fn ask(
        &self,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) {
        let mut done = 0;
        let (kind, why) = loop {
            let Some(rest) = ids.get(done..).filter(|rest| !rest.is_empty()) else { return };
            if stopped() {
                return;
            }
            let items = match self.take_turn(stopped).and_then(|held| self.call(rest, held)) {
                Ok(Ok(items)) => items,
                Ok(Err(raised)) | Err(Lost::Signal(raised)) => break for_all(raised),
                Err(Lost::Stopped) => return,
                Err(Lost::Leaving) => {
                    let words = "the interpreter is shutting down: close the loader before it does";
                    for k in done..ids.len() {
                        if sink(k, Err(Error::usage(words))).is_break() {
                            return;
                        }
                    }
                    return;
                }
            };
            let (mut fatal, mut room) = (None, Vec::new());
            for item in items.each {
                let name = || format!("dataset item {} raised", ids[done]);
                let answered = match item {
                    Item::Sample(data, target) => {
                        let data = self.sample(&items.data[data], &mut room);
                        sink(done, data.map(|data| Payload::new(data, &items.targets[target])))
                    }
                    Item::Bad(words) => sink(done, Err(Error::sample(words))),
                    Item::Raised(raised) => sink(done, Err(Error::sample(name()).because(raised))),
                    Item::Fatal(raised) => {
                        fatal = Some(raised.clone());
                        sink(done, Err(Error::new(ErrorKind::Interrupted, name()).because(raised)))
                    }
                };
                if answered.is_break() {
                    return;
                }
                done += 1;
            }
            if let Some(raised) = fatal {
                break (ErrorKind::Interrupted, raised);
            }
        };
        for k in done..ids.len() {
            if sink(k, Err(Error::new(kind, "the dataset could not be read").because(why.clone()))).is_break() {
                return;
            }
        }
    }
}

/// Takes a tail of so many `lengths` apart, whose first part is a picture: the picture, and if it is `tailed`, the tail
/// of the others and the picture's length. `None` for bytes that are no such tail.
fn picture_first(packed: &[u8], lengths: usize, tailed: bool, into: &mut Vec<u8>) -> Option<()> {
    let (numbers, parts) = packed.split_at_checked(8 * lengths)?;
    let (length, others) = numbers.split_first_chunk::<8>()?;
    let picture = usize::try_from(u64::from_ne_bytes(*length)).ok()?;
    into.clear();
    into.extend_from_slice(parts.get(..picture)?);
    if tailed {
        into.extend_from_slice(others);
        into.extend_from_slice(parts.get(picture.next_multiple_of(8)..).unwrap_or_default());
        into.extend_from_slice(length);
    }
    Some(())
}

/// What concerns every sample that was asked for.
fn for_all(raised: PyErr) -> (ErrorKind, Raised) {
    let is_fatal = |py: Python<'_>| !raised.is_instance_of::<PyException>(py) || interpreter::of_signal(py, &raised);
    let (fatal, text) = interpreter::enter(|py| (is_fatal(py), raised.to_string()))
        .unwrap_or((false, "the interpreter is shutting down".to_owned()));
    let kind = if fatal { ErrorKind::Interrupted } else { ErrorKind::Source };
    (kind, Raised { error: Arc::new(raised), text })
}

impl EngineSource for Callback {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn name(&self, id: SampleId) -> String {
        format!("item {id}")
    }

    fn size(&self, id: SampleId) -> Size {
        if id as usize >= self.facts.samples {
            return Size::default();
        }
        let Some(sizes) = self.sizes.get(id as usize) else { return Size::known(self.data_bytes as u64) };
        let [payload, tail] = [0, 1].map(|at: usize| match sizes[at].load(Relaxed) {
            UNKNOWN => SIZE_UNKNOWN,
            bytes => u64::from(bytes),
        });
        Size { payload, tail, expected: None }
    }

    fn remember(&self, id: SampleId, payload_bytes: u32, tail_bytes: u32) {
        if let Some(sizes) = self.sizes.get(id as usize) {
            sizes[0].store(payload_bytes, Relaxed);
            sizes[1].store(tail_bytes, Relaxed);
        }
    }

    fn digest(&self) -> String {
        digest(&self.facts)
    }

    fn fetch_by(
        &self,
        _: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        self.ask(stopped, ids, sink);
        Traffic::default()
    }
}

/// The digest of a Python dataset: how many items it has, and its classes. What items are made of is known of some
/// readers only, and does not change an order.
fn digest(facts: &Facts) -> String {
    let number = TensorSpec::new(Dtype::U8, []);
    let mut digest = Fingerprint::new(facts.samples, &Form::Rows(number.clone()), &number, &facts.classes);
    digest.add(b"items");
    digest.finish()
}

/// The items of a dataset as numbers alone, for a loader whose worker processes read the items themselves
/// (`lossfeed/_loader/torch_workers.py`): the engine decides their order, weights and position. Each has a byte of data and of
/// target, 0.
struct Numbers(Facts);

impl EngineSource for Numbers {
    fn facts(&self) -> &Facts {
        &self.0
    }

    fn name(&self, id: SampleId) -> String {
        format!("item {id}")
    }

    fn size(&self, _: SampleId) -> Size {
        Size::known(1)
    }

    fn digest(&self) -> String {
        digest(&self.0)
    }

    fn fetch_by(
        &self,
        _: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        if !stopped() {
            let _ = (0..ids.len()).try_for_each(|k| sink(k, Ok(Payload::new(&[0], &[0]))));
        }
        Traffic::default()
    }
}

/// The numbers of a dataset's `samples` items; see [`Numbers`].
#[pyfunction]
pub(crate) fn numbers_source(
    py: Python<'_>,
    samples: usize,
    description: String,
    classes: Vec<String>,
) -> PyResult<Source> {
    let number = TensorSpec::new(Dtype::U8, []);
    let facts = Facts { classes, ..Facts::new(samples, description, Form::Rows(number.clone()), number) };
    Source::wrap(py, Arc::new(Numbers(facts)), "auto", None)
}

/// A dataset whose samples come from the Python callable `fetch`, called in `turns` on the threads of `readers`. With
/// `picture`, the first of so many lengths in their tails is an encoded picture's.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // Python passes them by name
pub(crate) fn dataset_source(
    py: Python<'_>,
    fetch: Py<PyAny>,
    readers: Py<PyAny>,
    turns: &Turns,
    samples: usize,
    data: Vec<PySpec>,
    tailed: bool,
    target_spec: PySpec,
    description: String,
    classes: Vec<String>,
    picture: Option<usize>,
) -> PyResult<Source> {
    let (mut data, target) =
        (data.into_iter().map(spec::from_python).collect::<PyResult<Vec<_>>>()?, spec::from_python(target_spec)?);
    let data_bytes = data.iter().map(TensorSpec::bytes).sum();
    let form = match data.pop() {
        _ if picture.is_some() => Form::Images { tailed },
        Some(only) if data.is_empty() && !tailed => Form::Rows(only),
        last => {
            data.extend(last);
            Form::Fields(Fields::new(data, tailed).map_err(raise)?)
        }
    };
    let varies = tailed || picture.is_some();
    let sizes = (0..if varies { samples } else { 0 }).map(|_| [UNKNOWN; 2].map(AtomicU32::new)).collect();
    let facts = Facts { classes, sized: !varies, ..Facts::new(samples, description, form, target) };
    let source = Callback { fetch, readers, turns: turns.clone(), facts, data_bytes, sizes, picture };
    Source::wrap(py, Arc::new(source), "auto", None)
}
