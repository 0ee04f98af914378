//! What each sample takes in the cache.

use crate::types::SampleId;

/// The size of every sample that has come by, in bytes. Nothing while all of them are equal, 4 bytes a sample
/// otherwise.
///
/// A size is kept after its sample has left the cache: a sample has one size, and policies remember samples that are
/// gone.
#[derive(Debug, Clone)]
pub struct Sizes {
    samples: usize,
    /// The first size that was learned.
    common: Option<u32>,
    /// By id, what differs from `common`: their exclusive or. So zeros mean equal, and a list of zeros costs no time to
    /// make.
    differences: Vec<u32>,
}

impl Sizes {
    /// No size is known of the samples `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self { samples, common: None, differences: Vec::new() }
    }
    /// `id` takes `bytes`.
    #[inline]
    pub fn learn(&mut self, id: SampleId, bytes: u32) {
        let difference = bytes ^ *self.common.get_or_insert(bytes);
        if difference != 0 && self.differences.is_empty() {
            self.differences = vec![0; self.samples];
        }
        if let Some(kept) = self.differences.get_mut(id as usize) {
            *kept = difference;
        }
    }
    /// What `id` takes. Means nothing for a sample that has not come by.
    #[inline]
    pub fn bytes(&self, id: SampleId) -> u64 {
        u64::from(self.common.unwrap_or(0) ^ self.differences.get(id as usize).copied().unwrap_or(0))
    }
    /// See [`Ledger::prefetch`](crate::ledger::Ledger::prefetch).
    pub(crate) fn prefetch(&self, ids: &[SampleId]) {
        if !self.differences.is_empty() {
            std::hint::black_box(ids.iter().fold(0, |all, &id| all ^ self.differences[id as usize]));
        }
    }
    /// Heap bytes held.
    pub fn metadata_bytes(&self) -> usize {
        self.differences.capacity() * 4
    }
}
