//! The ring's books: which slot is in which state, where it may go from there, and what someone who wants a slot has to
//! do.
//!
//! Plain values without a lock, a clock or a byte of memory: `pool.rs` asks under its lock and does what it is told.
//! `ring_tests.rs` walks through every interleaving of a few threads.

use crate::error::{Error, Result};

/// Where a slot is in its round. Each state has one owner, and only the owner moves the slot on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlotState {
    /// Nobody's. Owner: the pool.
    Free,
    /// Being written. Owner: a loader thread.
    Filling,
    /// Complete. Owner: the loader's queue.
    Ready,
    /// Taken. Owner: the consumer and the views it made.
    Lent,
    /// Read by a copy to a device. Owner: whoever waits for the copy's event.
    Copying,
}

impl SlotState {
    /// Every allowed step. Every owner may let go; nobody may skip a state, repeat one or go back.
    pub const fn may_become(self, next: SlotState) -> bool {
        use SlotState::{Copying, Filling, Free, Lent, Ready};
        match self {
            Free => matches!(next, Filling),
            Filling => matches!(next, Ready | Free),
            Ready => matches!(next, Lent | Free),
            Lent => matches!(next, Copying | Free),
            Copying => matches!(next, Free),
        }
    }
}

/// How many slots are in which state: a picture of one moment.
///
/// Reading it: `ready` near 0 means the consumer takes batches faster than they are made; `lent` near `total` means the
/// consumer holds on to batches; `copying` near `total` means the device is that far behind the consumer; `filling`
/// near `total` means the source or the decoder is the bottleneck.
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
    /// Being read by a copy to a device.
    pub copying: usize,
}

/// What someone who wants a slot has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Fill this one.
    Take(u32),
    /// Make one more, then say [`Ring::grown`] or [`Ring::refused`].
    Grow,
    /// Wait until woken, then ask again.
    Wait,
    /// Give up: there will be no more slots.
    Closed,
}

/// Who has to be woken, among those told to wait.
#[must_use = "whoever waits for this would wait for ever"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// No thread waits for what happened.
    Nobody,
    /// One slot came back: one waiter can have it.
    One,
    /// The ring closed, or memory was refused: every waiter must look.
    All,
}

/// The books.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ring {
    /// The state of every slot that exists, by index.
    slots: Vec<SlotState>,
    /// Those that are free; the most recently used comes first, for its cache lines are warm.
    free: Vec<u32>,
    /// Slots being made.
    growing: usize,
    /// The most slots there will be. It falls to what there is when one could not be made: asking the machine again for
    /// what it has just refused would cost milliseconds a batch.
    bound: usize,
    closed: bool,
}

impl Ring {
    /// `first` slots, all free, and never more than `bound`.
    pub fn new(first: usize, bound: usize) -> Self {
        let (slots, free) = (vec![SlotState::Free; first], (0..first as u32).collect());
        Self { slots, free, growing: 0, bound, closed: false }
    }

    /// Someone wants a slot.
    pub fn acquire(&mut self) -> Step {
        if self.closed {
            return Step::Closed;
        }
        if let Some(index) = self.free.pop() {
            self.slots[index as usize] = SlotState::Filling;
            return Step::Take(index);
        }
        if self.slots.len() + self.growing < self.bound {
            self.growing += 1;
            return Step::Grow;
        }
        Step::Wait
    }

    /// A slot was made. It is free; who made it asks again before anybody else can. Returns its index.
    pub fn grown(&mut self) -> u32 {
        let index = self.slots.len() as u32;
        self.growing -= 1;
        self.slots.push(SlotState::Free);
        self.free.push(index);
        index
    }

    /// A slot could not be made. Those who wait keep waiting: there is nothing new for them.
    pub fn refused(&mut self) {
        self.growing -= 1;
        self.bound = self.slots.len() + self.growing;
    }

    /// A slot's owner moves it on.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Internal`] if the slot may not go there from where it is; nothing has changed then.
    pub fn enter(&mut self, index: u32, next: SlotState) -> Result<Wake> {
        match self.slots.get_mut(index as usize) {
            // Out of `Free` leads `acquire` alone, which also takes the slot off the list.
            Some(state) if *state != SlotState::Free && state.may_become(next) => *state = next,
            state => {
                return Err(Error::internal(format!(
                    "batch slot {index} cannot become {next:?}: it is {}; please report this",
                    state.map_or_else(|| "none of this pool's".to_owned(), |state| format!("{state:?}"))
                )));
            }
        }
        if next != SlotState::Free {
            return Ok(Wake::Nobody);
        }
        self.free.push(index);
        Ok(Wake::One)
    }

    /// Whether that slot is in this state.
    pub fn is(&self, index: u32, state: SlotState) -> bool {
        self.slots.get(index as usize) == Some(&state)
    }

    /// No slot is given out from now on; those in use stay valid.
    pub fn close(&mut self) -> Wake {
        self.closed = true;
        Wake::All
    }

    /// Whether the consumer holds every slot there will ever be: none comes back before it lets go of one.
    pub fn is_lent_out(&self) -> bool {
        self.slots.len() == self.bound && self.slots.iter().all(|&state| state == SlotState::Lent)
    }

    /// Whether the consumer holds so many slots that fewer than `needed` are left for everybody else, now and for ever.
    pub fn is_scarce(&self, needed: usize) -> bool {
        self.slots.iter().filter(|&&state| state == SlotState::Lent).count() + needed > self.bound
    }

    /// How many slots are in which state.
    pub fn gauges(&self) -> SlotGauges {
        let mut gauges = SlotGauges { total: self.slots.len(), ..SlotGauges::default() };
        for state in &self.slots {
            *match state {
                SlotState::Free => &mut gauges.free,
                SlotState::Filling => &mut gauges.filling,
                SlotState::Ready => &mut gauges.ready,
                SlotState::Lent => &mut gauges.lent,
                SlotState::Copying => &mut gauges.copying,
            } += 1;
        }
        gauges
    }
}
