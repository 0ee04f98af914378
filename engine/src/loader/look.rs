//! One look at what batches to come will want, what is asked for then, and what is known of that.

use crate::control::{Room, Want};
use crate::tune::fetch_plan::{Ask, DIRECT_SHARE, Plan};
use crate::types::SampleId;
use std::sync::Arc;

/// One planned range takes this share of the prefetch limit at most, and no more than [`RANGE_BYTES_MAX`].
const RANGE_SHARE: u64 = 16;
const RANGE_BYTES_MAX: u64 = 2 << 20;

/// A look that is due: its place, and its limits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// The pass that is read for, and the stretch it belongs to.
    pub(super) pass: u64,
    pub(super) stretch: u64,
    pub(super) from: usize,
    pub(super) changes: u64,
    pub(super) room: Room,
    /// Bytes to ask for now, beside what is due.
    pub(super) enough_bytes: u64,
    /// Bytes of the largest request, about.
    pub(super) request_bytes: u64,
    /// Nothing was asked for in this pass before.
    pub(super) fresh: bool,
    /// Batches wait for it.
    pub(super) starting: bool,
}

/// Samples to ask for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The first `urgent` of them are asked for; they and the others each in the order of need.
    pub(super) ids: Vec<SampleId>,
    pub(super) urgent: usize,
    /// Their places in the order.
    pub(super) places: Vec<usize>,
    /// A later pass will know more neighbours of those after the first so many, which this one needs; and the next
    /// has what it begins with.
    pub(super) early: Option<usize>,
}

impl Look {
    /// True if this is a pass's first look and finds nothing but the first batch: if that is so little of the pass's
    /// `share` rows, it need not wait until the rest is planned.
    pub(super) fn first_alone(&self, batch: usize, share: usize) -> bool {
        self.fresh && self.starting && batch.saturating_mul(DIRECT_SHARE) <= share
    }

    /// The input of a plan for what was `found`. `batch` places are the first batch's, and `free_bytes` as
    /// `Window::free_for`.
    pub(super) fn call(&self, found: &Found, batch: usize, free_bytes: u64) -> Ask {
        let from = found.places.first().copied().unwrap_or_default();
        let first = if self.fresh { found.places.partition_point(|&place| place < from + batch) } else { 0 };
        let range_bytes = (self.room.sample_bytes_max / RANGE_SHARE).min(RANGE_BYTES_MAX);
        Ask { first, urgent: found.urgent, free_bytes, range_bytes }
    }
}

/// The part of what was found that is asked for.
pub(super) enum Chosen {
    /// Those that are urgent, and these positions.
    Along(Vec<usize>),
    /// A plan's samples and nothing else.
    Planned(Plan),
    /// Nothing in this pass.
    Nothing,
}

impl Found {
    pub(super) fn push(&mut self, want: Want) {
        self.ids.push(want.id);
        self.places.push(want.place);
    }
}

/// Samples that were read in vain.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Vain {
    pub(super) samples: u64,
    pub(super) bytes: u64,
}

/// A sample's payload, and its target behind it.
pub(super) type Landed = Arc<Vec<u8>>;

/// A sample that was asked for. It is not asked for again while it is on its way.
pub(super) struct Asked {
    /// Its place in the epoch's order; `None` if no batch needs it any more.
    pub(super) place: Option<usize>,
    /// Its place in the next pass, if it is wanted there too: then it stays when it is taken.
    pub(super) again: Option<usize>,
    pub(super) bytes: u64,
    pub(super) landed: Option<Landed>,
    /// A batch of an earlier pass has taken it.
    pub(super) used: bool,
}

impl Asked {
    /// It is wanted at `place` too. One that is here for an earlier batch is not read twice: that batch may keep it in
    /// the cache, and if it is one of the pass before, the sample stays here.
    pub(super) fn want(&mut self, place: usize, beyond: Option<usize>) {
        let first = *self.place.get_or_insert(place);
        if beyond.is_some_and(|beyond| first < beyond && beyond <= place) {
            self.again.get_or_insert(place);
        }
    }
}

/// A sample as a batch finds it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It has come. Its bytes count until `Window::give_back`, unless it `stays` for the next pass. `used`: it had
    /// stayed for this one.
    Landed { landed: Landed, stays: bool, used: bool },
    /// It is on its way.
    UnderWay,
    /// It was not asked for, or did not come.
    Nothing,
}
