//! `cuMemcpyBatchAsync`: many copies in one call.
//!
//! Asked for by name and version, because the bindings have it or not as the program that links them chooses, and
//! because CUDA 13 has given the name to a function of other arguments. A driver has it from 570 (CUDA 12.8) on.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, OnceLock};

use cudarc::driver::result::DriverError;
use cudarc::driver::sys;

use super::driver::Driver;
use crate::error::{Error, Result};

/// The function as CUDA 12.8 declares it.
type Function = unsafe extern "C" fn(
    dsts: *mut u64,
    srcs: *mut u64,
    sizes: *mut usize,
    count: usize,
    attributes: *mut Attributes,
    attribute_starts: *mut usize,
    attribute_count: usize,
    failed: *mut usize,
    stream: sys::CUstream,
) -> sys::CUresult;

/// `CUmemcpyAttributes`. Location hints are for managed memory.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    source_order: c_int,
    source_location: [c_int; 2],
    destination_location: [c_int; 2],
    flags: c_uint,
}

/// `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`: sources are read in the order of the stream, as by every other copy.
const IN_STREAM_ORDER: c_int = 1;
/// The version whose function is meant.
const VERSION: c_int = 12080;

/// The driver's function.
#[derive(Clone, Copy)]
pub(super) struct BatchCopy(Function);

/// The function; one library serves all devices of a process.
///
/// # Errors
/// [`crate::ErrorKind::Device`] if the driver does not have it.
pub(super) fn function(driver: &Arc<Driver>) -> Result<BatchCopy> {
    static FOUND: OnceLock<BatchCopy> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(*found);
    }
    let mut address: *mut c_void = std::ptr::null_mut();
    let mut status = sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    let missing = || {
        Error::device(
            "copy_path \"batched\" needs driver 570 (CUDA 12.8) or newer, for cuMemcpyBatchAsync: update the driver, \
             or use another copy_path",
        )
    };
    driver
        .call("asking for cuMemcpyBatchAsync", || {
            let name = c"cuMemcpyBatchAsync".as_ptr();
            // SAFETY: the name ends with a zero; the pointers are to locals.
            unsafe { sys::cuGetProcAddress_v2(name, &raw mut address, VERSION, 0, &raw mut status) }.result()
        })
        .map_err(|error| missing().because(error))?;
    if address.is_null() {
        return Err(missing());
    }
    // SAFETY: the driver says that this is the function of that name and version, which is declared so.
    let found = BatchCopy(unsafe { std::mem::transmute::<*mut c_void, Function>(address) });
    Ok(*FOUND.get_or_init(|| found))
}

impl BatchCopy {
    /// Queues a copy of every row to its place.
    ///
    /// # Safety
    /// Inside [`Driver::call`]; rows and places stay valid until the copies have ended; `stream` is a live stream and
    /// not the default one.
    pub(super) unsafe fn start(self, rows: &[(&[u8], u64)], stream: u64) -> Result<(), DriverError> {
        let mut to: Vec<u64> = rows.iter().map(|(_, to)| *to).collect();
        let mut from: Vec<u64> = rows.iter().map(|(row, _)| row.as_ptr() as u64).collect();
        let mut sizes: Vec<usize> = rows.iter().map(|(row, _)| row.len()).collect();
        let mut attributes = Attributes { source_order: IN_STREAM_ORDER, ..Attributes::default() };
        let (mut first, mut failed) = (0, usize::MAX);
        // SAFETY: three arrays of `rows.len()`, one attribute for all from row 0 on, locals that outlive the call; the
        // rest is the caller's promise.
        unsafe {
            (self.0)(
                to.as_mut_ptr(),
                from.as_mut_ptr(),
                sizes.as_mut_ptr(),
                rows.len(),
                &raw mut attributes,
                &raw mut first,
                1,
                &raw mut failed,
                stream as sys::CUstream,
            )
        }
        .result()
    }
}
