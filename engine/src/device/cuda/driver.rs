//! The one door to the driver.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, sys};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::probe::{describe, probe};
use crate::device::{PINNED_PIECE_BYTES, Registration};
use crate::error::{Error, Result};
use crate::process::Process;

/// A device's primary context, retained.
pub(super) struct Driver {
    /// Its Drop calls the driver: only in the process that made it.
    context: ManuallyDrop<Arc<CudaContext>>,
    made_by: Process,
}

impl Driver {
    /// Retains the primary context of a device that the probe has found. The calling thread's current context stays
    /// what it was: torch takes its current device from it.
    pub(super) fn new(ordinal: usize) -> Result<Arc<Self>> {
        let opened = caught(|| {
            let mut before = std::ptr::null_mut();
            // SAFETY: the driver is initialised (the probe found the device); the pointer is to a local.
            unsafe { sys::cuCtxGetCurrent(&raw mut before) }.result()?;
            let context = CudaContext::new(ordinal)?;
            // SAFETY: none of cudarc's slices, which tracking is for, is ever made; all ordering is by our own events.
            // Left on, it would synchronise the whole context, torch's work included, when the copy stream is made.
            unsafe { context.disable_event_tracking() };
            // SAFETY: `before` was the current context a moment ago, or null for none.
            unsafe { sys::cuCtxSetCurrent(before) }.result()?;
            Ok(context)
        });
        match opened {
            Ok(context) => Ok(Arc::new(Self { context: ManuallyDrop::new(context), made_by: Process::current() })),
            Err(why) => Err(Error::device(format!("CUDA device {ordinal} cannot be opened: {why}"))),
        }
    }

    /// The context, for cudarc's own types. Use it inside [`Self::call`].
    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Whether this process is a child of the one that opened the device.
    pub(super) fn forked(&self) -> bool {
        !self.made_by.is_current()
    }

    /// Runs `f` with the device's context current and stream-capture mode relaxed, and puts both back: a capture that
    /// torch has under way on another thread is not disturbed by our event and memory calls.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Usage`] in a forked child; [`crate::ErrorKind::Device`] with `what` failed and the driver's
    /// words.
    pub(super) fn call<T>(&self, what: &str, f: impl FnOnce() -> Result<T, DriverError>) -> Result<T> {
        self.run(what, || {
            let _current = Current::enter(self.context.cu_ctx())?;
            let _mode = Relaxed::enter()?;
            f()
        })
    }

    /// As [`Self::call`], for calls that only queue work on a stream. Those are allowed in every capture mode, so the
    /// mode stays what it is: a launch pays for nothing but itself where the context is current already, as it is on
    /// torch's threads.
    ///
    /// # Errors
    /// As for [`Self::call`].
    pub(super) fn queue<T>(&self, what: &str, f: impl FnOnce() -> Result<T, DriverError>) -> Result<T> {
        self.run(what, || {
            let _current = Current::enter(self.context.cu_ctx())?;
            f()
        })
    }

    fn run<T>(&self, what: &str, f: impl FnOnce() -> Result<T, DriverError>) -> Result<T> {
        self.made_by.check(|of, fork| {
            Error::usage(format!(
                "{what}: process {of} opened the CUDA device, and a CUDA context does not survive a fork (to \
                 {fork}): open it in the child, or start workers with spawn"
            ))
        })?;
        caught(f).map_err(|why| Error::device(format!("{what}: {why}")))
    }
}

impl Driver {
    /// Device memory, zeroed before this returns. The caller frees it, or nobody.
    pub(super) fn zeroed(&self, bytes: usize, what: &str) -> Result<u64> {
        self.call(what, || {
            let mut memory = 0;
            // SAFETY: the pointer is to a local.
            unsafe { sys::cuMemAlloc_v2(&raw mut memory, bytes) }.result()?;
            // SAFETY: just allocated, `bytes` long. Streams that do not wait for the default one must find it done.
            let zeroed = unsafe { sys::cuMemsetD8_v2(memory, 0, bytes) }
                .result()
                .and_then(|()| unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) }.result());
            if let Err(error) = zeroed {
                // SAFETY: just allocated, nobody has it.
                let _ = unsafe { sys::cuMemFree_v2(memory) };
                return Err(error);
            }
            Ok(memory)
        })
    }

    /// Writes `bytes` to device memory, before this returns.
    ///
    /// # Safety
    /// `to` is device memory of at least as many bytes.
    pub(super) unsafe fn write(&self, to: u64, bytes: &[u8], what: &str) -> Result<()> {
        self.call(what, || {
            // SAFETY: the caller's promise; the source is a live borrow.
            unsafe { sys::cuMemcpyHtoD_v2(to, bytes.as_ptr().cast(), bytes.len()) }.result()?;
            // SAFETY: the default stream.
            unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) }.result()
        })
    }

    /// Waits until the device has nothing to do.
    pub(super) fn synchronize(&self, what: &str) -> Result<()> {
        // SAFETY: waits for the current context, which `call` makes ours.
        self.call(what, || unsafe { sys::cuCtxSynchronize() }.result())
    }

    /// Where the device sits on the PCI bus: "0000:3B:00.0".
    pub(super) fn pci_id(&self) -> Result<String> {
        let device = self.context.cu_device();
        let mut text = [0u8; 32];
        self.call("asking where the device is", || {
            // SAFETY: the room is as long as said; the device is the context's.
            unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as i32, device) }.result()
        })?;
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    /// Multiprocessors of the device.
    pub(super) fn multiprocessors(&self) -> Result<u32> {
        let count = self.attribute(sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        Ok(count.max(1) as u32)
    }

    /// Compute capability of the device: (major, minor).
    pub(super) fn capability(&self) -> Result<(u32, u32)> {
        use sys::CUdevice_attribute_enum::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        Ok((self.attribute(MAJOR)?.max(0) as u32, self.attribute(MINOR)?.max(0) as u32))
    }

    /// Whether the device reads registered memory at the host's own addresses.
    pub(super) fn reads_host_addresses(&self) -> Result<bool> {
        let attribute = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        Ok(self.attribute(attribute)? != 0)
    }

    fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<i32> {
        let device = self.context.cu_device();
        self.call("asking about the device", || {
            // SAFETY: the device is the context's.
            unsafe { result::device::get_attribute(device, attribute) }
        })
    }
}

/// Calls the driver; a panic of the bindings (a function the library lacks) is an error like any other.
fn caught<T>(f: impl FnOnce() -> Result<T, DriverError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(done) => done.map_err(describe),
        Err(_) => Err("the NVIDIA driver library lacks a function: update the driver".to_owned()),
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.forked() {
            return;
        }
        // The bindings make the context current to let go of it: the thread's own comes back afterwards, as in `new`.
        let _ = caught(|| {
            let mut before = std::ptr::null_mut();
            // SAFETY: the driver is initialised; the pointer is to a local.
            unsafe { sys::cuCtxGetCurrent(&raw mut before) }.result()?;
            // SAFETY: dropped here and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.context) };
            // SAFETY: `before` was the current context a moment ago, or null for none.
            unsafe { sys::cuCtxSetCurrent(before) }.result()
        });
    }
}

/// The device's context current, until dropped. Nothing is switched where it is current already.
struct Current {
    pushed: bool,
}

impl Current {
    fn enter(context: sys::CUcontext) -> Result<Self, DriverError> {
        let mut now = std::ptr::null_mut();
        // SAFETY: the driver is initialised, for a context is retained; the pointer is to a local.
        unsafe { sys::cuCtxGetCurrent(&raw mut now) }.result()?;
        if now == context {
            return Ok(Self { pushed: false });
        }
        // SAFETY: the context is retained by the driver value that is being called.
        unsafe { sys::cuCtxPushCurrent_v2(context) }.result()?;
        Ok(Self { pushed: true })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: the pointer is to a local; the context on top is the one that was pushed.
            let _ = unsafe { sys::cuCtxPopCurrent_v2(&raw mut popped) };
        }
    }
}

/// This thread's stream-capture mode relaxed, until dropped.
struct Relaxed {
    before: sys::CUstreamCaptureMode,
}

impl Relaxed {
    fn enter() -> Result<Self, DriverError> {
        let mut before = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the pointer is to a local; the call swaps it with the thread's mode.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut before) }.result()?;
        Ok(Self { before })
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: the pointer is to a field; the mode is the one the thread had.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut self.before) };
    }
}

/// Lets the calling thread allocate and page-lock memory while another thread captures a graph, from now on and until
/// the thread ends. In the mode that threads begin with, such a call fails and takes the capture with it.
///
/// # Errors
/// [`crate::ErrorKind::Device`] where there is no driver, or it refuses.
pub fn relax_captures() -> Result<()> {
    let found = probe();
    if let Some(problem) = &found.problem {
        return Err(Error::device(format!("this thread's capture mode cannot be set: {problem}")));
    }
    caught(|| Relaxed::enter().map(std::mem::forget))
        .map_err(|why| Error::device(format!("this thread's capture mode cannot be set: {why}")))
}

/// Whether `stream` is capturing a graph.
///
/// # Safety
/// Inside [`Driver::call`]; `stream` is null or a live stream of the device.
pub(super) unsafe fn is_capturing(stream: sys::CUstream) -> Result<bool, DriverError> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the stream is by the caller's promise; the pointer is to a local.
    match unsafe { sys::cuStreamIsCapturing(stream, &raw mut status) }.result() {
        Ok(()) => Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE),
        // What the driver says of the legacy default stream while a blocking stream captures.
        Err(DriverError(sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Page-locks `memory`, in pieces.
pub(super) fn register(driver: &Arc<Driver>, memory: &mut [u8]) -> Result<Registration> {
    let bytes = memory.len() as u64;
    let what = format!("page-locking {bytes} bytes of host memory (lower `cache` or batch_size if they do not fit)");
    let mut pinned = Pinned { driver: driver.clone(), pieces: Vec::new() };
    for piece in memory.chunks_mut(PINNED_PIECE_BYTES) {
        let start = piece.as_mut_ptr().cast::<c_void>();
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        driver.call(&what, || {
            // SAFETY: the piece is mapped memory of that length (it is a live borrow). That it stays mapped until
            // `Pinned` is dropped is the caller's duty; the driver's own hold on the pages keeps them from being reused
            // for anything else even if it were not.
            unsafe { sys::cuMemHostRegister_v2(start, piece.len(), flags) }.result()
        })?;
        // On an error above, dropping `pinned` takes the earlier pieces back.
        pinned.pieces.push(Address(start));
    }
    Ok(Registration::pinned(bytes, Box::new(pinned)))
}

struct Address(*mut c_void);
// SAFETY: a number to the driver; nothing is read through it.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

struct Pinned {
    driver: Arc<Driver>,
    pieces: Vec<Address>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // In a forked child the call is refused, which is what is wanted there.
        for piece in &self.pieces {
            // SAFETY: registered in `register`, not unregistered since.
            let _ = self.driver.call("unlocking memory", || unsafe { sys::cuMemHostUnregister(piece.0) }.result());
        }
    }
}

/// Zeroed host memory that the GPU writes and the CPU reads: page-locked, mapped, cached (not write-combined).
///
/// The mapping is ours, not the driver's, which takes its own away when the process exits: a thread may still read.
pub(super) struct Mapped {
    driver: Arc<Driver>,
    host: NonNull<u8>,
    device: u64,
    len: usize,
}

// SAFETY: plain memory; readers go through atomics and volatile reads, see `mailbox`.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    pub(super) fn new(driver: Arc<Driver>, len: usize) -> Result<Self> {
        let no_room = || Error::memory(format!("cannot allocate {len} bytes for scores"));
        // Shared, as the cache is: after a fork, a private page would be another one than the device's.
        // SAFETY: a new anonymous mapping at an address of the kernel's choice aliases nothing.
        let host =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED) }
                .map_err(|errno| no_room().because(errno))?;
        let mapped = driver.call("mapping host memory for scores", || {
            let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
            // SAFETY: the mapping just made.
            unsafe { sys::cuMemHostRegister_v2(host, len, flags) }.result()?;
            let mut device = 0;
            // SAFETY: `host` was just registered as mapped memory; the pointer is to a local.
            let mapped = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut device, host, 0) }.result();
            if mapped.is_err() {
                // SAFETY: just registered, and not handed out.
                let _ = unsafe { sys::cuMemHostUnregister(host) };
            }
            mapped.map(|()| device)
        });
        match (mapped, NonNull::new(host.cast::<u8>())) {
            (Ok(device), Some(host)) => Ok(Self { driver, host, device, len }),
            (mapped, _) => {
                // SAFETY: the mapping just made, and not handed out.
                let _ = unsafe { munmap(host, len) };
                Err(mapped.err().unwrap_or_else(no_room))
            }
        }
    }
    pub(super) fn host(&self) -> NonNull<u8> {
        self.host
    }
    pub(super) fn device(&self) -> u64 {
        self.device
    }
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let host = self.host.as_ptr().cast();
        // SAFETY: registered in `new`, given back only here; the mailbox drops it only when no launch can still write
        // to it.
        let freed = self.driver.call("freeing score memory", || unsafe { sys::cuMemHostUnregister(host) }.result());
        // Else the device may still have it: the context is lost, or another process's.
        if freed.is_ok() {
            // SAFETY: mapped in `new`, unmapped only here.
            let _ = unsafe { munmap(host, self.len) };
        }
    }
}
