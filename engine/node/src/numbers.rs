//! A client's counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts since the client was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Samples that were read from the arena.
    pub hits: u64,
    /// Their bytes.
    pub hit_bytes: u64,
    /// Samples that the owner did not have.
    pub misses: u64,
    /// Samples that had another length than the dataset says.
    pub damaged: u64,
    /// Samples whose question failed or was not answered in time.
    pub failed: u64,
    /// Fetched samples that were offered.
    pub offered: u64,
    /// Fetched samples that could not be offered.
    pub dropped: u64,
    /// Owners that this client found after the one before had gone.
    pub owners: u64,
    /// Bytes in use, over all jobs, as of the last answer.
    pub bytes: u64,
}

/// The same while they change.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) hits: AtomicU64,
    pub(crate) hit_bytes: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) offered: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) owners: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl Counts {
    pub(crate) fn numbers(&self) -> Numbers {
        let of = |number: &AtomicU64| number.load(Relaxed);
        Numbers {
            hits: of(&self.hits),
            hit_bytes: of(&self.hit_bytes),
            misses: of(&self.misses),
            damaged: of(&self.damaged),
            failed: of(&self.failed),
            offered: of(&self.offered),
            dropped: of(&self.dropped),
            owners: of(&self.owners),
            bytes: of(&self.bytes),
        }
    }
}
