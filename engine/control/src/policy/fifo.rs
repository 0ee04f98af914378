//! First in, first out.

use super::list::List;
use super::{Policy, check_members};
use crate::index::ScoreTable;
use crate::types::SampleId;

/// Evicts the resident that was admitted first, however often it was used since. 8 bytes a sample.
#[derive(Debug)]
pub struct Fifo {
    arrivals: List,
}

impl Fifo {
    /// No residents; ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self { arrivals: List::new(samples) }
    }
}

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }
    fn access(&mut self, _id: SampleId, _resident: bool) {}
    fn victim(&mut self, _candidate: SampleId, _scores: &ScoreTable) -> Option<SampleId> {
        self.arrivals.pop_oldest()
    }
    fn insert(&mut self, id: SampleId, _scores: &ScoreTable) {
        self.arrivals.push_newest(id);
    }
    fn remove(&mut self, id: SampleId) {
        self.arrivals.remove(id);
    }
    fn prefetch(&self, ids: &[SampleId]) {
        self.arrivals.prefetch(ids);
    }
    fn metadata_bytes(&self) -> usize {
        self.arrivals.metadata_bytes()
    }
    fn check(&self, resident: &dyn Fn(SampleId) -> bool, count: usize) -> Result<(), String> {
        check_members(self.arrivals.iter(), resident, count)
    }
}
