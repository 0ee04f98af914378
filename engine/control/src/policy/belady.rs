//! Belady's MIN with bypass: the bound that no policy beats on a known order.

use super::{Entry, Needs, Policy, Suits, View, check_members, take_least};
use crate::index::{NextUse, PriorityQueue};
use crate::types::SampleId;

/// For the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "belady",
    help: "Belady's bound: evicts the sample needed farthest in the future",
    needs: Needs::NEXT_EPOCH,
    suits: Suits::Nobody,
    make: |samples| Box::new(Belady::new(samples)),
};

/// Evicts the resident whose next planned use is farthest away, and lets a candidate through that is needed later than
/// every resident (or never again). Optimal in hits for samples of equal size when the plan is the whole future, as in
/// a replay. A training run plans as many epochs beside the one at hand as there are ranks, which is nearly as good:
/// decision 40.
///
/// 4½ bytes a sample, beside the [`NextUse`] that the ledger keeps for it.
#[derive(Debug)]
pub struct Belady {
    /// By [`nearness`]: the least is the farthest.
    residents: PriorityQueue<u32>,
}

impl Belady {
    /// No residents; ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self { residents: PriorityQueue::new(samples) }
    }
}

/// The nearer the next use, the higher. Least is [`NEVER`](crate::index::next_use::NEVER).
fn nearness(next_use: &NextUse, id: SampleId) -> u32 {
    (!next_use.at(id)).saturating_sub(1)
}

impl Policy for Belady {
    fn name(&self) -> &'static str {
        ENTRY.name
    }
    fn needs(&self) -> Needs {
        ENTRY.needs
    }
    fn hit(&mut self, id: SampleId, view: &View<'_>) {
        self.residents.update(id, nearness(view.next_use, id));
    }
    fn place(&mut self, id: SampleId, view: &View<'_>, victims: &mut Vec<SampleId>) -> bool {
        let near = nearness(view.next_use, id);
        let made = take_least(&mut self.residents, view.missing(id), view.sizes, victims, |least| near > least);
        if made {
            self.residents.insert(id, near);
        }
        made
    }
    fn weakest(&mut self, _view: &View<'_>) -> Option<SampleId> {
        self.residents.peek().map(|(id, _)| id)
    }
    fn left(&mut self, id: SampleId) {
        self.residents.remove(id);
    }
    fn planned(&mut self, next_use: &NextUse, _order: &[SampleId]) {
        self.residents.rekey(|id, _| nearness(next_use, id));
    }
    fn prefetch(&self, ids: &[SampleId]) {
        self.residents.prefetch(ids);
    }
    fn metadata_bytes(&self) -> usize {
        self.residents.metadata_bytes()
    }
    fn check(&self, view: &View<'_>) -> Result<(), String> {
        self.residents.check()?;
        for id in self.residents.ids() {
            if self.residents.key(id) != Some(nearness(view.next_use, id)) {
                return Err(format!("resident {id} is not keyed by its next use"));
            }
        }
        check_members(self.residents.ids(), view)
    }
}
