//! The pure half run alone: a recorded run's accesses through the *same ledger* that keeps the live cache's books, so
//! that a simulated hit ratio cannot drift from a real one.

mod closed_loop;
mod own_losses;
mod pipeline;
#[cfg(test)]
mod pipeline_tests;
mod population;
mod replay;
mod tally;
mod trace;

pub use closed_loop::{ClosedLoop, DIFFICULTY, Losses, closed_loop, looks_at_scores, planted_normal};
pub use pipeline::{Costs, Pipeline, Time};
pub use population::{Ages, Composition, Histogram, Population};
pub use replay::{Options, Replay, Watch, replay, replay_with};
pub use tally::{EPOCHS_MAX, Epoch, Tally};
pub use trace::{B0, RecordedBatch, Rows, Trace, dense};
