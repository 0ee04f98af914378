//! Arrays and tensors of a dataset's items, copied from where they lie in Python's memory.
//!
//! Two protocols say where that is, both without a view being made for us: Python's buffers for NumPy's arrays and
//! scalars, DLPack for torch's tensors (a tensor's `numpy()` costs five times as much). No Python code runs in here, so
//! that no thread lets go of the interpreter in the middle of our frames (see `calls.rs`).
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

use lossfeed::Dtype;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyType};
use pyo3::{ffi, intern};

/// An array with more dimensions is left to whoever looks with care.
const DIMENSIONS_MAX: usize = 8;

/// The types whose elements are found here. Subclasses are left alone: they may be less, or more, than plain elements.
pub(crate) struct Kinds {
    tensor: Option<Tensor>,
    /// NumPy's array and its scalars.
    arrays: Vec<Py<PyType>>,
}

/// A dense array in host memory, valid as long as it is borrowed.
pub(crate) struct Array<'a> {
    pub(crate) dtype: Dtype,
    address: *const u8,
    dimensions: usize,
    shape: [usize; DIMENSIONS_MAX],
    /// Bytes from an element to the next one, by dimension.
    steps: [isize; DIMENSIONS_MAX],
    /// Of all elements.
    bytes: usize,
    lender: PhantomData<&'a ()>,
}

/// torch's tensor, and how its elements are found.
struct Tensor {
    kind: Py<PyType>,
    /// torch's function that makes a DLPack capsule of one.
    export: Py<PyAny>,
    /// DLPack's function that does so without a capsule, of torch 2.10 and later.
    describe: Option<Describe>,
}

/// torch's tensor, its function that makes DLPack capsules, and its DLPack table, if it has one.
pub(crate) type PyTensor<'py> = (Py<PyType>, Py<PyAny>, Option<Bound<'py, PyCapsule>>);

impl Kinds {
    pub(crate) fn new(tensor: Option<PyTensor<'_>>, arrays: Vec<Py<PyType>>) -> Self {
        let tensor = tensor.map(|(kind, export, table)| {
            let describe = table.as_ref().and_then(Table::describe);
            Tensor { kind, export, describe }
        });
        Self { tensor, arrays }
    }

    /// What `take` makes of `value`, if that is exactly of a known type and dense in host memory.
    pub(crate) fn lend<T>(&self, value: &Bound<'_, PyAny>, take: impl FnOnce(&Array<'_>) -> Option<T>) -> Option<T> {
        let kind = value.get_type_ptr().cast::<ffi::PyObject>();
        if let Some(tensor) = &self.tensor
            && tensor.kind.as_ptr() == kind
        {
            return tensor.lend(value, take);
        }
        if self.arrays.iter().any(|array| array.as_ptr() == kind) { of_array(value, take) } else { None }
    }
}

impl Array<'_> {
    /// As DLPack and Python's buffers describe it: `steps` count `unit` bytes each; null for elements without gaps.
    ///
    /// # Safety
    /// `shape` and `steps` have `dimensions` numbers each, or are null; with an address that is not null the elements
    /// they describe lie there, as long as the array is used.
    unsafe fn new(
        address: *const u8,
        dtype: Dtype,
        dimensions: usize,
        shape: *const i64,
        steps: *const i64,
        unit: usize,
    ) -> Option<Self> {
        if dimensions > DIMENSIONS_MAX || (dimensions > 0 && shape.is_null()) {
            return None;
        }
        let mut array = Self {
            dtype,
            address,
            dimensions,
            shape: [0; DIMENSIONS_MAX],
            steps: [0; DIMENSIONS_MAX],
            bytes: 0,
            lender: PhantomData,
        };
        let mut whole = dtype.size_bytes();
        for k in (0..dimensions).rev() {
            // SAFETY: `k` is below `dimensions`, and neither pointer is null where it is read.
            let (length, step) = unsafe { (*shape.add(k), (!steps.is_null()).then(|| *steps.add(k))) };
            array.shape[k] = usize::try_from(length).ok()?;
            let step = match step {
                Some(step) => isize::try_from(step).ok()?.checked_mul(isize::try_from(unit).ok()?)?,
                None => isize::try_from(whole).ok()?,
            };
            array.steps[k] = step;
            whole = whole.checked_mul(array.shape[k])?;
        }
        array.bytes = whole;
        (!address.is_null() || whole == 0).then_some(array)
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape[..self.dimensions]
    }

    /// Bytes of all elements.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies the elements to `out`, which has exactly their bytes, the last dimension running fastest.
    pub(crate) fn copy_to(&self, out: &mut [u8]) {
        assert_eq!(out.len(), self.bytes, "an array is copied to where it fits");
        if out.is_empty() {
            return;
        }
        // The last dimensions, as far as they lie without gaps, are copied in one go.
        let (mut run, mut outer) = (self.dtype.size_bytes(), self.dimensions);
        while outer > 0 && (self.shape[outer - 1] == 1 || self.steps[outer - 1] == run as isize) {
            outer -= 1;
            run *= self.shape[outer];
        }
        // SAFETY: whoever made the array has said that elements of this shape and these steps lie at its address; that
        // no other thread writes them meanwhile is the user's side of the bargain, as with every NumPy or torch call.
        unsafe { copy(self.address, &self.shape[..outer], &self.steps[..outer], run, out) }
    }
}

/// Copies runs of `run` bytes, which lie as `shape` and `steps` say, to `out`, which they fill.
///
/// # Safety
/// All of them can be read.
unsafe fn copy(from: *const u8, shape: &[usize], steps: &[isize], run: usize, out: &mut [u8]) {
    // SAFETY: as the caller has promised; every offset leads to a run that the shape names.
    unsafe {
        match (shape, steps) {
            ([count], [step]) if *count * run == out.len() => match run {
                1 => each::<1>(from, *step, out),
                2 => each::<2>(from, *step, out),
                4 => each::<4>(from, *step, out),
                8 => each::<8>(from, *step, out),
                _ => {
                    for (k, out) in out.chunks_exact_mut(run).enumerate() {
                        ptr::copy_nonoverlapping(from.offset(k as isize * step), out.as_mut_ptr(), run);
                    }
                }
            },
            ([count, shape @ ..], [step, steps @ ..]) => {
                for (k, out) in out.chunks_exact_mut(out.len() / count).enumerate() {
                    copy(from.offset(k as isize * step), shape, steps, run, out);
                }
            }
            _ => ptr::copy_nonoverlapping(from, out.as_mut_ptr(), run),
        }
    }
}

/// Elements of `N` bytes, `step` bytes apart.
///
/// # Safety
/// As many as fill `out` can be read.
unsafe fn each<const N: usize>(from: *const u8, step: isize, out: &mut [u8]) {
    for (k, out) in out.chunks_exact_mut(N).enumerate() {
        // SAFETY: element `k` can be read, and `out` has room for one.
        unsafe { ptr::copy_nonoverlapping(from.offset(k as isize * step), out.as_mut_ptr(), N) }
    }
}

// ---- NumPy ----------------------------------------------------------------------------------------------------------

/// A buffer that is given back when this is dropped.
struct Lent(ffi::Py_buffer);

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: filled by PyObject_GetBuffer, given back once, on the thread that got it and holds the interpreter.
        unsafe { ffi::PyBuffer_Release(&raw mut self.0) }
    }
}

fn of_array<T>(value: &Bound<'_, PyAny>, take: impl FnOnce(&Array<'_>) -> Option<T>) -> Option<T> {
    let mut buffer = MaybeUninit::uninit();
    // SAFETY: `value` is alive and the interpreter is held; the call fills the buffer or says that it failed.
    if unsafe { ffi::PyObject_GetBuffer(value.as_ptr(), buffer.as_mut_ptr(), ffi::PyBUF_FULL_RO) } != 0 {
        drop(PyErr::take(value.py()));
        return None;
    }
    // SAFETY: filled, as the call has said.
    let lent = Lent(unsafe { buffer.assume_init() });
    let view = &lent.0;
    // SAFETY: the buffer's format is null or a C string that lives as long as the buffer.
    let format = if view.format.is_null() { return None } else { unsafe { std::ffi::CStr::from_ptr(view.format) } };
    let dtype = of_format(format.to_bytes(), usize::try_from(view.itemsize).ok()?)?;
    let dimensions = usize::try_from(view.ndim).ok()?;
    // Numbers of the size of a pointer are 64 bits wide wherever this is built for.
    const { assert!(size_of::<ffi::Py_ssize_t>() == size_of::<i64>()) };
    // SAFETY: shape and strides of a buffer have `ndim` numbers, or are null without dimensions; its elements lie at
    // `buf` until it is given back, at the end of this function.
    let array = unsafe { Array::new(view.buf.cast(), dtype, dimensions, view.shape.cast(), view.strides.cast(), 1) };
    take(&array?)
}

/// The type of elements that Python's `struct` calls `format`, in this machine's byte order.
fn of_format(format: &[u8], size: usize) -> Option<Dtype> {
    let letter = match format {
        [letter] | [b'@' | b'=' | b'^', letter] => letter,
        b"Zf" if size == 8 => return Some(Dtype::C64),
        b"Zd" if size == 16 => return Some(Dtype::C128),
        _ => return None,
    };
    Some(match (letter, size) {
        (b'?', 1) => Dtype::Bool,
        (b'B', 1) => Dtype::U8,
        (b'b', 1) => Dtype::I8,
        (b'h', 2) => Dtype::I16,
        (b'H', 2) => Dtype::U16,
        (b'I' | b'L', 4) => Dtype::U32,
        (b'L' | b'Q', 8) => Dtype::U64,
        (b'i' | b'l', 4) => Dtype::I32,
        (b'l' | b'q', 8) => Dtype::I64,
        (b'e', 2) => Dtype::F16,
        (b'f', 4) => Dtype::F32,
        (b'd', 8) => Dtype::F64,
        _ => return None,
    })
}

// ---- torch ----------------------------------------------------------------------------------------------------------

/// DLPack's `DLTensor`, at which a capsule's `DLManagedTensor` begins. Its layout is fixed for the capsules that are
/// named "dltensor".
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: c_int,
    device_id: c_int,
    ndim: c_int,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    /// In elements.
    strides: *const i64,
    byte_offset: u64,
}

/// DLPack's name for host memory.
const CPU: c_int = 1;

/// Describes a tensor, which stays where it is; 0, or an exception is set.
type Describe = unsafe extern "C" fn(tensor: *mut c_void, out: *mut DlTensor) -> c_int;

/// DLPack's `DLPackExchangeAPI`, version 1.
#[repr(C)]
struct Table {
    major: u32,
    minor: u32,
    /// The table of the version before.
    before: *const Table,
    /// Makes, exports and imports what owns its memory.
    owning: [*const c_void; 3],
    describe: Option<Describe>,
    stream: *const c_void,
}

impl Table {
    fn describe(capsule: &Bound<'_, PyCapsule>) -> Option<Describe> {
        let table = capsule.pointer_checked(Some(c"dlpack_exchange_api")).ok()?;
        let mut table = table.as_ptr().cast::<Self>().cast_const();
        // SAFETY: a capsule of this name holds a table that lives as long as the process. Every version's begins with
        // its number and the one before; what else it holds is looked at for version 1 alone.
        unsafe {
            while !table.is_null() && (*table).major > 1 {
                table = (*table).before;
            }
            if table.is_null() || (*table).major != 1 { None } else { (*table).describe }
        }
    }
}

impl Tensor {
    fn lend<T>(&self, value: &Bound<'_, PyAny>, take: impl FnOnce(&Array<'_>) -> Option<T>) -> Option<T> {
        let Some(describe) = self.describe else {
            let capsule = self.capsule(value)?;
            let address = capsule.pointer_checked(Some(c"dltensor")).ok()?;
            // SAFETY: a capsule of this name holds a DLManagedTensor, which begins with a DLTensor and lives as long as
            // the capsule, until the end of this block.
            return of_tensor(value, unsafe { address.cast::<DlTensor>().as_ref() }, take);
        };
        let mut tensor = MaybeUninit::uninit();
        // SAFETY: `value` is alive and of the type that the function came from; it fills `tensor` or says that it failed.
        if unsafe { describe(value.as_ptr().cast(), tensor.as_mut_ptr()) } != 0 {
            drop(PyErr::take(value.py()));
            return None;
        }
        // SAFETY: filled, as the call has said.
        of_tensor(value, unsafe { tensor.assume_init_ref() }, take)
    }

    fn capsule<'py>(&self, value: &Bound<'py, PyAny>) -> Option<Bound<'py, PyCapsule>> {
        // SAFETY: both objects are alive, null ends the arguments; a new reference or an error comes back.
        let made = unsafe {
            let end = ptr::null_mut::<ffi::PyObject>();
            let made = ffi::PyObject_CallFunctionObjArgs(self.export.as_ptr(), value.as_ptr(), end);
            Bound::from_owned_ptr_or_err(value.py(), made)
        };
        made.ok()?.cast_into().ok()
    }
}

/// `tensor` describes `value`, and is valid as long as that is not touched.
fn of_tensor<T>(value: &Bound<'_, PyAny>, tensor: &DlTensor, take: impl FnOnce(&Array<'_>) -> Option<T>) -> Option<T> {
    let py = value.py();
    if tensor.device_type != CPU || tensor.lanes != 1 {
        return None;
    }
    let dtype = of_code(tensor.code, tensor.bits)?;
    // A conjugate is one by a mark that DLPack does not carry, and its imaginary part is its negative by another.
    let complex = matches!(dtype, Dtype::C64 | Dtype::C128);
    if complex && value.call_method0(intern!(py, "is_conj")).ok()?.is_truthy().ok()? {
        return None;
    }
    let marked = complex || matches!(dtype, Dtype::F16 | Dtype::F32 | Dtype::F64);
    if marked && value.call_method0(intern!(py, "is_neg")).ok()?.is_truthy().ok()? {
        return None;
    }
    let offset = usize::try_from(tensor.byte_offset).ok()?;
    let dimensions = usize::try_from(tensor.ndim).ok()?;
    let address = tensor.data.cast::<u8>().cast_const();
    let address = if address.is_null() { address } else { address.wrapping_add(offset) };
    // SAFETY: the shape has `ndim` numbers, the strides too if they are there; the elements lie `byte_offset` behind
    // `data` as long as the tensor has its memory. It has it while nothing else runs, here and in `take`.
    let array = unsafe { Array::new(address, dtype, dimensions, tensor.shape, tensor.strides, dtype.size_bytes()) };
    take(&array?)
}

fn of_code(code: u8, bits: u8) -> Option<Dtype> {
    Some(match (code, bits) {
        (0, 8) => Dtype::I8,
        (0, 16) => Dtype::I16,
        (0, 32) => Dtype::I32,
        (0, 64) => Dtype::I64,
        (1, 8) => Dtype::U8,
        (1, 16) => Dtype::U16,
        (1, 32) => Dtype::U32,
        (1, 64) => Dtype::U64,
        (2, 16) => Dtype::F16,
        (2, 32) => Dtype::F32,
        (2, 64) => Dtype::F64,
        (4, 16) => Dtype::Bf16,
        (5, 64) => Dtype::C64,
        (5, 128) => Dtype::C128,
        (6, 8) => Dtype::Bool,
        _ => return None,
    })
}
