//! SIEVE (Zhang, Yang, Yue, Vigfusson and Rashmi, NSDI'24): a queue that nobody moves in, and a hand that looks for who
//! was not used since it last came by.

use super::list::{Lists, ONLY};
use super::{Entry, Needs, Policy, Suits, View, check_members};
use crate::types::SampleId;

/// For the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "sieve",
    help: "SIEVE: whoever was not used since the hand last came by gives way",
    needs: Needs::NOTHING,
    suits: Suits::Nobody,
    make: |samples| Box::new(Sieve::new(samples)),
};

/// A sample enters as the newest and keeps its place in the queue; a use marks it. The hand goes from the oldest to the
/// newest and around again, takes marks away, and evicts the first it meets without one. It stays where it evicted: so
/// newcomers are soon looked at, and old residents that are used survive.
///
/// The paper has samples of one size. Where they vary, the hand goes on until there is room, as in the authors' code.
///
/// 8⅛ bytes a sample.
#[derive(Debug)]
pub struct Sieve {
    queue: Lists,
    /// A bit an id: used since the hand came by. Only residents are marked.
    used: Vec<u64>,
    /// Who is looked at next; `None` for the oldest.
    hand: Option<SampleId>,
}

impl Sieve {
    /// No residents; ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self { queue: Lists::new(samples, 1), used: vec![0; samples.div_ceil(64)], hand: None }
    }
    fn is_used(&self, id: SampleId) -> bool {
        self.used[id as usize / 64] >> (id % 64) & 1 == 1
    }
    fn unmark(&mut self, id: SampleId) {
        self.used[id as usize / 64] &= !(1 << (id % 64));
    }
    /// Moves the hand to the next without a mark. It ends: a round takes all marks away.
    fn find(&mut self) -> Option<SampleId> {
        loop {
            let id = self.hand.or_else(|| self.queue.oldest(ONLY))?;
            self.hand = Some(id);
            if !self.is_used(id) {
                return Some(id);
            }
            self.unmark(id);
            self.hand = self.queue.newer(id);
        }
    }
    fn remove(&mut self, id: SampleId) {
        if self.hand == Some(id) {
            self.hand = self.queue.newer(id);
        }
        self.unmark(id);
        self.queue.remove(id);
    }
}

impl Policy for Sieve {
    fn name(&self) -> &'static str {
        ENTRY.name
    }
    fn needs(&self) -> Needs {
        ENTRY.needs
    }
    fn hit(&mut self, id: SampleId, _view: &View<'_>) {
        self.used[id as usize / 64] |= 1 << (id % 64);
    }
    fn place(&mut self, id: SampleId, view: &View<'_>, victims: &mut Vec<SampleId>) -> bool {
        // It fits into the empty cache, so the search ends before the residents do: nothing is refused here.
        let (missing, mut freed) = (view.missing(id), 0);
        while freed < missing {
            let Some(victim) = self.find() else { break };
            freed += view.sizes.bytes(victim);
            self.remove(victim);
            victims.push(victim);
        }
        self.queue.push_newest(ONLY, id);
        true
    }
    fn weakest(&mut self, _view: &View<'_>) -> Option<SampleId> {
        self.find()
    }
    fn left(&mut self, id: SampleId) {
        self.remove(id);
    }
    fn prefetch(&self, ids: &[SampleId]) {
        self.queue.prefetch(ids);
    }
    fn metadata_bytes(&self) -> usize {
        self.queue.metadata_bytes() + self.used.capacity() * 8
    }
    fn check(&self, view: &View<'_>) -> Result<(), String> {
        if let Some(hand) = self.hand.filter(|&hand| !view.residents.contains(hand)) {
            return Err(format!("the hand is at {hand}, which is no resident"));
        }
        let marked: u32 = self.used.iter().map(|bits| bits.count_ones()).sum();
        let marked_residents = self.queue.iter(ONLY).filter(|&id| self.is_used(id)).count();
        if marked as usize != marked_residents {
            return Err(format!("{marked} ids are marked, {marked_residents} residents"));
        }
        check_members(self.queue.iter(ONLY), view)
    }
}
