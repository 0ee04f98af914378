//! The ring and the pass under schedulers that choose at every lock, flag and wake-up who goes on: thousands of
//! schedules, at random and by priorities that change at a few moments (PCT), which finds what needs few unlucky
//! moments.
//!
//! The files are the product's own, compiled once more with the locks of `sync.rs` here. What they use of rooms that
//! are not under test is the product's too, but for the few pieces in `stand_ins.rs`.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod passes;
mod pools;
mod stand_ins;
mod sync;

use lossfeed::{control, device, error, interrupt, process, source, types};
use stand_ins::arena;

#[path = "../../engine/src/staging"]
#[allow(dead_code, unreachable_pub)]
mod staging {
    mod in_place {
        pub(super) use lossfeed::staging::InPlace;
    }
    mod layout {
        pub(super) use lossfeed::staging::BatchLayout;
    }
    mod pool;
    mod slot;

    pub(crate) use pool::SlotPool;
    pub(crate) use slot::BatchSlot;
}

#[path = "../../engine/src/loader"]
#[allow(dead_code, unreachable_pub)]
mod loader {
    mod delivery;
    mod iteration;

    use crate::stand_ins::{Batch, Feed, Next, fill, timesheet};
    pub(crate) use iteration::Iteration;
}
