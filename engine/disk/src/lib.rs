//! The disk tier: samples of a slow source, kept on a local disk between epochs and between runs.
//!
//! ```text
//! disk.rs     the tier: offer, forget; what it counts      reading.rs  the records of a call, read in a bounded time
//! readers.rs  threads that wait for the disk               read_at.rs  where a read meets the system
//! shared.rs   what callers and that thread share
//! shelf.rs    which record lies where                       policy.rs   which segment gives way (pure)
//! writer.rs   the thread that writes and drops               looking.rs  what it learns of other processes
//! flight.rs   a call's fetches, made once by all processes   claims.rs   the file in which they tell what they fetch
//! segment.rs  one file of records: read, recovered, ended   format.rs   its bytes
//! followed.rs one that another process is writing           open_files.rs  which files are open
//! folder.rs   the folder: its lock, whose files they are, which segments there are
//! ```
//!
//! # Records
//! A record is known by a [`Key`] of 128 bits, which the caller makes of everything that its bytes depend on: the
//! object, its version, the range. So a changed object is another key and its old records are never asked for; two
//! datasets over one object share its records; and a dataset needs no name here. Records are appended to *segments*.
//! One that is read is held against its key, its length and its checksum. Whatever is wrong with it, it is a miss, is
//! counted as damaged and forgotten. CRC-32 finds damage and mix-ups, not forgery: the files belong to this user.
//!
//! # Writing
//! Nobody waits for it. [`Disk::offer`] copies a sample into a queue that is bounded in bytes; when it is full, the
//! sample is dropped and counted. One thread writes. Nothing is ever flushed to the device: after a power cut any part
//! of what was written last may be missing or zero, which a footer's or a record's checksum tells, so it costs fetches
//! and nothing else. A process that is killed leaves a segment without a footer; whoever opens the folder next reads
//! it record by record up to the first bad one, and ends it there. A run that ends early leaves a short segment, and the
//! next one to write goes on in it.
//!
//! Writing leaves room on the disk for the run's checkpoints: a twentieth of it, at most 10 GiB or the tier's limit.
//! While less is free, or the disk is full, nothing is written, with one warning; it is tried again every ten seconds.
//! When the disk refuses otherwise, writing ends for good. Reading goes on either way.
//!
//! # Reading
//! [`Disk::read_all`] waits for a disk no longer than its caller likes. What the page cache has is read by the caller
//! itself, with a read that waits for no device's answer; the rest by threads of the tier, since a positioned read
//! cannot be called off. One that fails is a miss, is counted apart from damage, and its record is forgotten. What may
//! still hang: the opening of the folder, which reads its lock and its footers in the caller's thread; and a thread
//! that hangs in a read or a write is left behind with its file when the tier is dropped.
//!
//! # Several processes
//! Every process reads all segments and appends to segments of its own, so that the ranks of one machine, each with
//! its own share of the samples, all keep what they fetch. (One writer beside readers would keep one rank's share; a
//! folder a rank would leave what one has fetched unseen by another after a restart with other shares.) A segment that
//! is being written has the name `*.open` and its writer's lock on it, and `*.seg` when it is complete. The folder's
//! own lock is held to begin or drop a segment and to recover one. All processes together keep within the limit: a
//! segment under way counts as a whole one. What other processes have written is found within ten seconds, in segments
//! under way too.
//!
//! What one process is fetching the others wait for ([`Flight`]), so that processes that begin together read the store
//! once. The file `claims` has these keys and no samples; it may be deleted while no process uses the folder. A process
//! that was killed has no claims. One that is stopped is waited for three seconds, one that is slow for fifteen, and
//! then its claims are ignored for a minute.

mod claims;
#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod damage_tests;
mod disk;
#[cfg(test)]
mod fault_tests;
mod flight;
#[cfg(test)]
mod flight_tests;
mod folder;
mod followed;
#[cfg(test)]
mod followed_tests;
mod format;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod looking;
mod open_files;
mod policy;
mod read_at;
mod readers;
mod reading;
mod segment;
mod shared;
#[cfg(test)]
mod sharing_tests;
mod shelf;
#[cfg(test)]
mod tests;
mod writer;

pub use claims::Whose;
pub use disk::{Disk, Found, LIMIT_MAX, LIMIT_MIN, Numbers, Settings};
pub use flight::Flight;
pub use policy::Policy;
pub use read_at::ReadAt;
pub use reading::{Reads, Wanted};

/// What a record is known by: a digest of everything that its bytes depend on. Its low half must be as good as random.
pub type Key = u128;
