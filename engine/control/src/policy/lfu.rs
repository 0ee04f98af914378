//! Least frequently used: what was used often stays.

use super::{Entry, Needs, Policy, Suits, View, check_members, take_least};
use crate::index::PriorityQueue;
use crate::types::SampleId;

/// For the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "lfu",
    help: "the least frequently used gives way, of equals the least recently used",
    needs: Needs::NOTHING,
    suits: Suits::Nobody,
    make: |samples| Box::new(Lfu::new(samples)),
};

/// Low bits of a key: the time of the last use.
const TIME_BITS: u32 = 40;
const TIME_MAX: u64 = (1 << TIME_BITS) - 1;
/// High bits of a key: how often it was used. One less than would fit, because the largest key stands for no member.
const USES_MAX: u64 = (1 << (64 - TIME_BITS)) - 2;

/// Evicts the resident with the fewest uses since it entered; of those with equally many, the one whose last use is
/// longest ago (and of those, after 2⁴⁰ accesses, the smallest id). Uses are counted up to 2²⁴ − 2, and forgotten when
/// a sample leaves: a count that outlived it would keep what was popular once.
///
/// The textbook's (Aho, Denning and Ullman 1971 has the model), with the tie-break stated. 9 bytes a sample.
#[derive(Debug)]
pub struct Lfu {
    /// Keyed by (uses, time of the last use).
    residents: PriorityQueue<u64>,
    /// Accesses so far.
    time: u64,
}

impl Lfu {
    /// No residents; ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self { residents: PriorityQueue::new(samples), time: 0 }
    }
    fn use_now(&mut self, id: SampleId) {
        let uses = self.residents.key(id).map_or(0, |key| key >> TIME_BITS);
        self.time = (self.time + 1).min(TIME_MAX);
        self.residents.insert(id, (uses + 1).min(USES_MAX) << TIME_BITS | self.time);
    }
}

impl Policy for Lfu {
    fn name(&self) -> &'static str {
        ENTRY.name
    }
    fn needs(&self) -> Needs {
        ENTRY.needs
    }
    fn hit(&mut self, id: SampleId, _view: &View<'_>) {
        self.use_now(id);
    }
    fn place(&mut self, id: SampleId, view: &View<'_>, victims: &mut Vec<SampleId>) -> bool {
        let made = take_least(&mut self.residents, view.missing(id), view.sizes, victims, |_| true);
        if made {
            self.use_now(id);
        }
        made
    }
    fn weakest(&mut self, _view: &View<'_>) -> Option<SampleId> {
        self.residents.peek().map(|(id, _)| id)
    }
    fn left(&mut self, id: SampleId) {
        self.residents.remove(id);
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
