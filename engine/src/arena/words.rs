//! The numbers that the books keep in the arena's own memory.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::Mapping;

/// Aligned integers anywhere in a mapping, by their distance from its start.
///
/// Only [`Granules`](super::granules::Granules) writes them, and only where no slot lies: in free blocks and in the
/// tags behind records. Only a record's length is read by others too, while they hold a reference to the record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words {
    base: NonNull<u8>,
    bytes: u64,
}

// SAFETY: an address and a bound; `get` and `set` say which threads may use it.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// The words of `mapping`, which must outlive every use of them: they lie side by side in the arena.
    pub(super) fn new(mapping: &Mapping) -> Self {
        Self { base: mapping.base(), bytes: mapping.len() as u64 }
    }

    /// The first byte at `at`.
    pub(super) fn address(self, at: u64) -> NonNull<u8> {
        assert!(at <= self.bytes);
        // SAFETY: the result lies in the mapping, or right behind it.
        unsafe { self.base.add(at as usize) }
    }

    /// All bytes. Whoever holds a record also holds its arena: a borrow that is the only one proves that there is none,
    /// and that nobody is at the books.
    pub(super) fn whole(self, _only: &mut super::Arena) -> &[u8] {
        // SAFETY: the mapping is the arena's, `bytes` long, zeroed by the kernel when it was made, and outlives the
        // borrow; as said above, nobody writes while it lasts.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes as usize) }
    }

    fn place<T: Word>(self, at: u64) -> NonNull<T> {
        let bytes = size_of::<T>() as u64;
        assert!(at.is_multiple_of(bytes) && at.checked_add(bytes).is_some_and(|end| end <= self.bytes));
        self.address(at).cast()
    }

    /// Reads the word at `at`.
    ///
    /// # Safety
    /// No thread writes it meanwhile: the caller holds the lock of the books, under which alone words are written, or a
    /// reference to the record whose length this is.
    pub(super) unsafe fn get<T: Word>(self, at: u64) -> T {
        // SAFETY: `place` has checked that the word is in the mapping and aligned; the kernel zeroed it, or `set` wrote
        // it. Nobody writes it now (the caller's promise).
        unsafe { self.place(at).read() }
    }

    /// Writes the word at `at`.
    ///
    /// # Safety
    /// The caller holds the lock of the books, and the word is part of a free block or of a tag: of no slot, so that no
    /// reference to its bytes exists.
    pub(super) unsafe fn set<T: Word>(self, at: u64, value: T) {
        // SAFETY: in the mapping and aligned, as in `get`; nobody else reads or writes it (the caller's promise).
        unsafe { self.place(at).write(value) }
    }

    /// The word at `at`, for a test whose other threads are idle.
    #[cfg(test)]
    pub(super) fn peek(self, at: u64) -> u32 {
        // SAFETY: nobody writes while the test looks.
        unsafe { self.get(at) }
    }
}

/// Plain integers whose alignment is their size.
pub(super) trait Word: Copy {}
impl Word for u16 {}
impl Word for u32 {}
