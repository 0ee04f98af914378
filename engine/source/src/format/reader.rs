//! Who brings the bytes of a dataset made of files.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::format::catalog::Catalog;
use crate::sample::{LimitBy, Link, News, Traffic};
use crate::tune::fetch_plan::{Ask, Plan};
use crate::types::SampleId;

/// Brings the bytes of catalogued samples.
pub(crate) trait Reader: Send + Sync {
    /// As [`Source::fetch_by`](crate::sample::Source::fetch_by), with data only. Ids are in range and no sample is
    /// empty: [`Files`](crate::format::files::Files) has seen to it.
    fn read(
        &self,
        catalog: &Arc<Catalog>,
        wanted: &[(usize, SampleId)],
        request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(usize, SampleId, Result<&[u8]>) -> ControlFlow<()>,
    ) -> Traffic;

    /// As [`Source::along`](crate::sample::Source::along).
    fn along(&self, _: &Catalog, _ids: &[SampleId], _first: usize, _request_bytes: u64) -> Vec<usize> {
        Vec::new()
    }

    /// See [`Source::plan`](crate::sample::Source::plan).
    fn plan(&self, _: &Catalog, _ids: &[SampleId], _: Ask) -> Option<Plan> {
        None
    }

    /// As [`Source::limit`](crate::sample::Source::limit).
    fn limit(&self, _bytes_per_s: Option<u64>, _by: LimitBy) -> bool {
        false
    }

    /// See [`Counted::answers`](crate::sample::Counted::answers).
    fn answers(&self) -> Option<(u64, u64)> {
        None
    }

    /// See [`Source::link`](crate::sample::Source::link).
    fn link(&self, _: &Catalog) -> Link {
        Link::default()
    }

    /// See [`Facts::in_turn`](crate::sample::Facts::in_turn).
    fn in_turn(&self) -> bool {
        false
    }

    /// See [`Source::tell`](crate::sample::Source::tell).
    fn tell(&self, _: &Catalog, _: News<'_>) {}

    /// Whether bytes that turn out to be wrong may come right when they are read again. Such a reader holds them to
    /// their checksums itself.
    fn remote(&self) -> bool {
        false
    }

    /// See [`Facts::retry_timeout`](crate::sample::Facts::retry_timeout).
    fn retry_timeout(&self) -> Duration {
        Duration::ZERO
    }
}
