//! The pool: a few slots at first, more on demand, never more than its bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use pinned_vec::PinnedVec;

use super::layout::BatchLayout;
use super::slot::{BatchSlot, Descriptor, SlotState};
use crate::arena::{Mapping, human, pid};
use crate::device::Device;
use crate::error::{Error, Result};

/// How many slots are in which state: a picture of one moment.
///
/// Reading it: `ready` near 0 means the consumer takes batches faster than they are made; `lent` near `total` means the
/// consumer holds on to batches; `filling` near `total` means the source or the decoder is the bottleneck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotGauges {
    /// Slots that exist.
    pub total: usize,
    /// Nobody's.
    pub free: usize,
    /// Being written by the loader.
    pub filling: usize,
    /// Complete, waiting for the consumer.
    pub ready: usize,
    /// In the consumer's hands.
    pub lent: usize,
}

/// The bounded set of batch slots. Clones are handles to the same pool.
#[derive(Clone)]
pub struct SlotPool(Arc<Shared>);

/// What the pool's handles and its slots share.
pub(super) struct Shared {
    layout: BatchLayout,
    max_slots: usize,
    device: Arc<dyn Device>,
    inside: Mutex<Inside>,
    returned: Condvar,
    // One count per state, written at every transition; gauges read them without the lock.
    states: [AtomicUsize; SlotState::COUNT],
    born_in: u32,
}

struct Inside {
    /// Elements never move: a slot, and a copy in flight out of it, refer to its descriptor by address. Elements are
    /// never removed, replaced or borrowed mutably; `BatchSlot` relies on that.
    descriptors: PinnedVec<Descriptor>,
    /// Indices of free descriptors; the most recently used comes first, for its cache lines are warm.
    free: Vec<u32>,
    /// Slots that exist or are being made.
    total: usize,
    closed: bool,
}

impl SlotPool {
    /// A pool that starts with `depth` slots and grows to `max_slots`, each `layout.total_bytes()` long and registered
    /// with `device`.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Settings`] if `depth` is 0 or above `max_slots`; [`crate::ErrorKind::Memory`] or
    /// [`crate::ErrorKind::Device`] if the first slots cannot be had.
    pub fn new(layout: BatchLayout, depth: usize, max_slots: usize, device: Arc<dyn Device>) -> Result<Self> {
        if depth == 0 || depth > max_slots || max_slots > u32::MAX as usize {
            return Err(Error::settings(format!(
                "{depth} batch slots to start with and at most {max_slots}: need 1 or more, and no more than the most"
            )));
        }
        let pool = Self(Arc::new(Shared {
            layout,
            max_slots,
            device,
            inside: Mutex::new(Inside { descriptors: PinnedVec::new(), free: Vec::new(), total: 0, closed: false }),
            returned: Condvar::new(),
            states: Default::default(),
            born_in: pid(),
        }));
        for _ in 0..depth {
            let descriptor = pool.0.make()?;
            let mut inside = pool.0.inside.lock();
            inside.total += 1;
            let index = inside.descriptors.len() as u32;
            inside.descriptors.push(descriptor);
            inside.free.push(index);
        }
        pool.0.states[SlotState::Free as usize].store(depth, Ordering::Relaxed);
        Ok(pool)
    }

    /// A free slot, in state `Filling`: the last one returned, or a new one while the pool may grow, or the first one
    /// that comes back within `wait`; `None` if none does. What to do then is the caller's choice: wait on, or give up
    /// with [`Self::exhausted`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Usage`] after [`Self::close`] or in a child process; [`crate::ErrorKind::Memory`] or
    /// [`crate::ErrorKind::Device`] if a new slot cannot be had and no other slot exists that could come back.
    pub fn acquire(&self, wait: Duration) -> Result<Option<BatchSlot>> {
        let shared = &self.0;
        if shared.forked() {
            return Err(Error::usage(format!(
                "batch slots belong to process {}, this is its child {}: make a loader of its own in each process",
                shared.born_in,
                std::process::id()
            )));
        }
        let deadline = Instant::now().checked_add(wait);
        let mut inside = shared.inside.lock();
        loop {
            if inside.closed {
                return Err(Error::usage("the loader is closed: make a new one"));
            }
            if let Some(index) = inside.free.pop() {
                if let Some(descriptor) = inside.descriptors.get(index as usize) {
                    shared.moved(SlotState::Free, SlotState::Filling);
                    return Ok(Some(BatchSlot::new(shared.clone(), descriptor, index)));
                }
                continue;
            }
            if inside.total < shared.max_slots {
                inside.total += 1;
                drop(inside);
                // Mapping and page-locking take milliseconds: never under the lock.
                let made = shared.make();
                inside = shared.inside.lock();
                match made {
                    Ok(descriptor) => {
                        let index = inside.descriptors.len() as u32;
                        inside.descriptors.push(descriptor);
                        shared.states[SlotState::Free as usize].fetch_add(1, Ordering::Relaxed);
                        inside.free.push(index);
                        continue;
                    }
                    Err(error) => {
                        inside.total -= 1;
                        if inside.total == 0 || wait.is_zero() {
                            return Err(error);
                        }
                        tracing::warn!(%error, slots = inside.total, "no more batch slots can be had; waiting for one to come back");
                        if inside.free.is_empty() && !self.pause(&mut inside, deadline) {
                            return Err(error);
                        }
                        continue;
                    }
                }
            }
            if !self.pause(&mut inside, deadline) {
                return Ok(None);
            }
        }
    }

    /// Waits for a slot to come back; `false` when the time is over.
    fn pause(&self, inside: &mut parking_lot::MutexGuard<'_, Inside>, deadline: Option<Instant>) -> bool {
        match deadline {
            // A slot may have come back in the very moment the wait ended: look once more.
            Some(deadline) => !self.0.returned.wait_until(inside, deadline).timed_out() || !inside.free.is_empty(),
            None => {
                self.0.returned.wait(inside);
                true
            }
        }
    }

    /// The error for a caller that has waited `waited` in vain: who holds the slots, in numbers, and what to do.
    pub fn exhausted(&self, waited: Duration) -> Error {
        let gauges = self.gauges();
        Error::memory(format!(
            "no batch slot came back in {:.1} s: {} of at most {} exist ({} each, {} in all): {} lent, {} ready, {} filling. \
             Hold fewer batches at a time (each keeps its slot until its tensors are gone; clone what must stay), or raise max_slots",
            waited.as_secs_f64(),
            gauges.total,
            self.0.max_slots,
            human(self.0.layout.total_bytes() as u64),
            human(self.allocated_bytes()),
            gauges.lent,
            gauges.ready,
            gauges.filling,
        ))
    }

    /// Refuses further slots and wakes whoever waits for one. Slots in use stay valid.
    pub fn close(&self) {
        if self.0.forked() {
            return;
        }
        self.0.inside.lock().closed = true;
        self.0.returned.notify_all();
    }

    /// What every slot looks like inside.
    pub fn layout(&self) -> &BatchLayout {
        &self.0.layout
    }
    /// The device the slots are registered with.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.0.device
    }
    /// The most slots there will ever be.
    pub fn max_slots(&self) -> usize {
        self.0.max_slots
    }
    /// Bytes of all slots that exist.
    pub fn allocated_bytes(&self) -> u64 {
        self.gauges().total as u64 * self.0.layout.total_bytes() as u64
    }
    /// How many slots are in which state.
    pub fn gauges(&self) -> SlotGauges {
        let count = |state: SlotState| self.0.states[state as usize].load(Ordering::Relaxed);
        let (free, filling) = (count(SlotState::Free), count(SlotState::Filling));
        let (ready, lent) = (count(SlotState::Ready), count(SlotState::Lent));
        SlotGauges { total: free + filling + ready + lent, free, filling, ready, lent }
    }
}

impl Shared {
    pub(super) fn layout(&self) -> &BatchLayout {
        &self.layout
    }

    /// Whether this process is a child of the one that made the pool: its lock may have been copied in its locked state.
    pub(super) fn forked(&self) -> bool {
        pid() != self.born_in
    }

    pub(super) fn moved(&self, from: SlotState, to: SlotState) {
        // Relaxed: gauges. The arriving count goes up first, so that a reader may see a slot twice but never none of it.
        self.states[to as usize].fetch_add(1, Ordering::Relaxed);
        self.states[from as usize].fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn take_back(&self, index: u32, from: SlotState) {
        let mut inside = self.inside.lock();
        inside.free.push(index);
        self.moved(from, SlotState::Free);
        drop(inside);
        self.returned.notify_one();
    }

    fn make(&self) -> Result<Descriptor> {
        let bytes = self.layout.total_bytes() as u64;
        let mapping =
            Mapping::new(bytes, &*self.device, "a batch slot", "lower batch_size, prefetch_factor or max_slots")?;
        Ok(Descriptor::new(mapping))
    }

    /// Address of a descriptor, for tests.
    #[cfg(test)]
    pub(super) fn address(&self, index: usize) -> usize {
        self.inside.lock().descriptors.get(index).map_or(0, |d| std::ptr::from_ref(d.get_ref()) as usize)
    }
}

impl std::fmt::Debug for SlotPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotPool").field("max_slots", &self.0.max_slots).field("gauges", &self.gauges()).finish()
    }
}

#[cfg(test)]
impl SlotPool {
    pub(super) fn address(&self, index: usize) -> usize {
        self.0.address(index)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
