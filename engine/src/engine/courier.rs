//! Batches on their way to a GPU: slot by slot, on the device's copy stream.
//!
//! ```text
//! consumer's stream   ── … allocates ──►● after                              ┌─wait─► reads
//! copy stream                           └─wait─► copy [─► images] ──────────►● sent
//! reaper thread                                       └─ the copy's end: the slot is free again
//! ```
//!
//! The device's memory is the framework's own; the host waits for nothing here.
#![allow(unsafe_code)]

use super::Engine;
use crate::device::cuda::{CopyEvent, Cuda, CudaKernels};
use crate::error::{Error, Result};
use crate::staging::BatchSlot;
use lossfeed_kernels::image::ImageTransform;
use lossfeed_kernels::launch::Images;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Takes one engine's batches to its GPU. Calls may come from any thread; each goes behind those before it.
pub struct Courier {
    cuda: Cuda,
    /// Loaded for the first images.
    kernels: OnceLock<Arc<CudaKernels>>,
}

/// Where the parts of a batch of images go. Addresses on the device.
#[derive(Clone, Copy, Debug)]
pub struct ImagesTo {
    /// Target, ids and weight: the slot from its target on.
    pub rest: u64,
    /// The rows' pixels, read by the kernel and by nobody later.
    pub pixels: u64,
    /// What the transform makes of the rows.
    pub made: u64,
}

/// A slot's bytes of a range, and the slot with them.
struct Part(Arc<BatchSlot>, Range<usize>);

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes()[self.1.clone()]
    }
}

impl Courier {
    /// The courier of an engine whose device is a GPU.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Usage`] if it is not.
    pub fn of(engine: &Engine) -> Result<Self> {
        let Some(cuda) = engine.device().cuda() else {
            return Err(Error::usage(format!("batches stay where they are: the device is {}", engine.device().name())));
        };
        Ok(Self { cuda: cuda.clone(), kernels: OnceLock::new() })
    }

    /// Raw handle of the copy stream; it lives as long as this.
    pub fn stream(&self) -> u64 {
        self.cuda.copy_stream()
    }

    /// Copies the whole slot to `block`, after the work that the stream `after` has been given so far. The slot goes back to its pool
    /// when the copy has ended and nobody else holds it.
    ///
    /// # Safety
    /// As for [`Cuda::copy_async`], for [`crate::staging::BatchLayout::total_bytes`] at `block`.
    ///
    /// # Errors
    /// As there; and [`crate::ErrorKind::Internal`] for a slot that is not lent.
    pub unsafe fn send(&self, slot: Arc<BatchSlot>, block: u64, after: u64) -> Result<CopyEvent> {
        slot.copying()?;
        let whole = 0..slot.layout().total_bytes();
        // SAFETY: the caller's promises; a lent slot's bytes lie still until its last owner, of which the part is one, is gone.
        unsafe { self.cuda.copy_async(Part(slot, whole), block, after) }
    }

    /// Copies the slot's rows and makes images of them.
    ///
    /// # Safety
    /// As for [`Self::send`], for the extents of the slot's parts and of `transform` in `to`; `to.pixels` may be used again by work
    /// that is given to [`Self::stream`] after this call.
    ///
    /// # Errors
    /// As for [`Self::send`] and [`CudaKernels::images`]; [`crate::ErrorKind::Internal`] for a transform of other samples.
    pub unsafe fn send_images(
        &self,
        slot: Arc<BatchSlot>,
        transform: &ImageTransform,
        key: u64,
        to: &ImagesTo,
        after: u64,
    ) -> Result<CopyEvent> {
        let (layout, rows) = (slot.layout(), slot.rows());
        if layout.data_row_bytes() != transform.source_bytes() {
            return Err(Error::internal(format!(
                "a transform of samples of {} bytes for rows of {}",
                transform.source_bytes(),
                layout.data_row_bytes()
            )));
        }
        let kernels = match self.kernels.get() {
            Some(kernels) => kernels,
            None => {
                let loaded = self.cuda.kernels()?;
                self.kernels.get_or_init(|| loaded)
            }
        };
        slot.copying()?;
        let (pixels, rest) = (layout.data_range(rows), layout.target_offset()..layout.total_bytes());
        let ids = to.rest + (layout.ids_offset() - layout.target_offset()) as u64;
        let batch = Images { rows, key, source: to.pixels, ids, out: to.made };
        // SAFETY: as in `send`; the kernel runs behind both copies, on their stream.
        unsafe {
            self.cuda.copy_async(Part(Arc::clone(&slot), rest), to.rest, after)?;
            self.cuda.copy_async(Part(slot, pixels), to.pixels, after)?;
            kernels.images(self.stream(), transform, &batch)?;
        }
        self.cuda.so_far()
    }

    /// Makes `stream` (not the CPU) wait for what was sent.
    ///
    /// # Safety
    /// `stream` is 0 or a live stream of this device.
    ///
    /// # Errors
    /// As for [`Cuda::consumer_wait`].
    pub unsafe fn wait(&self, stream: u64, sent: &CopyEvent) -> Result<()> {
        // SAFETY: the caller's promise is the callee's.
        unsafe { self.cuda.consumer_wait(stream, sent) }
    }
}
