//! MinIO of CoorDL (Mohan et al., VLDB'21): fill once, never evict. Not the S3 server of the same name.

use super::{Entry, Needs, Policy, Suits, View};
use crate::types::SampleId;

/// For the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "minio",
    help: "fill once, never evict",
    needs: Needs::NOTHING,
    suits: Suits::Samplers(&["uniform", "ods", "given"]),
    make: |_| Box::new(MinIo::default()),
};

/// Admits while there is room and never evicts, so that with one permutation an epoch every resident hits once an
/// epoch: a hit ratio of exactly the cached fraction, which no policy can beat on permutations. It keeps nothing about
/// samples: when the cache becomes smaller, residents leave in the order of their ids, and go on from there the next
/// time.
#[derive(Debug, Default)]
pub struct MinIo {
    residents: usize,
    /// Where to look for the next one to leave a cache that becomes smaller.
    next_to_leave: SampleId,
}

impl Policy for MinIo {
    fn name(&self) -> &'static str {
        ENTRY.name
    }
    fn needs(&self) -> Needs {
        ENTRY.needs
    }
    fn hit(&mut self, _id: SampleId, _view: &View<'_>) {}
    fn place(&mut self, id: SampleId, view: &View<'_>, _victims: &mut Vec<SampleId>) -> bool {
        let fits = view.missing(id) == 0;
        self.residents += usize::from(fits);
        fits
    }
    fn weakest(&mut self, view: &View<'_>) -> Option<SampleId> {
        let weakest = view.residents.next(self.next_to_leave)?;
        self.next_to_leave = weakest;
        Some(weakest)
    }
    fn left(&mut self, _id: SampleId) {
        self.residents -= 1;
    }
    fn metadata_bytes(&self) -> usize {
        0
    }
    fn check(&self, view: &View<'_>) -> Result<(), String> {
        if self.residents == view.residents.count() {
            Ok(())
        } else {
            Err(format!("{} residents of {} were placed", self.residents, view.residents.count()))
        }
    }
}
