//! Belady's MIN with bypass: the bound that no policy beats on a known order.

use super::{Policy, check_members};
use crate::index::{PriorityQueue, ScoreTable};
use crate::types::SampleId;

/// No further use is planned.
const NEVER: u32 = u32::MAX;

/// Evicts the resident whose next planned use is farthest away, and lets a candidate through that is needed later than
/// every resident (or never again). Optimal in hits for samples of equal size when [`Policy::plan`] tells the whole
/// future; with an epoch planned at a time it knows no further than that.
///
/// 8 bytes a sample, 8 a resident and 4 a planned access. Accesses may stray from the plan: each one uses up the next
/// planned use of its id, if there is one.
#[derive(Debug)]
pub struct Belady {
    /// The next planned use, by id; a position in the plan.
    next_use: Vec<u32>,
    /// The planned use of the same id after this one, by position in the plan.
    after: Vec<u32>,
    /// Keyed so that the least is the farthest: the complement of the next use. NEVER comes first.
    residents: PriorityQueue<u32>,
}

impl Belady {
    /// No residents and no plan; ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self { next_use: vec![NEVER; samples], after: Vec::new(), residents: PriorityQueue::new(samples) }
    }
}

impl Policy for Belady {
    fn name(&self) -> &'static str {
        "belady"
    }
    fn access(&mut self, id: SampleId, resident: bool) {
        let next = &mut self.next_use[id as usize];
        if *next != NEVER {
            *next = self.after[*next as usize];
            if resident {
                self.residents.update(id, !*next);
            }
        }
    }
    fn victim(&mut self, candidate: SampleId, _scores: &ScoreTable) -> Option<SampleId> {
        let (farthest, key) = self.residents.peek()?;
        if self.next_use[candidate as usize] >= !key {
            return None;
        }
        self.residents.remove(farthest);
        Some(farthest)
    }
    fn insert(&mut self, id: SampleId, _scores: &ScoreTable) {
        self.residents.insert(id, !self.next_use[id as usize]);
    }
    fn remove(&mut self, id: SampleId) {
        self.residents.remove(id);
    }
    fn plan(&mut self, order: &[SampleId]) {
        self.next_use.fill(NEVER);
        self.after.clear();
        self.after.resize(order.len(), NEVER);
        // Backwards: what was met last lies nearest in the future.
        for (position, &id) in order.iter().enumerate().rev() {
            self.after[position] = std::mem::replace(&mut self.next_use[id as usize], position as u32);
        }
        let next_use = &self.next_use;
        self.residents.rekey(|id| !next_use[id as usize]);
    }
    fn prefetch(&self, ids: &[SampleId]) {
        std::hint::black_box(ids.iter().fold(0, |all, &id| all ^ self.next_use[id as usize]));
        self.residents.prefetch(ids);
    }
    fn metadata_bytes(&self) -> usize {
        (self.next_use.capacity() + self.after.capacity()) * 4 + self.residents.metadata_bytes()
    }
    fn check(&self, resident: &dyn Fn(SampleId) -> bool, count: usize) -> Result<(), String> {
        self.residents.check()?;
        for id in self.residents.ids() {
            if self.residents.key(id) != Some(!self.next_use[id as usize]) {
                return Err(format!("resident {id} is not keyed by its next use"));
            }
        }
        check_members(self.residents.ids(), resident, count)
    }
}
