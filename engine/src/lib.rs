//! lossfeed: an engine that feeds a training run by its own losses.
//!
//! Two halves. The *pure half* decides (who matters, who stays, who is next): it reads no clock, starts no thread, owns
//! no byte and has no `unsafe`. The *effect half* moves (bytes, memory, devices, threads). `engine/ARCHITECTURE.md` draws
//! the house; `tests/house.rs` checks its arrows.

pub use lossfeed_control::{control, error, index, ledger, policy, random, sampler, sim, types};
pub use lossfeed_stats as stats;

pub mod settings;

pub mod arena;
pub mod cache;
pub mod device;
pub mod engine;
pub mod loader;
pub mod scoring;
pub mod source;
pub mod staging;
mod sync;

pub use engine::{Dataset, Engine};
pub use error::{Error, ErrorKind, Result, printable};

pub use settings::Settings;
pub use types::{Dtype, SampleId, TensorSpec};
