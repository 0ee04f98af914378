//! What the engine counts, and how other processes see it.
//!
//! Every engine publishes a *stats page*: a small file of fixed layout in a private directory in memory, rewritten once
//! a second by a thread of its own. `lossfeed smi` and exporters find the pages and read them; the engine never knows.
//! The idea is HotSpot's `hsperfdata`. Publishing is advice, a training run is not: a page that cannot be written is
//! warned about once, counted (`stats_failures_total`) and otherwise ignored.
//!
//! | file | job |
//! | --- | --- |
//! | `counters` | the numbers: one list, with kind, unit and meaning |
//! | `derived` | ratios that are computed from them |
//! | `numbers` | the numbers of a page, by the names it has |
//! | `page` | the layout of a page, to bytes and back, trusting nothing |
//! | `directory` | where pages lie, and whether that place can be trusted |
//! | `process` | which process a page is of, and the time |
//! | `publisher` | the writer and its thread |
//! | `limits`, `limiting` | limits that other programs set: their file as an engine reads it, and as they write it |
//! | `discover` | the reader: who runs, who ran |
//! | `others` | the directories and engines of other users |
//! | `sweep` | pages of engines that ended without removing them |
//! | `verdict` | why a run waits, from its times: pure |

mod counters;
mod derived;
mod directory;
mod discover;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod limiting;
mod limits;
mod numbers;
mod others;
mod page;
mod process;
mod publisher;
mod sweep;
pub mod verdict;

pub use counters::{Counters, Descriptor, HISTORY, Kind, RENAMED, Snapshot, Unit, current_name};
pub use derived::{
    COVERAGE_EPOCH, COVERAGE_EVER, DERIVED, Derived, ESS_FRACTION, HIT_RATIO, Lookup, ON_TIME_RATIO, STALL_FRACTION,
    descriptors, stall,
};
pub use directory::candidates;
pub use discover::{Discovery, JobPage, Unreadable, discover, discover_all, discover_in};
pub use limits::{Limits, bytes};
pub use numbers::Numbers;
pub use page::{Identity, Sample, steers_terminal};
pub use publisher::Publisher;

#[cfg(test)]
mod tests;
