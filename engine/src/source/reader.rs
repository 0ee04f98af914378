//! Who brings the bytes of a dataset made of files.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::catalog::Catalog;
use super::{Decisions, Traffic};
use crate::error::Result;
use crate::types::SampleId;

/// Brings the bytes of catalogued samples.
pub(super) trait Reader: Send + Sync {
    /// As [`Source::fetch_by`](super::Source::fetch_by), with data only. Ids are in range and no sample is
    /// empty: [`Files`](super::files::Files) has seen to it.
    fn read(
        &self,
        catalog: &Arc<Catalog>,
        wanted: &[(usize, SampleId)],
        request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(usize, SampleId, Result<&[u8]>) -> ControlFlow<()>,
    ) -> Traffic;

    /// As [`Source::along`](super::Source::along).
    fn along(&self, _: &Catalog, _ids: &[SampleId], _first: usize, _request_bytes: u64) -> Vec<usize> {
        Vec::new()
    }

    /// As [`Source::limit`](super::Source::limit).
    fn limit(&self, _bytes_per_s: Option<u64>) -> bool {
        false
    }

    /// As [`Source::requests_ahead`](super::Source::requests_ahead).
    fn requests_ahead(&self) -> usize {
        0
    }

    /// As [`Source::request_bytes`](super::Source::request_bytes).
    fn request_bytes(&self, _: &Catalog) -> u64 {
        0
    }

    /// As [`Source::in_turn`](super::Source::in_turn).
    fn in_turn(&self) -> bool {
        false
    }

    /// As [`Source::tell`](super::Source::tell).
    fn tell(&self, _decisions: &Arc<Decisions>) {}

    /// As [`Source::doubt`](super::Source::doubt).
    fn doubt(&self, _: &Catalog, _ids: &[SampleId]) {}

    /// Whether bytes that turn out to be wrong may come right when they are read again. Such a reader holds them to
    /// their checksums itself.
    fn remote(&self) -> bool {
        false
    }
}
