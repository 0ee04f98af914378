//! Counts of tiers before a source.

use std::ops::Add;

use crate::tune::circuit::State;

/// A circuit breaker's counts since the dataset was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitNumbers {
    /// Its state now.
    pub state: State,
    /// Times that it opened, after half-open too.
    pub opened: u64,
    /// Why it opened or closed last, by [`Why::code`](crate::tune::circuit::Why::code); 0: it never did.
    pub why: u64,
    /// Samples that the tier was not asked for, because the circuit was open.
    pub skipped: u64,
}

/// Sums circuits; the state and the reason are those of one that is not closed, if there is one.
impl Add for CircuitNumbers {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        let worse =
            if self.state == State::Closed && (more.state != State::Closed || self.why == 0) { more } else { self };
        Self { opened: self.opened + more.opened, skipped: self.skipped + more.skipped, ..worse }
    }
}

/// A pool's counts since the dataset was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolNumbers {
    /// Samples that it gave.
    pub hits: u64,
    /// Their bytes, headers left out.
    pub hit_bytes: u64,
    /// Samples that it was asked for and did not have, those with a damaged or foreign value included.
    pub misses: u64,
    /// Values that are not what was written: damaged, truncated, another sample's or another program's.
    pub damaged: u64,
    /// Samples whose request failed or was not answered in time.
    pub failed: u64,
    /// Samples written.
    pub written: u64,
    /// Samples that were not written: the queue was full, or the server failed.
    pub dropped: u64,
    /// Samples that were not written because they are there, or the budget is used up.
    pub declined: u64,
    /// Samples that were removed for more important ones.
    pub evicted: u64,
}

impl Add for PoolNumbers {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            hits: self.hits + more.hits,
            hit_bytes: self.hit_bytes + more.hit_bytes,
            misses: self.misses + more.misses,
            damaged: self.damaged + more.damaged,
            failed: self.failed + more.failed,
            written: self.written + more.written,
            dropped: self.dropped + more.dropped,
            declined: self.declined + more.declined,
            evicted: self.evicted + more.evicted,
        }
    }
}
