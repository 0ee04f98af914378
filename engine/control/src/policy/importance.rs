//! Keep what we believe matters most, but never drop what the plan still needs.
//!
//! Why the belief is the priority: an unbiased sampler that draws q_i ∝ g_i/√c_i, where a draw of i costs c_i (1 if
//! resident, κ if fetched), has a gradient variance × cost of (Σ g_i √c_i)² (Cauchy–Schwarz). Making i resident lowers
//! that sum by g_i (√κ − 1), so of all sets of a given size the one with the largest g is best, and admitting a sample
//! that was fetched anyway is free.
//!
//! Why the plan comes first: the epoch's order is drawn before it is fetched, with residents preferred. A resident that
//! gives way before its planned use is a certain fetch, now, for a possible one saved in a later epoch.

use super::{Policy, check_members};
use crate::index::{PriorityQueue, ScoreTable, Standing, push, step};
use crate::types::SampleId;

/// Where the count of planned uses ends: a byte, because it is paid for every sample of the dataset.
const MANY: u8 = u8::MAX;

/// Evicts the least believed resident that the rest of the plan does not need, for a candidate that is strictly more
/// important; ties leave things as they are, and between equals the smallest id goes.
///
/// A candidate without a score enters only while there is room. It then gives way to nobody while it is unseen: samplers draw
/// the unseen like the most important ones. Once it was delivered and got no score, it counts as an average one. 5⅛ bytes a sample, and 8 a resident (4 while the plan needs it).
#[derive(Debug)]
pub struct Importance {
    /// Planned uses still to come, by id. A sample planned [`MANY`] times or more keeps that number until the next plan.
    remaining: Vec<u8>,
    /// Residents the plan does not need any more (or that `released` still holds), by belief.
    evictable: PriorityQueue,
    /// A bit an id: resident, but not in `evictable`.
    held: Vec<u64>,
    held_count: usize,
    /// Held residents whose last planned use is over. They enter `evictable` when a victim is next looked for: an access
    /// then costs no heap operation, and only there are the beliefs at hand.
    released: Vec<SampleId>,
}

impl Importance {
    /// No residents and no plan; ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self {
            remaining: vec![0; samples],
            evictable: PriorityQueue::new(samples),
            held: vec![0; samples.div_ceil(64)],
            held_count: 0,
            released: Vec::new(),
        }
    }
    fn is_held(&self, id: SampleId) -> bool {
        self.held[id as usize / 64] >> (id % 64) & 1 == 1
    }
    fn hold(&mut self, id: SampleId) {
        self.held[id as usize / 64] |= 1 << (id % 64);
        self.held_count += 1;
    }
    fn let_go(&mut self, id: SampleId) {
        self.held[id as usize / 64] &= !(1 << (id % 64));
        self.held_count -= 1;
    }
    fn held_ids(&self) -> impl Iterator<Item = SampleId> + '_ {
        (0..self.remaining.len() as u32).filter(|&id| self.is_held(id))
    }
}

/// What a resident is worth keeping for: see [`Importance`].
fn belief(id: SampleId, scores: &ScoreTable) -> f32 {
    match scores.standing(id) {
        Standing::Scored(belief) => belief,
        Standing::Unseen => f32::INFINITY,
        Standing::Tried | Standing::Failed => scores.mean().unwrap_or(0.0) as f32,
    }
}

impl Policy for Importance {
    fn name(&self) -> &'static str {
        "importance"
    }
    #[inline]
    fn access(&mut self, id: SampleId, resident: bool) {
        let remaining = self.remaining[id as usize];
        if remaining > 0 && remaining < MANY {
            self.remaining[id as usize] = remaining - 1;
            if remaining == 1 && resident {
                push(&mut self.released, id, self.remaining.len());
            }
        }
    }
    fn victim(&mut self, candidate: SampleId, scores: &ScoreTable) -> Option<SampleId> {
        let candidate = scores.importance(candidate)?;
        while let Some(id) = self.released.pop() {
            // It may have left (`remove`) or be planned again since it was noted.
            if self.remaining[id as usize] == 0 && self.is_held(id) {
                self.let_go(id);
                self.evictable.insert(id, belief(id, scores));
            }
        }
        self.released.shrink_to(step(self.remaining.len()));
        let (id, least) = self.evictable.peek()?;
        if candidate <= least {
            return None;
        }
        self.evictable.remove(id);
        Some(id)
    }
    fn insert(&mut self, id: SampleId, scores: &ScoreTable) {
        if self.remaining[id as usize] > 0 {
            self.hold(id);
        } else {
            self.evictable.insert(id, belief(id, scores));
        }
    }
    fn remove(&mut self, id: SampleId) {
        if self.evictable.remove(id).is_none() && self.is_held(id) {
            self.let_go(id);
        }
    }
    #[inline]
    fn rescore(&mut self, id: SampleId, importance: f32) {
        self.evictable.update(id, importance);
    }
    fn plan(&mut self, order: &[SampleId]) {
        self.remaining.fill(0);
        for &id in order {
            let remaining = &mut self.remaining[id as usize];
            *remaining = remaining.saturating_add(1);
        }
        let remaining = &self.remaining;
        let mut needed = Vec::new();
        self.evictable.retain(|id| {
            let keep = remaining[id as usize] == 0;
            if !keep {
                needed.push(id);
            }
            keep
        });
        self.released = self.held_ids().filter(|&id| self.remaining[id as usize] == 0).collect();
        self.released.shrink_to_fit();
        needed.into_iter().for_each(|id| self.hold(id));
    }
    fn prefetch(&self, ids: &[SampleId]) {
        std::hint::black_box(ids.iter().fold(0, |all, &id| all ^ self.remaining[id as usize]));
        self.evictable.prefetch(ids);
    }
    fn metadata_bytes(&self) -> usize {
        self.remaining.capacity()
            + self.released.capacity() * 4
            + self.held.capacity() * 8
            + self.evictable.metadata_bytes()
    }
    fn check(&self, resident: &dyn Fn(SampleId) -> bool, count: usize) -> Result<(), String> {
        self.evictable.check()?;
        if let Some(id) = self.evictable.ids().find(|&id| self.remaining[id as usize] > 0) {
            return Err(format!("{id} may be evicted though the plan needs it"));
        }
        if self.held_ids().count() != self.held_count {
            return Err(format!("{} ids are held, {} are booked", self.held_ids().count(), self.held_count));
        }
        check_members(self.evictable.ids().chain(self.held_ids()), resident, count)
    }
}
