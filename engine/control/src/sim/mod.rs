//! The pure half run alone: a recorded run's accesses through the *same ledger* that keeps the live cache's books, so
//! that a simulated hit ratio cannot drift from a real one.

mod icache_as_coded;
mod oracle_general;
mod replay;
mod shade_as_coded;
mod short_lines;
mod trace;

pub use icache_as_coded::{IcacheAsCoded, IcacheRun};
pub use oracle_general::{Taken, read_oracle_general};
pub use replay::{Replay, replay, replay_bytes};
pub use shade_as_coded::{DIFFICULTY, ShadeAsCoded, ShadeRun, planted_losses, planted_normal};
pub use short_lines::ShortLines;
pub use trace::{ROWS_MAX, Trace};
