//! Scores on their way home: a ring of slots in host memory that kernels write and a thread reads.
//!
//! ```text
//!   kernel: claims slot n (gate), writes it, system fence, sequence word = n + 1
//!   thread: sees n + 1 in slot n, hands the slot to the sink, consumed = n + 1
//!   full (claims − consumed = slots): the kernel drops the batch and counts it
//!   closed: a kernel of ours shuts the gate and says how many claims there were; having read so many, the thread ends
//! ```
//!
//! The thread polls memory and calls no driver function, so it cannot disturb a graph capture; nothing on the host is
//! armed for a launch, so a captured graph's replays bring their scores too. Dropping a mailbox queues that one kernel
//! and waits for nothing: a garbage collection may do it in the middle of a capture. The ring's memory goes with the
//! thread, when no kernel can write to it any more. `lossfeed_kernels::launch::mail` has the layout.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lossfeed_kernels::Rows;
use lossfeed_kernels::launch::mail::{self, HAS_ENTROPY, HAS_GRAD_NORM, HAS_IDS, MAIL_BIT, NO_ROW, Slot, SlotHead};

use super::CudaKernels;
use super::driver::{Driver, Mapped};
use super::lines::Lines;
use crate::error::{Error, Result};

/// More would only be older news.
const SLOTS_MAX: usize = 1024;
/// Pauses between two looks; they grow, for a training step takes milliseconds.
const LOOK_FIRST: Duration = Duration::from_micros(20);
/// How long settling waits for a sink.
const SETTLE_WAIT: Duration = Duration::from_secs(10);
const LOOK_LAST: Duration = Duration::from_micros(500);
/// A mailbox's words ([`mail::Words`]) have a line of their own; so many lines are mapped at a time.
const LINE_BYTES: usize = 64;
const LINES: usize = 64;
/// Where `closed` lies among them.
const CLOSED: usize = 8;

/// One batch's scores, as the kernels left them. Lengths are the batch's rows.
#[derive(Debug, Clone, Copy)]
pub struct Mail<'a> {
    /// The launch's tag.
    pub tag: u64,
    /// The samples, if the launch had an address for them.
    pub ids: Option<&'a [i64]>,
    /// Losses; double precision was narrowed.
    pub loss: &'a [f32],
    /// Gradient-norm bounds; NaN for a row that was not scored.
    pub grad_norm: Option<&'a [f32]>,
    /// Entropies; NaN for a row that was not scored.
    pub entropy: Option<&'a [f32]>,
    /// Rank counts; −1 for a row without a rank.
    pub count: &'a [i32],
    /// The first row whose target named no class.
    pub bad_row: Option<usize>,
    /// Batches dropped since the mail before.
    pub dropped: u32,
}

/// A loader's mailbox on a GPU. Launches name it by [`Mailbox::address`].
pub struct Mailbox {
    driver: Arc<Driver>,
    kernels: Arc<CudaKernels>,
    state: u64,
    ring: Ring,
    rows_max: usize,
}

impl Mailbox {
    pub(super) fn new<F>(
        driver: Arc<Driver>,
        kernels: Arc<CudaKernels>,
        rows_max: usize,
        slots: usize,
        sink: F,
    ) -> Result<Self>
    where
        F: FnMut(&Mail<'_>) + Send + 'static,
    {
        check(rows_max, slots)?;
        let memory = Arc::new(Mapped::new(driver.clone(), Ring::bytes(rows_max, slots))?);
        let words = Arc::new(Line::new(kernels.lines())?);
        let state = mail::State {
            gate: MAIL_BIT,
            slots: slots as u32,
            rows_max: rows_max as u32,
            ring: memory.device(),
            words: words.device,
            ..mail::State::default()
        };
        let bytes = bytemuck::bytes_of(&state);
        let address = driver.zeroed(bytes.len(), "allocating a mailbox")?;
        // SAFETY: just allocated, of that length.
        unsafe { driver.write(address, bytes, "making a mailbox")? };
        let ring = Ring::start(words, memory, rows_max, slots, sink)?;
        Ok(Self { driver, kernels, state: address, ring, rows_max })
    }

    /// What launches name it by ([`lossfeed_kernels::launch::Home::mail`]): an address on the device, for ever valid.
    /// After [`Self::close`] mail to it is dropped, also that of graphs captured before.
    pub fn address(&self) -> u64 {
        self.state
    }

    /// Most rows of a batch; mail of more is dropped.
    pub fn rows_max(&self) -> usize {
        self.rows_max
    }

    /// Batches whose scores came home.
    pub fn delivered_total(&self) -> u32 {
        self.ring.consumed()
    }

    /// Waits for the work the device has been given and until its mail has been handed to the sink.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Device`] if the device cannot be waited for (a capture is under way),
    /// [`crate::ErrorKind::Internal`] if the mail is not taken up within some seconds.
    pub fn settle(&self) -> Result<()> {
        self.driver.synchronize("waiting for scores")?;
        self.ring.settle()
    }

    /// Refuses further mail, hands what was claimed before to the sink and ends the thread. Does not wait for work that
    /// has nothing to do with this mailbox, and may be called while a graph is being captured. `false` if the device
    /// does not answer (its context is lost, or a kernel hangs that has a slot): then the ring's memory is never freed.
    pub fn close(&mut self) -> bool {
        if self.driver.forked() {
            self.ring.abandon();
            return false;
        }
        if self.ring.thread.is_none() {
            return true; // closed before
        }
        // SAFETY: the state is never freed.
        let asked = unsafe { self.kernels.close_mail(self.state) };
        let shut = asked.and_then(|done| done.synchronize());
        self.ring.close(shut.is_ok())
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        if self.driver.forked() {
            return self.ring.abandon();
        }
        if self.ring.thread.is_none() {
            return;
        }
        // SAFETY: the state is never freed.
        if unsafe { self.kernels.close_mail(self.state) }.is_err() {
            self.ring.close(false);
        }
        // The thread reads on until the kernel has run and all claims are in, then lets go of the memory.
    }
}

impl std::fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mailbox").field("rows_max", &self.rows_max).field("delivered", &self.delivered_total()).finish()
    }
}

fn check(rows_max: usize, slots: usize) -> Result<()> {
    if rows_max == 0 || rows_max > Rows::MAX || !slots.is_power_of_two() || slots > SLOTS_MAX {
        return Err(Error::settings(format!(
            "a mailbox for batches of {rows_max} rows, {slots} at a time: need 1 to {} rows and a power of two of at most {SLOTS_MAX} batches",
            Rows::MAX
        )));
    }
    Ok(())
}

/// Memory that host and device both see.
trait Shared: Send + Sync + 'static {
    /// First byte, 64-aligned; the memory stays there until the value is dropped.
    fn host(&self) -> NonNull<u8>;
    /// Length in bytes.
    fn len(&self) -> usize;
}

impl Shared for Mapped {
    fn host(&self) -> NonNull<u8> {
        Mapped::host(self)
    }
    fn len(&self) -> usize {
        Mapped::len(self)
    }
}

/// One of the [`Lines`], until its mailbox is shut and read.
struct Line {
    lines: Arc<Lines>,
    host: NonNull<u8>,
    device: u64,
}

// SAFETY: plain memory, read and written as atomics.
unsafe impl Send for Line {}
// SAFETY: as above.
unsafe impl Sync for Line {}

impl Line {
    fn new(lines: &Arc<Lines>) -> Result<Self> {
        let mut free = lines.free.lock();
        if free.is_empty() {
            let memory = Mapped::new(lines.driver.clone(), LINES * LINE_BYTES)?;
            let (host, device) = (memory.host().as_ptr() as usize, memory.device());
            free.extend((0..LINES).map(|n| (host + n * LINE_BYTES, device + (n * LINE_BYTES) as u64)));
            std::mem::forget(memory);
        }
        let taken = free.pop().and_then(|(host, device)| Some((NonNull::new(host as *mut u8)?, device)));
        let Some((host, device)) = taken else {
            return Err(Error::internal("no stream is left of those just made"));
        };
        drop(free);
        let line = Self { lines: lines.clone(), host, device };
        word(&line, 0).store(0, Ordering::Relaxed);
        long_word(&line, CLOSED).store(0, Ordering::Relaxed);
        Ok(line)
    }
}

impl Shared for Line {
    fn host(&self) -> NonNull<u8> {
        self.host
    }
    fn len(&self) -> usize {
        LINE_BYTES
    }
}

impl Drop for Line {
    /// The last claim has been read. Whoever still reads the words finds the gate shut, whatever they say by then.
    fn drop(&mut self) {
        self.lines.free.lock().push((self.host.as_ptr() as usize, self.device));
    }
}

/// The slots and their thread.
struct Ring {
    words: Arc<dyn Shared>,
    memory: Arc<dyn Shared>,
    slots: u32,
    slot_bytes: usize,
    /// The thread shall end with what it finds: the device will not say more.
    lost: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ring {
    fn bytes(rows_max: usize, slots: usize) -> usize {
        slots * Slot::new(rows_max).bytes
    }

    /// Reads `slots` (a power of two) slots in `memory`, which is zeroed, from now on.
    fn start<F>(words: Arc<dyn Shared>, memory: Arc<dyn Shared>, rows_max: usize, slots: usize, sink: F) -> Result<Self>
    where
        F: FnMut(&Mail<'_>) + Send + 'static,
    {
        if memory.len() < Self::bytes(rows_max, slots) {
            return Err(Error::internal(format!("a mailbox of {slots} slots in {} bytes", memory.len())));
        }
        let lost = Arc::new(AtomicBool::new(false));
        let reader = Reader {
            words: words.clone(),
            memory: memory.clone(),
            places: Slot::new(rows_max),
            rows_max,
            slots: slots as u32,
            next: word(&*words, 0).load(Ordering::Relaxed),
            dropped: 0,
            lost: lost.clone(),
            sink,
        };
        let thread = std::thread::Builder::new()
            .name("lossfeed-scores".to_owned())
            .spawn(move || reader.run())
            .map_err(|error| Error::device("no thread to read scores with").because(error))?;
        let slot_bytes = Slot::new(rows_max).bytes;
        Ok(Self { words, memory, slots: slots as u32, slot_bytes, lost, thread: Some(thread) })
    }

    /// Returns when the sink has had all mail that was written before the call.
    fn settle(&self) -> Result<()> {
        let deadline = Instant::now() + SETTLE_WAIT;
        loop {
            // Acquire: what the sink did with the mail before is visible.
            let next = word(&*self.words, 0).load(Ordering::Acquire);
            let at = (next & (self.slots - 1)) as usize * self.slot_bytes;
            if word(&*self.memory, at).load(Ordering::Acquire) != next.wrapping_add(1) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Error::internal(format!(
                    "GPU scores were not read for {} s (is the thread \
                     `lossfeed-scores` blocked?): please report this",
                    SETTLE_WAIT.as_secs()
                )));
            }
            std::thread::sleep(LOOK_FIRST);
        }
    }

    fn consumed(&self) -> u32 {
        word(&*self.words, 0).load(Ordering::Relaxed)
    }

    /// Ends the thread: with the last claim if the gate is `shut`, else with what is there, and then a kernel may still
    /// write, so the memory stays for ever. Whether all came.
    fn close(&mut self, shut: bool) -> bool {
        let Some(thread) = self.thread.take() else { return true };
        // From inside the sink there is nothing to wait for: the thread ends when the sink returns.
        let inside = thread.thread().id() == std::thread::current().id();
        let deadline = Instant::now() + SETTLE_WAIT;
        while shut && !inside && !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(LOOK_FIRST);
        }
        let all = shut && (inside || thread.is_finished());
        if !all {
            self.leak();
            self.lost.store(true, Ordering::Release);
        }
        (inside || thread.join().is_ok()) && all
    }

    /// Leaves everything as it is: for a forked child, where the thread does not exist.
    fn abandon(&mut self) {
        if let Some(thread) = self.thread.take() {
            std::mem::forget(thread);
            self.leak();
        }
    }

    fn leak(&self) {
        std::mem::forget((self.words.clone(), self.memory.clone()));
    }
}

fn word(memory: &dyn Shared, at: usize) -> &AtomicU32 {
    debug_assert!(at.is_multiple_of(4) && at + 4 <= memory.len());
    // SAFETY: aligned and inside the memory, which lives as long as the borrow; the host touches these words only as
    // atomics, and the device's writes are whole words.
    unsafe { AtomicU32::from_ptr(memory.host().as_ptr().add(at).cast()) }
}

fn long_word(memory: &dyn Shared, at: usize) -> &AtomicU64 {
    debug_assert!(at.is_multiple_of(8) && at + 8 <= memory.len());
    // SAFETY: as for `word`.
    unsafe { AtomicU64::from_ptr(memory.host().as_ptr().add(at).cast()) }
}

/// The thread's side.
struct Reader<F> {
    words: Arc<dyn Shared>,
    memory: Arc<dyn Shared>,
    places: Slot,
    rows_max: usize,
    slots: u32,
    /// Number of the mail to come; wraps.
    next: u32,
    /// As the last mail said.
    dropped: u32,
    lost: Arc<AtomicBool>,
    sink: F,
}

impl<F: FnMut(&Mail<'_>)> Reader<F> {
    fn run(mut self) {
        let mut pause = LOOK_FIRST;
        loop {
            // Before looking: what was written before the device was lost is still read.
            let lost = self.lost.load(Ordering::Acquire);
            if self.look() {
                pause = LOOK_FIRST;
            } else if lost || self.was_last() {
                return;
            } else {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LOOK_LAST);
            }
        }
    }

    /// Whether the mailbox is shut and every claim has been read.
    fn was_last(&self) -> bool {
        let closed = long_word(&*self.words, CLOSED).load(Ordering::Acquire);
        closed & MAIL_BIT != 0 && closed as u32 == self.next
    }

    /// Delivers the next mail if it is there. Strictly in order: a later slot may be written first, by another stream.
    fn look(&mut self) -> bool {
        let at = (self.next & (self.slots - 1)) as usize * self.places.bytes;
        // Acquire: pairs with the kernel's system-wide fence before it writes the word; the rest is visible with it.
        if word(&*self.memory, at).load(Ordering::Acquire) != self.next.wrapping_add(1) {
            return false;
        }
        // SAFETY: the slot is written, and not written again before `consumed` passes it; any bits are a head.
        let head = unsafe { self.memory.host().as_ptr().add(at).cast::<SlotHead>().read() };
        let rows = (head.rows as usize).min(self.rows_max);
        let memory = &*self.memory;
        let has = |column: u32| head.columns & column != 0;
        // SAFETY: as above; the parts are inside the slot for `rows` ≤ `rows_max`.
        let mail = unsafe {
            Mail {
                tag: head.tag,
                ids: has(HAS_IDS).then(|| part(memory, at + self.places.ids, rows)),
                loss: part(memory, at + self.places.loss, rows),
                grad_norm: has(HAS_GRAD_NORM).then(|| part(memory, at + self.places.grad_norm, rows)),
                entropy: has(HAS_ENTROPY).then(|| part(memory, at + self.places.entropy, rows)),
                count: part(memory, at + self.places.count, rows),
                bad_row: (head.bad_row != NO_ROW).then_some(head.bad_row as usize),
                dropped: head.dropped.wrapping_sub(self.dropped),
            }
        };
        (self.sink)(&mail);
        self.dropped = head.dropped;
        self.next = self.next.wrapping_add(1);
        // Release: the kernel that sees it may write the slot again, and what was read above was read before.
        word(&*self.words, 0).store(self.next, Ordering::Release);
        true
    }
}

/// `n` values at byte `at`.
///
/// # Safety
/// They lie inside the memory, nobody writes them while the slice is used, and any bits are a `V`.
unsafe fn part<V>(memory: &dyn Shared, at: usize, n: usize) -> &[V] {
    debug_assert!(at.is_multiple_of(align_of::<V>()) && at + n * size_of::<V>() <= memory.len());
    // SAFETY: the caller's promises; parts start at multiples of 64.
    unsafe { std::slice::from_raw_parts(memory.host().as_ptr().add(at).cast(), n) }
}

#[cfg(test)]
#[path = "mailbox_tests.rs"]
mod tests;
