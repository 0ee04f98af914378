//! Self-adjusting numbers of a run: a file or folder a rule, and the table of what the rules set.
//!
//! A rule is a plain value without a clock. It is told what was seen, and answers with another number or with nothing.
//! Measuring and obeying is the effect half's. No rule changes which samples are in a batch that is decided; what
//! shapes orders (`pace`, `budget`, `block`) is set between epochs and kept in a run's state.
//!
//! | file | rule |
//! | --- | --- |
//! | `knobs` | the table: of each number its name, range, counters, reasons and decision |
//! | `crew` | how many loader threads fill batches |
//! | `lead` | how many bytes are read ahead |
//! | `fetch_plan` | which ranges of shards are read ahead, and in which order |
//! | `tuner` | how many requests ahead of need are in flight |
//! | `short` | what short bodies show of a link's bandwidth |
//! | `slow` | whether files are read ahead |
//! | `circuit` | whether a tier before the source is asked |
//! | `pace`, `budget` | which part of the rows may be fetched: by waits, by bytes |
//! | `block` | how many neighbours come together |
//! | `mixed_labels` | whether neighbours are mixed: only then `auto` takes them together |
//! | `observed` | what an epoch was seen to take |
//! | `decided`, `requests`, `reasons` | what was decided, and why, for journal, counters and `smi` |

#[macro_use]
mod reasons;

mod block;
mod budget;
pub mod circuit;
pub mod crew;
pub mod decided;
pub mod fetch_plan;
#[cfg(test)]
mod fetch_plan_tests;
mod knobs;
pub mod lead;
mod mixed_labels;
mod observed;
mod pace;
mod requests;
pub mod short;
pub mod slow;
pub mod tuner;
#[cfg(test)]
mod tuner_tests;

pub use block::{Block, Blocks, ReadCost};
pub use budget::{Budget, EpochSize};
pub use knobs::{About, Knob};
pub use mixed_labels::Neighbours;
pub use observed::Observed;
pub use pace::{LEAST_PART, Pace};
