//! First in, first out.

use super::unrolled::Unrolled;
use super::{Entry, Left, Needs, Policy, Suits, View, check_members};
use crate::types::SampleId;

/// For the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "fifo",
    help: "first in, first out",
    needs: Needs::NOTHING,
    suits: Suits::Samplers(&["echo", "replay"]),
    make: |samples| Box::new(Fifo::new(samples)),
};

/// Evicts the resident that was admitted first, however often it was used since. 4 bytes a sample and 4¼ to 5⅝ a resident.
#[derive(Debug)]
pub struct Fifo {
    arrivals: Unrolled,
}

impl Fifo {
    /// No residents; ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self { arrivals: Unrolled::new(samples) }
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
        let made = self.arrivals.take_oldest(view.missing(id), view.sizes, victims);
        if made {
            self.arrivals.push_newest(id);
        }
        made
    }
    fn weakest(&mut self, _view: &View<'_>) -> Option<SampleId> {
        self.arrivals.oldest()
    }
    fn left(&mut self, id: SampleId, _why: Left) {
        self.arrivals.remove(id);
    }
    fn prefetch(&self, ids: &[SampleId]) {
        self.arrivals.prefetch(ids);
    }
    fn metadata_bytes(&self) -> usize {
        self.arrivals.metadata_bytes()
    }
    fn check(&self, view: &View<'_>) -> Result<(), String> {
        self.arrivals.check()?;
        check_members(self.arrivals.iter(), view)
    }
}
