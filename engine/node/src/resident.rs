//! A sample that the owner keeps.

use crate::message::Key;

/// A sample in the arena.
#[derive(Debug, Clone)]
pub(crate) struct Resident {
    pub(crate) key: Key,
    pub(crate) dataset: u64,
    pub(crate) id: u32,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    pub(crate) cost_us: u32,
    pub(crate) crc: u32,
    pub(crate) job: u32,
    pub(crate) leases: u32,
    pub(crate) state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Its bytes are on their way.
    Coming,
    Here,
    /// It was dropped while a client reads it.
    Doomed,
}

impl Resident {
    pub(crate) fn is_here(&self) -> bool {
        self.state == State::Here
    }
}
