//! lossfeed: an engine that feeds a training run by its own losses.
//!
//! ```
//! use lossfeed::loader::Next;
//! use lossfeed::source::{Arrays, ImageMode};
//! use lossfeed::{Dataset, Dtype, Engine, Settings, TensorSpec};
//! use std::{sync::Arc, time::Duration};
//!
//! # fn main() -> lossfeed::Result<()> {
//! // 100 samples of 4 numbers each, with a class index as target.
//! let (data, labels) = (vec![0; 100 * 16], vec![0; 100 * 8]);
//! let arrays = Arrays::new(data, TensorSpec::new(Dtype::F32, [4]), labels, TensorSpec::class_index(), 100)?;
//! let dataset = Dataset::new(Arc::new(arrays), ImageMode::Auto, None)?;
//! let settings = Settings { batch_size: 10, cache_bytes: 4096, stats: false, ..Settings::default() };
//! let engine = Engine::new(dataset, settings)?;
//!
//! let pass = engine.start_epoch()?;
//! let mut delivered = 0;
//! loop {
//!     match engine.next_batch(pass, Duration::from_secs(1))? {
//!         Next::Batch(batch) => {
//!             // Here your model would train on `batch.slot.data()?` and tell each sample's loss.
//!             let losses = vec![1.0; batch.rows];
//!             engine.apply_losses(&batch.ticket, &losses)?;
//!             delivered += batch.rows;
//!         }
//!         Next::Pending => continue,
//!         Next::End => break,
//!     }
//! }
//! assert_eq!(delivered, 100);
//! # Ok(())
//! # }
//! ```
//!
//! Two halves. The *pure half*, the crate `lossfeed-control`, decides (who matters, who stays, who is next): it reads
//! no clock, starts no thread, owns no byte and has no `unsafe`. The *effect half* moves (bytes, memory, devices,
//! threads). `engine/ARCHITECTURE.md` draws the house; `tests/house.rs` checks its arrows.

pub use lossfeed_control::{control, error, index, jobs, ledger, policy, random, sampler, sim, tune, types};
pub use lossfeed_disk as disk;
pub use lossfeed_journal as journal;
pub use lossfeed_stats as stats;

pub use lossfeed_source as source;
#[doc(hidden)]
pub use lossfeed_sync::process;

pub mod device;
pub mod engine;
pub mod loader;
pub mod scoring;
pub mod settings;
pub mod staging;
mod sync;

// What the bindings and tests reach into. It changes without notice.
#[doc(hidden)]
pub mod arena;
#[doc(hidden)]
pub mod cache;
#[doc(hidden)]
pub mod interrupt;

pub use engine::{Dataset, Engine};
pub use error::{Error, ErrorKind, Result, printable};
pub use settings::Settings;
pub use types::{Dtype, SampleId, TensorSpec};
