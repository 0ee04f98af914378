//! MinIO of CoorDL (Mohan et al., VLDB'21): fill once, never evict. Not the S3 server of the same name.

use super::Policy;
use crate::index::ScoreTable;
use crate::types::SampleId;

/// Admits while there is room and never evicts, so that with one permutation an epoch every resident hits once an epoch:
/// a hit ratio of exactly the cached fraction, which no policy can beat on permutations. It needs no state of its own.
#[derive(Debug, Default)]
pub struct MinIo {
    residents: usize,
}

impl Policy for MinIo {
    fn name(&self) -> &'static str {
        "minio"
    }
    fn access(&mut self, _id: SampleId, _resident: bool) {}
    fn victim(&mut self, _candidate: SampleId, _scores: &ScoreTable) -> Option<SampleId> {
        None
    }
    fn insert(&mut self, _id: SampleId, _scores: &ScoreTable) {
        self.residents += 1;
    }
    fn remove(&mut self, _id: SampleId) {
        self.residents -= 1;
    }
    fn metadata_bytes(&self) -> usize {
        0
    }
    fn check(&self, _resident: &dyn Fn(SampleId) -> bool, count: usize) -> Result<(), String> {
        if self.residents == count {
            Ok(())
        } else {
            Err(format!("{} residents of {count} were inserted", self.residents))
        }
    }
}
