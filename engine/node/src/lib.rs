//! The node cache: fetched samples are kept once for all processes of a user on a machine.
//!
//! A small *owner* process has the samples in an *arena*, a sealed memory file that every client maps for reading. A
//! client asks over a socket where samples are, copies them out of the arena, and offers what it had to fetch. It knows
//! nothing of what samples mean: a key names one, and equal keys have equal bytes.
//!
//! ```text
//! message.rs   what is said over the socket, and its parser      wire.rs    bytes and file descriptors over a socket
//! books.rs     residents and jobs    resident.rs  one of them        room.rs    free places of the arena
//! victims.rs   which resident leaves first
//! flights.rs   who fetches what                                  arena.rs   the memory file and its tags
//! orders.rs    orders of epochs that jobs read together          processors.rs  each client's share of them
//! owner.rs     the owner's one thread      serving.rs  its answers      adoption.rs  the arena of a dead owner
//! client.rs    a process that reads and offers                   link.rs    one of its connections, numbers.rs its counts
//! start.rs     the socket's folder, and who starts an owner      admin.rs   list, drop, limit
//! planted.rs   points at which tests kill a process
//! ```
//!
//! The system returns what a dead client had: the end of its connection ends its leases and its fetches. Nothing is
//! ever locked in shared memory. When the owner dies its clients keep their mappings; the first one that reaches the
//! next owner hands it the old arena, whose tags say what is in it.

mod admin;
mod adoption;
mod arena;
mod books;
#[cfg(test)]
mod books_tests;
mod client;
mod flights;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
#[cfg(test)]
mod kills_tests;
mod link;
mod message;
mod numbers;
mod orders;
mod owner;
mod planted;
mod processors;
mod resident;
mod room;
mod serving;
mod start;
#[cfg(test)]
mod tests;
mod victims;
mod wire;

pub use admin::{Admin, Listed, ListedJob};
pub use client::{Client, Flight, Offer, Read, Settings, Whose};
pub use message::Key;
pub use numbers::Numbers;
pub use orders::ORDERED_MAX;
pub use owner::{Serve, serve};

/// An owner leaves after it had no clients for so many seconds.
pub const IDLE_S: u64 = 60;
