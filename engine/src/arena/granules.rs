//! Where a slot lies: offsets and sizes in granules, no memory touched.
//!
//! Segregated fits with immediate coalescing (after TLSF: Masmano, Ripoll, Crespo and Real 2004): free blocks hang in
//! bins whose sizes follow a small float (3 bits of mantissa, so a bin spans 12.5 %). Allocation looks first at a few
//! blocks of the bin its size *rounds down* to, then takes the head of any higher bin, where every block fits.
//!
//! The look into the rounded-down bin is the departure from allocators that only round up, and the reason this is not a
//! crate: in a cache of equal samples every hole has exactly the size of the next request, and a search that starts one
//! bin higher never finds it again unless the size happens to be a bin's own.

const MANTISSA_BITS: u32 = 3;
const BINS: usize = 256;
/// How many blocks of the rounded-down bin are looked at before a larger one is split.
const SCAN: usize = 16;

const NONE: u32 = u32::MAX;
/// In `Block::prev`: the block is handed out and in no bin.
const USED: u32 = u32::MAX - 1;

#[derive(Debug, Clone, Copy)]
struct Block {
    offset: u32,
    size: u32,
    /// Neighbours by address.
    before: u32,
    after: u32,
    /// Neighbours in the bin.
    prev: u32,
    next: u32,
}

/// The books of an arena: 24 bytes a block.
#[derive(Debug)]
pub(super) struct Granules {
    blocks: Vec<Block>,
    /// Indices of `blocks` that describe nothing now.
    spare: Vec<u32>,
    heads: [u32; BINS],
    /// One bit a bin: it has blocks.
    filled: [u64; BINS / 64],
    used: u32,
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
    /// Books for `total` granules, all free.
    pub(super) fn new(total: u32) -> Self {
        let mut books =
            Self { blocks: Vec::new(), spare: Vec::new(), heads: [NONE; BINS], filled: [0; BINS / 64], used: 0 };
        if total > 0 {
            let all =
                books.describe(Block { offset: 0, size: total, before: NONE, after: NONE, prev: NONE, next: NONE });
            books.link(all);
        }
        books
    }

    /// Granules handed out.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Size of a free block of the highest bin that has one: no free block is more than an eighth larger.
    pub(super) fn large_free(&self) -> u32 {
        let word = (0..self.filled.len()).rev().find(|&word| self.filled[word] != 0);
        let bin = word.map(|word| 64 * word + 63 - self.filled[word].leading_zeros() as usize);
        bin.map_or(0, |bin| self.blocks[self.heads[bin] as usize].size)
    }

    /// Hands out `size` (> 0) contiguous granules: (block, offset), or `None` if no free block is large enough.
    pub(super) fn allocate(&mut self, size: u32) -> Option<(u32, u32)> {
        debug_assert!(size > 0);
        let found = self.find(size)?;
        self.unlink(found);
        let Block { offset, size: had, after, .. } = self.blocks[found as usize];
        if had > size {
            let rest = self.describe(Block {
                offset: offset + size,
                size: had - size,
                before: found,
                after,
                prev: NONE,
                next: NONE,
            });
            if after != NONE {
                self.blocks[after as usize].before = rest;
            }
            self.blocks[found as usize].after = rest;
            self.blocks[found as usize].size = size;
            self.link(rest);
        }
        self.blocks[found as usize].prev = USED;
        self.used += size;
        Some((found, offset))
    }

    /// Takes back a block that [`Self::allocate`] handed out.
    pub(super) fn free(&mut self, block: u32) {
        debug_assert_eq!(self.blocks[block as usize].prev, USED);
        self.used -= self.blocks[block as usize].size;
        let Block { before, after, .. } = self.blocks[block as usize];
        if after != NONE && self.blocks[after as usize].prev != USED {
            self.unlink(after);
            let gone = self.blocks[after as usize];
            let kept = &mut self.blocks[block as usize];
            kept.size += gone.size;
            kept.after = gone.after;
            if gone.after != NONE {
                self.blocks[gone.after as usize].before = block;
            }
            self.spare.push(after);
        }
        if before != NONE && self.blocks[before as usize].prev != USED {
            self.unlink(before);
            let gone = self.blocks[before as usize];
            let kept = &mut self.blocks[block as usize];
            kept.offset = gone.offset;
            kept.size += gone.size;
            kept.before = gone.before;
            if gone.before != NONE {
                self.blocks[gone.before as usize].after = block;
            }
            self.spare.push(before);
        }
        self.link(block);
    }

    fn find(&self, size: u32) -> Option<u32> {
        let bin = bin_of(size);
        let mut at = self.heads[bin];
        for _ in 0..SCAN {
            if at == NONE {
                break;
            }
            let block = &self.blocks[at as usize];
            if block.size >= size {
                return Some(at);
            }
            at = block.next;
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

    fn describe(&mut self, block: Block) -> u32 {
        match self.spare.pop() {
            Some(index) => {
                self.blocks[index as usize] = block;
                index
            }
            None => {
                // Fits: there are at most `total` blocks and `total` is below `USED`.
                self.blocks.push(block);
                (self.blocks.len() - 1) as u32
            }
        }
    }

    fn link(&mut self, index: u32) {
        let bin = bin_of(self.blocks[index as usize].size);
        let head = self.heads[bin];
        if head != NONE {
            self.blocks[head as usize].prev = index;
        }
        let block = &mut self.blocks[index as usize];
        (block.prev, block.next) = (NONE, head);
        self.heads[bin] = index;
        self.filled[bin / 64] |= 1 << (bin % 64);
    }

    fn unlink(&mut self, index: u32) {
        let Block { prev, next, size, .. } = self.blocks[index as usize];
        if next != NONE {
            self.blocks[next as usize].prev = prev;
        }
        if prev != NONE {
            self.blocks[prev as usize].next = next;
        } else {
            let bin = bin_of(size);
            self.heads[bin] = next;
            if next == NONE {
                self.filled[bin / 64] &= !(1 << (bin % 64));
            }
        }
    }

    /// Recounts everything from scratch: blocks tile the arena, no two free ones touch, the bins hold exactly the free
    /// ones, and the sum of the used ones is the count.
    #[cfg(test)]
    pub(super) fn check(&self, total: u32) {
        let mut binned = vec![false; self.blocks.len()];
        for (bin, &head) in self.heads.iter().enumerate() {
            assert_eq!(head != NONE, self.filled[bin / 64] >> (bin % 64) & 1 == 1);
            let (mut at, mut prev) = (head, NONE);
            while at != NONE {
                let block = &self.blocks[at as usize];
                assert_eq!((bin_of(block.size), block.prev), (bin, prev));
                binned[at as usize] = true;
                (prev, at) = (at, block.next);
            }
        }
        let spare: std::collections::HashSet<u32> = self.spare.iter().copied().collect();
        let mut at = (0..self.blocks.len() as u32)
            .find(|i| !spare.contains(i) && self.blocks[*i as usize].before == NONE)
            .unwrap_or(NONE);
        let (mut offset, mut used, mut count, mut before, mut free_before) = (0, 0, 0, NONE, false);
        while at != NONE {
            let block = &self.blocks[at as usize];
            assert_eq!((block.offset, block.before), (offset, before));
            let free = block.prev != USED;
            assert_eq!(free, binned[at as usize]);
            assert!(!(free && free_before), "two free blocks touch");
            used += if free { 0 } else { block.size };
            offset += block.size;
            count += 1;
            (before, free_before, at) = (at, free, block.after);
        }
        assert_eq!((offset, used), (total, self.used));
        assert_eq!(count + spare.len(), self.blocks.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        let mut books = Granules::new(49 * 100);
        let mut held: Vec<u32> = (0..100).map(|_| books.allocate(49).unwrap().0).collect();
        assert!(books.allocate(1).is_none());
        for round in 0..1000 {
            let victim = held.swap_remove((round * 37) % held.len());
            books.free(victim);
            held.push(books.allocate(49).expect("the hole just made").0);
        }
        books.check(49 * 100);
    }

    proptest! {
        #[test]
        fn the_largest_free_block_is_known_to_an_eighth(sizes in proptest::collection::vec(1u32..300, 1..60), keep in any::<u64>()) {
            let total: u32 = sizes.iter().sum();
            let mut books = Granules::new(total);
            prop_assert_eq!(books.large_free(), total);
            let held: Vec<u32> = sizes.iter().map(|&size| books.allocate(size).unwrap().0).collect();
            prop_assert_eq!(books.large_free(), 0);
            let freed: Vec<bool> = (0..held.len()).map(|k| keep >> (k % 64) & 1 == 0).collect();
            for (block, _) in held.iter().zip(&freed).filter(|(_, freed)| **freed) {
                books.free(*block);
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
            steps in proptest::collection::vec((any::<bool>(), 1u32..90, any::<prop::sample::Index>()), 1..300),
        ) {
            let mut books = Granules::new(total);
            let mut held: Vec<(u32, u32, u32)> = Vec::new();
            for (give, size, pick) in steps {
                if give || held.is_empty() {
                    match books.allocate(size) {
                        Some((block, offset)) => {
                            prop_assert!(offset + size <= total);
                            prop_assert!(held.iter().all(|&(_, o, s)| offset + size <= o || o + s <= offset));
                            held.push((block, offset, size));
                        }
                        None => prop_assert!(!whole_bin_free(&held, total, size), "refused although a far larger hole exists"),
                    }
                } else {
                    let (block, _, _) = held.swap_remove(pick.index(held.len()));
                    books.free(block);
                }
                prop_assert_eq!(books.used(), held.iter().map(|h| h.2).sum::<u32>());
            }
            books.check(total);
            for (block, _, _) in held {
                books.free(block);
            }
            books.check(total);
            prop_assert!(books.allocate(total).is_some(), "all free again, in one piece");
        }
    }

    /// Whether the naive view has a hole so large that bins cannot hide it (more than one bin above `size`).
    fn whole_bin_free(held: &[(u32, u32, u32)], total: u32, size: u32) -> bool {
        let mut ends: Vec<(u32, u32)> = held.iter().map(|&(_, o, s)| (o, o + s)).collect();
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
