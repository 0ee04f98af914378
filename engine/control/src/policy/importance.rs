//! Keep what we believe matters most, but never drop what the plan still needs.
//!
//! Why the belief is the priority: an unbiased sampler that draws q_i ∝ g_i/√c_i, where a draw of i costs c_i (1 if
//! resident, κ if fetched), has a gradient variance × cost of (Σ g_i √c_i)² (Cauchy–Schwarz). Making i resident lowers
//! that sum by g_i (√κ − 1), so of all sets of a given size the one with the largest g is best, and admitting a sample
//! that was fetched anyway is free.
//!
//! Why the plan comes first: the epoch's order is drawn before it is fetched, with residents preferred. A resident that
//! gives way before its planned use is a certain fetch, now, for a possible one saved in a later epoch.

use super::{Entry, Needs, Policy, Suits, View, check_members, take_least};
use crate::index::{NextUse, PriorityQueue, Residents, ScoreTable, Standing, push, step};
use crate::types::SampleId;

/// For the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "importance",
    help: "keeps the most important samples and those that the rest of the epoch needs",
    needs: Needs::SCORES.and(Needs::PLAN),
    suits: Suits::TheRest,
    make: |samples| Box::new(Importance::new(samples)),
};

/// Evicts the least believed resident that the rest of the plan does not need, for a candidate that is strictly more
/// important; ties leave things as they are, and between equals the smallest id goes.
///
/// A candidate without a score enters only while there is room. It then gives way to nobody while it is unseen:
/// samplers draw the unseen like the most important ones. Once it was delivered and got no score, it counts as an
/// average one.
///
/// A cache that becomes smaller loses the least believed first, then needed residents in the order of their ids.
///
/// 4⅔ bytes a sample, and up to 4 a resident between its last use and the next eviction. The plan itself is the
/// ledger's: a byte a sample.
#[derive(Debug)]
pub struct Importance {
    /// Residents the plan does not need any more (or that `released` still holds), by belief.
    evictable: PriorityQueue,
    /// Residents that are not in `evictable`.
    held: Residents,
    /// Held residents whose last planned use is over. They enter `evictable` when a victim is next looked for: a hit
    /// then costs no work in the queue.
    released: Vec<SampleId>,
    samples: usize,
    /// Where to look for the next needed resident to leave a cache that becomes smaller.
    next_to_leave: SampleId,
}

impl Importance {
    /// No residents; ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self {
            evictable: PriorityQueue::new(samples),
            held: Residents::new(samples),
            released: Vec::new(),
            samples,
            next_to_leave: 0,
        }
    }
    fn settle_released(&mut self, view: &View<'_>) {
        while let Some(id) = self.released.pop() {
            // It may have left or be planned again since it was noted.
            if self.held.contains(id) && !view.next_use.is_planned(id) {
                self.held.remove(id);
                self.evictable.insert(id, belief(id, view.beliefs));
            }
        }
        self.released.shrink_to(step(self.samples));
    }
}

/// What a resident is worth keeping for: see [`Importance`].
pub(super) fn belief(id: SampleId, scores: &ScoreTable) -> f32 {
    match scores.standing(id) {
        Standing::Scored(belief) => belief,
        Standing::Unseen => f32::INFINITY,
        Standing::Tried | Standing::Failed => scores.mean().unwrap_or(0.0) as f32,
    }
}

impl Policy for Importance {
    fn name(&self) -> &'static str {
        ENTRY.name
    }
    fn needs(&self) -> Needs {
        ENTRY.needs
    }
    #[inline]
    fn hit(&mut self, id: SampleId, view: &View<'_>) {
        if view.next_use.was_last() {
            push(&mut self.released, id, self.samples);
        }
    }
    fn place(&mut self, id: SampleId, view: &View<'_>, victims: &mut Vec<SampleId>) -> bool {
        let missing = view.missing(id);
        if missing > 0 {
            let Some(candidate) = view.beliefs.importance(id) else { return false };
            self.settle_released(view);
            if !take_least(&mut self.evictable, missing, view.sizes, victims, |least| candidate > least) {
                return false;
            }
        }
        if view.next_use.is_planned(id) {
            self.held.insert(id);
        } else {
            self.evictable.insert(id, belief(id, view.beliefs));
        }
        true
    }
    fn weakest(&mut self, view: &View<'_>) -> Option<SampleId> {
        self.settle_released(view);
        if let Some((id, _)) = self.evictable.peek() {
            return Some(id);
        }
        self.next_to_leave = self.held.next(self.next_to_leave)?;
        Some(self.next_to_leave)
    }
    fn left(&mut self, id: SampleId) {
        if self.evictable.remove(id).is_none() && self.held.contains(id) {
            self.held.remove(id);
        }
    }
    #[inline]
    fn believed(&mut self, id: SampleId, importance: f32) {
        self.evictable.update(id, importance);
    }
    fn rebelieved(&mut self, view: &View<'_>) {
        self.settle_released(view);
        self.evictable.rekey(|id, _| belief(id, view.beliefs));
    }
    fn planned(&mut self, next_use: &NextUse, _order: &[SampleId]) {
        let mut needed = Vec::new();
        self.evictable.retain(|id| {
            let keep = !next_use.is_planned(id);
            if !keep {
                needed.push(id);
            }
            keep
        });
        self.released = self.held.iter().filter(|&id| !next_use.is_planned(id)).collect();
        self.released.shrink_to_fit();
        needed.into_iter().for_each(|id| self.held.insert(id));
    }
    fn prefetch(&self, ids: &[SampleId]) {
        self.evictable.prefetch(ids);
    }
    fn metadata_bytes(&self) -> usize {
        self.released.capacity() * 4 + self.held.metadata_bytes() + self.evictable.metadata_bytes()
    }
    fn check(&self, view: &View<'_>) -> Result<(), String> {
        self.evictable.check()?;
        if let Some(id) = self.evictable.ids().find(|&id| view.next_use.is_planned(id)) {
            return Err(format!("{id} may be evicted though the plan needs it"));
        }
        if self.held.iter().count() != self.held.count() {
            return Err(format!("{} ids are held, {} are booked", self.held.iter().count(), self.held.count()));
        }
        let released = |id| view.next_use.is_planned(id) || self.released.contains(&id);
        if let Some(id) = self.held.iter().find(|&id| !released(id)) {
            return Err(format!("{id} is held though the plan does not need it, and nobody will let it go"));
        }
        check_members(self.evictable.ids().chain(self.held.iter()), view)
    }
}
