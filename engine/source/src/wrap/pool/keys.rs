//! The keys of a source's samples in the pool, and which of them the server had.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sha2::{Digest, Sha256};

use super::value::Key;
use crate::sample::Source;
use crate::types::SampleId;

/// See the module's head.
pub(super) struct Keys {
    source: Arc<dyn Source>,
    place: [u8; 32],
    /// A bit a sample: the server had it when it was asked or written last.
    there: Box<[AtomicU64]>,
}

impl Keys {
    /// `place` is a digest of the store: it tells names apart that are equal in two stores.
    pub(super) fn new(source: Arc<dyn Source>, place: [u8; 32]) -> Self {
        let there = (0..source.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { source, place, there }
    }

    pub(super) fn of(&self, id: SampleId) -> Option<Key> {
        let mut digest = Sha256::new();
        digest.update(self.place);
        digest.update(self.source.proof(id)?);
        digest.finalize().first_chunk().copied()
    }

    pub(super) fn has(&self, id: SampleId) -> bool {
        self.there.get(id as usize / 64).is_some_and(|word| word.load(Relaxed) >> (id % 64) & 1 == 1)
    }

    pub(super) fn set(&self, id: SampleId, there: bool) {
        if let Some(word) = self.there.get(id as usize / 64) {
            let bit = 1 << (id % 64);
            if there {
                word.fetch_or(bit, Relaxed)
            } else {
                word.fetch_and(!bit, Relaxed)
            };
        }
    }
}
