//! When each sample is wanted next, as far as the accesses to come are planned.

use crate::types::SampleId;

/// No further use is planned; see [`NextUse::at`].
pub const NEVER: u32 = u32::MAX;

/// Where the count of planned uses ends: a byte, because it is paid for every sample of the dataset.
const MANY: u8 = u8::MAX;

/// The plan, by sample: made by one pass over the order, for whoever decides. Accesses may stray from the plan: each
/// one uses up the next planned use of its id, if there is one.
///
/// Who asks only *whether* a sample is needed again pays a byte a sample. Who asks *when* pays 4 bytes a sample and 4 a
/// planned access.
#[derive(Debug, Clone)]
pub struct NextUse {
    known: Known,
    was_last: bool,
    /// Accesses since the plan was made.
    used: u32,
}

#[derive(Debug, Clone)]
enum Known {
    Nothing,
    /// Planned uses still to come, by id. A sample planned [`MANY`] times or more keeps that number until the next
    /// plan.
    Counts(Vec<u8>),
    Positions {
        /// The next planned use, by id; a position in the plan.
        next: Vec<u32>,
        /// The planned use of the same id after this one, by position in the plan.
        after: Vec<u32>,
    },
}

impl NextUse {
    /// For a policy that does not look ahead: nothing is ever planned.
    pub fn nothing() -> Self {
        Self { known: Known::Nothing, was_last: false, used: 0 }
    }
    /// Tells whether a sample is needed again, for ids `0..samples`.
    pub fn counted(samples: usize) -> Self {
        Self { known: Known::Counts(vec![0; samples]), was_last: false, used: 0 }
    }
    /// Tells when a sample is needed again, for ids `0..samples`.
    pub fn placed(samples: usize) -> Self {
        Self { known: Known::Positions { next: vec![NEVER; samples], after: Vec::new() }, was_last: false, used: 0 }
    }
    /// The accesses to come, in order. Replaces any earlier plan.
    pub(crate) fn plan(&mut self, order: &[SampleId]) {
        (self.was_last, self.used) = (false, 0);
        match &mut self.known {
            Known::Nothing => {}
            Known::Counts(counts) => {
                counts.fill(0);
                for &id in order {
                    counts[id as usize] = counts[id as usize].saturating_add(1);
                }
            }
            Known::Positions { next, after } => {
                next.fill(NEVER);
                after.clear();
                after.resize(order.len(), NEVER);
                // Backwards: what was met last lies nearest in the future.
                for (position, &id) in order.iter().enumerate().rev() {
                    after[position] = std::mem::replace(&mut next[id as usize], position as u32);
                }
            }
        }
    }
    /// `id` is used now.
    #[inline]
    pub(crate) fn advance(&mut self, id: SampleId) {
        self.used = self.used.saturating_add(1);
        match &mut self.known {
            Known::Nothing => {}
            Known::Counts(counts) => {
                let left = counts[id as usize];
                self.was_last = left == 1;
                if left > 0 && left < MANY {
                    counts[id as usize] = left - 1;
                }
            }
            Known::Positions { next, after } => {
                let place = next[id as usize];
                self.was_last = false;
                if place != NEVER {
                    next[id as usize] = after[place as usize];
                    self.was_last = after[place as usize] == NEVER;
                }
            }
        }
    }
    /// Whether the access at hand used up the last planned use of its sample.
    #[inline]
    pub fn was_last(&self) -> bool {
        self.was_last
    }
    /// Whether the rest of the plan needs `id`.
    #[inline]
    pub fn is_planned(&self, id: SampleId) -> bool {
        match &self.known {
            Known::Nothing => false,
            Known::Counts(counts) => counts[id as usize] > 0,
            Known::Positions { next, .. } => next[id as usize] != NEVER,
        }
    }
    /// The position in the plan at which `id` is used next, or [`NEVER`]. Always `NEVER` without
    /// [`Needs::NEXT_USE`](crate::policy::Needs::NEXT_USE).
    #[inline]
    pub fn at(&self, id: SampleId) -> u32 {
        match &self.known {
            Known::Positions { next, .. } => next[id as usize],
            Known::Nothing | Known::Counts(_) => NEVER,
        }
    }
    /// Accesses since the plan was made: a position in the plan, if the accesses followed it.
    pub fn position(&self) -> u32 {
        self.used
    }
    /// Whether every use of `id` that is planned is counted. One planned too often to be counted stays planned until
    /// the next plan.
    #[inline]
    pub fn is_exact(&self, id: SampleId) -> bool {
        !matches!(&self.known, Known::Counts(counts) if counts[id as usize] == MANY)
    }
    /// How many uses of `id` are planned before position `end`. As many steps. 0 without
    /// [`Needs::NEXT_USE`](crate::policy::Needs::NEXT_USE).
    pub fn count_before(&self, id: SampleId, end: u32) -> u32 {
        self.count_between(self.at(id), NEVER, end)
    }
    /// Of the uses of one sample, how many are planned from `from` on, which is one of them or [`NEVER`], and before
    /// both `to` and `end`. As many steps. 0 without [`Needs::NEXT_USE`](crate::policy::Needs::NEXT_USE).
    pub fn count_between(&self, from: u32, to: u32, end: u32) -> u32 {
        let Known::Positions { after, .. } = &self.known else { return 0 };
        // Below NEVER too, which is the largest number.
        let place = |place: u32| (place < end.min(to)).then_some(place);
        std::iter::successors(place(from), |&at| place(after[at as usize])).count() as u32
    }
    /// How many uses of `id` are planned, the next one included. At most 255 without
    /// [`Needs::NEXT_USE`](crate::policy::Needs::NEXT_USE), and 0 without any plan. As many steps as there are uses.
    pub fn count(&self, id: SampleId) -> u32 {
        match &self.known {
            Known::Nothing => 0,
            Known::Counts(counts) => u32::from(counts[id as usize]),
            Known::Positions { next, after } => {
                let place = |place: u32| (place != NEVER).then_some(place);
                let uses = std::iter::successors(place(next[id as usize]), |&at| place(after[at as usize]));
                uses.count() as u32
            }
        }
    }
    /// See [`Ledger::prefetch`](crate::ledger::Ledger::prefetch).
    pub(crate) fn prefetch(&self, ids: &[SampleId]) {
        match &self.known {
            Known::Nothing => {}
            Known::Counts(counts) => _ = std::hint::black_box(ids.iter().fold(0, |all, &id| all ^ counts[id as usize])),
            Known::Positions { next, .. } => {
                std::hint::black_box(ids.iter().fold(0, |all, &id| all ^ next[id as usize]));
            }
        }
    }
    /// Heap bytes held.
    pub fn metadata_bytes(&self) -> usize {
        match &self.known {
            Known::Nothing => 0,
            Known::Counts(counts) => counts.capacity(),
            Known::Positions { next, after } => (next.capacity() + after.capacity()) * 4,
        }
    }
}
