//! First in, first out.

use super::list::{Lists, ONLY};
use super::{Entry, Needs, Policy, Suits, View, check_members};
use crate::types::SampleId;

/// For the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "fifo",
    help: "first in, first out",
    needs: Needs::NOTHING,
    suits: Suits::Samplers(&["echo", "replay"]),
    make: |samples| Box::new(Fifo::new(samples)),
};

/// Evicts the resident that was admitted first, however often it was used since. 8 bytes a sample.
#[derive(Debug)]
pub struct Fifo {
    arrivals: Lists,
}

impl Fifo {
    /// No residents; ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self { arrivals: Lists::new(samples, 1) }
    }
}

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        ENTRY.name
    }
    fn needs(&self) -> Needs {
        ENTRY.needs
    }
    fn hit(&mut self, _id: SampleId, _view: &View<'_>) {}
    fn place(&mut self, id: SampleId, view: &View<'_>, victims: &mut Vec<SampleId>) -> bool {
        let made = self.arrivals.take_oldest(ONLY, view.missing(id), view.sizes, victims);
        if made {
            self.arrivals.push_newest(ONLY, id);
        }
        made
    }
    fn weakest(&mut self, _view: &View<'_>) -> Option<SampleId> {
        self.arrivals.oldest(ONLY)
    }
    fn left(&mut self, id: SampleId) {
        self.arrivals.remove(id);
    }
    fn prefetch(&self, ids: &[SampleId]) {
        self.arrivals.prefetch(ids);
    }
    fn metadata_bytes(&self) -> usize {
        self.arrivals.metadata_bytes()
    }
    fn check(&self, view: &View<'_>) -> Result<(), String> {
        check_members(self.arrivals.iter(ONLY), view)
    }
}
