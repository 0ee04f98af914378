//! Who matters: the score table, the indexed priority queue, and what is known of samples: resident, size, next use.

mod fenwick;
mod id_set;
pub mod next_use;
pub mod queue;
mod residents;
mod sizes;
pub mod table;

pub use fenwick::{Fenwick, Weight};
pub(crate) use id_set::IdSet;
pub use next_use::NextUse;
pub use queue::PriorityQueue;
pub(crate) use queue::{push, step};
pub use residents::Residents;
pub use sizes::Sizes;
pub use table::{ScoreTable, Standing};
