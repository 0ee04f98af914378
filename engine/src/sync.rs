//! The locks and flags of code that is compiled twice: here, and in `tests/schedules`, where a scheduler decides at
//! each of them who goes on. Names and signatures are `lossfeed-sync`'s and std's.

pub(crate) use lossfeed_sync::{Condvar, Mutex};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize};
