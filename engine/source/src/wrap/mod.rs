//! Sources made of sources.
//!
//! ```text
//! subset.rs   some samples of one, by id       concat.rs  one after the other
//! tier.rs     a place before a source that may have samples      tiered.rs  a source with one before it, and its circuit
//! on_disk.rs  what was fetched, kept on a local disk: the disk tier (lossfeed-disk)
//! on_node.rs  what was fetched, kept once for all processes of the machine (lossfeed-node)
//! decoded.rs  encoded images as pixels, for a tier before them
//! pool/       fetched samples on a server that several machines share
//! ```

mod concat;
mod decoded;
pub(crate) mod on_disk;
mod on_node;
#[cfg(feature = "cloud")]
pub(crate) mod pool;
mod subset;
pub(crate) mod tier;
pub(crate) mod tiered;

pub use concat::Concat;
pub use decoded::decoded;
pub use on_node::{NodeOwner, on_node};
pub use subset::Subset;
