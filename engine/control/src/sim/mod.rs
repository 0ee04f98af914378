//! The pure half run alone: a recorded run's accesses through the *same ledger* that keeps the live cache's books, so
//! that a simulated hit ratio cannot drift from a real one.

#[cfg(test)]
mod bomb_tests;
mod closed_loop;
mod dlcache_as_coded;
mod icache_as_coded;
#[cfg(test)]
mod lab_tests;
mod object_csv;
mod object_requests;
mod oracle_general;
mod own_losses;
mod packages;
mod pipeline;
#[cfg(test)]
mod pipeline_tests;
mod population;
mod replay;
mod shade_as_coded;
mod short_lines;
mod tally;
mod trace;

pub use closed_loop::{ClosedLoop, Losses, closed_loop};
pub use dlcache_as_coded::{DlcacheAsCoded, DlcacheFile, DlcacheRule};
pub use icache_as_coded::{IcacheAsCoded, IcacheRun};
pub use object_csv::{ObjectColumns, read_object_csv};
pub use object_requests::Taken;
pub use oracle_general::read_oracle_general;
pub use packages::{PACKAGE_BYTES, Packed};
pub use pipeline::{Costs, Pipeline, Time};
pub use population::{Ages, Composition, Histogram, Population};
pub use replay::{Options, Replay, replay, replay_bytes, replay_with};
pub use shade_as_coded::{DIFFICULTY, ShadeAsCoded, ShadeRun, planted_losses, planted_normal};
pub use short_lines::ShortLines;
pub use tally::{EPOCHS_MAX, Epoch, Tally};
pub use trace::{ROWS_MAX, RecordedBatch, Trace};
