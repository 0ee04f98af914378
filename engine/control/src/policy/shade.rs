//! SHADE's adaptive priority policy (Khan et al., FAST'23, Algorithm 1).

use super::{Policy, check_members};
use crate::index::{PriorityQueue, ScoreTable};
use crate::types::SampleId;

/// Keeps the samples with the highest scores. A sample enters a full cache only if it was scored before and its score
/// (remembered in the score table, the *ghost*) is at least the least resident's, by (score, id).
///
/// As the paper has it: ≥, not the authors' code's strict > on (score, frequency), so an equal newcomer enters. A sample
/// that enters an empty place unseen starts at 0. 4 bytes a sample and 8 a resident.
#[derive(Debug)]
pub struct Shade {
    residents: PriorityQueue,
}

impl Shade {
    /// No residents; ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self { residents: PriorityQueue::new(samples) }
    }
}

impl Policy for Shade {
    fn name(&self) -> &'static str {
        "shade"
    }
    fn access(&mut self, _id: SampleId, _resident: bool) {}
    fn victim(&mut self, candidate: SampleId, scores: &ScoreTable) -> Option<SampleId> {
        let score = scores.importance(candidate)?;
        let (id, least) = self.residents.peek()?;
        if score < least {
            return None;
        }
        self.residents.remove(id);
        Some(id)
    }
    fn insert(&mut self, id: SampleId, scores: &ScoreTable) {
        self.residents.insert(id, scores.importance(id).unwrap_or(0.0));
    }
    fn remove(&mut self, id: SampleId) {
        self.residents.remove(id);
    }
    fn rescore(&mut self, id: SampleId, importance: f32) {
        self.residents.update(id, importance);
    }
    fn prefetch(&self, ids: &[SampleId]) {
        self.residents.prefetch(ids);
    }
    fn metadata_bytes(&self) -> usize {
        self.residents.metadata_bytes()
    }
    fn check(&self, resident: &dyn Fn(SampleId) -> bool, count: usize) -> Result<(), String> {
        self.residents.check()?;
        check_members(self.residents.ids(), resident, count)
    }
}
