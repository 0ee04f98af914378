//! Sources made of sources.
//!
//! ```text
//! subset.rs   some samples of one, by id       concat.rs  one after the other
//! tier.rs     a place before a source that may have samples      tiered.rs  a source with one before it, and its circuit
//! on_disk.rs  what was fetched, kept on a local disk: the disk tier (lossfeed-disk)
//! pool/       fetched samples on a server that several machines share
//! ```

mod concat;
pub(crate) mod on_disk;
#[cfg(feature = "cloud")]
pub(crate) mod pool;
mod subset;
pub(crate) mod tier;
pub(crate) mod tiered;

pub use concat::Concat;
pub use subset::Subset;
