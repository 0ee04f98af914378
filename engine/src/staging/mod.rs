//! Batch slots: the bounded set of buffers between the loader's threads and whoever consumes batches.
//!
//! ```text
//!            acquire            ready()            lend()           copying()
//!   Free ───────────► Filling ─────────► Ready ───────────► Lent ─────────────► Copying
//!   pool             loader thread       queue             consumer           copy's event
//!    ▲                  │                  │                 │                    │
//!    └────────────────── drop, in every state, on every thread ───────────────────┘
//! ```
//!
//! A [`BatchSlot`] is the one owner of its memory in every state but `Free`; dropping it gives the memory back.
//! `lossfeed_control::ring` has the table of steps and refuses every other one.
//!
//! On the CPU a batch is the slot itself, which stays `Lent` until the last view of it is gone. On a GPU the consumer's
//! tensors are memory of the device: the slot is `Lent` only until its copy is queued, and `Free` again when the copy's
//! event has passed, however long the tensors live. So there is no state `OnDevice`: it would keep page-locked memory
//! from its next batch for nothing.
//!
//! A device may also read cached samples where the cache has them: such rows of a slot are [`InPlace`], and the slot
//! keeps their records from being written over until it is free.

mod in_place;
mod layout;
mod pool;
mod slot;

#[cfg(test)]
mod tests;

pub use in_place::InPlace;
pub use layout::{BatchLayout, Field};
pub use lossfeed_control::ring::SlotGauges;
pub use pool::SlotPool;
pub use slot::{BatchSlot, Parts};
