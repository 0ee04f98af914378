//! What the engine counts, and how other processes see it.

mod counters;

pub use counters::{Counters, Snapshot};
