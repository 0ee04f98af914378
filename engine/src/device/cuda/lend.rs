//! What the launches on a stream are lent: tickets, and a place to report bad targets to.
//!
//! Launches that may overlap must not share tickets. A stream runs its launches one after the other, so each has
//! tickets of its own; there are as many as that at the start, and nothing is allocated later. A launch that is
//! captured runs when and where its graph is replayed, and a stream may come when all tickets are lent: they use the
//! first bytes of their own scratch, zeroed by work on the stream in front of them. In a graph that is a node of it,
//! and the scratch belongs to the graph.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::driver::result::DriverError;
use cudarc::driver::sys;
use lossfeed_kernels::launch::mail::BadRows;
use lossfeed_kernels::launch::{Lent, TICKET_BYTES, scratch_tickets};
use lossfeed_sync::Mutex;

use super::driver::{Driver, Mapped, is_capturing};
use crate::error::{Error, Result};

/// Streams with tickets of their own: those of a framework's pools, and some more.
const STREAMS_MAX: usize = 80;
/// Words of a stream, on a line of their own.
const LINE_BYTES: usize = 64;
/// The version that has `cuStreamGetId`.
const STREAM_IDS: c_int = 12000;

/// A stream that has been lent tickets.
struct Known {
    /// As the caller names it. A later stream may have the same handle.
    handle: u64,
    /// As the driver numbers it: never used again.
    id: u64,
}

pub(super) struct Lending {
    driver: Arc<Driver>,
    multiprocessors: u32,
    /// `STREAMS_MAX` times [`TICKET_BYTES`].
    tickets: u64,
    /// [`BadRows`], a line each: a stream's own, and behind them one for everybody else.
    bad_rows: u64,
    /// What they point to: `told` and `generation`.
    words: Mapped,
    streams: Mutex<Vec<Known>>,
}

impl Lending {
    pub(super) fn new(driver: Arc<Driver>, multiprocessors: u32) -> Result<Self> {
        let tickets = driver.zeroed(STREAMS_MAX * TICKET_BYTES, "allocating tickets for scores")?;
        let places = STREAMS_MAX + 1;
        let words = Mapped::new(driver.clone(), places * LINE_BYTES)?;
        let bad_rows = driver.zeroed(places * LINE_BYTES, "allocating room for errors")?;
        let mut initial = vec![0u8; places * LINE_BYTES];
        for (number, line) in initial.chunks_exact_mut(LINE_BYTES).enumerate() {
            let told = words.device() + (number * LINE_BYTES) as u64;
            let place = BadRows { worst: 0, told, generation: told + 8 };
            line[..size_of::<BadRows>()].copy_from_slice(bytemuck::bytes_of(&place));
        }
        // SAFETY: just allocated, of that length.
        unsafe { driver.write(bad_rows, &initial, "making room for errors")? };
        let lending = Self { driver, multiprocessors, tickets, bad_rows, words, streams: Mutex::default() };
        for number in 0..places {
            lending.words_of(number).1.store(1, Ordering::Relaxed);
        }
        Ok(lending)
    }

    pub(super) fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// What the next call on `stream` is lent, and where it reports bad targets. Queues the zeroing of tickets if it
    /// has to.
    ///
    /// # Safety
    /// `stream` is 0 or a live stream of the device; `scratch` is the call's.
    pub(super) unsafe fn lend(&self, stream: u64, scratch: u64) -> Result<(Lent, u64)> {
        if !scratch.is_multiple_of(256) {
            return Err(Error::usage(format!("scratch at {scratch:#x}: need 256-byte alignment")));
        }
        // SAFETY: the caller's promise.
        let own = unsafe { self.number(stream)? };
        let tickets = match own {
            Some(number) => self.tickets + (number * TICKET_BYTES) as u64,
            None => scratch_tickets(scratch),
        };
        if own.is_none() {
            self.driver.queue("zeroing a call's tickets", || {
                // SAFETY: inside the scratch, which is the call's on this stream.
                unsafe { sys::cuMemsetD8Async(tickets, 0, TICKET_BYTES, stream as sys::CUstream) }.result()
            })?;
        }
        let place = self.bad_rows + (own.unwrap_or(STREAMS_MAX) * LINE_BYTES) as u64;
        Ok((Lent { tickets, scratch, multiprocessors: self.multiprocessors }, place))
    }

    /// The stream's place among those that have tickets; `None` for a capture, and when all are lent.
    ///
    /// # Safety
    /// As for [`Self::lend`].
    unsafe fn number(&self, stream: u64) -> Result<Option<usize>> {
        let ids = ids(&self.driver);
        let id = self.driver.queue("asking about a stream", || {
            let raw = stream as sys::CUstream;
            // SAFETY: the caller's promise.
            if unsafe { is_capturing(raw)? } {
                return Ok(None);
            }
            // Without numbers (no driver that loads the kernels lacks them) the handle is the best there is.
            let Some(ids) = ids else { return Ok(Some(stream)) };
            // SAFETY: the caller's promise.
            unsafe { ids.of(raw) }.map(Some)
        })?;
        let Some(id) = id else { return Ok(None) };
        let mut streams = self.streams.lock();
        if let Some(number) = streams.iter().position(|known| known.id == id) {
            return Ok(Some(number));
        }
        if streams.len() == STREAMS_MAX {
            return Ok(None);
        }
        streams.push(Known { handle: stream, id });
        Ok(Some(streams.len() - 1))
    }

    /// See [`super::CudaKernels::take_error`].
    pub(super) fn take_error(&self, stream: u64) -> Option<u32> {
        // Locked to the end: of two threads that ask, one is told.
        let streams = self.streams.lock();
        let own = streams.iter().rposition(|known| known.handle == stream);
        own.into_iter().chain([STREAMS_MAX]).find_map(|number| {
            let (told, generation) = self.words_of(number);
            let (told, now) = (told.load(Ordering::Acquire), generation.load(Ordering::Relaxed));
            if (told >> 32) as u32 != now {
                return None;
            }
            // Only we write it. A launch that has read the old one adds its row to what is told here.
            generation.store(now.wrapping_add(1), Ordering::Release);
            Some(!(told as u32))
        })
    }

    fn words_of(&self, number: usize) -> (&AtomicU64, &AtomicU32) {
        let line = self.words.host().as_ptr().wrapping_add(number * LINE_BYTES);
        // SAFETY: aligned and inside the memory, which lives as long as the borrow; the host touches these words only
        // as atomics, and the device reads the one and writes the other as a whole.
        unsafe { (AtomicU64::from_ptr(line.cast()), AtomicU32::from_ptr(line.wrapping_add(8).cast())) }
    }
}

/// `cuStreamGetId`: asked for by name, because the bindings have it or not as the program that links them chooses.
#[derive(Clone, Copy)]
struct Ids(unsafe extern "C" fn(sys::CUstream, *mut u64) -> sys::CUresult);

impl Ids {
    /// # Safety
    /// Inside [`Driver::call`]; `stream` is null or a live stream of the device.
    unsafe fn of(self, stream: sys::CUstream) -> Result<u64, DriverError> {
        let mut id = 0;
        // SAFETY: the caller's promise; the pointer is to a local.
        unsafe { (self.0)(stream, &raw mut id) }.result()?;
        Ok(id)
    }
}

/// The function, if the driver has it; one library serves all devices of a process.
fn ids(driver: &Driver) -> Option<Ids> {
    static FOUND: OnceLock<Option<Ids>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let mut address: *mut c_void = std::ptr::null_mut();
        let mut status = sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        let asked = driver.call("asking for cuStreamGetId", || {
            let name = c"cuStreamGetId".as_ptr();
            // SAFETY: the name ends with a zero; the pointers are to locals.
            unsafe { sys::cuGetProcAddress_v2(name, &raw mut address, STREAM_IDS, 0, &raw mut status) }.result()
        });
        if asked.is_err() || address.is_null() {
            return None;
        }
        // SAFETY: the driver says that this is the function of that name and version, which is declared so.
        Some(Ids(unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(sys::CUstream, *mut u64) -> sys::CUresult>(address)
        }))
    })
}
