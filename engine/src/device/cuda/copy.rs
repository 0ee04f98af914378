//! Host-to-device copies on a stream of our own, one a device for the life of the process: a framework's allocator may
//! record events on it whenever a batch that was copied there is dropped, which may be long after its loader.
//!
//! ```text
//! consumer's stream   ── … allocates dst ──►● after                    ┌─wait─► reads dst
//!                                           │                          │
//! copy stream                               └─wait─► copy, copy, … ───►● done
//!                                                                      │
//! reaper thread                                                        └─wait─► drops the owner
//! ```
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use cudarc::driver::result::DriverError;
use cudarc::driver::sys;
use lossfeed_sync::{Mutex, PerProcess};

use super::batch;
use super::driver::{Driver, is_capturing};
use crate::error::{Error, Result};
use crate::process::pid;

/// All streams share one host-to-device engine, first come first served: a small copy of someone else's must not wait
/// for a whole batch (20–75 µs a piece at PCIe 5 rates).
const PIECE_BYTES: usize = 4 << 20;

/// Copy streams by device.
static STREAMS: PerProcess<Mutex<Vec<(usize, u64)>>> = PerProcess::new();

/// The device's copy stream, made at the first call in this process and never destroyed.
fn stream_of(driver: &Driver, ordinal: usize) -> Result<u64> {
    let mut streams = STREAMS.of(pid()).lock();
    if let Some(&(_, stream)) = streams.iter().find(|(device, _)| *device == ordinal) {
        return Ok(stream);
    }
    let stream = driver.call("making the copy stream", || driver.context().new_stream())?;
    let raw = stream.cu_stream() as u64;
    // It keeps the context, which is the framework's too.
    std::mem::forget(stream);
    streams.push((ordinal, raw));
    Ok(raw)
}

/// The copy stream, and the thread that lets go of what was copied.
pub(super) struct Copies {
    driver: Arc<Driver>,
    stream: u64,
    /// `None` only while dropping.
    reaper: Option<Sender<InFlight>>,
}

/// What must live until its event is done. At most as many as there are batch slots.
struct InFlight {
    event: Arc<Event>,
    owner: Box<dyn Send>,
}

impl Copies {
    pub(super) fn new(driver: Arc<Driver>, ordinal: usize) -> Result<Self> {
        let stream = stream_of(&driver, ordinal)?;
        let (reaper, in_flight) = channel();
        let copies = Self { driver, stream, reaper: Some(reaper) };
        std::thread::Builder::new()
            .name("lossfeed-copies".to_owned())
            .spawn(move || reap(in_flight))
            .map_err(|error| Error::device("no thread to watch copies").because(error))?;
        Ok(copies)
    }

    pub(super) fn stream(&self) -> u64 {
        self.stream
    }

    /// See [`super::Cuda::queue`].
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn queue<S, W>(&self, owner: S, after_stream: u64, work: W) -> Result<CopyEvent>
    where
        S: Send + 'static,
        W: FnOnce(&CopyQueue<'_>) -> Result<()>,
    {
        let Some(reaper) = &self.reaper else {
            return Err(Error::internal("a copy was started on a device that is being closed"));
        };
        let after = after_stream as sys::CUstream;
        let stream = self.stream as sys::CUstream;
        let (ready, done) = (Event::new(self.driver.clone())?, Event::new(self.driver.clone())?);
        let follows = self.driver.call("copying a batch to the GPU", || {
            // SAFETY: `after` is 0 or a live stream (the caller's promise); events and the copy stream are ours and
            // alive. An event that is destroyed after the wait was queued stays valid for that wait (cuEventDestroy).
            unsafe {
                if is_capturing(after)? {
                    return Ok(false);
                }
                sys::cuEventRecord(ready.raw(), after).result()?;
                sys::cuStreamWaitEvent(stream, ready.raw(), 0).result()?;
            }
            Ok(true)
        })?;
        if !follows {
            return Err(captured());
        }
        // Should `work` panic with something on its way, this leaks what that reads.
        let owner: ManuallyDrop<Box<dyn Send>> = ManuallyDrop::new(Box::new(owner));
        let queued = work(&CopyQueue { copies: self }).and_then(|()| {
            self.driver.call("copying a batch to the GPU", || {
                // SAFETY: both are ours and alive.
                unsafe { sys::cuEventRecord(done.raw(), stream) }.result()
            })
        });
        if let Err(error) = queued {
            // Some of it may be on its way: what it reads may go only when that has arrived.
            let arrived = self.driver.call("waiting for the copy stream", || {
                // SAFETY: the stream is ours and alive.
                unsafe { sys::cuStreamSynchronize(stream) }.result()
            });
            if arrived.is_ok() {
                drop(ManuallyDrop::into_inner(owner));
            }
            return Err(error);
        }
        let (event, owner) = (Arc::new(done), ManuallyDrop::into_inner(owner));
        if let Err(refused) = reaper.send(InFlight { event: event.clone(), owner }) {
            // The thread is gone, which it never is while a sender lives; the owner must still outlive the copy.
            if event.synchronize().is_err() {
                std::mem::forget(refused.0.owner);
            }
        }
        Ok(CopyEvent { event })
    }
}

fn captured() -> Error {
    Error::usage("batches cannot be taken during a CUDA graph capture: take them outside of the capture")
}

/// The copy stream while work is being queued on it.
pub struct CopyQueue<'a> {
    copies: &'a Copies,
}

impl CopyQueue<'_> {
    /// Raw handle of the stream, for kernels.
    pub fn stream(&self) -> u64 {
        self.copies.stream()
    }

    /// Copies the bytes of `range` of `memory`, which starts with the first byte that was page-locked, to `to`.
    ///
    /// # Safety
    /// The range stays as it is, and `to` device memory of as many bytes, until the work queued so far has ended.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Usage`] in a forked child, [`crate::ErrorKind::Device`] if the driver refuses.
    pub unsafe fn copy(&self, memory: &[u8], range: Range<usize>, to: u64) -> Result<()> {
        let first = range.start;
        self.copies.driver.call("copying a batch to the GPU", || {
            for piece in pieces(range) {
                let at = to + (piece.start - first) as u64;
                let from = memory[piece].as_ref();
                // SAFETY: the caller's promises.
                unsafe {
                    sys::cuMemcpyHtoDAsync_v2(at, from.as_ptr().cast::<c_void>(), from.len(), self.stream() as _)
                }
                .result()?;
            }
            Ok(())
        })
    }

    /// Copies every one of `rows` to its place, in one call and in any order (`cuMemcpyBatchAsync`). A row is
    /// page-locked as a part of one piece.
    ///
    /// # Safety
    /// As for [`Self::copy`], for every row and place.
    ///
    /// # Errors
    /// As for [`Self::copy`], and if [`super::Cuda::copies_in_batches`] says no.
    pub unsafe fn copy_batch(&self, rows: &[(&[u8], u64)]) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let copy = batch::function(&self.copies.driver)?;
        // SAFETY: the caller's promises.
        self.copies.driver.call("copying a batch's rows to the GPU", || unsafe { copy.start(rows, self.stream()) })
    }
}

/// Cuts a range at multiples of [`PIECE_BYTES`], so that no piece crosses from one page-locked piece of memory to the
/// next.
fn pieces(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = at;
        at = ((start / PIECE_BYTES + 1) * PIECE_BYTES).min(range.end);
        (start < range.end).then_some(start..at)
    })
}

impl Drop for Copies {
    fn drop(&mut self) {
        if self.driver.forked() {
            // The thread is not here, and nobody will ever receive.
            std::mem::forget(self.reaper.take());
            return;
        }
        // The thread ends when it has let go of what is in flight; it holds the driver until then.
        drop(self.reaper.take());
    }
}

/// Drops owners as their copies end, in order: there is one copy stream.
fn reap(in_flight: Receiver<InFlight>) {
    while let Ok(InFlight { event, owner }) = in_flight.recv() {
        match event.synchronize() {
            Ok(()) => drop(owner),
            Err(error) => {
                // The context is lost, or the process is ending. Leaking a slot is the one answer that cannot corrupt
                // memory.
                tracing::error!(%error, "a copy to the GPU did not end; its batch slot is lost");
                std::mem::forget(owner);
            }
        }
    }
}

/// The end of a copy. Clones refer to the same end.
#[derive(Clone)]
pub struct CopyEvent {
    event: Arc<Event>,
}

impl CopyEvent {
    /// Whether the copy has ended. Does not wait.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Usage`] in a forked child, [`crate::ErrorKind::Device`] if the context is lost.
    pub fn is_done(&self) -> Result<bool> {
        self.event.driver.call("asking for a copy", || {
            // SAFETY: the event is alive as long as `self`.
            match unsafe { sys::cuEventQuery(self.event.raw()) }.result() {
                Ok(()) => Ok(true),
                Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    /// Waits on the CPU until the copy has ended.
    ///
    /// # Errors
    /// As for [`Self::is_done`].
    pub fn wait(&self) -> Result<()> {
        self.event.synchronize()
    }

    /// # Safety
    /// `stream` is 0 or a live stream of the device.
    pub(super) unsafe fn make_wait(&self, stream: u64) -> Result<()> {
        let stream = stream as sys::CUstream;
        let waits = self.event.driver.call("waiting for a batch on the consumer's stream", || {
            // SAFETY: the event is alive; the stream is by the caller's promise.
            unsafe {
                // A capture does not survive a wait for what was queued outside of it.
                if is_capturing(stream)? {
                    return Ok(false);
                }
                sys::cuStreamWaitEvent(stream, self.event.raw(), 0).result()?;
            }
            Ok(true)
        })?;
        if waits { Ok(()) } else { Err(captured()) }
    }
}

impl std::fmt::Debug for CopyEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyEvent").finish_non_exhaustive()
    }
}

/// A driver event without timing, whose waiters sleep rather than spin.
pub(super) struct Event {
    driver: Arc<Driver>,
    raw: sys::CUevent,
}

// SAFETY: events may be used from any thread; the handle is only passed to the driver.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn new(driver: Arc<Driver>) -> Result<Self> {
        let flags =
            sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 | sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        let raw = driver.call("making an event", || {
            let mut raw = std::ptr::null_mut();
            // SAFETY: the pointer is to a local.
            unsafe { sys::cuEventCreate(&raw mut raw, flags) }.result()?;
            Ok(raw)
        })?;
        Ok(Self { driver, raw })
    }
    pub(super) fn raw(&self) -> sys::CUevent {
        self.raw
    }
    /// Records what `stream`, a live one of ours, has been given so far.
    pub(super) fn record(&self, stream: u64) -> Result<()> {
        self.driver.call("recording an event", || {
            // SAFETY: both are ours and alive.
            unsafe { sys::cuEventRecord(self.raw, stream as sys::CUstream) }.result()
        })
    }
    pub(super) fn synchronize(&self) -> Result<()> {
        // SAFETY: the event is alive as long as `self`.
        self.driver.call("waiting for a copy", || unsafe { sys::cuEventSynchronize(self.raw) }.result())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed only here; the driver frees it when work that refers to it has passed.
        let _ = self.driver.call("dropping an event", || unsafe { sys::cuEventDestroy_v2(self.raw) }.result());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_each_other_and_end_at_multiples() {
        for range in
            [0..0, 5..5, 0..1, 0..PIECE_BYTES, 1..PIECE_BYTES + 1, 7..3 * PIECE_BYTES, PIECE_BYTES..PIECE_BYTES + 9]
        {
            let all: Vec<_> = pieces(range.clone()).collect();
            assert_eq!(all.iter().map(ExactSizeIterator::len).sum::<usize>(), range.len());
            assert!(all.windows(2).all(|w| w[0].end == w[1].start && w[0].end % PIECE_BYTES == 0), "{all:?}");
            assert!(all.iter().all(|p| p.start / PIECE_BYTES == (p.end - 1) / PIECE_BYTES), "{all:?}");
            assert_eq!(all.first().map(|p| p.start), (!range.is_empty()).then_some(range.start));
        }
    }
}
