//! The memory file: a head, tags and data.
//!
//! ```text
//! 0     magic  8 bytes · id  u64 · tags  u64 · data bytes  u64 · tags that were ever used  u64
//! 4096  tags, 64 bytes each: what is in a slot (TAG)
//! …     data
//! ```
//!
//! The owner maps it for writing and then seals it: nothing can map it for writing any more, or change its size, so a
//! mapping never faults and no client can change a sample. A tag is written after its data and cleared before them, so
//! a tag that is whole describes data that are, whenever the owner is killed; checksums prove it.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use memmap2::{Mmap, MmapMut, MmapOptions};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::message::{Fields, Key, OfferHead};
use crate::resident::Resident;

const MAGIC: [u8; 8] = *b"lfarena\x01";
const HEAD: u64 = 4096;
const TAG: u64 = 64;
/// A tag for so many bytes, which the smallest sample takes with its tag. Tags without a sample take no memory.
const BYTES_PER_TAG: u64 = 2 * TAG;
const TAG_MAGIC: u32 = 0x6c66_7467;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// The parts of an arena with so many bytes of data.
#[derive(Debug, Clone, Copy)]
struct Plan {
    tags: u64,
    data_at: u64,
    whole: u64,
}

impl Plan {
    fn of(bytes: u64) -> Option<Self> {
        let tags = (bytes / BYTES_PER_TAG).max(64);
        let data_at = (HEAD + tags.checked_mul(TAG)?).next_multiple_of(4096);
        Some(Self { tags, data_at, whole: data_at.checked_add(bytes)? })
    }
}

/// The owner's arena.
pub(crate) struct Arena {
    file: OwnedFd,
    map: MmapMut,
    plan: Plan,
    pub(crate) id: u64,
    tagged: u64,
}

impl Arena {
    pub(crate) fn new(bytes: u64, id: u64) -> Result<Self> {
        let plan = Plan::of(bytes).ok_or_else(|| Error::new(ErrorKind::InvalidInput, "too large"))?;
        let file = rustix::fs::memfd_create("lossfeed-node", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, plan.whole)?;
        // SAFETY: the seals below keep the file's size, and no other mapping can write to it: only this one, by `&mut`.
        // Clients that read what is written meanwhile check what they read.
        let map = unsafe { MmapOptions::new().map_mut(&file)? };
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        let mut arena = Self { file, map, plan, id, tagged: 0 };
        arena.write(8, &id.to_le_bytes());
        arena.write(16, &plan.tags.to_le_bytes());
        arena.write(24, &bytes.to_le_bytes());
        arena.write(0, &MAGIC);
        Ok(arena)
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn slots(&self) -> usize {
        usize::try_from(self.plan.tags).unwrap_or(usize::MAX)
    }

    /// The offset of a resident's data in the file.
    pub(crate) fn offset(&self, at: u64) -> u64 {
        self.plan.data_at + at
    }

    pub(crate) fn put(&mut self, at: u64, bytes: &[u8]) {
        self.write(self.plan.data_at + at, bytes);
    }

    /// The data of `slot` are whole.
    pub(crate) fn tag(&mut self, slot: u32, resident: &Resident) {
        if u64::from(slot) >= self.tagged {
            self.tagged = u64::from(slot) + 1;
            self.write(32, &self.tagged.to_le_bytes());
        }
        let fields: [&[u8]; 7] = [
            &resident.key,
            &resident.dataset.to_le_bytes(),
            &resident.id.to_le_bytes(),
            &resident.cost_us.to_le_bytes(),
            &resident.at.to_le_bytes(),
            &resident.bytes.to_le_bytes(),
            &resident.crc.to_le_bytes(),
        ];
        let fields = fields.concat();
        let at = HEAD + u64::from(slot) * TAG;
        self.write(at + 8, &fields);
        self.write(at + 4, &crc32fast::hash(&fields).to_le_bytes());
        // The system stops the process between two instructions, so their order is all that counts.
        fence(Ordering::SeqCst);
        self.write(at, &TAG_MAGIC.to_le_bytes());
        fence(Ordering::SeqCst);
    }

    pub(crate) fn untag(&mut self, slot: u32) {
        if u64::from(slot) < self.tagged {
            self.write(HEAD + u64::from(slot) * TAG, &[0; 4]);
            fence(Ordering::SeqCst);
        }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        if let Some(place) = at.checked_add(bytes.len()).and_then(|end| self.map.get_mut(at..end)) {
            place.copy_from_slice(bytes);
        }
    }
}

/// An arena mapped for reading.
pub(crate) struct Shown {
    file: OwnedFd,
    map: Mmap,
    plan: Plan,
    pub(crate) id: u64,
}

impl Shown {
    /// # Errors
    /// The reason why the file is no arena.
    pub(crate) fn map(file: OwnedFd) -> std::result::Result<Self, String> {
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|e| format!("a file that cannot be sealed: {e}"))?;
        if !seals.contains(SEALS) {
            return Err("a memory file that is not sealed".into());
        }
        let file = File::from(file);
        // SAFETY: the seals keep the file's size, so that no access faults. Its owner alone writes to it, and by its
        // protocol never to what is leased; what is not leased is not read, but for tags and data that checksums prove.
        let map = unsafe { MmapOptions::new().map(&file) }.map_err(|e| format!("a file that cannot be mapped: {e}"))?;
        let head = map.get(..40).ok_or("a file that is no arena")?;
        let mut fields = Fields(head);
        let (magic, id, tags, bytes) = (fields.array::<8>()?, fields.u64()?, fields.u64()?, fields.u64()?);
        let plan = Plan::of(bytes).filter(|plan| plan.tags == tags && plan.whole == map.len() as u64);
        match plan {
            Some(plan) if magic == MAGIC => Ok(Self { file: file.into(), map, plan, id }),
            _ => Err("a file that is no arena".into()),
        }
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Bytes at an offset of the file, within its data.
    pub(crate) fn at(&self, offset: u64, bytes: u64) -> Option<&[u8]> {
        let from = usize::try_from(offset).ok().filter(|_| offset >= self.plan.data_at)?;
        self.map.get(from..from.checked_add(usize::try_from(bytes).ok()?)?)
    }

    /// The contents of the tags, with each sample's dataset and offset. Nothing of it is proved.
    pub(crate) fn tags(&self) -> impl Iterator<Item = (u64, OfferHead, u64)> {
        let used = self.map.get(32..40).and_then(|used| Some(u64::from_le_bytes(*used.first_chunk()?))).unwrap_or(0);
        (0..used.min(self.plan.tags)).filter_map(|slot| {
            let from = usize::try_from(HEAD + slot * TAG).ok()?;
            let mut fields = Fields(self.map.get(from..from + TAG as usize)?);
            let (magic, crc) = (fields.u32().ok()?, fields.u32().ok()?);
            if magic != TAG_MAGIC || crc != crc32fast::hash(fields.0.get(..52)?) {
                return None;
            }
            let key: Key = fields.array().ok()?;
            let (dataset, id, cost_us) = (fields.u64().ok()?, fields.u32().ok()?, fields.u32().ok()?);
            let (at, bytes, crc) = (fields.u64().ok()?, fields.u64().ok()?, fields.u32().ok()?);
            let offset = self.plan.data_at.checked_add(at)?;
            self.at(offset, bytes)?;
            Some((dataset, OfferHead { key, id, cost_us, crc, bytes }, offset))
        })
    }
}
