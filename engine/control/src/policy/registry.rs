//! The policies there are. Whoever lists, checks or makes one asks here: the command line, Python, settings and errors.

use super::entry::{Entry, Suits};
use super::{Policy, arc, belady, clrfu, fifo, icache, importance, lfu, lobster, lru, minio, nopfs, quiver};
use super::{s3fifo, shade, sieve};
use crate::error::{Error, Result};

/// All policies, in the order in which they are listed and replayed.
pub const ALL: [Entry; 15] = [
    lru::ENTRY,
    fifo::ENTRY,
    minio::ENTRY,
    shade::ENTRY,
    importance::ENTRY,
    sieve::ENTRY,
    s3fifo::ENTRY,
    lfu::ENTRY,
    arc::ENTRY,
    clrfu::ENTRY,
    icache::ENTRY,
    quiver::ENTRY,
    nopfs::ENTRY,
    lobster::ENTRY,
    belady::ENTRY,
];

/// Their names.
pub const NAMES: [&str; ALL.len()] = {
    let mut names = [""; ALL.len()];
    let mut k = 0;
    while k < ALL.len() {
        names[k] = ALL[k].name;
        k += 1;
    }
    names
};

/// The policy of that name.
///
/// # Errors
/// `Settings` if there is no such policy.
pub fn find(name: &str) -> Result<&'static Entry> {
    const { &ALL }.iter().find(|entry| entry.name == name).ok_or_else(|| {
        Error::settings(format!("there is no cache policy {name:?}: choose one of {}", NAMES.join(", ")))
    })
}

/// The policy of that name, for a training run.
///
/// # Errors
/// `Settings` if there is no such policy, or if it needs to know more than a training run does.
pub fn find_live(name: &str) -> Result<&'static Entry> {
    let entry = find(name)?;
    if entry.is_live() {
        return Ok(entry);
    }
    let live: Vec<_> = ALL.iter().filter(|e| e.is_live()).map(|e| e.name).collect();
    Err(Error::settings(format!(
        "policy {name} needs the whole future and exists for `lossfeed replay` only: use one of {}",
        live.join(", ")
    )))
}

/// The policy that suits a sampler, where a rank draws from the same samples in every epoch.
pub fn default_for(sampler: &str) -> &'static Entry {
    let all = const { &ALL };
    let suits = |entry: &&Entry| matches!(entry.suits, Suits::Samplers(names) if names.contains(&sampler));
    let otherwise = |entry: &&Entry| entry.suits == Suits::TheRest;
    all.iter().find(suits).or_else(|| all.iter().find(otherwise)).unwrap_or(&all[0])
}

/// The policy of that name, empty, for ids `0..samples`.
///
/// # Errors
/// `Settings` if there is no such policy.
pub fn from_name(name: &str, samples: usize) -> Result<Box<dyn Policy>> {
    Ok((find(name)?.make)(samples))
}
