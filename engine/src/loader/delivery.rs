//! Batches finish in any order and leave in theirs.
//!
//! Lock: guards finished batches that wait for their turn; held for one put or take.

use super::fill::Filled;
use super::timesheet::Spent;
use crate::error::{Error, Result};
use crate::sync::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The ordered hand-over between workers and the consumer, at most a window of batches deep.
pub(super) struct Delivery {
    state: Mutex<State>,
    changed: Condvar,
    room: Condvar,
    /// Where workers wait that are more than there are to be. Apart from `room`, whose wake-ups they would swallow.
    bench: Condvar,
    total: usize,
}

/// A batch, or why there is none, and who worked on it.
pub(super) struct Finished {
    pub(super) filled: Result<Filled>,
    /// The thread, and what it had spent when it was done.
    pub(super) worker: usize,
    pub(super) spent: Spent,
}

struct State {
    ready: BTreeMap<usize, Finished>,
    next: usize,
    /// Batches before `next` that were passed over.
    passed: BTreeSet<usize>,
    /// Batches before `next` that were taken and that their consumer has not seen, in order.
    unseen: Vec<usize>,
    /// The last batch that the consumer has seen; at first the first one of the pass.
    last_seen: usize,
    /// Workers that may promise batches: those below this number.
    workers: usize,
    /// Batches that may be promised at a time.
    window: usize,
    /// Batches promised by workers and not taken yet. Above `window` only after that was lowered.
    claimed: usize,
    /// Whether any batch of the epoch was taken.
    taken_any: bool,
    /// Why the last batch that was passed over had no good sample.
    nothing_good: Option<Error>,
    /// What ended the pass, outside any batch.
    fatal: Option<Error>,
    /// The pass is over, whatever is still in work.
    closed: bool,
}

impl State {
    /// Passes over the batches at the head in which nothing was good. Returns how many.
    fn pass_over(&mut self) -> usize {
        let before = self.next;
        while let Some(Finished { filled: Ok(Filled::NothingGood(_)), .. }) = self.ready.get(&self.next) {
            let Some(Finished { filled: Ok(Filled::NothingGood(error)), .. }) = self.ready.remove(&self.next) else {
                break;
            };
            self.nothing_good = Some(error);
            self.passed.insert(self.next);
            self.advance();
        }
        self.next - before
    }

    fn advance(&mut self) {
        self.next += 1;
        self.claimed = self.claimed.saturating_sub(1);
    }
}

/// What the consumer finds.
pub(super) enum Turn {
    /// The next batch, and how many that are finished wait behind it.
    Ready(Box<Finished>, usize),
    /// What ended the pass.
    Failed(Error),
    End,
    Timeout,
}

impl Delivery {
    /// For batches `first..total`, by so many workers.
    pub(super) fn new(first: usize, total: usize, window: usize, workers: usize) -> Self {
        let state = State {
            ready: BTreeMap::new(),
            next: first,
            passed: BTreeSet::new(),
            unseen: Vec::new(),
            last_seen: first,
            workers,
            window,
            claimed: 0,
            taken_any: first > 0,
            nothing_good: None,
            fatal: None,
            closed: false,
        };
        let (changed, room, bench) = (Condvar::new(), Condvar::new(), Condvar::new());
        Self { state: Mutex::new(state), changed, room, bench, total }
    }

    /// From now on so many workers promise batches, and so many batches at a time. Who has promised one brings it.
    pub(super) fn set_workers(&self, workers: usize, window: usize) {
        let mut state = self.state.lock();
        (state.workers, state.window) = (workers, window);
        drop(state);
        // Those that wait for room may have to leave it to others.
        self.room.notify_all();
        self.bench.notify_all();
    }

    /// Worker `worker`, counted from 0, promises a batch, as soon as the window has room; false if it has none within
    /// `wait`, or the pass is over. One that is not to work now waits here until it is, or the pass is over.
    pub(super) fn claim(&self, worker: usize, wait: Duration) -> bool {
        let mut state = self.state.lock();
        let deadline = Instant::now() + wait;
        let mut over = false;
        while !state.closed {
            if worker >= state.workers {
                // The wake-up that brought it here may have been meant for one that works.
                self.room.notify_one();
                self.bench.wait(&mut state);
                continue;
            }
            if state.claimed < state.window {
                state.claimed += 1;
                return true;
            }
            if over {
                return false;
            }
            over = self.room.wait_until(&mut state, deadline).timed_out();
        }
        false
    }

    /// The promise is not kept: there was nothing left to fill, or no slot to fill it into.
    pub(super) fn unclaim(&self) {
        self.state.lock().claimed -= 1;
        self.room.notify_one();
    }

    /// Ends the pass with an error that belongs to no batch. The first one counts.
    pub(super) fn fail(&self, error: Error) {
        self.state.lock().fatal.get_or_insert(error);
        self.changed.notify_all();
    }

    /// A worker hands in batch `number`. After the end of the pass nobody wants it.
    pub(super) fn put(&self, number: usize, finished: Finished) {
        let mut state = self.state.lock();
        if state.closed {
            // Its slot goes back to the pool, which is no business of this lock.
            drop(state);
            return drop(finished);
        }
        state.ready.insert(number, finished);
        let (awaited, passed) = (number == state.next, state.pass_over() > 0);
        // A thread that is woken under the lock would go to sleep again for it.
        drop(state);
        if passed {
            self.room.notify_all();
        }
        if awaited {
            self.changed.notify_one();
        }
    }

    /// The consumer takes the next batch in order, waiting until `deadline`. It has not seen it before [`Self::saw`].
    pub(super) fn take(&self, deadline: Instant) -> Turn {
        let mut state = self.state.lock();
        let mut over = false;
        loop {
            if state.closed {
                return Turn::End;
            }
            if state.next >= self.total {
                // An epoch that delivered nothing at all is no short epoch.
                let nothing = if state.taken_any { None } else { state.nothing_good.take() };
                return nothing.map_or(Turn::End, Turn::Failed);
            }
            let next = state.next;
            if let Some(finished) = state.ready.remove(&next) {
                // A batch that failed was not delivered: the pass ends before it.
                let mut passed = false;
                if finished.filled.is_ok() {
                    state.taken_any = true;
                    state.unseen.push(next);
                    state.advance();
                    passed = state.pass_over() > 0;
                }
                let left = state.ready.len();
                drop(state);
                if passed {
                    self.room.notify_all()
                } else {
                    self.room.notify_one()
                }
                return Turn::Ready(Box::new(finished), left);
            }
            if let Some(error) = state.fatal.take() {
                return Turn::Failed(error);
            }
            if over {
                return Turn::Timeout;
            }
            over = self.changed.wait_until(&mut state, deadline).timed_out();
        }
    }

    /// Batches that were taken or passed over, counted from the epoch's start.
    pub(super) fn taken(&self) -> usize {
        self.state.lock().next
    }

    /// The consumer has seen batch `number`.
    pub(super) fn saw(&self, number: usize) {
        let mut state = self.state.lock();
        state.unseen.retain(|&unseen| unseen != number);
        state.last_seen = state.last_seen.max(number);
    }

    /// The last batch that the consumer has seen; at first the first one of the pass.
    pub(super) fn last_seen(&self) -> usize {
        self.state.lock().last_seen
    }

    /// The first batch that the consumer has not seen, if it has not seen the last `held` of the others either. Those
    /// that were passed over before it count as seen.
    pub(super) fn seen_but(&self, held: usize) -> usize {
        let state = self.state.lock();
        let first = state.unseen.first().copied().unwrap_or(state.next);
        (0..held).fold(first, |end, _| {
            let last = (0..end).rev().find(|number| !state.passed.contains(number));
            last.unwrap_or(0)
        })
    }

    /// Whether the consumer would not have to wait now.
    pub(super) fn is_ready(&self) -> bool {
        let state = self.state.lock();
        state.closed || state.next >= self.total || state.ready.contains_key(&state.next)
    }

    /// Finished batches that wait for the consumer. Not for [`Self::take`]'s caller, who is told: the thread that it
    /// woke wants the lock now, and whoever meets it there waits for a wake-up of its own.
    pub(super) fn ready(&self) -> usize {
        self.state.lock().ready.len()
    }

    /// Ends the pass: nobody waits any longer, and what waits or still comes is let go of.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let unwanted = std::mem::take(&mut state.ready);
        drop(state);
        self.changed.notify_all();
        self.room.notify_all();
        self.bench.notify_all();
        drop(unwanted);
    }
}
