//! The half of lossfeed that decides: who matters, who stays in memory, who is next.
//!
//! Plain values. Nothing here reads a clock, takes a lock, starts a thread, opens a file or knows a device, so that a
//! live run, a simulated one and a test drive the same code, and one seed gives one outcome. `clippy.toml` beside
//! `Cargo.toml` forbids what would break this; the crate has no dependency that could.
//!
//! | module | job |
//! | --- | --- |
//! | `index` | what is believed about every sample; a priority queue |
//! | `policy` | which cached sample gives way |
//! | `ledger` | what is cached, and how many bytes it takes |
//! | `sampler` | an epoch's order and its weights |
//! | `control` | all of these as one state machine, driven by the engine and by the simulator |
//! | `sim` | a recorded run through a policy, a run that samplers draw, and how long it takes |
//! | `tune` | what adjusts itself while a run goes on: threads, bytes read ahead, a tier's circuit, fetches |
//! | `jobs` | cache and bandwidth, divided among several jobs |
//! | `ring` | the states of batch slots |
//! | `error`, `types`, `random` | words shared by all crates |

pub mod control;
pub mod error;
pub mod index;
pub mod jobs;
pub mod ledger;
pub mod policy;
pub mod random;
pub mod ring;
#[cfg(test)]
mod ring_tests;
pub mod sampler;
pub mod sim;
pub mod tune;
pub mod types;

pub use error::{Error, ErrorKind, Result, printable};
pub use types::{Dtype, SampleId, TensorSpec};
