//! Least recently used: the baseline that a fresh permutation every epoch defeats.

use super::list::List;
use super::{Policy, check_members};
use crate::index::ScoreTable;
use crate::types::SampleId;

/// Evicts the resident whose last use is longest ago. 8 bytes a sample.
///
/// With one fresh permutation an epoch and room for a fraction c of the data it hits c + (1−c)·ln(1−c) of the accesses:
/// 2 % at a fifth. It is here to be compared with.
#[derive(Debug)]
pub struct Lru {
    uses: List,
}

impl Lru {
    /// No residents; ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self { uses: List::new(samples) }
    }
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }
    fn access(&mut self, id: SampleId, resident: bool) {
        if resident {
            self.uses.remove(id);
            self.uses.push_newest(id);
        }
    }
    fn victim(&mut self, _candidate: SampleId, _scores: &ScoreTable) -> Option<SampleId> {
        self.uses.pop_oldest()
    }
    fn insert(&mut self, id: SampleId, _scores: &ScoreTable) {
        self.uses.push_newest(id);
    }
    fn remove(&mut self, id: SampleId) {
        self.uses.remove(id);
    }
    fn prefetch(&self, ids: &[SampleId]) {
        self.uses.prefetch(ids);
    }
    fn metadata_bytes(&self) -> usize {
        self.uses.metadata_bytes()
    }
    fn check(&self, resident: &dyn Fn(SampleId) -> bool, count: usize) -> Result<(), String> {
        check_members(self.uses.iter(), resident, count)
    }
}
