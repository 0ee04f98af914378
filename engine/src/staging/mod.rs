//! Batch slots: the bounded set of buffers between the loader's threads and whoever consumes batches.
//!
//! ```text
//!            acquire            ready()             lend()
//!   Free ───────────► Filling ─────────► Ready ──────────────► Lent
//!    ▲   (loader)               (loader → queue)    (consumer)   │
//!    └────────────────────────── drop ───────────────────────────┘
//! ```
//!
//! A [`BatchSlot`] is the one owner of its memory in every state but `Free`; dropping it, on any thread, gives the memory
//! back. A device copy out of a slot takes the slot with it and lets go when the copy's event is done.

mod layout;
mod pool;
mod slot;

pub use layout::BatchLayout;
pub use pool::{SlotGauges, SlotPool};
pub use slot::{BatchSlot, Parts, SlotState};
