//! What the engine counts, and how other processes see it.
//!
//! Every engine publishes a *stats page*: a small file of fixed layout in a private directory in memory, rewritten once a
//! second by a thread of its own. `lossfeed smi` and exporters find the pages and read them; the engine never knows. The
//! idea is HotSpot's `hsperfdata`. Publishing is advice, a training run is not: a page that cannot be written is warned
//! about once, counted (`stats_failures_total`) and otherwise ignored.
//!
//! | file | job |
//! | --- | --- |
//! | `counters` | the numbers: one list |
//! | `page` | the layout of a page, to bytes and back, trusting nothing |
//! | `directory` | where pages lie, and whether that place can be trusted |
//! | `publisher` | the writer and its thread |
//! | `discover` | the reader: who runs, who ran |
//! | `sweep` | pages of engines that ended without removing them |

mod counters;
mod directory;
mod discover;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod page;
mod publisher;
mod sweep;

pub use counters::{Counters, HISTORY, Snapshot};
pub use directory::candidates;
pub use discover::{Discovery, JobPage, Unreadable, discover, discover_all, discover_in};
pub use page::{Identity, Sample, steers_terminal};
pub use publisher::Publisher;

#[cfg(test)]
mod tests;
