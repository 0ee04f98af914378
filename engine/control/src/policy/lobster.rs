//! Lobster (Liu et al., ICPP'22): who is used most often until the end of the next epoch stays, of equals who is used
//! soonest.

use std::collections::HashMap;

use super::{Entry, Needs, Policy, Suits, View, check_members, take_least};
use crate::index::{NextUse, PriorityQueue};
use crate::types::SampleId;

/// For the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "lobster",
    help: "Lobster's: evicts the sample with the fewest uses until the next epoch's end; among equals the farthest",
    needs: Needs::NEXT_EPOCH,
    suits: Suits::Nobody,
    make: |samples| Box::new(Lobster::new(samples)),
};

/// Evicts the resident with the fewest planned uses until the next epoch's end, of equals the one that is used
/// farthest away, for a candidate with more uses or a nearer one; ties leave things as they are.
///
/// The paper evicts a sample whose next use is more than 2I − h accesses away, I being the accesses of an epoch and h
/// how far it has come: until there none is counted, so such a sample is the first to go. Departures:
/// 1. a sample goes when another wants its place, not at once;
/// 2. uses are counted until the next epoch's end, the same 2I − h, and not until the end of training: a live run
///    knows as many epochs ahead as it has ranks (decision 40);
/// 3. count and distance, two steps in the paper, are one key;
/// 4. a sample goes although no other node holds it: every rank has a cache of its own;
/// 5. spare room prefetches nothing that the policy decides (decision 28);
/// 6. threads for loading and preprocessing, its other half, are `num_workers="auto"`'s (decision 44).
///
/// 9 bytes a sample, beside the [`NextUse`] that the ledger keeps for it; and about 20 for each sample that is used
/// more than 32 times.
#[derive(Debug)]
struct Lobster {
    /// By (uses, nearness): see [`Uses::key`].
    residents: PriorityQueue<u64>,
    uses: Uses,
}

impl Lobster {
    /// No residents; ids `0..samples`. Until an epoch begins every planned use counts.
    fn new(samples: usize) -> Self {
        Self { residents: PriorityQueue::new(samples), uses: Uses::until(u32::MAX) }
    }
}

/// Uses of a sample that are counted anew whenever their number is asked for. More are counted once and then counted
/// down: anew at each access, a sample's uses would take the square of their number in steps.
const FEW: u32 = 32;

/// How often samples are used until the next epoch's end.
#[derive(Debug)]
struct Uses {
    /// Where the next epoch ends, as a position in the plan.
    horizon: u32,
    /// Those of the samples that were found to be used more than [`FEW`] times.
    many: HashMap<SampleId, Counted>,
    /// Steps that were taken in the plan.
    #[cfg(test)]
    steps: u64,
}

#[derive(Debug)]
struct Counted {
    uses: u32,
    /// The first of them, as a position in the plan.
    first: u32,
}

impl Uses {
    fn until(horizon: u32) -> Self {
        Self {
            horizon,
            many: HashMap::new(),
            #[cfg(test)]
            steps: 0,
        }
    }
    /// Higher for more uses before the horizon; of equals for a nearer one.
    fn key(&mut self, id: SampleId, next_use: &NextUse) -> u64 {
        u64::from(self.count(id, next_use)) << 32 | u64::from(!next_use.at(id))
    }
    /// [`NextUse::count_before`] the horizon. Not every access is told to a policy (a sample that is larger than the
    /// cache passes it by), so what was used up since the last time is counted here, and each use once.
    fn count(&mut self, id: SampleId, next_use: &NextUse) -> u32 {
        let next = next_use.at(id);
        if let Some(counted) = self.many.get_mut(&id) {
            let used = next_use.count_between(counted.first, next, self.horizon);
            *counted = Counted { uses: counted.uses - used, first: next };
            #[cfg(test)]
            {
                self.steps += u64::from(used);
            }
            return counted.uses;
        }
        let uses = next_use.count_before(id, self.horizon);
        #[cfg(test)]
        {
            self.steps += u64::from(uses);
        }
        if uses > FEW {
            self.many.insert(id, Counted { uses, first: next });
        }
        uses
    }
    fn metadata_bytes(&self) -> usize {
        // A table has a byte beside each place.
        self.many.capacity() * (size_of::<(SampleId, Counted)>() + 1)
    }
}

impl Policy for Lobster {
    fn name(&self) -> &'static str {
        ENTRY.name
    }
    fn needs(&self) -> Needs {
        ENTRY.needs
    }
    fn hit(&mut self, id: SampleId, view: &View<'_>) {
        self.residents.update(id, self.uses.key(id, view.next_use));
    }
    fn place(&mut self, id: SampleId, view: &View<'_>, victims: &mut Vec<SampleId>) -> bool {
        let key = self.uses.key(id, view.next_use);
        let made = take_least(&mut self.residents, view.missing(id), view.sizes, victims, |least| key > least);
        if made {
            self.residents.insert(id, key);
        }
        made
    }
    fn weakest(&mut self, _view: &View<'_>) -> Option<SampleId> {
        self.residents.peek().map(|(id, _)| id)
    }
    fn left(&mut self, id: SampleId) {
        self.residents.remove(id);
    }
    fn planned(&mut self, next_use: &NextUse, _order: &[SampleId]) {
        self.uses = Uses::until(u32::MAX);
        self.residents.rekey(|id, _| self.uses.key(id, next_use));
    }
    fn begins(&mut self, accesses: usize, next_use: &NextUse) {
        let two_epochs = u32::try_from(accesses.saturating_mul(2)).unwrap_or(u32::MAX);
        self.uses = Uses::until(next_use.position().saturating_add(two_epochs));
        self.residents.rekey(|id, _| self.uses.key(id, next_use));
    }
    fn prefetch(&self, ids: &[SampleId]) {
        self.residents.prefetch(ids);
    }
    fn metadata_bytes(&self) -> usize {
        self.residents.metadata_bytes() + self.uses.metadata_bytes()
    }
    fn check(&self, view: &View<'_>) -> Result<(), String> {
        self.residents.check()?;
        // Counted anew, and from the front.
        let anew = |id| Uses::until(self.uses.horizon).key(id, view.next_use);
        if let Some(id) = self.residents.ids().find(|&id| self.residents.key(id) != Some(anew(id))) {
            return Err(format!("resident {id} is not keyed by its uses to come"));
        }
        check_members(self.residents.ids(), view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, below, generator};
    use proptest::prelude::*;

    proptest! {
        /// Counted down or anew, whoever is asked about and however often, whether the accesses follow the plan or not.
        #[test]
        fn uses_that_are_counted_down_are_those_that_are_left(
            order in prop::collection::vec(prop_oneof![5 => Just(0u32), 2 => Just(1), 1 => 2u32..6], 0..400),
            accesses in prop::collection::vec((prop_oneof![3 => Just(0u32), 1 => 0u32..6], 0u32..6), 0..400),
            horizon in prop_oneof![Just(u32::MAX), 0u32..400],
            begins in 0usize..400,
            epoch in 0u32..300,
        ) {
            let mut next_use = NextUse::placed(6);
            next_use.plan(&order);
            let mut uses = Uses::until(horizon);
            for (k, &(used, asked)) in accesses.iter().enumerate() {
                if k == begins {
                    uses = Uses::until(next_use.position() + epoch);
                }
                next_use.advance(used);
                prop_assert_eq!(uses.count(asked, &next_use), next_use.count_before(asked, uses.horizon));
            }
            for id in 0..6 {
                prop_assert_eq!(uses.count(id, &next_use), next_use.count_before(id, uses.horizon));
            }
        }
    }

    /// Steps in the plan, not time: some for each access, and each use of a sample once more. They were the square.
    #[test]
    fn a_sample_that_is_used_all_the_time_takes_no_more_steps_than_uses() {
        let (samples, accesses) = (40, 20_000);
        let rng = &mut generator(5, 0, 0, Purpose::Draw);
        // Half of all are of one sample, and a quarter of another.
        let order: Vec<SampleId> = (0..accesses).map(|_| below(rng, 1 << 20).leading_zeros() - 12).collect();
        let mut next_use = NextUse::placed(samples);
        next_use.plan(&order);
        let mut uses = Uses::until(u32::MAX);
        for &id in &order {
            next_use.advance(id);
            uses.key(id, &next_use);
        }
        let most = (2 + u64::from(FEW)) * accesses;
        assert!(uses.steps <= most, "{} steps for {accesses} accesses", uses.steps);
        assert!(!next_use.is_planned(0) && uses.many[&0].uses == 0);
    }
}
