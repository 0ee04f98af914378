//! The books: which granules are free, and how many references each record has.
//!
//! They lie in the arena itself. Every block, free or not, ends in a **tag** of six bytes: a length (of a record in
//! bytes, of a free block in granules), how many references there are (none: the block is free), and whether the block
//! behind it is free. A free block has its length at its start as well, and its neighbours in its bin. So a record is
//! known by where its block *ends*, and both neighbours of a block are found without any table beside the memory.
//!
//! Segregated fits with immediate coalescing (after TLSF: Masmano, Ripoll, Crespo and Real 2004, mirrored: there the
//! tag leads, here it follows, so that records start where a granule does): free blocks hang in bins whose sizes follow
//! a small float (3 bits of mantissa, so a bin spans 12.5 %). Allocation looks first at a few blocks of the bin its
//! size *rounds down* to, then takes the head of any higher bin, where every block fits.
//!
//! The look into the rounded-down bin is the departure from allocators that only round up, and the reason this is not a
//! crate: in a cache of equal samples every hole has exactly the size of the next request, and a search that starts one
//! bin higher never finds it again unless the size happens to be a bin's own.
#![allow(unsafe_code)]

use super::GRANULE_BYTES;
use super::withdrawn::Withdrawn;
use super::words::{Word, Words};

const MANTISSA_BITS: u32 = 3;
const BINS: usize = 256;
/// How many blocks of the rounded-down bin are looked at before a larger one is split.
const SCAN: usize = 16;

/// No block.
const NONE: u32 = u32::MAX;

/// What a record takes besides its bytes.
pub(super) const TAG_BYTES: u64 = 6;
/// In a tag's state: the number of references. At its largest value it stays there: a record that so many batches read
/// at one time is never freed, rather than too early.
const REFERENCES: u16 = u16::MAX >> 1;
/// In a tag's state: the block behind this one is free.
const FREE_BEHIND: u16 = !REFERENCES;

/// Where the length lies in the tag of the block that ends at `end`.
pub(super) fn length_at(end: u32) -> u64 {
    u64::from(end) * GRANULE_BYTES - 4
}

fn state_at(end: u32) -> u64 {
    u64::from(end) * GRANULE_BYTES - TAG_BYTES
}

/// What is written at the start of a free block.
#[derive(Clone, Copy)]
enum Head {
    Size,
    /// Neighbours in the bin.
    Before,
    After,
}

/// Granules of a record of `bytes`, tag included.
pub(super) const fn granules(bytes: u32) -> u32 {
    (bytes as u64 + TAG_BYTES).div_ceil(GRANULE_BYTES) as u32
}

/// The books of an arena: a kilobyte, and [`TAG_BYTES`] a record.
#[derive(Debug)]
pub(super) struct Granules {
    words: Words,
    /// The first granule of a block of each bin.
    heads: [u32; BINS],
    /// One bit a bin: it has blocks.
    filled: [u64; BINS / 64],
    /// [`FREE_BEHIND`] of what would lie before the first block.
    first_free: bool,
    used: u32,
    records: u32,
    /// Nothing behind this granule stays free, see [`super::fence`].
    pub(super) fence: u32,
    pub(super) withdrawn: Withdrawn,
}

/// The bin whose smallest size is the largest one not above `size`.
fn bin_of(size: u32) -> usize {
    if size < 1 << MANTISSA_BITS {
        return size as usize;
    }
    let shift = 31 - size.leading_zeros() - MANTISSA_BITS;
    (((shift + 1) << MANTISSA_BITS) + ((size >> shift) & ((1 << MANTISSA_BITS) - 1))) as usize
}

impl Granules {
    /// Books for `total` granules, all free, in `words`.
    ///
    /// # Safety
    /// `words` are of zeroed memory that has no other books and no slots yet; slots in it are those that
    /// [`Self::allocate`] hands out, and a slot's owner leaves the tag behind it alone.
    pub(super) unsafe fn new(words: Words, total: u32) -> Self {
        let (heads, filled) = ([NONE; BINS], [0; BINS / 64]);
        let mut books = Self {
            words,
            heads,
            filled,
            first_free: false,
            used: 0,
            records: 0,
            fence: total,
            withdrawn: Withdrawn::default(),
        };
        if total > 0 {
            books.link(0, total);
        }
        books
    }

    fn get<T: Word>(&self, at: u64) -> T {
        // SAFETY: only these books write the words (`new`), and whoever has them in hand holds their lock.
        unsafe { self.words.get(at) }
    }

    fn set<T: Word>(&mut self, at: u64, value: T) {
        // SAFETY: as in `get`; the books write nothing but tags and free blocks, which nobody else refers to (`new`).
        unsafe { self.words.set(at, value) }
    }

    /// Granules handed out.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Blocks handed out.
    pub(super) fn records(&self) -> u32 {
        self.records
    }

    /// Size of a free block of the highest bin that has one: no free block is more than an eighth larger.
    pub(super) fn large_free(&self) -> u32 {
        let word = (0..self.filled.len()).rev().find(|&word| self.filled[word] != 0);
        let bin = word.map(|word| 64 * word + 63 - self.filled[word].leading_zeros() as usize);
        bin.map_or(0, |bin| self.head(self.heads[bin], Head::Size))
    }

    /// Hands out a block for a record of `bytes`, with one reference: where it ends, or `None` if no free block is
    /// large enough.
    pub(super) fn allocate(&mut self, bytes: u32) -> Option<u32> {
        let size = granules(bytes);
        let start = self.find(size)?;
        let end = start + size;
        let rest = self.unlink(start) - size;
        self.set(length_at(end), bytes);
        self.set(state_at(end), 1u16);
        if rest > 0 {
            self.link(end, rest);
        }
        self.used += size;
        self.records += 1;
        Some(end)
    }

    /// One more reference to the record whose block ends at `end`; the caller holds one.
    pub(super) fn pin(&mut self, end: u32) {
        let state: u16 = self.get(state_at(end));
        if state & REFERENCES != REFERENCES {
            self.set(state_at(end), state + 1);
        }
    }

    /// Takes back a reference that [`Self::allocate`] or [`Self::pin`] gave; with the last one the block is free.
    pub(super) fn unpin(&mut self, end: u32) {
        let state: u16 = self.get(state_at(end));
        match state & REFERENCES {
            REFERENCES => {}
            1 => self.free(end),
            references => {
                debug_assert!(references > 0, "a free block was referenced");
                self.set(state_at(end), state - 1);
            }
        }
    }

    fn free(&mut self, end: u32) {
        let size = granules(self.get(length_at(end)));
        self.used -= size;
        self.records -= 1;
        if self.is_behind(end) {
            return self.set_aside(end - size, end);
        }
        let to = if self.is_free_behind(end) { end + self.unlink(end) } else { end };
        self.make_free(end - size, to);
    }

    /// Makes granules free that lie in no bin, together with a free block before them. None may be behind them.
    pub(super) fn make_free(&mut self, from: u32, to: u32) {
        let mut from = from;
        if from > 0 && self.get::<u16>(state_at(from)) & REFERENCES == 0 {
            from -= self.get::<u32>(length_at(from));
            self.unlink(from);
        }
        self.link(from, to - from);
    }

    /// Where the block starts that ends at `end`, and whether it is free.
    pub(super) fn block_before(&self, end: u32) -> (u32, bool) {
        let length: u32 = self.get(length_at(end));
        let free = self.get::<u16>(state_at(end)) & REFERENCES == 0;
        (end - if free { length } else { granules(length) }, free)
    }

    /// Whether a free block starts where another ends.
    fn is_free_behind(&self, end: u32) -> bool {
        if end == 0 { self.first_free } else { self.get::<u16>(state_at(end)) & FREE_BEHIND != 0 }
    }

    fn set_free_behind(&mut self, end: u32, free: bool) {
        if end == 0 {
            self.first_free = free;
        } else {
            let state = self.get::<u16>(state_at(end)) & REFERENCES;
            self.set(state_at(end), if free { state | FREE_BEHIND } else { state });
        }
    }

    fn find(&self, size: u32) -> Option<u32> {
        let bin = bin_of(size);
        let mut at = self.heads[bin];
        for _ in 0..SCAN {
            if at == NONE {
                break;
            }
            if self.head(at, Head::Size) >= size {
                return Some(at);
            }
            at = self.head(at, Head::After);
        }
        // Every block of a higher bin is larger than any size of this one.
        let first = bin + 1;
        let mut word = first / 64;
        let mut bits = self.filled.get(word)? & (u64::MAX << (first % 64));
        while bits == 0 {
            word += 1;
            bits = *self.filled.get(word)?;
        }
        Some(self.heads[word * 64 + bits.trailing_zeros() as usize])
    }

    fn head(&self, start: u32, field: Head) -> u32 {
        self.get(u64::from(start) * GRANULE_BYTES + 4 * field as u64)
    }

    fn set_head(&mut self, start: u32, field: Head, value: u32) {
        self.set(u64::from(start) * GRANULE_BYTES + 4 * field as u64, value);
    }

    /// Makes a free block of `size` granules from `start` on.
    fn link(&mut self, start: u32, size: u32) {
        let bin = bin_of(size);
        let after = self.heads[bin];
        if after != NONE {
            self.set_head(after, Head::Before, start);
        }
        self.set_head(start, Head::Size, size);
        self.set_head(start, Head::Before, NONE);
        self.set_head(start, Head::After, after);
        self.set(length_at(start + size), size);
        self.set(state_at(start + size), 0u16); // two free blocks never touch
        self.set_free_behind(start, true);
        self.heads[bin] = start;
        self.filled[bin / 64] |= 1 << (bin % 64);
    }

    /// Takes the free block that starts at `start` out of its bin; its size.
    pub(super) fn unlink(&mut self, start: u32) -> u32 {
        let [size, before, after] = [Head::Size, Head::Before, Head::After].map(|field| self.head(start, field));
        if after != NONE {
            self.set_head(after, Head::Before, before);
        }
        if before != NONE {
            self.set_head(before, Head::After, after);
        } else {
            let bin = bin_of(size);
            self.heads[bin] = after;
            if after == NONE {
                self.filled[bin / 64] &= !(1 << (bin % 64));
            }
        }
        self.set_free_behind(start, false);
        size
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Mapping;
    use super::*;
    use crate::device::Cpu;
    use proptest::prelude::*;

    impl Granules {
        /// Recounts everything from scratch: blocks tile the arena, no two free ones touch, the bins hold exactly the free
        /// ones, and the sums over the used ones are the counts.
        pub(in super::super) fn check(&self, total: u32) {
            let mut binned = std::collections::HashSet::new();
            for (bin, &first) in self.heads.iter().enumerate() {
                assert_eq!(first != NONE, self.filled[bin / 64] >> (bin % 64) & 1 == 1);
                let (mut at, mut before) = (first, NONE);
                while at != NONE {
                    assert_eq!((bin_of(self.head(at, Head::Size)), self.head(at, Head::Before)), (bin, before));
                    assert!(binned.insert(at));
                    (before, at) = (at, self.head(at, Head::After));
                }
            }
            let (mut end, mut free_behind, mut used, mut records) = (total, false, 0, 0);
            while end > 0 {
                if let Some(start) = self.withdrawn.start_of(end) {
                    assert!(start >= self.fence, "withdrawn before the fence");
                    // Behind it may be a free block that is still to be withdrawn.
                    (end, free_behind) = (start, false);
                    continue;
                }
                assert_eq!(self.is_free_behind(end), free_behind);
                let (start, free) = self.block_before(end);
                let size = end - start;
                end = start;
                if free {
                    assert!(!free_behind, "two free blocks touch");
                    assert!(binned.remove(&end));
                    assert_eq!(self.head(end, Head::Size), size);
                } else {
                    used += size;
                    records += 1;
                }
                free_behind = free;
            }
            assert_eq!((self.first_free, used, records), (free_behind, self.used, self.records));
            assert!(binned.is_empty());
        }
    }

    /// Books for `total` granules, and the memory they lie in.
    pub(in super::super) fn books(total: u32) -> (Granules, Mapping) {
        let memory = Mapping::new(u64::from(total) * GRANULE_BYTES, &Cpu, "a test", "").unwrap();
        // SAFETY: the memory is new, and has no slots but these books'.
        (unsafe { Granules::new(Words::new(&memory), total) }, memory)
    }

    /// The longest record of `size` granules.
    fn longest(size: u32) -> u32 {
        size * GRANULE_BYTES as u32 - TAG_BYTES as u32
    }

    #[test]
    fn a_bins_smallest_size_rounds_to_itself_and_bins_grow() {
        let mut last = 0;
        for size in (1..5000).chain([1 << 20, (1 << 20) + 1, u32::MAX >> 1, u32::MAX - 2]) {
            let bin = bin_of(size);
            assert!(bin >= last && bin < BINS, "{size}");
            last = bin;
        }
        assert_eq!((bin_of(7), bin_of(8), bin_of(15), bin_of(16), bin_of(17), bin_of(18)), (7, 8, 15, 16, 16, 17));
    }

    #[test]
    fn a_full_arena_of_equal_odd_sizes_reuses_every_hole() {
        // 49 lies strictly inside a bin: allocators that round the request up lose such holes for ever.
        let (mut books, _memory) = books(49 * 100);
        let mut held: Vec<u32> = (0..100).map(|_| books.allocate(longest(49)).unwrap()).collect();
        assert!(books.allocate(0).is_none());
        for round in 0..1000 {
            let victim = held.swap_remove((round * 37) % held.len());
            books.unpin(victim);
            held.push(books.allocate(longest(49)).expect("the hole just made"));
        }
        books.check(49 * 100);
    }

    proptest! {
        #[test]
        fn the_largest_free_block_is_known_to_an_eighth(sizes in proptest::collection::vec(1u32..300, 1..60), keep in any::<u64>()) {
            let total: u32 = sizes.iter().sum();
            let (mut books, _memory) = books(total);
            prop_assert_eq!(books.large_free(), total);
            let held: Vec<u32> = sizes.iter().map(|&size| books.allocate(longest(size)).unwrap()).collect();
            prop_assert_eq!(books.large_free(), 0);
            let freed: Vec<bool> = (0..held.len()).map(|k| keep >> (k % 64) & 1 == 0).collect();
            for (block, _) in held.iter().zip(&freed).filter(|(_, freed)| **freed) {
                books.unpin(*block);
            }
            // Neighbours that are free are one block.
            let (mut run, mut largest) = (0, 0);
            for (size, freed) in sizes.iter().zip(&freed) {
                run = if *freed { run + size } else { 0 };
                largest = largest.max(run);
            }
            let said = books.large_free();
            prop_assert!(said <= largest && f64::from(largest) <= f64::from(said) * 1.125 + 1.0, "{} for {}", said, largest);
        }

        #[test]
        fn random_use_agrees_with_a_plain_list_of_ranges(
            total in 1u32..600,
            steps in proptest::collection::vec((0..8u8, 0u32..5800, any::<prop::sample::Index>()), 1..300),
        ) {
            let (mut books, _memory) = books(total);
            // Where each ends, its granules, and how many references it has.
            let mut held: Vec<(u32, u32, u32)> = Vec::new();
            for (what, bytes, pick) in steps {
                match what {
                    0..4 => match books.allocate(bytes) {
                        Some(end) => {
                            let size = granules(bytes);
                            prop_assert!(size <= end && end <= total);
                            prop_assert!(held.iter().all(|&(e, s, _)| end <= e - s || e <= end - size));
                            held.push((end, size, 1));
                        }
                        None => prop_assert!(!whole_bin_free(&held, total, granules(bytes)), "refused although a far larger hole exists"),
                    },
                    _ if held.is_empty() => {}
                    4 => {
                        let at = pick.index(held.len());
                        books.pin(held[at].0);
                        held[at].2 += 1;
                    }
                    _ => {
                        let at = pick.index(held.len());
                        books.unpin(held[at].0);
                        held[at].2 -= 1;
                        held.retain(|h| h.2 > 0);
                    }
                }
                prop_assert_eq!(books.used(), held.iter().map(|h| h.1).sum::<u32>());
                prop_assert_eq!(books.records() as usize, held.len());
            }
            books.check(total);
            for (end, _, references) in held {
                (0..references).for_each(|_| books.unpin(end));
            }
            books.check(total);
            prop_assert!(books.allocate(longest(total)).is_some(), "all free again, in one piece");
        }
    }

    #[test]
    fn a_record_with_more_references_than_can_be_counted_is_never_freed() {
        let (mut books, _memory) = books(4);
        let end = books.allocate(0).unwrap();
        (0..2 * u32::from(u16::MAX)).for_each(|_| books.pin(end));
        (0..=2 * u32::from(u16::MAX)).for_each(|_| books.unpin(end));
        assert_eq!((books.used(), books.records()), (1, 1));
        books.check(4);
    }

    /// Whether the naive view has a hole so large that bins cannot hide it (more than one bin above `size`).
    fn whole_bin_free(held: &[(u32, u32, u32)], total: u32, size: u32) -> bool {
        let mut ends: Vec<(u32, u32)> = held.iter().map(|&(e, s, _)| (e - s, e)).collect();
        ends.push((total, total));
        ends.sort_unstable();
        let mut at = 0;
        ends.into_iter().any(|(from, to)| {
            let hole = from - at;
            at = to;
            hole >= size && bin_of(hole) > bin_of(size)
        })
    }
}
