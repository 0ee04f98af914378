//! NoPFS (Dryden, Böhringer, Ben-Nun and Hoefler, SC'21): who reads a sample most often keeps it.

use super::{Entry, Needs, Policy, Suits, View, check_members, take_least};
use crate::index::{NextUse, PriorityQueue};
use crate::types::SampleId;

/// For the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "nopfs",
    help: "NoPFS: the samples that the whole run reads most often stay",
    needs: Needs::WHOLE_FUTURE,
    suits: Suits::Nobody,
    make: |samples| Box::new(NoPfs::new(samples)),
};

/// Evicts the resident that the whole plan reads least often, for a candidate that it reads more often; ties leave
/// things as they are, and between equals the smallest id goes.
///
/// The paper places samples before the run, by how often each worker is going to read them in all epochs together (a
/// worker that shuffles with all others reads some samples far more often than others), and fetches ahead. Here the
/// same set comes together as the samples are first read: what is fetched ahead counts as a delivery, not as a hit. How
/// often a sample *was* read counts too, as in the paper: it places once.
///
/// 8½ bytes a sample, beside the [`NextUse`] that the ledger keeps for it.
#[derive(Debug)]
pub struct NoPfs {
    /// Uses in the whole plan, by id.
    uses: Vec<u32>,
    /// By uses.
    residents: PriorityQueue<u32>,
}

impl NoPfs {
    /// No residents; ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self { uses: vec![0; samples], residents: PriorityQueue::new(samples) }
    }
}

impl Policy for NoPfs {
    fn name(&self) -> &'static str {
        ENTRY.name
    }
    fn needs(&self) -> Needs {
        ENTRY.needs
    }
    fn hit(&mut self, _id: SampleId, _view: &View<'_>) {}
    fn place(&mut self, id: SampleId, view: &View<'_>, victims: &mut Vec<SampleId>) -> bool {
        let uses = self.uses[id as usize];
        let made = take_least(&mut self.residents, view.missing(id), view.sizes, victims, |least| uses > least);
        if made {
            self.residents.insert(id, uses);
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
        (0..).zip(&mut self.uses).for_each(|(id, uses)| *uses = next_use.count(id));
        self.residents.rekey(|id, _| self.uses[id as usize]);
    }
    fn prefetch(&self, ids: &[SampleId]) {
        self.residents.prefetch(ids);
    }
    fn metadata_bytes(&self) -> usize {
        self.uses.capacity() * 4 + self.residents.metadata_bytes()
    }
    fn check(&self, view: &View<'_>) -> Result<(), String> {
        self.residents.check()?;
        if let Some(id) = self.residents.ids().find(|&id| self.residents.key(id) != Some(self.uses[id as usize])) {
            return Err(format!("resident {id} is not keyed by its uses"));
        }
        check_members(self.residents.ids(), view)
    }
}
