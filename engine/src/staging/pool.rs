//! The pool: the ring's books under a lock, with the memory and the waiting that belong to them.
//!
//! Lock: guards the ring, the state of every batch slot; held for one step of one slot, never across mapping.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pinned_vec::PinnedVec;

use super::layout::BatchLayout;
use super::slot::{BatchSlot, Descriptor};
use crate::arena::{Mapping, human};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::process::Process;
use crate::sync::{Condvar, Mutex};
use lossfeed_control::ring::{Ring, SlotGauges, SlotState, Step, Wake};

/// Longest wait that a deadline is made of; the clock's own range ends somewhere.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// The bounded set of batch slots. Clones are handles to the same pool.
#[derive(Clone)]
pub struct SlotPool(Arc<Shared>);

/// What the pool's handles and its slots share.
pub(super) struct Shared {
    layout: BatchLayout,
    depth: usize,
    max_slots: usize,
    device: Arc<dyn Device>,
    inside: Mutex<Inside>,
    returned: Condvar,
    made_by: Process,
}

struct Inside {
    ring: Ring,
    /// The memory of the ring's slots, by index. Elements never move: a slot, and a copy in flight out of it, refer to
    /// its descriptor by address. They are never removed, replaced or borrowed mutably; `BatchSlot` relies on that.
    descriptors: PinnedVec<Descriptor>,
    /// Why there are fewer than `max_slots`, if the machine had no more to give.
    refusal: Option<Arc<Error>>,
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
                "{depth} batch slots to start with and at most {max_slots}: need 1 to that many"
            )));
        }
        let mut descriptors = PinnedVec::new();
        for _ in 0..depth {
            descriptors.push(make(&layout, &*device)?);
        }
        let inside = Inside { ring: Ring::new(depth, max_slots), descriptors, refusal: None };
        Ok(Self(Arc::new(Shared {
            layout,
            depth,
            max_slots,
            device,
            inside: Mutex::new(inside),
            returned: Condvar::new(),
            made_by: Process::current(),
        })))
    }

    /// A free slot, in state `Filling`: the last one returned, or a new one while the pool may grow, or the first one
    /// that comes back within `wait`; `None` if none does. What to do then is the caller's choice: wait on, or give up
    /// with [`Self::exhausted`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Usage`] after [`Self::close`] or in a child process.
    pub fn acquire(&self, wait: Duration) -> Result<Option<BatchSlot>> {
        let shared = &self.0;
        shared.same_process()?;
        let deadline = Instant::now() + wait.min(FOR_EVER);
        let mut over = false;
        let mut inside = shared.inside.lock();
        loop {
            match inside.ring.acquire() {
                Step::Take(index) => {
                    let Some(descriptor) = inside.descriptors.get(index as usize) else {
                        return Err(Error::internal(format!("batch slot {index} has no memory; please report this")));
                    };
                    return Ok(Some(BatchSlot::new(shared.clone(), descriptor, index)));
                }
                Step::Grow => {
                    // Mapping and page-locking take milliseconds: never under the lock.
                    drop(inside);
                    let made = make(&shared.layout, &*shared.device);
                    inside = shared.inside.lock();
                    match made {
                        Ok(descriptor) => {
                            inside.descriptors.push(descriptor);
                            inside.ring.grown();
                        }
                        Err(error) => {
                            let slots = inside.descriptors.len();
                            tracing::warn!(%error, slots, "no more batch slots can be allocated: the run goes on \
                                 with those it has");
                            inside.ring.refused();
                            inside.refusal = Some(Arc::new(error));
                        }
                    }
                }
                // A slot may have come back in the very moment the wait ended, so the ring was asked once more.
                Step::Wait if over => return Ok(None),
                Step::Wait => over = shared.returned.wait_until(&mut inside, deadline).timed_out(),
                Step::Closed => return Err(Error::usage("the loader is closed: make a new one")),
            }
        }
    }

    /// Whether the consumer holds every slot there can be, so that none comes back before it lets go of one.
    pub fn is_lent_out(&self) -> bool {
        !self.0.forked() && self.0.inside.lock().ring.is_lent_out()
    }

    /// The error for a caller that has waited `waited` in vain: who holds the slots, in numbers, and what to do.
    pub fn exhausted(&self, waited: Duration) -> Error {
        let gauges = self.gauges();
        let error = Error::memory(format!(
            "no batch slot was released in {:.1} s: {} of at most {} exist ({} each, {} in all): {} held by you, {} \
             being copied to the device, {} ready, \
             {} filling. Hold fewer batches at a time (each keeps its slot until its tensors are gone; clone what must stay), or raise max_slots",
            waited.as_secs_f64(),
            gauges.total,
            self.0.max_slots,
            human(self.0.layout.total_bytes() as u64),
            human(self.allocated_bytes()),
            gauges.lent,
            gauges.copying,
            gauges.ready,
            gauges.filling,
        ));
        let refusal = if self.0.forked() { None } else { self.0.inside.lock().refusal.clone() };
        match refusal {
            Some(refusal) => error.because(refusal),
            None => error,
        }
    }

    /// Refuses further slots and wakes whoever waits for one. Slots in use stay valid.
    pub fn close(&self) {
        if self.0.forked() {
            return;
        }
        let wake = self.0.inside.lock().ring.close();
        self.0.wake(wake);
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
    /// How many slots are in which state; none at all in a child process.
    pub fn gauges(&self) -> SlotGauges {
        if self.0.forked() { SlotGauges::default() } else { self.0.inside.lock().ring.gauges() }
    }
}

impl Shared {
    pub(super) fn layout(&self) -> &BatchLayout {
        &self.layout
    }

    /// Whether this process is a child of the one that made the pool: its lock may have been copied in its locked
    /// state.
    fn forked(&self) -> bool {
        !self.made_by.is_current()
    }

    fn same_process(&self) -> Result<()> {
        self.made_by.check(|of, child| {
            Error::usage(format!(
                "batch slots belong to process {of}, and this is its child {child}: make a loader in each process"
            ))
        })
    }

    /// A slot's owner moves it on.
    pub(super) fn enter(&self, index: u32, next: SlotState) -> Result<()> {
        self.same_process()?;
        let wake = self.inside.lock().ring.enter(index, next)?;
        self.wake(wake);
        Ok(())
    }

    /// True if that slot is in this state; false in a child process.
    pub(super) fn is(&self, index: u32, state: SlotState) -> bool {
        !self.forked() && self.inside.lock().ring.is(index, state)
    }

    /// Whether the consumer leaves fewer slots than the pool began with; never in a child process.
    pub(super) fn is_scarce(&self) -> bool {
        !self.forked() && self.inside.lock().ring.is_scarce(self.depth)
    }

    fn wake(&self, wake: Wake) {
        match wake {
            Wake::Nobody => {}
            Wake::One => {
                self.returned.notify_one();
            }
            Wake::All => {
                self.returned.notify_all();
            }
        }
    }
}

/// Memory for one more slot.
fn make(layout: &BatchLayout, device: &dyn Device) -> Result<Descriptor> {
    let bytes = layout.total_bytes() as u64;
    let mapping = Mapping::new(bytes, device, "a batch slot", "lower batch_size, prefetch_factor or max_slots")?;
    Ok(Descriptor::new(mapping))
}

impl std::fmt::Debug for SlotPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotPool").field("max_slots", &self.0.max_slots).field("gauges", &self.gauges()).finish()
    }
}

#[cfg(test)]
impl SlotPool {
    /// Address of a descriptor.
    pub(super) fn address(&self, index: usize) -> usize {
        self.0.inside.lock().descriptors.get(index).map_or(0, |d| std::ptr::from_ref(d.get_ref()) as usize)
    }
    /// Does something while somebody holds the pool's lock.
    pub(super) fn locked<R>(&self, act: impl FnOnce() -> R) -> R {
        let _held = self.0.inside.lock();
        act()
    }
}
