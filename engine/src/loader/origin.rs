//! Where the sample of each row of a batch comes from, and what this batch owes to others because of it.

use super::Feed;
use crate::cache::{Fetched, Flight, Lookup, Owned};
use std::sync::Arc;

/// The origins of a batch, by row.
///
/// Dropping it publishes every flight that this batch owns, with the outcome it has by then: a decoder that panics
/// leaves no joiner waiting for ever.
pub(super) struct Origins<'a> {
    feed: &'a Feed,
    rows: Vec<Lookup>,
    owned: Vec<Owned>,
    joined: Vec<Arc<Flight>>,
}

impl<'a> Origins<'a> {
    /// As the cache has decided.
    pub(super) fn new(feed: &'a Feed, rows: Vec<Lookup>, owned: Vec<Owned>, joined: Vec<Arc<Flight>>) -> Self {
        Self { feed, rows, owned, joined }
    }

    /// Whether all samples lie in the source's memory and none is to be kept.
    pub(super) fn all_pass(&self) -> bool {
        self.rows.iter().all(|origin| *origin == Lookup::Passing)
    }

    fn rows_that(&self, are: impl Fn(Lookup) -> bool) -> impl Iterator<Item = usize> {
        self.rows.iter().enumerate().filter_map(move |(row, &origin)| are(origin).then_some(row))
    }

    /// The rows whose records the cache has pinned, in the pins' order.
    pub(super) fn residents(&self) -> impl Iterator<Item = usize> {
        self.rows_that(|origin| origin == Lookup::Resident)
    }

    /// The rows that the source is to be asked for.
    pub(super) fn wanted(&self) -> Vec<usize> {
        self.rows_that(|origin| matches!(origin, Lookup::Passing | Lookup::Owned(_))).collect()
    }

    /// The rows that another batch is fetching.
    pub(super) fn joined(&self) -> Vec<(usize, Arc<Flight>)> {
        let rows = self.rows_that(|origin| origin == Lookup::Joined);
        rows.zip(&self.joined).map(|(row, flight)| (row, Arc::clone(flight))).collect()
    }

    fn owned(&self, row: usize) -> Option<&Owned> {
        match self.rows[row] {
            Lookup::Owned(number) => self.owned.get(number as usize),
            _ => None,
        }
    }

    /// The flight of a row that this batch fetches for others too, and what the record is booked with if it is to be
    /// kept.
    pub(super) fn flight(&self, row: usize) -> Option<(&Flight, Option<u64>)> {
        self.owned(row).map(|owned| (&*owned.flight, owned.admitted.then_some(owned.bytes)))
    }

    /// Notes what became of a row's fetch. Means nothing for a row whose fetch nobody else hears of.
    pub(super) fn settle(&self, row: usize, fetched: Fetched) {
        if let Some(owned) = self.owned(row) {
            owned.outcome.set(Some(fetched));
        }
    }

    /// Whether another batch waits for this row's fetch: one of a later pass, or this one in another row.
    pub(super) fn is_waited_for(&self, row: usize) -> bool {
        self.owned(row).is_some_and(|owned| owned.flight.is_waited_for())
    }

    /// This batch will not come for what others are fetching.
    pub(super) fn leave_joined(&self) {
        self.joined.iter().for_each(|flight| flight.leave());
    }
}

impl Drop for Origins<'_> {
    fn drop(&mut self) {
        self.feed.cache.publish(std::mem::take(&mut self.owned));
        if let Some(ahead) = &self.feed.read_ahead {
            ahead.released();
        }
    }
}
