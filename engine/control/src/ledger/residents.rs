//! Which samples are resident.

use crate::types::SampleId;

/// A bit a sample.
pub(super) struct Residents {
    bits: Vec<u64>,
    count: usize,
}

impl Residents {
    pub(super) fn new(samples: usize) -> Self {
        Self { bits: vec![0; samples.div_ceil(64)], count: 0 }
    }
    #[inline]
    pub(super) fn contains(&self, id: SampleId) -> bool {
        self.bits[id as usize / 64] >> (id % 64) & 1 == 1
    }
    pub(super) fn count(&self) -> usize {
        self.count
    }
    #[inline]
    pub(super) fn insert(&mut self, id: SampleId) {
        self.bits[id as usize / 64] |= 1 << (id % 64);
        self.count += 1;
    }
    #[inline]
    pub(super) fn remove(&mut self, id: SampleId) {
        self.bits[id as usize / 64] &= !(1 << (id % 64));
        self.count -= 1;
    }
    pub(super) fn iter(&self) -> impl Iterator<Item = SampleId> + '_ {
        self.bits.iter().enumerate().flat_map(|(word, &bits)| {
            std::iter::successors((bits != 0).then_some(bits), |b| Some(b & (b - 1)).filter(|b| *b != 0))
                .map(move |b| (word * 64) as u32 + b.trailing_zeros())
        })
    }
    pub(super) fn words(&self, words: std::ops::Range<usize>) -> &[u64] {
        &self.bits[words]
    }
    pub(super) fn prefetch(&self, ids: &[SampleId]) {
        std::hint::black_box(ids.iter().fold(0, |all, &id| all ^ self.bits[id as usize / 64]));
    }
    pub(super) fn metadata_bytes(&self) -> usize {
        self.bits.capacity() * 8
    }
}
