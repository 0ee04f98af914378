//! ARC (Megiddo and Modha, FAST'03): what was used once and what was used again share the cache, and how much each gets
//! follows from who is missed.

use super::queues::Queues;
use super::{Entry, Needs, Policy, Suits, View, check_members};
use crate::types::SampleId;

/// For the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "arc",
    help: "ARC: recent and frequent samples share the cache, each as much as its misses ask for",
    needs: Needs::NOTHING,
    suits: Suits::Nobody,
    make: |samples| Box::new(AdaptiveReplacement::new(samples)),
};

/// Residents used once since they came (the paper's T1).
const RECENT: u32 = 0;
/// Residents used again (T2).
const FREQUENT: u32 = 1;
/// Samples that left the recent ones a short while ago, by name only (B1).
const RECENT_GHOSTS: u32 = 2;
/// The same of the frequent ones (B2).
const FREQUENT_GHOSTS: u32 = 3;

/// Two queues in order of last use. A sample enters the recent ones and goes over to the frequent ones when it is used
/// again. Who leaves is remembered as a ghost of its queue; a ghost that is asked for enters the frequent ones, and
/// moves the target share of its former queue up. The oldest of the recent gives way while these are above their
/// target, else the oldest of the frequent.
///
/// The paper has samples of one size and counts them; here bytes are counted, and with one size the decisions are the
/// paper's. With several, a ghost moves the target by its own size times the paper's factor, so that it does not matter
/// in which unit sizes are given; newcomers push out as many ghosts as it takes to remember no more than one cache's
/// worth of once-used samples, residents included, and two of all.
///
/// 9 bytes a sample, and 8 for each that left between two decisions (a cancelled or lost one).
#[derive(Debug)]
pub struct AdaptiveReplacement {
    queues: Queues<4>,
    /// The share of the cache that the recent ones should have, in bytes (the paper's p). It moves by fractions.
    target: f64,
}

impl AdaptiveReplacement {
    /// No residents; ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self { queues: Queues::new(samples), target: 0.0 }
    }
    /// Residents and ghosts that were used once, or more often.
    fn remembered(&self, residents: u32, ghosts: u32) -> u64 {
        self.queues.bytes(residents) + self.queues.bytes(ghosts)
    }
    /// Moves the target because `id` is missed, which is a ghost of `ghosts`.
    fn adapt(&mut self, id: SampleId, ghosts: u32, view: &View<'_>) {
        let bytes = |queue| self.queues.bytes(queue) as f64;
        let own = view.sizes.bytes(id) as f64;
        let others = RECENT_GHOSTS + FREQUENT_GHOSTS - ghosts;
        let step = own * (bytes(others) / bytes(ghosts)).max(1.0);
        let moved = if ghosts == RECENT_GHOSTS { self.target + step } else { self.target - step };
        self.target = moved.clamp(0.0, view.capacity as f64);
    }
    /// The resident that gives way next.
    fn find(&self, asks_frequent_ghost: bool) -> Option<SampleId> {
        let recent = self.queues.bytes(RECENT) as f64;
        let from_recent = recent > self.target || (asks_frequent_ghost && recent == self.target);
        let [first, second] = if from_recent { [RECENT, FREQUENT] } else { [FREQUENT, RECENT] };
        self.queues.oldest(first).or_else(|| self.queues.oldest(second))
    }
    /// Forgets ghosts of `queue`, the oldest first, while `too_much`.
    fn forget(&mut self, queue: u32, view: &View<'_>, too_much: impl Fn(&Self) -> bool) {
        while too_much(self) {
            let Some(oldest) = self.queues.oldest(queue) else { return };
            self.queues.take(oldest, view.sizes);
        }
    }
    /// Makes what is remembered leave room for the newcomer `id`. Residents used once that leave for it, because there
    /// are no ghosts left to forget, are not remembered.
    fn limit(&mut self, id: SampleId, view: &View<'_>, victims: &mut Vec<SampleId>) {
        let (bytes, limit) = (view.sizes.bytes(id), view.capacity);
        let once = |arc: &Self| arc.remembered(RECENT, RECENT_GHOSTS) + bytes;
        self.forget(RECENT_GHOSTS, view, |arc| once(arc) > limit);
        while once(self) > limit {
            let Some(oldest) = self.queues.oldest(RECENT) else { break };
            self.queues.take(oldest, view.sizes);
            victims.push(oldest);
        }
        let all = |arc: &Self| once(arc) + arc.remembered(FREQUENT, FREQUENT_GHOSTS);
        self.forget(FREQUENT_GHOSTS, view, |arc| all(arc) > limit.saturating_mul(2));
    }
}

impl Policy for AdaptiveReplacement {
    fn name(&self) -> &'static str {
        ENTRY.name
    }
    fn needs(&self) -> Needs {
        ENTRY.needs
    }
    fn hit(&mut self, id: SampleId, view: &View<'_>) {
        self.queues.take(id, view.sizes);
        self.queues.push(FREQUENT, id, 0, view.sizes);
    }
    fn place(&mut self, id: SampleId, view: &View<'_>, victims: &mut Vec<SampleId>) -> bool {
        self.queues.settle(view.sizes);
        self.target = self.target.min(view.capacity as f64);
        // Nobody who is nowhere is a ghost: residents are not placed.
        let ghosts = self.queues.queue(id);
        let (missing, before) = (view.missing(id), victims.len());
        if let Some(ghosts) = ghosts {
            self.adapt(id, ghosts, view);
            self.queues.take(id, view.sizes);
        } else {
            self.limit(id, view, victims);
        }
        // It fits into the empty cache, so the search ends before the residents do: nothing is refused here.
        let mut freed: u64 = victims[before..].iter().map(|&victim| view.sizes.bytes(victim)).sum();
        while freed < missing {
            let Some(victim) = self.find(ghosts == Some(FREQUENT_GHOSTS)) else { break };
            freed += view.sizes.bytes(victim);
            if let Some(queue) = self.queues.take(victim, view.sizes) {
                self.queues.push(queue + RECENT_GHOSTS, victim, 0, view.sizes);
            }
            victims.push(victim);
        }
        self.queues.push(if ghosts.is_some() { FREQUENT } else { RECENT }, id, 0, view.sizes);
        true
    }
    fn weakest(&mut self, view: &View<'_>) -> Option<SampleId> {
        self.queues.settle(view.sizes);
        self.find(false)
    }
    fn left(&mut self, id: SampleId) {
        self.queues.drop_out(id);
    }
    fn prefetch(&self, ids: &[SampleId]) {
        self.queues.prefetch(ids);
    }
    fn metadata_bytes(&self) -> usize {
        self.queues.metadata_bytes()
    }
    fn check(&self, view: &View<'_>) -> Result<(), String> {
        self.queues.check(view.sizes)?;
        let ghosts = self.queues.iter(RECENT_GHOSTS).chain(self.queues.iter(FREQUENT_GHOSTS));
        if let Some(id) = { ghosts }.find(|&id| view.residents.contains(id)) {
            return Err(format!("the resident {id} is a ghost"));
        }
        check_members(self.queues.iter(RECENT).chain(self.queues.iter(FREQUENT)), view)
    }
}
