//! A set of samples that finds the next one from any id on.

use crate::types::SampleId;

/// A bit a sample, and above every 64 of those words a word that says which of them have any: the way to the next
/// member looks at a word in 4,096 samples at most, however few members there are.
#[derive(Debug, Clone)]
pub(crate) struct IdSet {
    words: Vec<u64>,
    /// Which words have a member, a bit each.
    some: Vec<u64>,
    count: usize,
}

impl IdSet {
    /// None of the samples `0..samples`.
    pub(crate) fn new(samples: usize) -> Self {
        let words = samples.div_ceil(64);
        Self { words: vec![0; words], some: vec![0; words.div_ceil(64)], count: 0 }
    }
    #[inline]
    pub(crate) fn contains(&self, id: SampleId) -> bool {
        self.words[id as usize / 64] >> (id % 64) & 1 == 1
    }
    /// Adds `id`, which must be outside.
    #[inline]
    pub(crate) fn insert(&mut self, id: SampleId) {
        let word = id as usize / 64;
        self.words[word] |= 1 << (id % 64);
        self.some[word / 64] |= 1 << (word % 64);
        self.count += 1;
    }
    /// Takes out `id`, which must be inside.
    pub(crate) fn remove(&mut self, id: SampleId) {
        let word = id as usize / 64;
        self.words[word] &= !(1 << (id % 64));
        if self.words[word] == 0 {
            self.some[word / 64] &= !(1 << (word % 64));
        }
        self.count -= 1;
    }
    /// Takes all out: looks at a word in 4,096 samples, and at 64 where there are members.
    pub(crate) fn clear(&mut self) {
        for (some, words) in self.some.iter_mut().zip(self.words.chunks_mut(64)) {
            if std::mem::take(some) != 0 {
                words.fill(0);
            }
        }
        self.count = 0;
    }
    /// The first member that is `from` or above, or the least one if there is none above.
    pub(crate) fn next(&self, from: SampleId) -> Option<SampleId> {
        if self.count == 0 {
            return None;
        }
        self.from(from as usize).or_else(|| self.from(0))
    }
    fn from(&self, id: usize) -> Option<SampleId> {
        let here = first(&self.words, id / 64, 1, !0 << (id % 64));
        here.or_else(|| {
            let word = id / 64 + 1;
            let word = first(&self.some, word / 64, usize::MAX, !0 << (word % 64))?;
            first(&self.words, word as usize, 1, !0)
        })
    }
    /// The members, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = SampleId> + '_ {
        let after = |id: &SampleId| self.from(*id as usize + 1);
        std::iter::successors(self.from(0), after)
    }
    /// Heap bytes held.
    pub(crate) fn metadata_bytes(&self) -> usize {
        (self.words.capacity() + self.some.capacity()) * 8
    }
}

/// The first bit that is set in `words` from word `start` on, of which only the bits of `mask` count, looking at `most`
/// words.
fn first(words: &[u64], start: usize, most: usize, mask: u64) -> Option<u32> {
    let masked = |(k, &bits): (usize, &u64)| (start + k, if k == 0 { bits & mask } else { bits });
    let mut found = words.get(start..)?.iter().take(most).enumerate().map(masked);
    found.find(|&(_, bits)| bits != 0).map(|(word, bits)| word as u32 * 64 + bits.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Sizes around the edges of words and of words of words; dense, sparse and empty.
    #[test]
    fn it_is_a_sorted_set() {
        let mut state = 3u64;
        for samples in [1, 63, 64, 65, 4095, 4096, 4097, 20_000] {
            let (mut set, mut naive) = (IdSet::new(samples), BTreeSet::new());
            for step in 0..3_000u32 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let id = ((state >> 33) % samples as u64) as SampleId;
                // Fills, then empties.
                let leave = naive.contains(&id) || (step > 1_500 && !naive.is_empty());
                let leaver = naive.range(id..).next().or(naive.first()).copied();
                match leaver.filter(|_| leave) {
                    Some(id) => {
                        assert!(set.contains(id) && naive.remove(&id));
                        set.remove(id);
                    }
                    None => {
                        assert!(!set.contains(id));
                        naive.insert(id);
                        set.insert(id);
                    }
                }
                let from = (state >> 13) as u32 % (samples as u32 + 70);
                assert_eq!(set.next(from), naive.range(from..).next().or(naive.first()).copied(), "{samples} {step}");
            }
            assert!(set.iter().eq(naive.iter().copied()));
            set.clear();
            assert!((0..samples as u32).all(|id| !set.contains(id)) && set.next(0).is_none());
            set.insert(samples as u32 - 1);
            assert!(set.iter().eq([samples as u32 - 1]));
        }
    }
}
