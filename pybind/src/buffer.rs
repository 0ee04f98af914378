//! Memory that crosses the border: ours seen by Python ([`Buffer`]), Python's seen by us ([`Input`], [`Output`]). This
//! crate's `unsafe` is here and, for addresses on a GPU, in `cuda.rs`.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;

use lossfeed::staging::BatchSlot;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::interpreter::enter;
use crate::process::Process;

/// A block of memory that Python sees through the buffer protocol without a copy: writable, one dimension of bytes.
///
/// The block lives exactly as long as this object: `torch.frombuffer` and `numpy.frombuffer` keep the object and so the
/// block. What owns it (a vector, a batch slot) is dropped with the last view, on whichever thread that happens.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct Buffer {
    address: *mut u8,
    bytes: usize,
    owner: Option<Box<dyn Send + Sync>>,
    /// The process that made it: a forked child must not run the owner's destructor, whose locks may be held for ever.
    home: Process,
}

// SAFETY: `address` points into memory that `owner` keeps and that has no other owner in Rust; the object itself never
// reads or writes it, it only hands the address to Python, whose consumers order their accesses themselves.
unsafe impl Send for Buffer {}
// SAFETY: as above; the object is frozen.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Shows `values` to Python, without a copy.
    pub(crate) fn from_vec<T: bytemuck::Pod + Send + Sync>(mut values: Vec<T>) -> Self {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        let (address, bytes) = (bytes.as_mut_ptr(), bytes.len());
        // Moving a vector does not move its heap block, so `address` stays good.
        Self { address, bytes, owner: Some(Box::new(values)), home: Process::this() }
    }

    /// Shows the bytes `range` of a batch slot to Python, without a copy.
    pub(crate) fn of_slot(slot: &Arc<BatchSlot>, range: Range<usize>) -> Self {
        let start = range.start.min(slot.layout().total_bytes());
        let bytes = range.end.clamp(start, slot.layout().total_bytes()) - start;
        // SAFETY: `start` is at most the slot's length (the line above), so the address stays inside its mapping or one
        // past its end. The slot keeps the mapping in place until the last owner is gone, and nothing in Rust reads or
        // writes a lent slot: it is reused only after that drop.
        let address = unsafe { slot.base().as_ptr().add(start) };
        Self { address, bytes, owner: Some(Box::new(Arc::clone(slot))), home: Process::this() }
    }
}

impl Buffer {
    /// Shows bytes of the tail of a sample to Python, without a copy where they are aligned for any element.
    pub(crate) fn of_tail(slot: &Arc<BatchSlot>, row: usize, range: Range<usize>) -> Self {
        let Some(bytes) = slot.tails().get(row).and_then(|tail| tail.get(range)) else {
            return Self::from_vec(vec![0_u8; 0]);
        };
        let address = bytes.as_ptr().cast_mut();
        if !address.addr().is_multiple_of(8) {
            return Self::from_vec(bytes.to_vec());
        }
        // The bytes lie in a box of the slot's, which nobody writes or replaces before the slot's last owner is gone.
        Self { address, bytes: bytes.len(), owner: Some(Box::new(Arc::clone(slot))), home: Process::this() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.home.is_this() {
            std::mem::forget(self.owner.take());
        }
    }
}

#[pymethods]
impl Buffer {
    /// Size in bytes.
    fn __len__(&self) -> usize {
        self.bytes
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let (address, bytes) = (slf.get().address, slf.get().bytes as ffi::Py_ssize_t);
        // SAFETY: `view` is not null and comes from the interpreter; the range is valid while `slf` lives, and
        // PyBuffer_FillInfo takes a new reference to it for the view.
        let code = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address.cast(), bytes, 0, flags) };
        if code == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// A borrowed block of a Python object. Giving it back may run code of the object's owner, which may let go of the
/// interpreter and take it again, and it happens on whichever thread has it last, a loader's too. A thread that wants
/// the interpreter while that goes away is ended in the middle of our code, and the process with it: then the block
/// stays borrowed.
struct Borrowed(ManuallyDrop<PyUntypedBuffer>);

impl Drop for Borrowed {
    fn drop(&mut self) {
        // SAFETY: taken once, here; nobody sees `self` afterwards.
        let buffer = ManuallyDrop::new(unsafe { ManuallyDrop::take(&mut self.0) });
        let _ = enter(|_| drop(ManuallyDrop::into_inner(buffer)));
    }
}

/// Contiguous bytes of a Python object, borrowed as long as this lives.
pub(crate) struct Input(Borrowed);

impl Input {
    /// Borrows the bytes of `object`, which must be contiguous; what its elements are is the caller's affair.
    pub(crate) fn get(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        // Some exporters (ctypes) leave out what the C API lets them leave out; a memoryview fills it in.
        let buffer = PyUntypedBuffer::get(PyMemoryView::from(object)?.as_any())?;
        if buffer.is_c_contiguous() {
            Ok(Self(Borrowed(ManuallyDrop::new(buffer))))
        } else {
            Err(PyBufferError::new_err("the buffer is not contiguous"))
        }
    }

    /// The bytes. The exporter may not move or free them while the borrow lasts; that no other thread writes them
    /// meanwhile is the user's side of the bargain, as with every NumPy or torch call.
    pub(crate) fn bytes(&self) -> &[u8] {
        let length = self.0.0.len_bytes();
        if length == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous (checked in `get`), not null for a positive length, and the export keeps it
        // allocated and in place until `self` is dropped.
        unsafe { std::slice::from_raw_parts(self.0.0.buf_ptr().cast::<u8>().cast_const(), length) }
    }

    /// The same memory as values of `T`, copied if it is not aligned for them.
    pub(crate) fn to_vec<T: bytemuck::Pod>(&self) -> Vec<T> {
        bytemuck::pod_collect_to_vec(self.bytes())
    }
}

impl AsRef<[u8]> for Input {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// Contiguous writable bytes of a Python object, borrowed as long as this lives.
pub(crate) struct Output(Borrowed);

impl Output {
    /// Borrows the bytes of `object`, which must be contiguous and writable and must share none with `inputs`.
    pub(crate) fn get(object: &Bound<'_, PyAny>, inputs: &[Input]) -> PyResult<Self> {
        let Input(buffer) = Input::get(object)?;
        if buffer.0.readonly() {
            return Err(PyBufferError::new_err("the buffer is read-only"));
        }
        let range = |buffer: &PyUntypedBuffer| {
            let start = buffer.buf_ptr() as usize;
            start..start + buffer.len_bytes()
        };
        let mine = range(&buffer.0);
        let shares = |other: Range<usize>| other.start < mine.end && mine.start < other.end;
        if inputs.iter().any(|input| shares(range(&input.0.0))) {
            return Err(PyBufferError::new_err("the output shares memory with an input"));
        }
        Ok(Self(buffer))
    }

    /// The bytes. As with [`Input::bytes`], that no other thread touches them meanwhile is the user's side of the
    /// bargain.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let length = self.0.0.len_bytes();
        if length == 0 {
            return &mut [];
        }
        // SAFETY: contiguous, writable and disjoint from every input (checked in `get`), not null for a positive
        // length, kept in place by the export until `self` is dropped; `&mut self` makes this the only slice of it in
        // Rust.
        unsafe { std::slice::from_raw_parts_mut(self.0.0.buf_ptr().cast::<u8>(), length) }
    }
}
