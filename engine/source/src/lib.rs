//! Where lossfeed's samples come from: a dataset's bytes and labels, read on demand and by id.
//!
//! A [`Source`] hands out samples as they are stored; a [`Decoder`] (`lossfeed-decode`) turns encoded images into
//! pixels. [`open`] makes a source of a path or URL. Folders, each of which may use those above it:
//!
//! ```text
//! sample/   the trait [`Source`], and what samples are made of
//! request/  bytes by key: stores and files
//! format/   tar shards, folders, Parquet, rows in files and in memory
//! wrap/     sources made of sources: subsets, concatenation, tiers
//! place/    what a URL or path stands for
//! ```
//!
//! Every folder may use what is beside them: `options.rs` (how a dataset is opened and read), `stop.rs` (the end of an
//! opening), `shown.rs` (addresses without secrets), `runtime.rs` (the process's one asynchronous runtime).

mod format;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod options;
mod place;
mod request;
mod runtime;
mod sample;
mod shown;
mod stop;
#[cfg(test)]
mod tests;
mod wrap;

pub use format::{Arrays, Column, Labels, Place, Records, Values, open_table};
pub use options::{DiskTier, NodeTier, OnShard, OpenOptions, PoolTier, Throttle};
pub use place::{SCHEMES, Scheme, files_below, open, open_in};
pub use sample::{
    CircuitNumbers, Counted, Decisions, Facts, Fields, Fingerprint, Form, LimitBy, Link, News, Payload, Piece,
    PieceKind, PoolNumbers, SIZE_UNKNOWN, Size, Source, Traffic, apart, decoder_of, sizes,
};
pub use shown::without_secrets;
pub use stop::Stop;
pub use wrap::{Concat, NodeOwner, Subset, decoded, on_node};

pub use lossfeed_decode::{Decoder, ImageMode, MAX_PIXELS, Resize, Scratch, ending_of, endings};

// For the engine. They change without notice.
#[doc(hidden)]
pub use lossfeed_decode::{Mask, Npy, resample};
#[doc(hidden)]
pub use request::{Flow, again};
#[doc(hidden)]
pub use sample::picture_and_tail;

use lossfeed_control::{error, random, tune, types};
use lossfeed_decode as decode;
use lossfeed_sync::process;
