//! Quiver (Kumar and Sivathanu, FAST'20): of the samples that are wanted soon, those that are cached come first.

use std::collections::VecDeque;

use super::debts::Debts;
use super::{Entry, MinIo, Needs, Policy, Suits, View};
use crate::index::NextUse;
use crate::types::SampleId;

/// For the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "quiver",
    help: "Quiver's: fill once, and of what is wanted soon deliver first what is cached",
    needs: Needs::PLAN.and(Needs::SUBSTITUTES),
    suits: Suits::Nobody,
    make: |_| Box::new(Quiver::default()),
};

/// The window: the next tenth of the plan.
const CHUNKS: usize = 10;

/// Fills once and evicts nobody, as [`MinIo`] does. A sample that is wanted and not cached gives its turn to a cached
/// one that the plan has within the next tenth; it comes when that one's turn does. So each sample is delivered as
/// often as the plan has it.
///
/// The paper divides the dataset into chunks that jobs walk through together, each in an order of its own, so that
/// what one job fetched is there for the others, and evicts a chunk that all have used. Here is one job, and the chunk
/// is the next tenth of its plan. Then substitution moves no fetch out of an epoch: hits come earlier, misses later
/// and closer together, and the number of both is that of a cache that evicts nobody.
///
/// 4 bytes a planned access, and one more where much is cached.
#[derive(Debug, Default)]
pub struct Quiver {
    residents: MinIo,
    plan: Box<[SampleId]>,
    /// Accesses of the plan that were asked for.
    asked: usize,
    /// Accesses of the plan that have come into the window.
    seen: usize,
    /// Places in the window whose samples were cached when it reached them.
    ready: VecDeque<u32>,
    debts: Debts,
}

impl Policy for Quiver {
    fn name(&self) -> &'static str {
        ENTRY.name
    }
    fn needs(&self) -> Needs {
        ENTRY.needs
    }
    fn hit(&mut self, _id: SampleId, _view: &View<'_>) {}
    fn place(&mut self, id: SampleId, view: &View<'_>, victims: &mut Vec<SampleId>) -> bool {
        self.residents.place(id, view, victims)
    }
    fn instead(&mut self, asked: SampleId, view: &View<'_>) -> Option<SampleId> {
        self.asked += 1;
        let end = (self.asked + self.plan.len() / CHUNKS).min(self.plan.len()).max(self.seen);
        let cached = |place: &usize| view.residents.contains(self.plan[*place]);
        self.ready.extend((self.seen..end).filter(cached).map(|place| place as u32));
        self.seen = end;
        while self.ready.front().is_some_and(|&place| (place as usize) < self.asked) {
            self.ready.pop_front();
        }
        let due = self.debts.due(asked, view);
        if view.residents.contains(due) {
            return Some(due);
        }
        while let Some(place) = self.ready.pop_front() {
            let id = self.plan[place as usize];
            if view.residents.contains(id) && Debts::may_come_early(id, view) {
                self.debts.owe(due);
                return Some(id);
            }
        }
        Some(due)
    }
    fn weakest(&mut self, view: &View<'_>) -> Option<SampleId> {
        self.residents.weakest(view)
    }
    fn left(&mut self, id: SampleId) {
        self.residents.left(id);
    }
    fn planned(&mut self, _next_use: &NextUse, order: &[SampleId]) {
        *self = Self { residents: std::mem::take(&mut self.residents), plan: order.into(), ..Self::default() };
    }
    fn metadata_bytes(&self) -> usize {
        self.plan.len() * size_of::<SampleId>() + self.ready.capacity() * size_of::<u32>() + self.debts.metadata_bytes()
    }
    fn check(&self, view: &View<'_>) -> Result<(), String> {
        self.residents.check(view)
    }
}
