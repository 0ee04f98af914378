//! Decisions about reading during a run, and their reasons: for its journal, its stats page and `smi`.
//!
//! None of it changes who is in a batch. What does, the sampler, is decided at the borders of epochs and has events of
//! its own.

pub use super::knobs::Knob;
pub use super::requests::Requests;
use super::{circuit, crew, lead};

/// A decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decided {
    /// What was set otherwise.
    pub knob: Knob,
    /// To what it was set before.
    pub before: u64,
    /// To what it is set.
    pub now: u64,
    /// Why, for a page of numbers.
    pub code: u64,
    /// Why, in words without a colon.
    pub why: &'static str,
}

impl From<crew::Change> for Decided {
    fn from(change: crew::Change) -> Self {
        let (before, now) = (change.before as u64, change.threads as u64);
        Self { knob: Knob::Threads, before, now, code: change.why.code(), why: change.why.words() }
    }
}

impl From<lead::Change> for Decided {
    fn from(change: lead::Change) -> Self {
        let lead::Change { before, bytes: now, why } = change;
        Self { knob: Knob::Lead, before, now, code: why.code(), why: why.words() }
    }
}

impl circuit::Change {
    /// The change as one of the circuit breaker `knob`.
    pub fn of(self, knob: Knob) -> Decided {
        let (before, now) = (self.before.code(), self.now.code());
        Decided { knob, before, now, code: self.why.code(), why: self.why.words() }
    }
}
