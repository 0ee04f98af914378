//! References to records: one to write through, one to read through, and a batch's.
//!
//! The books count references; whoever holds one may read the record, and the memory is free when the last one has
//! gone, on whatever thread. A reference is a value of one of the types here, or a place on the
//! [`Shelf`](super::Shelf).
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Arena, GRANULE_BYTES, granules};
use crate::device::PINNED_PIECE_BYTES;

/// The granule that a record's block ends at: never 0, so that a place for one takes four bytes.
pub(super) type End = NonZeroU32;

/// A slot being filled: the only reference to its record.
#[derive(Debug)]
pub struct SlotMut(Slot);

/// A reference to a filled slot; a clone is one more.
#[derive(Debug)]
pub struct Slot {
    arena: Arc<Arena>,
    end: End,
}

/// References to many records, let go of at once: one lock for all of them.
#[derive(Debug)]
pub struct Pins {
    pub(super) arena: Arc<Arena>,
    pub(super) ends: Vec<End>,
}

/// Length in bytes of the record whose block ends at `end`.
pub(super) fn length(arena: &Arena, end: End) -> u32 {
    // SAFETY: an `End` stands for a reference to its record (above), whose length nobody writes meanwhile.
    unsafe { arena.words.get(granules::length_at(end.get())) }
}

/// Where the record lies whose block ends at `end`; the caller holds a reference to it.
fn record(arena: &Arena, end: End) -> NonNull<[u8]> {
    let bytes = length(arena, end);
    let start = u64::from(end.get() - granules::granules(bytes)) * GRANULE_BYTES;
    NonNull::slice_from_raw_parts(arena.words.address(start), bytes as usize)
}

/// The record of a place on the shelf, for as long as the shelf is not changed.
pub(super) fn kept(arena: &Arena, end: End) -> &[u8] {
    // SAFETY: as in `Slot::deref`: the place stands for a reference, which the shelf gives back only when it is
    // changed.
    unsafe { record(arena, end).as_ref() }
}

impl SlotMut {
    /// The record that the books have just handed out.
    pub(super) fn new(arena: Arc<Arena>, end: End) -> Self {
        Self(Slot { arena, end })
    }

    /// Ends writing.
    pub fn freeze(self) -> Slot {
        self.0
    }
}

impl Deref for SlotMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for SlotMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `Slot::deref`; there is no other reference to the record before `freeze`, and `&mut self` makes
        // this the only borrow through this one.
        unsafe { record(&self.0.arena, self.0.end).as_mut() }
    }
}

impl Slot {
    /// Whether the slot was cut from `arena`.
    pub(super) fn lies_in(&self, arena: &Arc<Arena>) -> bool {
        Arc::ptr_eq(&self.arena, arena)
    }

    /// The reference without its owner: it must be given back by other means.
    pub(super) fn into_end(self) -> End {
        let slot = ManuallyDrop::new(self);
        // SAFETY: `slot` is never dropped nor used again, so the pointer to the arena is dropped once, here.
        drop(unsafe { std::ptr::read(&slot.arena) });
        slot.end
    }
}

impl Deref for Slot {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY:
        // - the books have handed out a block whose `granules(len)` granules, below the arena's limit, end at `end`:
        //   the record is its first `len` bytes; `arena` keeps them mapped, and the kernel has initialised them;
        // - the books hand a block out once and take it back with its last reference, of which this is one: until then
        //   nobody writes these bytes but through a `SlotMut`, which is the only reference while it exists. The tag,
        //   which is written, lies behind the record.
        unsafe { record(&self.arena, self.end).as_ref() }
    }
}

impl Clone for Slot {
    fn clone(&self) -> Self {
        self.arena.with_books(|books| books.pin(self.end.get()));
        Self { arena: Arc::clone(&self.arena), end: self.end }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.arena.with_books(|books| books.unpin(self.end.get()));
    }
}

impl Pins {
    /// The records, in the order they were pinned in.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.ends.iter().map(|&end| self.at(end))
    }

    /// The record that was pinned as number `k`, which must be below their number.
    pub fn get(&self, k: usize) -> &[u8] {
        self.at(self.ends[k])
    }

    /// As [`lossfeed_kernels::fast::prefetch_row`] does it, of the record pinned as number `k`, if there is such a record: for
    /// whoever copies the record before it.
    pub fn prefetch(&self, k: usize) {
        lossfeed_kernels::fast::prefetch_row(self.ends.get(k).map_or(&[][..], |&end| self.at(end)));
    }

    fn at(&self, end: End) -> &[u8] {
        // SAFETY: as in `Slot::deref`: each end stands for a reference, given back when `self` is dropped.
        unsafe { record(&self.arena, end).as_ref() }
    }

    /// Whether that record was page-locked as a part of one piece, so that a device's copy may take it as it lies.
    pub fn is_in_one_piece(&self, k: usize) -> bool {
        let record = self.get(k);
        let start = record.as_ptr() as usize - self.arena.words.address(0).as_ptr() as usize;
        record.is_empty() || start / PINNED_PIECE_BYTES == (start + record.len() - 1) / PINNED_PIECE_BYTES
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if !self.ends.is_empty() {
            self.arena.with_books(|books| self.ends.iter().for_each(|end| books.unpin(end.get())));
        }
    }
}
