//! Bytes by key: requests to an object store, and reads of files. Nothing here knows samples.
//!
//! ```text
//! store.rs     one store: bounded connections, timeouts, a throttle      store_whole.rs, whole.rs  servers without ranges
//! retry.rs     one budget of retries a store, a breaker                  failure.rs  what a store's errors mean
//! hedge.rs     a second request where an answer is late                  chaos.rs    faults on purpose
//! link.rs      what a request costs                              pacer.rs    a limit of bytes a second
//! lanes.rs, flow.rs            how many requests ahead of need are in flight
//! ranged.rs    an object as a file, for whoever walks over its headers
//! identity.rs  what proves that bytes are those of the file that was indexed      changed.rs  what is said where they are not
//! file.rs      files of this machine      handles.rs  which of them are kept open
//! pages.rs     the pages of a listing: tokens, and names that no path takes
//! ```

mod answers;
pub(crate) mod changed;
mod chaos;
pub(crate) mod failure;
pub(crate) mod file;
mod flow;
pub(crate) mod handles;
mod hedge;
pub(crate) mod identity;
mod lanes;
pub(crate) mod link;
mod pacer;
#[cfg(feature = "cloud")]
pub(crate) mod pages;
#[cfg(test)]
#[cfg(feature = "cloud")]
mod pages_tests;
pub(crate) mod ranged;
pub(crate) mod retry;
#[cfg(test)]
mod retry_tests;
pub(crate) mod store;
mod store_whole;
pub(crate) mod whole;

pub use flow::Flow;
pub use retry::again;
