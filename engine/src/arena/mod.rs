//! All slots of the cache: one bounded piece of memory, handed out in granules of 64 bytes.
//!
//! The arena never holds more than its limit: the limit is what it maps, and it maps once. Its memory is plain on the
//! CPU (pages appear when first written) and prefaulted and page-locked for a device that copies from it.
//!
//! Cost: one short lock for an allocation and one for a free, no system call; 24 bytes of books per block.

mod granules;
mod slot;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::device::Device;
use crate::error::{Error, Result};
use granules::Granules;

#[cfg(test)]
pub(crate) use slot::in_forked_child;
pub use slot::{Mapping, Slot, SlotMut, pid};

/// What an allocation is rounded to: a cache line, so that no two samples share one and every slot is aligned for any
/// element type.
pub const GRANULE_BYTES: u64 = 64;

/// Granules are counted in u32 with two values kept back.
const LIMIT_MAX_BYTES: u64 = (u32::MAX as u64 - 2) * GRANULE_BYTES;

/// A bounded piece of memory that slots are cut from.
#[derive(Debug)]
pub struct Arena {
    limit_bytes: u64,
    mapping: Mapping,
    books: Mutex<Granules>,
    // Copies of what the books say, so that gauges take no lock. Written under the lock only.
    used_bytes: AtomicU64,
    peak_bytes: AtomicU64,
}

impl Arena {
    /// An arena of `limit_bytes` (rounded down to a granule), registered with `device`. A limit of 0 is an arena that
    /// refuses everything.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Settings`] if the limit is above 256 GiB, [`crate::ErrorKind::Memory`] if the system will not
    /// map it, [`crate::ErrorKind::Device`] if the device will not register it.
    pub fn new(limit_bytes: u64, device: &dyn Device) -> Result<Arc<Self>> {
        if limit_bytes > LIMIT_MAX_BYTES {
            return Err(Error::settings(format!(
                "a cache of {} is above the {} that one engine can hold: lower `cache`, or run one engine per rank and give each its share",
                human(limit_bytes),
                human(LIMIT_MAX_BYTES)
            )));
        }
        let granules = (limit_bytes / GRANULE_BYTES) as u32;
        let limit_bytes = u64::from(granules) * GRANULE_BYTES;
        Ok(Arc::new(Self {
            limit_bytes,
            mapping: Mapping::new(limit_bytes, device, "the cache", "lower `cache`")?,
            books: Mutex::new(Granules::new(granules)),
            used_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
        }))
    }

    /// What `bytes` take in the arena: rounded up to granules, at least one.
    pub const fn footprint(bytes: usize) -> u64 {
        let granules = (bytes as u64).div_ceil(GRANULE_BYTES);
        if granules == 0 { GRANULE_BYTES } else { granules.saturating_mul(GRANULE_BYTES) }
    }

    /// A slot of exactly `bytes`, or `None` if no free piece is large enough (all in use, or fragmented). Its content is
    /// whatever lay there before.
    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Option<SlotMut> {
        let footprint = Self::footprint(bytes);
        if footprint > self.limit_bytes || self.forked() {
            return None;
        }
        let (block, offset) = {
            let mut books = self.books.lock();
            let found = books.allocate((footprint / GRANULE_BYTES) as u32)?;
            self.publish(&books);
            found
        };
        Some(SlotMut::new(self.clone(), block, u64::from(offset) * GRANULE_BYTES, bytes))
    }

    /// Bytes handed out now, rounding included. Never above [`Self::limit_bytes`].
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// The largest free piece, give or take an eighth. Far below the free bytes: the cache is fragmented, and samples larger than
    /// this cannot be kept.
    pub fn largest_free_bytes(&self) -> u64 {
        if self.forked() { 0 } else { u64::from(self.books.lock().large_free()) * GRANULE_BYTES }
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

    /// In a child process the lock may have been copied in its locked state: nothing may take it there.
    fn forked(&self) -> bool {
        self.mapping.forked()
    }

    fn free(&self, block: u32) {
        if self.forked() {
            return;
        }
        let mut books = self.books.lock();
        books.free(block);
        self.publish(&books);
    }

    // Relaxed: they are gauges; whoever reads them learns nothing about the memory itself.
    fn publish(&self, books: &Granules) {
        let used = u64::from(books.used()) * GRANULE_BYTES;
        self.used_bytes.store(used, Ordering::Relaxed);
        self.peak_bytes.fetch_max(used, Ordering::Relaxed);
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
