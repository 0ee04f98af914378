//! The loader: threads that turn an epoch's order into filled batches, handed over in order.

mod bad;
mod beside;
mod came;
pub mod checkpoint;
mod deliveries;
mod delivery;
mod desk;
mod feed;
mod fill;
mod filling;
mod gather;
mod images;
mod iteration;
mod look;
#[cfg(test)]
mod look_tests;
mod origin;
mod read_ahead;
#[cfg(test)]
mod read_ahead_tests;
mod readers;
#[cfg(test)]
mod readers_tests;
mod record;
mod rows;
mod taking;
#[cfg(test)]
mod taking_tests;
mod timesheet;
mod watch;
mod window;

pub use beside::Beside;
pub use came::Punctual;
pub use deliveries::{Deliveries, EpochReport};
pub use feed::{BadSample, BadSamples, Feed};
pub(crate) use fill::NEAREST_MAX;
pub use images::Images;
pub use iteration::Iteration;
pub use read_ahead::ReadAhead;
pub use readers::{Hand, Hire};
pub use record::RecordSizes;

use crate::staging::BatchSlot;
use crate::types::SampleId;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What a batch remembers of itself: which samples it really delivers, in row order. Scores are credited to these.
#[derive(Debug, Clone)]
pub struct Ticket {
    /// The engine that made it; scores for another engine's batch are refused.
    pub engine: u64,
    /// Epoch.
    pub epoch: u64,
    /// Position in the epoch, from 0.
    pub number: usize,
    /// By which the cache knows the batch.
    pub(crate) serial: u64,
    /// The delivered samples, one a row.
    pub ids: Arc<[SampleId]>,
    /// A batch is scored once, whoever holds a copy of its ticket.
    pub(crate) scored: Arc<AtomicBool>,
}

/// A filled batch.
#[derive(Debug)]
pub struct Batch {
    /// The bytes; the slot returns to its pool when this is dropped.
    pub slot: BatchSlot,
    /// Who is in it.
    pub ticket: Ticket,
    /// Rows filled, at most the batch size.
    pub rows: usize,
    /// How those came that were not in the cache.
    pub punctual: Punctual,
}

/// The answer to "the next batch, please".
#[derive(Debug)]
pub enum Next {
    /// Here it is.
    Batch(Batch),
    /// The epoch is over.
    End,
    /// Not within the wait asked for; ask again.
    Pending,
}
