//! All slots of the cache: one bounded piece of memory, handed out in granules of 64 bytes.
//!
//! The arena never holds more than its limit: the limit is what it maps, and it maps once. Its memory is plain on the
//! CPU (pages appear when first written) and prefaulted and page-locked for a device that copies from it. A cache that
//! was made smaller [withdraws](Arena::withdraw) the end of it, and plain memory goes back to the system.
//!
//! Cost: one short lock for an allocation, one for all that a batch pins and one for all that it lets go of, no system
//! call. A record has 6 bytes of books behind it in the arena and a place of 4 on the [`Shelf`].
//!
//! Lock: guards free granules and reference counts; held for one allocation, or all pins or frees of a batch.
#![allow(unsafe_code)]

mod fence;
mod granules;
mod mapping;
mod shelf;
mod slot;
mod withdrawn;
mod words;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lossfeed_sync::Mutex;

use crate::device::Device;
use crate::error::{Error, Result};
use granules::Granules;
use slot::End;
use words::Words;

pub use mapping::Mapping;
#[cfg(test)]
pub(crate) use mapping::in_forked_child;
pub use shelf::Shelf;
pub use slot::{Pins, Slot, SlotMut};

/// What an allocation is rounded to: a cache line, so that no two samples share one and every slot is aligned for any
/// element type.
pub const GRANULE_BYTES: u64 = 64;

/// Blocks looked at in one hold of the lock.
const WITHDRAWN_AT_ONCE: usize = 4096;

/// Granules are counted in u32.
const LIMIT_MAX_BYTES: u64 = u32::MAX as u64 * GRANULE_BYTES;

/// A bounded piece of memory that slots are cut from.
#[derive(Debug)]
pub struct Arena {
    limit_bytes: u64,
    mapping: Mapping,
    words: Words,
    books: Mutex<Granules>,
    // Copies of what the books say, so that gauges take no lock. Written under the lock only.
    used_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    records: AtomicU64,
}

impl Arena {
    /// An arena of `limit_bytes` (rounded down to a granule), registered with `device`. A limit of 0 is an arena that
    /// refuses everything.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Settings`] if the limit is above 256 GiB, [`crate::ErrorKind::Memory`] if the system will
    /// not map it, [`crate::ErrorKind::Device`] if the device will not register it.
    pub fn new(limit_bytes: u64, device: &dyn Device) -> Result<Arc<Self>> {
        Self::check_limit(limit_bytes)?;
        let granules = (limit_bytes / GRANULE_BYTES) as u32;
        let limit_bytes = u64::from(granules) * GRANULE_BYTES;
        let mapping = Mapping::new(limit_bytes, device, "the cache", "lower `cache`")?;
        let words = Words::new(&mapping);
        // SAFETY: the mapping is new, and its slots are those that these books hand out: a slot ends before its tag.
        let books = unsafe { Granules::new(words, granules) };
        Ok(Arc::new(Self {
            limit_bytes,
            mapping,
            words,
            books: Mutex::new(books),
            used_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            records: AtomicU64::new(0),
        }))
    }

    /// Whether an arena can be so large.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Settings`] if the limit is above 256 GiB.
    pub fn check_limit(limit_bytes: u64) -> Result<()> {
        if limit_bytes > LIMIT_MAX_BYTES {
            return Err(Error::settings(format!(
                "cache={} exceeds the {} of one engine: lower it, or run one engine per rank",
                human(limit_bytes),
                human(LIMIT_MAX_BYTES)
            )));
        }
        Ok(())
    }

    /// What a record of `bytes` takes in the arena: with what the books write behind it, rounded up to granules.
    pub const fn footprint(bytes: usize) -> u64 {
        (bytes as u64).saturating_add(granules::TAG_BYTES).div_ceil(GRANULE_BYTES).saturating_mul(GRANULE_BYTES)
    }

    /// A slot of exactly `bytes`, or `None` if no free piece is large enough (all in use, or fragmented). Its content
    /// is whatever lay there before.
    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Option<SlotMut> {
        if Self::footprint(bytes) > self.limit_bytes {
            return None;
        }
        let bytes = u32::try_from(bytes).ok()?;
        let end = self.with_books(|books| books.allocate(bytes)).flatten()?;
        End::new(end).map(|end| SlotMut::new(Arc::clone(self), end))
    }

    /// Hands nothing out behind the first `bytes` any more. What lies there stays until it is let go of; see
    /// [`Shelf::move_before_fence`] and [`Self::give_back`]. Takes the lock for a piece at a time.
    pub fn withdraw(&self, bytes: u64) {
        let (fence, total) = (self.granules_in(bytes), self.granules_in(self.limit_bytes));
        self.with_books(|books| books.set_fence(fence));
        let mut from = Some(total);
        while let Some(at) = from {
            from = self.with_books(|books| books.withdraw(at, WITHDRAWN_AT_ONCE)).flatten();
        }
    }

    /// The first `bytes` may be handed out again, however many were withdrawn.
    pub fn restore(&self, bytes: u64) {
        let fence = self.granules_in(bytes);
        self.with_books(|books| books.restore(fence));
    }

    /// Gives the pages that are withdrawn back to the system; answers their bytes. They come back, empty, when they are
    /// written to. None of memory that a device has page-locked: its driver holds the pages. Nobody may
    /// [restore](Self::restore) meanwhile.
    pub fn give_back(&self) -> u64 {
        let ranges: Vec<(u32, u32)> = self.with_books(|books| books.withdrawn.ranges().collect()).unwrap_or_default();
        let bytes = |granule: u32| u64::from(granule) * GRANULE_BYTES;
        ranges.into_iter().map(|(start, end)| self.mapping.discard(bytes(start)..bytes(end))).sum()
    }

    fn granules_in(&self, bytes: u64) -> u32 {
        (bytes.min(self.limit_bytes) / GRANULE_BYTES) as u32
    }

    /// All of the memory, while nobody holds a record: for measurements.
    pub fn whole(&mut self) -> &[u8] {
        self.words.whole(self)
    }

    /// Bytes handed out now, rounding included. Never above [`Self::limit_bytes`].
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// The largest free piece, give or take an eighth. Far below the free bytes: the cache is fragmented, and samples
    /// larger than this cannot be kept.
    pub fn largest_free_bytes(&self) -> u64 {
        self.with_books(|books| u64::from(books.large_free()) * GRANULE_BYTES).unwrap_or(0)
    }

    /// The most bytes that were ever handed out at one time.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    /// The bound, a multiple of the granule.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes page-locked for the device: all or nothing.
    pub fn pinned_bytes(&self) -> u64 {
        self.mapping.pinned_bytes()
    }

    /// Bytes the arena keeps about its records; those behind the records are part of [`Self::used_bytes`] too.
    pub fn metadata_bytes(&self) -> u64 {
        size_of::<Self>() as u64 + self.records.load(Ordering::Relaxed) * granules::TAG_BYTES
    }

    /// Does `work` at the books. `None` in a child process: the lock may have been copied in its locked state, and the
    /// memory may be the parent's too.
    fn with_books<T>(&self, work: impl FnOnce(&mut Granules) -> T) -> Option<T> {
        if self.mapping.forked() {
            return None;
        }
        let mut books = self.books.lock();
        let done = work(&mut books);
        // Relaxed: they are gauges; whoever reads them learns nothing about the memory itself.
        let used = u64::from(books.used()) * GRANULE_BYTES;
        self.used_bytes.store(used, Ordering::Relaxed);
        self.peak_bytes.fetch_max(used, Ordering::Relaxed);
        self.records.store(u64::from(books.records()), Ordering::Relaxed);
        Some(done)
    }
}

/// `1536` → `1.5 KiB`: for messages.
pub(crate) fn human(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests;
