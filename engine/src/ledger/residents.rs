//! Which samples are resident, and each one's bytes.

use crate::types::SampleId;

/// A bit a sample, and 4 bytes a sample only once two samples differ in size: a dataset of equal samples pays nothing
/// for being counted in bytes.
pub(super) struct Residents {
    bits: Vec<u64>,
    samples: usize,
    count: usize,
    sizes: Sizes,
}

enum Sizes {
    /// Every sample met so far takes this much (0 before the first).
    Equal(u32),
    /// By id; only residents' entries mean anything.
    Each(Vec<u32>),
}

impl Residents {
    pub(super) fn new(samples: usize) -> Self {
        Self { bits: vec![0; samples.div_ceil(64)], samples, count: 0, sizes: Sizes::Equal(0) }
    }
    #[inline]
    pub(super) fn contains(&self, id: SampleId) -> bool {
        self.bits[id as usize / 64] >> (id % 64) & 1 == 1
    }
    pub(super) fn count(&self) -> usize {
        self.count
    }
    /// Bytes of `id`, resident or just removed.
    #[inline]
    pub(super) fn bytes(&self, id: SampleId) -> u64 {
        u64::from(match &self.sizes {
            Sizes::Equal(bytes) => *bytes,
            Sizes::Each(bytes) => bytes[id as usize],
        })
    }
    #[inline]
    pub(super) fn insert(&mut self, id: SampleId, bytes: u32) {
        match &mut self.sizes {
            Sizes::Each(sizes) => sizes[id as usize] = bytes,
            Sizes::Equal(all) if *all == bytes => {}
            Sizes::Equal(all) if self.count == 0 => *all = bytes,
            Sizes::Equal(all) => {
                let mut sizes = vec![*all; self.samples];
                sizes[id as usize] = bytes;
                self.sizes = Sizes::Each(sizes);
            }
        }
        self.restore(id);
    }
    /// Undoes [`Residents::remove`]: the size of `id` is still known.
    pub(super) fn restore(&mut self, id: SampleId) {
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
    pub(super) fn prefetch(&self, ids: &[SampleId]) {
        std::hint::black_box(ids.iter().fold(0, |all, &id| all ^ self.bits[id as usize / 64]));
    }
    pub(super) fn metadata_bytes(&self) -> usize {
        let sizes = match &self.sizes {
            Sizes::Equal(_) => 0,
            Sizes::Each(sizes) => sizes.capacity() * 4,
        };
        self.bits.capacity() * 8 + sizes
    }
}
