//! A CUDA GPU, through the driver API alone (no toolkit, no runtime library, libcuda loaded at run time).
//!
//! | file | job |
//! | --- | --- |
//! | `probe` | what is there; never panics, makes no context |
//! | `driver` | the one door to the driver: fork check, context, capture mode, errors |
//! | `copy` | host-to-device copies on our own stream, events, who keeps the source alive |
//! | `batch` | many copies in one call, where the driver can |
//! | `memory` | device memory of our own |
//! | `module` | the kernels' code: which image this GPU is given, and what happens if the driver refuses it |
//! | `kernels` | the kernels: launches on a borrowed stream |
//! | `lend` | what their launches are lent: tickets, a place for errors |
//! | `mailbox` | scores on their way home: a ring in mapped host memory and a thread that reads it |
//!
//! Lifetimes, once: everything holds the [`driver::Driver`], which holds the device's primary context (the one torch
//! uses). Memory handed to the GPU is owned by whoever waits for the event (or the sequence word) that ends its use. In
//! a forked child the context is gone: every call is refused with an error, and drops leak.
//!
//! Every test of `tests/driver` runs it on a driver made of threads, under delays, refusals and planted mistakes.
//! **Never run on a GPU so far.**
#![allow(unsafe_code)]

mod batch;
mod copy;
mod driver;
mod kernels;
mod lend;
mod lines;
mod mailbox;
mod memory;
mod module;
mod probe;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

pub use copy::{CopyEvent, CopyQueue};
pub use driver::relax_captures;
pub use kernels::CudaKernels;
pub use mailbox::{Mail, Mailbox};
pub use memory::DeviceMemory;
pub use probe::{Gpu, Probe, probe};

use super::{Device, DeviceKind, Registration, nearby};
use crate::error::{Error, Result};
use copy::Copies;
use driver::Driver;

/// A CUDA device. Clones are handles to the same one.
#[derive(Clone)]
pub struct Cuda {
    gpu: Gpu,
    driver: Arc<Driver>,
    copies: Arc<Copies>,
    near: Arc<[usize]>,
}

impl Cuda {
    /// Opens the device of that ordinal.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Device`] if there is no such device or the driver refuses.
    pub fn open(ordinal: usize) -> Result<Self> {
        let found = probe();
        let Some(gpu) = found.gpus.iter().find(|gpu| gpu.ordinal == ordinal).cloned() else {
            let why = match (&found.problem, found.gpus.len()) {
                (Some(problem), _) => problem.clone(),
                (None, 0) => "the driver finds none (is CUDA_VISIBLE_DEVICES empty?)".to_owned(),
                (None, n) => format!("the driver finds {n}, numbered from 0"),
            };
            return Err(Error::device(format!(
                "no CUDA device {ordinal}: {why}. Use device=\"cpu\", or see `lossfeed doctor`"
            )));
        };
        let driver = Driver::new(ordinal)?;
        let copies = Copies::new(driver.clone(), ordinal)?;
        // Without an id the memory lies wherever the kernel puts it.
        let near = driver.pci_id().map_or_else(|_| Vec::new(), |id| nearby::processors(Path::new("/sys"), &id));
        Ok(Self { gpu, driver, copies: Arc::new(copies), near: near.into() })
    }

    /// What the driver says about it.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Raw handle of our copy stream, for `torch.cuda.ExternalStream`. Every handle to the device has the same, and it
    /// lives as long as the process.
    pub fn copy_stream(&self) -> u64 {
        self.copies.stream()
    }

    /// Starts copying all of `source` to `dst` on the copy stream, after the work that `after_stream` (a raw handle)
    /// has been given so far. `source` is dropped, on another thread, when the copy has ended.
    ///
    /// Nothing here waits for the GPU.
    ///
    /// # Safety
    /// - `dst` is device memory of at least as many bytes, and nobody frees it before the copy has ended. For memory of
    ///   torch's allocator: it was allocated on `after_stream`, and [`Self::consumer_wait`] is called on that stream
    ///   before the tensor can be dropped.
    /// - `after_stream` is 0 or a live stream of this device.
    /// - `source.as_ref()` gives the same bytes at the same address until `source` is dropped.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Usage`] in a forked child or if `after_stream` is capturing a graph;
    /// [`crate::ErrorKind::Device`] if the driver refuses. Then `source` has been dropped and no copy is under way.
    pub unsafe fn copy_async<S>(&self, source: S, dst: u64, after_stream: u64) -> Result<CopyEvent>
    where
        S: AsRef<[u8]> + Send + 'static,
    {
        let source = Box::new(source);
        let bytes = std::ptr::from_ref((*source).as_ref());
        // SAFETY: the caller's promises; the box is not opened again, so the bytes stay where they are even if `S`
        // holds them itself, and it is dropped when the copy has ended.
        unsafe { self.queue(source, after_stream, |queue| queue.copy(&*bytes, 0..bytes.len(), dst)) }
    }

    /// Queues `work` on the copy stream, after the work that `after_stream` (a raw handle) has been given so far.
    /// `owner` is dropped, on another thread, when that work has ended: it keeps alive what the work reads. Gives the
    /// work's end.
    ///
    /// Nothing here waits for the GPU. Work that several threads queue at a time may mix on the stream; each end comes
    /// behind its own.
    ///
    /// # Safety
    /// - `after_stream` is 0 or a live stream of this device.
    /// - Everything that `work` queues reads only what lives as long as `owner`, and writes only device memory as in
    ///   [`Self::copy_async`].
    ///
    /// # Errors
    /// As for [`Self::copy_async`], and those of `work`. Then what had been queued has ended and `owner` has been
    /// dropped.
    pub unsafe fn queue<S, W>(&self, owner: S, after_stream: u64, work: W) -> Result<CopyEvent>
    where
        S: Send + 'static,
        W: FnOnce(&CopyQueue<'_>) -> Result<()>,
    {
        // SAFETY: the caller's promises are the callee's.
        unsafe { self.copies.queue(owner, after_stream, work) }
    }

    /// Whether kernels and batched copies read registered memory at the host's own addresses. Under WSL 2 they do not.
    ///
    /// # Errors
    /// As for [`Self::copy_async`].
    pub fn reads_host_addresses(&self) -> Result<bool> {
        self.driver.reads_host_addresses()
    }

    /// Whether the driver copies many rows in one call: from 570 (CUDA 12.8) on.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Device`] if not, with what to do.
    pub fn copies_in_batches(&self) -> Result<()> {
        batch::function(&self.driver).map(drop)
    }

    /// Device memory, zeroed.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Device`] if there is not as much.
    pub fn memory(&self, bytes: usize, what: &str) -> Result<DeviceMemory> {
        DeviceMemory::new(self.driver.clone(), bytes, what)
    }

    /// Makes `stream` (not the CPU) wait for a copy.
    ///
    /// # Safety
    /// `stream` is 0 or a live stream of this device.
    ///
    /// # Errors
    /// As for [`Self::copy_async`].
    pub unsafe fn consumer_wait(&self, stream: u64, event: &CopyEvent) -> Result<()> {
        // SAFETY: the caller's promise is the callee's.
        unsafe { event.make_wait(stream) }
    }

    /// The kernels of this device, loaded when first asked for; do that before a graph is captured.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Device`] if the driver refuses the kernels (with its log).
    pub fn kernels(&self) -> Result<Arc<CudaKernels>> {
        CudaKernels::of(&self.driver, self.gpu.ordinal)
    }

    /// A mailbox for batches of at most `rows_max` rows, `slots` (a power of two) of them at a time. `sink` is called
    /// on a thread of its own with each batch, in the order of the kernels' claims. Loads the kernels.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Settings`] for sizes it cannot have, [`crate::ErrorKind::Device`] if the driver refuses the
    /// memory.
    pub fn mailbox<F>(&self, rows_max: usize, slots: usize, sink: F) -> Result<Mailbox>
    where
        F: FnMut(&Mail<'_>) + Send + 'static,
    {
        Mailbox::new(self.driver.clone(), self.kernels()?, rows_max, slots, sink)
    }
}

impl Device for Cuda {
    fn name(&self) -> String {
        self.gpu.name.clone()
    }
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cuda(self.gpu.ordinal)
    }
    fn uuid(&self) -> Option<String> {
        self.gpu.uuid.clone()
    }
    fn pins(&self) -> bool {
        true
    }
    fn near_processors(&self) -> &[usize] {
        &self.near
    }
    fn register(&self, memory: &mut [u8]) -> Result<Registration> {
        driver::register(&self.driver, memory)
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda").field("gpu", &self.gpu).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn probing_never_panics_and_says_what_is_missing() {
        let found = probe();
        assert_eq!(found, probe(), "asked once a process");
        if found.gpus.is_empty() {
            assert!(found.problem.is_some() || found.driver_version.is_some(), "{found:?}");
        }
    }

    #[test]
    fn opening_a_device_that_is_not_there_is_an_error_that_says_what_to_do() {
        let error = super::super::open("cuda:4096").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device);
        assert!(error.to_string().contains("4096") && error.to_string().contains("device=\"cpu\""), "{error}");
    }
}
