//! Lobster (Liu et al., ICPP'22): who is used most often until the end of the next epoch stays, of equals who is used
//! soonest.

use super::{Entry, Left, Needs, Policy, Suits, View, check_members, take_least};
use crate::index::{NextUse, PriorityQueue};
use crate::types::SampleId;

/// For the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "lobster",
    help: "Lobster's: the fewest uses until the next epoch's end gives way, of equals the farthest",
    needs: Needs::NEXT_EPOCH,
    suits: Suits::Nobody,
    make: |samples| Box::new(Lobster::new(samples)),
};

/// Evicts the resident with the fewest planned uses until the next epoch's end, of equals the one that is used
/// farthest away, for a candidate with more uses or a nearer one; ties leave things as they are.
///
/// The paper evicts a sample whose next use is more than 2I − h accesses away, I being the accesses of an epoch and h
/// how far it has come: until there none is counted, so such a sample is the first to go. Departures: it goes when
/// somebody wants its place, not at once; the paper orders by count and distance in two steps, which is one key here;
/// and its other half, which gives threads to loading and to preprocessing, is no matter of the cache.
///
/// 9 bytes a sample, beside the [`NextUse`] that the ledger keeps for it.
#[derive(Debug)]
pub struct Lobster {
    /// By (uses, nearness): see [`Lobster::key`].
    residents: PriorityQueue<u64>,
    /// Where the next epoch ends, as a position in the plan.
    horizon: u32,
}

impl Lobster {
    /// No residents; ids `0..samples`. Until an epoch begins every planned use counts.
    pub fn new(samples: usize) -> Self {
        Self { residents: PriorityQueue::new(samples), horizon: u32::MAX }
    }
}

/// Higher for more uses before `horizon`; of equals for a nearer one.
fn key(id: SampleId, next_use: &NextUse, horizon: u32) -> u64 {
    u64::from(next_use.count_before(id, horizon)) << 32 | u64::from(!next_use.at(id))
}

impl Policy for Lobster {
    fn name(&self) -> &'static str {
        ENTRY.name
    }
    fn needs(&self) -> Needs {
        ENTRY.needs
    }
    fn hit(&mut self, id: SampleId, view: &View<'_>) {
        self.residents.update(id, key(id, view.next_use, self.horizon));
    }
    fn place(&mut self, id: SampleId, view: &View<'_>, victims: &mut Vec<SampleId>) -> bool {
        let key = key(id, view.next_use, self.horizon);
        let made = take_least(&mut self.residents, view.missing(id), view.sizes, victims, |least| key > least);
        if made {
            self.residents.insert(id, key);
        }
        made
    }
    fn weakest(&mut self, _view: &View<'_>) -> Option<SampleId> {
        self.residents.peek().map(|(id, _)| id)
    }
    fn left(&mut self, id: SampleId, _why: Left) {
        self.residents.remove(id);
    }
    fn planned(&mut self, next_use: &NextUse, _order: &[SampleId]) {
        self.horizon = u32::MAX;
        self.residents.rekey(|id, _| key(id, next_use, u32::MAX));
    }
    fn begins(&mut self, accesses: usize, next_use: &NextUse) {
        let two_epochs = u32::try_from(accesses.saturating_mul(2)).unwrap_or(u32::MAX);
        self.horizon = next_use.position().saturating_add(two_epochs);
        self.residents.rekey(|id, _| key(id, next_use, self.horizon));
    }
    fn prefetch(&self, ids: &[SampleId]) {
        self.residents.prefetch(ids);
    }
    fn metadata_bytes(&self) -> usize {
        self.residents.metadata_bytes()
    }
    fn check(&self, view: &View<'_>) -> Result<(), String> {
        self.residents.check()?;
        let keyed = |&id: &SampleId| self.residents.key(id) == Some(key(id, view.next_use, self.horizon));
        if let Some(id) = self.residents.ids().find(|id| !keyed(id)) {
            return Err(format!("resident {id} is not keyed by its uses to come"));
        }
        check_members(self.residents.ids(), view)
    }
}
