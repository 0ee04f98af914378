//! Batches finish in any order and leave in theirs.

use super::Batch;
use crate::error::Result;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::time::Instant;

/// The ordered hand-over between workers and the consumer. Bounded by the slot pool: a batch in here holds a slot.
pub(super) struct Delivery {
    state: Mutex<State>,
    changed: Condvar,
    total: usize,
}

struct State {
    ready: BTreeMap<usize, Result<Batch>>,
    next: usize,
}

/// What the consumer finds.
pub(super) enum Turn {
    Ready(Box<Result<Batch>>),
    End,
    Timeout,
}

impl Delivery {
    /// For batches `first..total`.
    pub(super) fn new(first: usize, total: usize) -> Self {
        Self { state: Mutex::new(State { ready: BTreeMap::new(), next: first }), changed: Condvar::new(), total }
    }

    /// A worker hands in batch `number`.
    pub(super) fn put(&self, number: usize, batch: Result<Batch>) {
        let mut state = self.state.lock();
        state.ready.insert(number, batch);
        if number == state.next {
            self.changed.notify_one();
        }
    }

    /// The consumer takes the next batch in order, waiting until `deadline`.
    pub(super) fn take(&self, deadline: Instant) -> Turn {
        let mut state = self.state.lock();
        loop {
            if state.next >= self.total {
                return Turn::End;
            }
            let next = state.next;
            if let Some(batch) = state.ready.remove(&next) {
                state.next += 1;
                return Turn::Ready(Box::new(batch));
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() && !state.ready.contains_key(&next) {
                return Turn::Timeout;
            }
        }
    }

    /// Batches the consumer has taken, counted from the epoch's start.
    pub(super) fn taken(&self) -> usize {
        self.state.lock().next
    }

    /// Finished batches that wait for the consumer.
    pub(super) fn ready(&self) -> usize {
        self.state.lock().ready.len()
    }

    /// Lets go of everything that waits.
    pub(super) fn clear(&self) {
        let drained = std::mem::take(&mut self.state.lock().ready);
        drop(drained);
    }
}
