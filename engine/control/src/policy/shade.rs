//! SHADE's adaptive priority policy (Khan et al., FAST'23, Algorithm 1).

use super::{Entry, Needs, Policy, Suits, View, check_members, take_least};
use crate::index::PriorityQueue;
use crate::types::SampleId;

/// For the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "shade",
    help: "SHADE's: keeps the highest scores; a new sample with an equal score enters",
    needs: Needs::SCORES,
    suits: Suits::Samplers(&["pads", "shade-as-coded"]),
    make: |samples| Box::new(Shade::new(samples)),
};

/// Keeps the samples with the highest scores. A sample enters a full cache only if it was scored before and its score
/// (remembered in the score table, the *ghost*) is at least the least resident's, by (score, id).
///
/// As the paper has it: ≥, not the authors' code's strict > on (score, frequency), so an equal newcomer enters. A
/// sample that enters an empty place unseen starts at 0. Departure: the paper's cache is one pool of all nodes; here
/// each rank has its own, and `lf.open(pool=)` is the pool. 4½ bytes a sample.
#[derive(Debug)]
struct Shade {
    residents: PriorityQueue,
}

impl Shade {
    /// No residents; ids `0..samples`.
    fn new(samples: usize) -> Self {
        Self { residents: PriorityQueue::new(samples) }
    }
}

impl Policy for Shade {
    fn name(&self) -> &'static str {
        ENTRY.name
    }
    fn needs(&self) -> Needs {
        ENTRY.needs
    }
    fn hit(&mut self, _id: SampleId, _view: &View<'_>) {}
    fn place(&mut self, id: SampleId, view: &View<'_>, victims: &mut Vec<SampleId>) -> bool {
        let (missing, score) = (view.missing(id), view.beliefs.importance(id));
        let gives_way = |least| score.is_some_and(|score| score >= least);
        let made = take_least(&mut self.residents, missing, view.sizes, victims, gives_way);
        if made {
            self.residents.insert(id, score.unwrap_or(0.0));
        }
        made
    }
    fn weakest(&mut self, _view: &View<'_>) -> Option<SampleId> {
        self.residents.peek().map(|(id, _)| id)
    }
    fn left(&mut self, id: SampleId) {
        self.residents.remove(id);
    }
    fn believed(&mut self, id: SampleId, importance: f32) {
        self.residents.update(id, importance);
    }
    fn rebelieved(&mut self, view: &View<'_>) {
        self.residents.rekey(|id, _| view.beliefs.importance(id).unwrap_or(0.0));
    }
    fn prefetch(&self, ids: &[SampleId]) {
        self.residents.prefetch(ids);
    }
    fn metadata_bytes(&self) -> usize {
        self.residents.metadata_bytes()
    }
    fn check(&self, view: &View<'_>) -> Result<(), String> {
        self.residents.check()?;
        check_members(self.residents.ids(), view)
    }
}
