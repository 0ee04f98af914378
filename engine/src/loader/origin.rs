//! Where the sample of each row of a batch comes from, and what this batch owes to others because of it.

use super::Feed;
use crate::cache::{Fetched, Flight, Lookup};
use crate::error::Error;
use crate::types::SampleId;
use std::cell::Cell;
use std::sync::Arc;

/// Where a row's sample comes from.
enum Origin {
    /// The cache: the next of the pinned records.
    Resident,
    /// The source's own memory. It is not kept, and nobody waits for it.
    Passing,
    /// The source. This batch fetches it, for the cache and for whoever joins the flight.
    Owned {
        flight: Arc<Flight>,
        /// Whether the record is to be kept.
        admitted: bool,
        /// What became of it; `None` until the source has answered.
        outcome: Cell<Option<Fetched>>,
    },
    /// Another batch, which is fetching it.
    Joined(Arc<Flight>),
}

/// The origins of a batch, by row.
///
/// Dropping it publishes every flight that this batch owns, with the outcome it has by then: a decoder that panics leaves no
/// joiner waiting for ever.
pub(super) struct Origins<'a> {
    feed: &'a Feed,
    ids: &'a [SampleId],
    rows: Vec<Origin>,
}

impl<'a> Origins<'a> {
    /// The cache's decisions about `ids`, in order.
    pub(super) fn new(feed: &'a Feed, ids: &'a [SampleId], lookups: Vec<Lookup>) -> Self {
        let origin = |lookup| match lookup {
            Lookup::Resident => Origin::Resident,
            Lookup::Passing => Origin::Passing,
            Lookup::Joined(flight) => Origin::Joined(flight),
            Lookup::Owned { flight, admitted } => Origin::Owned { flight, admitted, outcome: Cell::new(None) },
        };
        Self { feed, ids, rows: lookups.into_iter().map(origin).collect() }
    }

    /// Whether all samples lie in the source's memory and none is to be kept.
    pub(super) fn all_pass(&self) -> bool {
        self.rows.iter().all(|origin| matches!(origin, Origin::Passing))
    }

    /// The rows whose records the cache has pinned, in the pins' order.
    pub(super) fn residents(&self) -> impl Iterator<Item = usize> + '_ {
        self.rows.iter().enumerate().filter_map(|(row, o)| matches!(o, Origin::Resident).then_some(row))
    }

    /// The rows that the source is to be asked for.
    pub(super) fn wanted(&self) -> Vec<usize> {
        let wanted = |origin: &Origin| matches!(origin, Origin::Passing | Origin::Owned { .. });
        self.rows.iter().enumerate().filter_map(|(row, origin)| wanted(origin).then_some(row)).collect()
    }

    /// The rows that another batch is fetching.
    pub(super) fn joined(&self) -> Vec<(usize, Arc<Flight>)> {
        let joined = |(row, origin): (usize, &Origin)| match origin {
            Origin::Joined(flight) => Some((row, Arc::clone(flight))),
            _ => None,
        };
        self.rows.iter().enumerate().filter_map(joined).collect()
    }

    /// The flight of a row that this batch fetches for others too, and whether the record is to be kept.
    pub(super) fn owned(&self, row: usize) -> Option<(&Flight, bool)> {
        match &self.rows[row] {
            Origin::Owned { flight, admitted, .. } => Some((flight, *admitted)),
            _ => None,
        }
    }

    /// Notes what became of a row's fetch. Means nothing for a row whose fetch nobody else hears of.
    pub(super) fn settle(&self, row: usize, fetched: Fetched) {
        if let Origin::Owned { outcome, .. } = &self.rows[row] {
            outcome.set(Some(fetched));
        }
    }

    /// Whether another batch waits for this row's fetch: one of a later pass, or this one in another row.
    pub(super) fn is_waited_for(&self, row: usize) -> bool {
        self.owned(row).is_some_and(|(flight, _)| flight.is_waited_for())
    }

    /// This batch will not come for what others are fetching.
    pub(super) fn leave_joined(&self) {
        for origin in &self.rows {
            if let Origin::Joined(flight) = origin {
                flight.leave();
            }
        }
    }
}

impl Drop for Origins<'_> {
    fn drop(&mut self) {
        let feed = self.feed;
        let unanswered = || Arc::new(Error::internal("the source did not answer for this sample"));
        let owed = |(origin, &id): (Origin, &SampleId)| match origin {
            Origin::Owned { flight, outcome, .. } => {
                Some((id, flight, outcome.take().unwrap_or_else(|| Fetched::Failed(unanswered()))))
            }
            _ => None,
        };
        let owed = std::mem::take(&mut self.rows).into_iter().zip(self.ids).filter_map(owed).collect();
        feed.cache.publish(owed);
    }
}
