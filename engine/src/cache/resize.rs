//! A cache that becomes smaller or larger while it is used.
//!
//! Lock: one thread at a time changes the limit. The cache's and the arena's locks are taken under it, piece by piece.

use super::Cache;
use crate::control::PIECE;
use crate::types::SampleId;

/// Records whose place is looked at in one hold of the lock.
const MOVED_AT_ONCE: usize = 1024;

impl Cache {
    /// Sets the limit, at most what the arena maps. Who has to leave for it is chosen by the policy; the rest moves
    /// together, and the memory behind it goes back to the system. Answers the bytes that did: 0 where a device has
    /// page-locked them.
    ///
    /// Batches go on meanwhile. The new limit holds for them at once; what they are reading is let go of when they are
    /// done.
    pub fn resize(&self, capacity_bytes: u64) -> u64 {
        let _alone = self.resizing.lock();
        let capacity = capacity_bytes.min(self.arena.limit_bytes());
        self.arena.restore(capacity);
        while self.shrink(capacity) {}
        self.counters.cache_capacity_bytes.store(capacity, std::sync::atomic::Ordering::Relaxed);
        if capacity == self.arena.limit_bytes() {
            return 0;
        }
        self.arena.withdraw(capacity);
        let samples = self.whole().control.scores().len();
        for start in (0..samples).step_by(MOVED_AT_ONCE) {
            self.gather(start as SampleId..(start + MOVED_AT_ONCE).min(samples) as SampleId);
        }
        self.arena.give_back()
    }

    /// The limit as it is now, if it is not the one that the cache was made with.
    pub fn resized(&self) -> Option<u64> {
        let now = self.counters.cache_capacity_bytes.load(std::sync::atomic::Ordering::Relaxed);
        (now != self.arena.limit_bytes()).then_some(now)
    }

    /// Has residents leave, at most [`PIECE`] of them. Whether there may be more.
    fn shrink(&self, capacity: u64) -> bool {
        let mut state = self.whole();
        let left = state.control.resize(capacity);
        debug_assert!(left.len() <= PIECE);
        left.iter().for_each(|&id| state.shelf.evict(id));
        let retired = state.shelf.settle();
        self.gauge(&state);
        drop(state);
        drop(retired);
        !left.is_empty()
    }

    /// Moves the records of `ids` to where the arena ends now. For whom there is no room leaves.
    fn gather(&self, ids: std::ops::Range<SampleId>) {
        let mut state = self.whole();
        for id in state.shelf.move_before_fence(ids) {
            state.shelf.evict(id);
            state.control.cancel(id);
        }
        let retired = state.shelf.settle();
        self.gauge(&state);
        drop(state);
        drop(retired);
    }
}
