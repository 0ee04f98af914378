//! Which samples are resident.

use crate::types::SampleId;

/// The set of samples that are in the cache: a bit a sample, and their number.
#[derive(Debug, Clone)]
pub struct Residents {
    bits: Vec<u64>,
    count: usize,
}

impl Residents {
    /// None of the samples `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self { bits: vec![0; samples.div_ceil(64)], count: 0 }
    }
    /// Whether `id` is resident.
    #[inline]
    pub fn contains(&self, id: SampleId) -> bool {
        self.bits[id as usize / 64] >> (id % 64) & 1 == 1
    }
    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }
    /// Adds `id`, which must be outside.
    #[inline]
    pub(crate) fn insert(&mut self, id: SampleId) {
        self.bits[id as usize / 64] |= 1 << (id % 64);
        self.count += 1;
    }
    /// Takes out `id`, which must be inside.
    #[inline]
    pub(crate) fn remove(&mut self, id: SampleId) {
        self.bits[id as usize / 64] &= !(1 << (id % 64));
        self.count -= 1;
    }
    /// Some words of the set: a bit a sample, the lowest id in the lowest bit.
    pub(crate) fn words(&self, words: std::ops::Range<usize>) -> &[u64] {
        &self.bits[words]
    }
    /// The residents, ascending.
    pub fn iter(&self) -> impl Iterator<Item = SampleId> + '_ {
        self.bits.iter().enumerate().flat_map(|(word, &bits)| {
            std::iter::successors((bits != 0).then_some(bits), |b| Some(b & (b - 1)).filter(|b| *b != 0))
                .map(move |b| (word * 64) as u32 + b.trailing_zeros())
        })
    }
    /// The first resident that is `from` or above, or below it if there is none above.
    pub fn next(&self, from: SampleId) -> Option<SampleId> {
        let words = self.bits.len();
        let (first, below) = (from as usize / 64, (1u64 << (from % 64)) - 1);
        if first >= words {
            return self.iter().next();
        }
        let masked = |step: usize| match step {
            0 => self.bits[first] & !below,
            step if step == words => self.bits[first] & below,
            step => self.bits[(first + step) % words],
        };
        let found = (0..=words).map(|step| ((first + step) % words, masked(step))).find(|&(_, bits)| bits != 0);
        found.map(|(word, bits)| (word * 64) as u32 + bits.trailing_zeros())
    }
    /// See [`Ledger::prefetch`](crate::ledger::Ledger::prefetch).
    pub(crate) fn prefetch(&self, ids: &[SampleId]) {
        std::hint::black_box(ids.iter().fold(0, |all, &id| all ^ self.bits[id as usize / 64]));
    }
    /// Heap bytes held.
    pub fn metadata_bytes(&self) -> usize {
        self.bits.capacity() * 8
    }
}
