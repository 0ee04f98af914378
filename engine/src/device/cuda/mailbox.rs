//! Scores on their way home: slots of memory that the GPU writes and a thread that reads them.
//!
//! ```text
//!          claim              launch            the kernel's last write         sink returned
//!   free ─────────► claimed ───────────► away ═════ done == expected ══► home ─────────────► free
//!        (no lock: one compare-and-swap)           (seen by polling)
//! ```
//!
//! The thread polls memory and calls no driver function, so it cannot disturb a graph capture. If no slot is free, the
//! caller drops its scores and counts them: a score is advice, a step is not.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// One bit a slot in the word of free ones.
pub(super) const SLOTS_MAX: usize = 64;
/// Pauses between two looks at a batch that is away; they grow, for a training step takes milliseconds.
const LOOK_FIRST: Duration = Duration::from_micros(20);
const LOOK_LAST: Duration = Duration::from_micros(500);
/// How long closing waits for batches that are away.
const CLOSE_WAIT: Duration = Duration::from_secs(5);
/// What the error word holds while no target was bad.
const NO_ERROR: u32 = u32::MAX;

/// Memory that host and device both see.
pub(super) trait Shared: Send + Sync + 'static {
    /// First byte, 64-aligned; the memory stays there until the value is dropped.
    fn host(&self) -> NonNull<u8>;
    /// The same byte as the device sees it.
    fn device(&self) -> u64;
    /// Length in bytes.
    fn len(&self) -> usize;
}

/// One batch's scores, as the kernels left them. Lengths are the batch's rows.
#[derive(Debug, Clone, Copy)]
pub struct HostScores<'a> {
    /// Losses; double precision is narrowed.
    pub loss: &'a [f32],
    /// Gradient-norm bounds; NaN for a row that was not scored.
    pub grad_norm: &'a [f32],
    /// Entropies; NaN for a row that was not scored.
    pub entropy: &'a [f32],
    /// Rank counts; −1 for a row without a rank.
    pub count: &'a [i32],
    /// The first row whose target named no class.
    pub bad_row: Option<usize>,
}

/// Byte offsets of a slot's parts, for at most `rows_max` rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    pub(super) loss: usize,
    pub(super) lse: usize,
    pub(super) grad_norm: usize,
    pub(super) entropy: usize,
    pub(super) correct: usize,
    pub(super) count: usize,
    pub(super) rank_score: usize,
    pub(super) error: usize,
    /// The sequence word, on a line of its own.
    pub(super) done: usize,
    pub(super) slot_bytes: usize,
}

impl Places {
    /// Reals take 8 bytes: double-precision logits give double-precision scores.
    pub(super) fn new(rows_max: usize) -> Self {
        let mut at = 0;
        let mut place = |bytes: usize| {
            let here = at;
            at += bytes.next_multiple_of(64);
            here
        };
        let (loss, lse) = (place(8 * rows_max), place(8 * rows_max));
        let (grad_norm, entropy) = (place(8 * rows_max), place(8 * rows_max));
        let (correct, count, rank_score) = (place(rows_max), place(4 * rows_max), place(4 * rows_max));
        let (error, done) = (place(4), place(4));
        Self { loss, lse, grad_norm, entropy, correct, count, rank_score, error, done, slot_bytes: at }
    }
}

/// A slot that was claimed and will be launched into, or dropped.
pub(super) struct Claim {
    slot: usize,
    free: Arc<AtomicU64>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Release: the next claimant's Acquire sees everything that was read and written here.
        self.free.fetch_or(1 << self.slot, Ordering::Release);
    }
}

/// A batch that is away.
struct Away<T> {
    claim: Claim,
    /// What the sequence word will hold when it is home.
    expected: u32,
    rows: usize,
    double: bool,
    ticket: T,
}

/// The slots and their thread.
pub(super) struct Mailbox<T> {
    memory: Arc<dyn Shared>,
    places: Places,
    rows_max: usize,
    free: Arc<AtomicU64>,
    away: Option<Sender<Away<T>>>,
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<bool>>,
}

impl<T: Send + 'static> Mailbox<T> {
    /// Slots in `memory`, which must hold `slots` (1 to 64) times [`Places::slot_bytes`] bytes for `rows_max` rows.
    pub(super) fn new<F>(memory: Arc<dyn Shared>, rows_max: usize, slots: usize, sink: F) -> Result<Self>
    where
        F: FnMut(T, &HostScores<'_>) + Send + 'static,
    {
        let places = Places::new(rows_max);
        if slots == 0 || slots > SLOTS_MAX || memory.len() < slots * places.slot_bytes {
            return Err(Error::internal(format!("a mailbox of {slots} slots in {} bytes", memory.len())));
        }
        let free = Arc::new(AtomicU64::new(u64::MAX >> (64 - slots)));
        let (away, arriving) = channel();
        let closing = Arc::new(AtomicBool::new(false));
        let reader = Reader {
            memory: memory.clone(),
            places,
            closing: closing.clone(),
            deadline: None,
            sink,
            narrowed: Default::default(),
        };
        let thread = std::thread::Builder::new()
            .name("lossfeed-scores".to_owned())
            .spawn(move || reader.run(arriving))
            .map_err(|error| Error::device("no thread to read scores with").because(error))?;
        Ok(Self { memory, places, rows_max, free, away: Some(away), closing, thread: Some(thread) })
    }

    /// A free slot, or `None`. Never waits.
    pub(super) fn claim(&self) -> Option<Claim> {
        let mut free = self.free.load(Ordering::Relaxed);
        while free != 0 {
            let slot = free.trailing_zeros() as usize;
            // Acquire: see `Claim::drop`.
            match self.free.compare_exchange_weak(free, free & (free - 1), Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Claim { slot, free: self.free.clone() }),
                Err(now) => free = now,
            }
        }
        None
    }

    /// Readies a claimed slot for a launch that will write `expected` into its sequence word; returns the slot's address
    /// as the device sees it.
    pub(super) fn arm(&self, claim: &Claim, expected: u32) -> u64 {
        let at = claim.slot * self.places.slot_bytes;
        // Relaxed: the launch that follows is what makes them visible to the device.
        self.word(at + self.places.error).store(NO_ERROR, Ordering::Relaxed);
        self.word(at + self.places.done).store(!expected, Ordering::Relaxed);
        self.memory.device() + at as u64
    }

    /// The launch was made: the slot is away.
    pub(super) fn send(&self, claim: Claim, expected: u32, rows: usize, double: bool, ticket: T) -> Result<()> {
        debug_assert!(rows <= self.rows_max);
        let away = Away { claim, expected, rows, double, ticket };
        let sent = self.away.as_ref().map(|sender| sender.send(away));
        match sent {
            Some(Ok(())) => Ok(()),
            Some(Err(refused)) => {
                // The thread is gone (a sink that panicked). The kernel will still write: the slot is never used again.
                std::mem::forget(refused.0.claim);
                Err(Error::internal("the thread that reads scores has died"))
            }
            None => Err(Error::internal("scores were sent to a mailbox that is closed")),
        }
    }

    /// Slots that are claimed or away.
    pub(super) fn busy(&self, slots: usize) -> usize {
        slots - self.free.load(Ordering::Relaxed).count_ones() as usize
    }

    /// Where things lie in a slot.
    pub(super) fn places(&self) -> &Places {
        &self.places
    }

    /// Ends the thread when all that is away has come home, or after a few seconds; `false` if something is still away,
    /// and then the memory is never freed, for a kernel may still write to it.
    pub(super) fn close(&mut self) -> bool {
        self.closing.store(true, Ordering::Relaxed);
        drop(self.away.take());
        let home = self.thread.take().is_none_or(|thread| thread.join().unwrap_or(false));
        if !home {
            std::mem::forget(self.memory.clone());
        }
        home
    }

    /// Leaves everything as it is: for a forked child, where the thread does not exist.
    pub(super) fn abandon(&mut self) {
        std::mem::forget(self.away.take());
        std::mem::forget(self.thread.take());
        std::mem::forget(self.memory.clone());
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        word(&*self.memory, at)
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        // `close` and `abandon` take both; without them the thread is told to end but not waited for, and the memory lives
        // as long as the thread.
        self.closing.store(true, Ordering::Relaxed);
    }
}

fn word(memory: &dyn Shared, at: usize) -> &AtomicU32 {
    debug_assert!(at.is_multiple_of(4) && at + 4 <= memory.len());
    // SAFETY: aligned and inside the memory, which lives as long as the borrow; the host touches these words only as
    // atomics, and the device's writes are whole words.
    unsafe { AtomicU32::from_ptr(memory.host().as_ptr().add(at).cast()) }
}

/// The thread's side.
struct Reader<F> {
    memory: Arc<dyn Shared>,
    places: Places,
    closing: Arc<AtomicBool>,
    /// When closing stops waiting, for all that is away together.
    deadline: Option<Instant>,
    sink: F,
    /// Room for double-precision scores, narrowed.
    narrowed: [Vec<f32>; 3],
}

impl<F> Reader<F> {
    /// Whether everything that went away came home.
    fn run<T>(mut self, arriving: Receiver<Away<T>>) -> bool
    where
        F: FnMut(T, &HostScores<'_>),
    {
        let mut all_home = true;
        while let Ok(away) = arriving.recv() {
            if self.wait_for(&away) {
                self.deliver(away);
            } else {
                all_home = false;
                // A kernel may still write into it: never used again.
                std::mem::forget(away.claim);
            }
        }
        if !all_home {
            std::mem::forget(self.memory.clone());
        }
        all_home
    }

    /// Looks at the sequence word until the batch is home; gives up only when closing.
    fn wait_for<T>(&mut self, away: &Away<T>) -> bool {
        let done = word(&*self.memory, away.claim.slot * self.places.slot_bytes + self.places.done);
        let mut pause = LOOK_FIRST;
        // Acquire: pairs with the kernel's system-wide fence before it writes the word; the scores are visible with it.
        while done.load(Ordering::Acquire) != away.expected {
            if self.closing.load(Ordering::Relaxed) {
                let now = Instant::now();
                if now >= *self.deadline.get_or_insert(now + CLOSE_WAIT) {
                    return false;
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOK_LAST);
        }
        true
    }

    fn deliver<T>(&mut self, away: Away<T>)
    where
        F: FnMut(T, &HostScores<'_>),
    {
        let Away { claim, rows, double, ticket, .. } = away;
        let at = claim.slot * self.places.slot_bytes;
        let places = self.places;
        let error = word(&*self.memory, at + places.error).load(Ordering::Relaxed);
        let memory = &*self.memory;
        let reals = [places.loss, places.grad_norm, places.entropy];
        let [loss, grad_norm, entropy]: [&[f32]; 3] = if double {
            for (narrow, place) in self.narrowed.iter_mut().zip(reals) {
                narrow.clear();
                // SAFETY: as for `part`, whose terms hold for every real of the slot.
                narrow.extend(unsafe { part::<f64>(memory, at + place, rows) }.iter().map(|&x| x as f32));
            }
            self.narrowed.each_ref().map(Vec::as_slice)
        } else {
            // SAFETY: the kernel that wrote the slot has ended its writes (the sequence word), the next is launched only
            // after the claim is given back below, and the places are inside the slot for `rows` ≤ `rows_max`.
            reals.map(|place| unsafe { part::<f32>(memory, at + place, rows) })
        };
        // SAFETY: as above.
        let count = unsafe { part::<i32>(memory, at + places.count, rows) };
        let bad_row = (error != NO_ERROR).then_some(error as usize);
        (self.sink)(ticket, &HostScores { loss, grad_norm, entropy, count, bad_row });
        drop(claim);
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
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Plain memory, with the test in the place of the GPU.
    struct Plain {
        base: NonNull<u8>,
        layout: std::alloc::Layout,
    }
    // SAFETY: plain memory.
    unsafe impl Send for Plain {}
    // SAFETY: plain memory.
    unsafe impl Sync for Plain {}
    impl Plain {
        fn new(len: usize) -> Arc<Self> {
            let layout = std::alloc::Layout::from_size_align(len, 64).unwrap();
            // SAFETY: the layout has a size.
            Arc::new(Self { base: NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).unwrap(), layout })
        }
    }
    impl Drop for Plain {
        fn drop(&mut self) {
            // SAFETY: allocated with this layout.
            unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) };
        }
    }
    impl Shared for Plain {
        fn host(&self) -> NonNull<u8> {
            self.base
        }
        fn device(&self) -> u64 {
            self.base.as_ptr() as u64
        }
        fn len(&self) -> usize {
            self.layout.size()
        }
    }

    type Home = (u32, Vec<f32>, Vec<i32>, Option<usize>);

    fn mailbox(rows_max: usize, slots: usize) -> (Mailbox<u32>, mpsc::Receiver<Home>) {
        let (tell, told) = mpsc::channel();
        let memory = Plain::new(slots * Places::new(rows_max).slot_bytes);
        let sink = move |ticket, scores: &HostScores<'_>| {
            let _ = tell.send((ticket, scores.loss.to_vec(), scores.count.to_vec(), scores.bad_row));
        };
        (Mailbox::new(memory, rows_max, slots, sink).unwrap(), told)
    }

    /// Plays the kernel: outputs first, the sequence word last.
    fn kernel<R: Copy>(places: &Places, slot: u64, loss: &[R], count: &[i32], error: Option<u32>, done: u32) {
        let base = slot as *mut u8;
        // SAFETY: the slot is armed and away; its parts hold this many values.
        unsafe {
            std::ptr::copy_nonoverlapping(loss.as_ptr(), base.add(places.loss).cast(), loss.len());
            std::ptr::copy_nonoverlapping(count.as_ptr(), base.add(places.count).cast(), count.len());
            if let Some(row) = error {
                AtomicU32::from_ptr(base.add(places.error).cast()).fetch_min(row, Ordering::Relaxed);
            }
            AtomicU32::from_ptr(base.add(places.done).cast()).store(done, Ordering::Release);
        }
    }

    #[test]
    fn scores_come_home_with_their_ticket_only_when_the_sequence_word_is_written() {
        let (mut mailbox, told) = mailbox(4, 2);
        let claim = mailbox.claim().unwrap();
        let slot = mailbox.arm(&claim, 1);
        mailbox.send(claim, 1, 3, false, 77).unwrap();
        assert!(told.recv_timeout(Duration::from_millis(30)).is_err(), "nothing is home yet");
        kernel(mailbox.places(), slot, &[0.5f32, 2.0, 1.0], &[0, 2, 1], None, 1);
        assert_eq!(told.recv().unwrap(), (77, vec![0.5, 2.0, 1.0], vec![0, 2, 1], None));
        assert!(mailbox.close());
    }

    #[test]
    fn double_precision_is_narrowed_and_a_bad_target_is_told() {
        let (mut mailbox, told) = mailbox(4, 1);
        let claim = mailbox.claim().unwrap();
        let slot = mailbox.arm(&claim, 9);
        mailbox.send(claim, 9, 2, true, 1).unwrap();
        kernel(mailbox.places(), slot, &[0.25f64, f64::NAN], &[0, -1], Some(1), 9);
        let (_, loss, count, bad_row) = told.recv().unwrap();
        assert_eq!((loss[0], loss[1].is_nan(), count, bad_row), (0.25, true, vec![0, -1], Some(1)));
        assert!(mailbox.close());
    }

    #[test]
    fn a_full_mailbox_refuses_at_once_and_has_room_again_when_a_batch_is_home() {
        let (mut mailbox, told) = mailbox(1, 2);
        let (a, b) = (mailbox.claim().unwrap(), mailbox.claim().unwrap());
        assert!(mailbox.claim().is_none());
        assert_eq!(mailbox.busy(2), 2);
        let slot = mailbox.arm(&a, 5);
        mailbox.send(a, 5, 1, false, 0).unwrap();
        assert!(mailbox.claim().is_none(), "away is not free");
        kernel(mailbox.places(), slot, &[1.0f32], &[0], None, 5);
        told.recv().unwrap();
        while mailbox.busy(2) > 1 {
            std::thread::yield_now();
        }
        let again = mailbox.claim().unwrap();
        drop((again, b));
        assert_eq!(mailbox.busy(2), 0, "claims that were not launched come back");
        assert!(mailbox.close());
    }

    #[test]
    fn a_slot_used_again_does_not_take_the_last_rounds_word_for_its_own() {
        let (mut mailbox, told) = mailbox(1, 1);
        for round in [1, 2, u32::MAX, 0, 1] {
            let claim = loop {
                if let Some(claim) = mailbox.claim() {
                    break claim;
                }
                std::thread::yield_now();
            };
            let slot = mailbox.arm(&claim, round);
            mailbox.send(claim, round, 1, false, round).unwrap();
            assert!(told.recv_timeout(Duration::from_millis(5)).is_err(), "round {round} is not home yet");
            kernel(mailbox.places(), slot, &[round as f32], &[0], None, round);
            assert_eq!(told.recv().unwrap().0, round);
        }
        assert!(mailbox.close());
    }

    #[test]
    fn closing_waits_for_what_is_away() {
        let (mut mailbox, told) = mailbox(1, 4);
        let claim = mailbox.claim().unwrap();
        let slot = mailbox.arm(&claim, 3);
        let places = *mailbox.places();
        mailbox.send(claim, 3, 1, false, 8).unwrap();
        let gpu = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            kernel(&places, slot, &[4.0f32], &[0], None, 3);
        });
        assert!(mailbox.close());
        assert_eq!(told.try_recv().unwrap().0, 8);
        gpu.join().unwrap();
    }

    #[test]
    fn parts_of_a_slot_are_aligned_and_do_not_overlap() {
        for rows in [1, 7, 64, 1000] {
            let p = Places::new(rows);
            let parts = [
                (p.loss, 8 * rows),
                (p.lse, 8 * rows),
                (p.grad_norm, 8 * rows),
                (p.entropy, 8 * rows),
                (p.correct, rows),
                (p.count, 4 * rows),
                (p.rank_score, 4 * rows),
                (p.error, 4),
                (p.done, 4),
            ];
            assert!(parts.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
            assert!(
                parts.iter().all(|part| part.0.is_multiple_of(64))
                    && p.done + 4 <= p.slot_bytes
                    && p.slot_bytes.is_multiple_of(64)
            );
        }
    }
}
