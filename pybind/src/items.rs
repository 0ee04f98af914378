//! What a call of a Python dataset brings: samples as bytes, and what reading others raised.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::buffer::Input;
use crate::errors::Raised;
use crate::packing::Packing;

/// Bytes of a run that is ended: what was read is then still near the processor when it is put into batches.
const RUN_BYTES: usize = 4 << 20;

/// Where one sample's bytes and target lie among those of its run; or what reading it raised, and whether that asks for
/// the end of everything.
pub(crate) enum Item {
    Sample(Range<usize>, Range<usize>),
    /// Our own words, which say what is wrong with the item.
    Bad(String),
    Raised(Raised),
    Fatal(Raised),
}

/// A run of samples, and the bytes of all of them.
#[derive(Default)]
pub(crate) struct Items {
    pub(crate) data: Vec<u8>,
    pub(crate) targets: Vec<u8>,
    pub(crate) each: Vec<Item>,
}

impl Items {
    /// Adds what Python says of one item: `(data, target)` as contiguous buffers, or `(words, exception, fatal)`, without
    /// an exception where the words are ours.
    pub(crate) fn put(&mut self, item: &Bound<'_, PyTuple>) -> PyResult<()> {
        if item.len() == 2 {
            let sample = Item::Sample(
                append(&mut self.data, &item.get_item(0)?)?,
                append(&mut self.targets, &item.get_item(1)?)?,
            );
            self.each.push(sample);
            return Ok(());
        }
        let (text, error, fatal): (Bound<'_, PyAny>, Bound<'_, PyAny>, bool) = item.extract()?;
        let text = words(&text)?;
        self.each.push(if error.is_none() {
            Item::Bad(text)
        } else {
            let raised = Raised { error: Arc::new(PyErr::from_value(error)), text };
            if fatal { Item::Fatal(raised) } else { Item::Raised(raised) }
        });
        Ok(())
    }
}

/// Text as UTF-8. A path that is not has lone surrogates in it, and they may be in an exception's words.
fn words(text: &Bound<'_, PyAny>) -> PyResult<String> {
    text.extract().or_else(|_| {
        let bytes = text.call_method1("encode", ("utf-8", "backslashreplace"))?;
        Ok(String::from_utf8_lossy(bytes.extract()?).into_owned())
    })
}

/// Appends the bytes of `part`; tells where they lie then.
fn append(all: &mut Vec<u8>, part: &Bound<'_, PyAny>) -> PyResult<Range<usize>> {
    let start = all.len();
    match part.cast::<PyBytes>() {
        Ok(bytes) => all.extend_from_slice(bytes.as_bytes()),
        Err(_) => all.extend_from_slice(Input::get(part)?.bytes()),
    }
    Ok(start..all.len())
}

/// A run of items, read one after the other: the answer to a call. It ends when its time is over or it is full. Each item
/// is copied before the dataset is asked for the next one, which it may make in the same memory.
#[pyclass(module = "lossfeed._native")]
pub(crate) struct Rows {
    packing: Py<Packing>,
    items: Items,
    until: Instant,
}

impl Rows {
    /// What has been read; nothing of it stays.
    pub(crate) fn take(&mut self) -> Items {
        std::mem::take(&mut self.items)
    }

    fn more(&self) -> bool {
        self.items.data.len() < RUN_BYTES && Instant::now() < self.until
    }
}

#[pymethods]
impl Rows {
    /// For items of `packing`, `count` at most, that are read for so many seconds.
    #[new]
    fn new(packing: &Bound<'_, Packing>, count: usize, seconds: f64) -> Self {
        let mut items = Items::default();
        let rows = (RUN_BYTES / packing.get().fixed_bytes.max(1)).min(count);
        // Without the memory for it each item finds out by itself.
        let _ = items.data.try_reserve_exact(rows * packing.get().fixed_bytes);
        let until = Instant::now() + Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Self { packing: packing.clone().unbind(), items, until }
    }

    /// Takes an item that is made exactly like item 0, and tells whether another may follow. None: it is made otherwise,
    /// or cannot be looked at so quickly.
    fn add(&mut self, item: &Bound<'_, PyAny>) -> Option<bool> {
        let (data, target) = (self.items.data.len(), self.items.targets.len());
        let Items { data: rows, targets, each } = &mut self.items;
        if self.packing.get().pack(item, rows, targets).is_none() {
            rows.truncate(data);
            targets.truncate(target);
            return None;
        }
        each.push(Item::Sample(data..rows.len(), target..targets.len()));
        Some(self.more())
    }

    /// Takes the next item as `(data, target)`, contiguous buffers, or as what reading it raised: `(words, exception,
    /// fatal)`, without an exception where the words are ours. Tells whether another may follow.
    fn put(&mut self, answer: &Bound<'_, PyTuple>) -> PyResult<bool> {
        self.items.put(answer)?;
        Ok(self.more() && !matches!(self.items.each.last(), Some(Item::Fatal(_))))
    }

    fn __len__(&self) -> usize {
        self.items.each.len()
    }

    /// Item `k` as [`Self::put`] takes it.
    fn __getitem__<'py>(&self, py: Python<'py>, k: usize) -> PyResult<Bound<'py, PyAny>> {
        let item = self.items.each.get(k).ok_or_else(|| PyIndexError::new_err("no such item"))?;
        let raised = |raised: &Raised, fatal| (&raised.text, Some(raised.error.value(py)), fatal).into_bound_py_any(py);
        match item {
            Item::Sample(data, target) => {
                let (data, target) = (&self.items.data[data.clone()], &self.items.targets[target.clone()]);
                (PyBytes::new(py, data), PyBytes::new(py, target)).into_bound_py_any(py)
            }
            Item::Bad(words) => (words, py.None(), false).into_bound_py_any(py),
            Item::Raised(error) => raised(error, false),
            Item::Fatal(error) => raised(error, true),
        }
    }
}
