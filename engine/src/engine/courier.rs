//! Batches on their way to a GPU: slot by slot, on the device's copy stream.
//!
//! ```text
//! consumer's stream   ── … allocates ──►● after                              ┌─wait─► reads
//! copy stream                           └─wait─► copy [─► kernels] ─────────►● sent
//! reaper thread                                       └─ the copy's end: the slot is free again
//! ```
//!
//! What was left in place of a batch's samples is read from the cache's memory: in one call of the driver for all of
//! them, or by a kernel over the bus. The slot keeps it from being written over until the end.
//!
//! The device's memory is the framework's own; the host waits for nothing here.
#![allow(unsafe_code)]

use super::Engine;
use crate::device::cuda::{CopyEvent, CopyQueue, Cuda, CudaKernels};
use crate::error::{Error, Result};
use crate::settings::CopyPath;
use crate::staging::{BatchSlot, InPlace};
use lossfeed_kernels::image::{Erase, ImageTransform, Mixed, Retouch};
use lossfeed_kernels::launch::{Gather, Images, Retouching};
use std::sync::{Arc, OnceLock};

/// A path to one GPU.
pub(super) struct Road {
    cuda: Cuda,
    path: CopyPath,
    /// Loaded when the first one is needed.
    kernels: OnceLock<Arc<CudaKernels>>,
}

impl Road {
    /// The path, if the device has it.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Usage`] if the device is no GPU, [`crate::ErrorKind::Device`] if it cannot do what the path
    /// needs.
    pub(super) fn open(gpu: Option<&Cuda>, path: CopyPath) -> Result<Self> {
        let Some(cuda) = gpu else { return Err(Error::usage("batches are not copied: the device is the CPU")) };
        let road = Self { cuda: cuda.clone(), path, kernels: OnceLock::new() };
        // Both others hand the device the host's addresses of registered memory. Only where it says that it reads them:
        // elsewhere (WSL 2) the context would be lost to an illegal address.
        if path != CopyPath::Gathered && !cuda.reads_host_addresses()? {
            return Err(Error::device(format!(
                "copy_path {:?}: this GPU cannot read page-locked memory at host addresses (as under WSL 2): use \
                 copy_path \"gathered\"",
                path.name()
            )));
        }
        match path {
            CopyPath::Gathered => {}
            CopyPath::Batched => cuda.copies_in_batches()?,
            CopyPath::Mapped => road.kernels().map(drop)?,
        }
        Ok(road)
    }

    pub(super) fn cuda(&self) -> &Cuda {
        &self.cuda
    }

    fn kernels(&self) -> Result<&CudaKernels> {
        if let Some(kernels) = self.kernels.get() {
            return Ok(kernels);
        }
        let loaded = self.cuda.kernels()?;
        Ok(self.kernels.get_or_init(|| loaded))
    }

    /// Queues what brings the slot's samples to `to`, wherever they lie.
    ///
    /// # Safety
    /// As for [`Cuda::queue`]: the work's owner keeps the slot, and `to` is memory for all samples.
    unsafe fn samples(&self, queue: &CopyQueue<'_>, slot: &BatchSlot, to: u64) -> Result<()> {
        let (layout, rows) = (slot.layout(), slot.rows());
        // SAFETY: the caller's promises.
        unsafe {
            match (slot.in_place(), self.path) {
                (None, _) => queue.copy(slot.bytes(), layout.data_range(rows), to),
                (Some(_), CopyPath::Mapped) => self.read(queue, &slot.samples(), layout.data_row_bytes(), to),
                (Some(in_place), _) => queue.copy_batch(&runs(slot, in_place, to)),
            }
        }
    }

    /// Queues the kernel that reads `rows`.
    ///
    /// # Safety
    /// As for [`Self::samples`].
    unsafe fn read(&self, queue: &CopyQueue<'_>, rows: &[&[u8]], row_bytes: usize, to: u64) -> Result<()> {
        let from: Vec<u64> = rows.iter().map(|row| row.as_ptr() as u64).collect();
        // SAFETY: the caller's promises; page-locked memory has the host's addresses on this device (`open` has asked).
        unsafe { self.kernels()?.gather(queue.stream(), &Gather { from: &from, row_bytes, out: to }) }
    }

    /// Brings a batch to `to` as batches of this path go there: `gathered` as a whole, or each of `rows`. The caller
    /// waits for the event, or else for the device, while it keeps all of them.
    ///
    /// # Safety
    /// `gathered` and `rows` are registered memory that stays as it is, and `to` device memory for all rows that is
    /// not freed, until the event that is returned has come.
    ///
    /// # Errors
    /// As for [`Cuda::queue`].
    pub(super) unsafe fn rehearse(
        &self,
        gathered: &[u8],
        rows: &[&[u8]],
        row_bytes: usize,
        to: u64,
    ) -> Result<CopyEvent> {
        // SAFETY: the caller's promises; the default stream is alive.
        unsafe {
            self.cuda.queue((), 0, |queue| match self.path {
                CopyPath::Gathered => queue.copy(gathered, 0..gathered.len(), to),
                CopyPath::Mapped => self.read(queue, rows, row_bytes, to),
                CopyPath::Batched => {
                    let place = |k: usize| to + (k * row_bytes) as u64;
                    queue.copy_batch(&rows.iter().enumerate().map(|(k, row)| (*row, place(k))).collect::<Vec<_>>())
                }
            })
        }
    }
}

/// Where the samples of a batch lie, and where they go: neighbours in the slot together.
fn runs<'a>(slot: &'a BatchSlot, in_place: &'a InPlace, to: u64) -> Vec<(&'a [u8], u64)> {
    let (data, row_bytes) = (slot.gathered_data(), slot.layout().data_row_bytes());
    let mut runs = Vec::with_capacity(slot.rows());
    let mut done = 0;
    for (row, record) in in_place.iter() {
        let at = row * row_bytes;
        if done < at {
            runs.push((&data[done..at], to + done as u64));
        }
        runs.push((&record[..row_bytes], to + at as u64));
        done = at + row_bytes;
    }
    if done < data.len() {
        runs.push((&data[done..], to + done as u64));
    }
    runs
}

/// Takes one engine's batches to its GPU. Calls may come from any thread; each goes behind those before it.
pub struct Courier(Road);

/// What the device makes of a batch's pixels: bytes retouched, images made of them, then parts of them erased, then
/// pairs of them mixed.
#[derive(Clone, Copy, Debug)]
pub struct ImagesBy<'a> {
    /// What is done to the bytes before anything else.
    pub retouch: Option<&'a Retouch>,
    /// What becomes of each sample then.
    pub transform: &'a ImageTransform,
    /// Chance of a rectangle of 0.
    pub erase: Option<&'a Erase>,
    /// How the whole batch is mixed.
    pub mixed: Option<Mixed>,
    /// What the batch's draws have in common.
    pub key: u64,
}

/// Where the parts of a batch of images go. Addresses on the device.
#[derive(Clone, Copy, Debug)]
pub struct ImagesTo {
    /// Target, ids and weight: the slot from its target on.
    pub rest: u64,
    /// The rows' pixels, with the room behind them that [`ImagesBy::pixels_bytes`] says: for the kernels, and for nobody
    /// later.
    pub pixels: u64,
    /// What the transform makes of the rows.
    pub made: u64,
}

impl ImagesBy<'_> {
    /// Bytes of a sample as it lies in a slot.
    fn source_bytes(&self) -> usize {
        self.retouch.map_or(self.transform.source_bytes(), Retouch::source_bytes)
    }

    /// Bytes on the device that the pixels of `rows` samples take, with room to work in.
    pub fn pixels_bytes(&self, rows: usize) -> usize {
        self.retouch.map_or(rows * self.transform.source_bytes(), |retouch| retouch.room(rows).bytes)
    }
}

impl Courier {
    /// The courier of an engine whose device is a GPU.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Usage`] if it is not.
    pub fn of(engine: &Engine) -> Result<Self> {
        Road::open(engine.gpu.as_ref(), engine.copy_choice().path).map(Self)
    }

    /// Raw handle of the copy stream; it lives as long as the process.
    pub fn stream(&self) -> u64 {
        self.0.cuda.copy_stream()
    }

    /// Brings the batch to `block`, laid out as the slot is, after the work that the stream `after` has been given so
    /// far. The slot goes back to its pool when the copy has ended and nobody else holds it.
    ///
    /// # Safety
    /// As for [`Cuda::copy_async`], for [`crate::staging::BatchLayout::total_bytes`] at `block`.
    ///
    /// # Errors
    /// As there; and [`crate::ErrorKind::Internal`] for a slot that is not lent.
    pub unsafe fn send(&self, slot: Arc<BatchSlot>, block: u64, after: u64) -> Result<CopyEvent> {
        slot.copying_again()?;
        let (layout, bytes) = (slot.layout(), slot.bytes());
        let rest = layout.target_offset();
        // SAFETY: the caller's promises; a lent slot's bytes, and those it has left in place, lie still until its last
        // owner is gone.
        unsafe {
            self.0.cuda.queue(Arc::clone(&slot), after, |queue| {
                if slot.in_place().is_none() {
                    return queue.copy(bytes, 0..bytes.len(), block);
                }
                queue.copy(bytes, rest..bytes.len(), block + rest as u64)?;
                self.0.samples(queue, &slot, block)
            })
        }
    }

    /// Brings the slot's samples to the device and makes images of them.
    ///
    /// # Safety
    /// As for [`Self::send`], for the extents of the slot's parts and of the transform in `to`; `to.pixels` may be used
    /// again by work that is given to [`Self::stream`] after this call.
    ///
    /// # Errors
    /// As for [`Self::send`], [`CudaKernels::retouch`] and [`CudaKernels::images`]; [`crate::ErrorKind::Internal`] for a
    /// transform of other samples.
    pub unsafe fn send_images(
        &self,
        slot: Arc<BatchSlot>,
        by: &ImagesBy<'_>,
        to: &ImagesTo,
        after: u64,
    ) -> Result<CopyEvent> {
        let (layout, rows, bytes, transform) = (slot.layout(), slot.rows(), slot.bytes(), by.transform);
        if layout.data_row_bytes() != by.source_bytes() {
            return Err(Error::internal(format!(
                "a transform of samples of {} bytes for rows of {}",
                by.source_bytes(),
                layout.data_row_bytes()
            )));
        }
        let kernels = self.0.kernels()?;
        slot.copying_again()?;
        let ids = to.rest + (layout.ids_offset() - layout.target_offset()) as u64;
        let retouching = Retouching { rows, key: by.key, ids, pixels: to.pixels };
        let source = by.retouch.map_or(to.pixels, |retouch| retouching.made(retouch));
        let batch = Images { rows, key: by.key, source, ids, out: to.made };
        let erased: Vec<_> = by.erase.map_or_else(Vec::new, |erase| {
            let draw = |&id: &i64| erase.draw(transform.out_sides(), by.key, id);
            slot.ids().iter().map(draw).enumerate().filter_map(|(row, at)| Some((row, at?))).collect()
        });
        // SAFETY: as in `send`; the kernels run behind the copies, on their stream.
        unsafe {
            self.0.cuda.queue(Arc::clone(&slot), after, |queue| {
                queue.copy(bytes, layout.target_offset()..bytes.len(), to.rest)?;
                self.0.samples(queue, &slot, to.pixels)?;
                if let Some(retouch) = by.retouch {
                    kernels.retouch(queue.stream(), retouch, &retouching)?;
                }
                kernels.images(queue.stream(), transform, &batch)?;
                kernels.erase(queue.stream(), transform, &erased, to.made)?;
                match &by.mixed {
                    Some(mixed) => kernels.mix(queue.stream(), transform, mixed, rows, to.made),
                    None => Ok(()),
                }
            })
        }
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
        unsafe { self.0.cuda.consumer_wait(stream, sent) }
    }
}
