//! How the samples of a batch came to it: from the cache, in time, or late.
//!
//! Two numbers that are never added up to one. *Hits* are what the books had when the batch was decided: what the cache
//! is worth. *On time* is what was fetched and lay ready when the batch needed it, read ahead, in a tier before the
//! source or in the source's own memory: what fetching early is worth. *Late* is what the batch waited for. Every row
//! that is delivered is one of the three.

use crate::types::SampleId;

/// How a row's sample came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    /// It was resident.
    Hit,
    /// It lay ready.
    OnTime,
    /// It was waited for.
    Late,
}

/// By row.
#[derive(Debug, Clone)]
pub(super) struct Rows(Vec<Came>);

/// The rows of a batch that were no hits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Punctual {
    /// Those that lay ready.
    pub on_time: u64,
    /// Those that were waited for.
    pub late: u64,
}

impl Rows {
    /// As it was decided: hits, and others that have not come yet.
    pub(super) fn decided(hits: &[bool]) -> Self {
        Self(hits.iter().map(|&hit| if hit { Came::Hit } else { Came::Late }).collect())
    }

    /// A row's sample came, lying ready or not.
    pub(super) fn came(&mut self, row: usize, near: bool) {
        if let Some(came) = self.0.get_mut(row).filter(|came| **came != Came::Hit) {
            *came = if near { Came::OnTime } else { Came::Late };
        }
    }

    /// All rows lay ready.
    pub(super) fn all_near(&mut self) {
        (0..self.0.len()).for_each(|row| self.came(row, true));
    }

    /// A row whose sample another fetch brought: if that was for another row of this batch, they came alike.
    pub(super) fn joined(&mut self, row: usize, ids: &[SampleId], own: impl Iterator<Item = usize>, in_memory: bool) {
        let mut own = own.filter(|&other| ids.get(other) == ids.get(row));
        let near = own.next().and_then(|other| self.0.get(other)).is_some_and(|came| *came == Came::OnTime);
        self.came(row, near || in_memory);
    }

    /// Row `to` has what row `from` had.
    pub(super) fn copy(&mut self, from: usize, to: usize) {
        let came = self.0.get(from).copied();
        if let Some((to, came)) = self.0.get_mut(to).zip(came) {
            *to = came;
        }
    }

    /// Of the first `rows`, which are delivered.
    pub(super) fn count(&self, rows: usize) -> Punctual {
        let of = |wanted| self.0.iter().take(rows).filter(|came| **came == wanted).count() as u64;
        Punctual { on_time: of(Came::OnTime), late: of(Came::Late) }
    }
}
