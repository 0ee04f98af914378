//! Who matters: the score table, the indexed priority queue, the ghost.

pub mod queue;
pub mod table;

pub use queue::PriorityQueue;
pub(crate) use queue::{push, step};
pub use table::{ScoreTable, Standing};
