//! An epoch's plan: who is drawn, and how the draws are cut into batches.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

#[cfg(doc)]
use crate::policy::Needs;
use crate::sampler::{Batches, Given, Order};
use crate::types::SampleId;

/// Where an epoch's order is cut.
#[derive(Debug, Clone, PartialEq)]
pub enum Cut {
    /// Into batches of one size, the same number on every rank.
    Even(Batches),
    /// Where a recorded run was cut, or whoever brings its own order cuts it: the end of each batch.
    At(Vec<usize>),
}

/// One epoch as planned. Cheap to clone.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The epoch.
    pub epoch: u64,
    /// Its draws.
    pub order: Arc<Order>,
    /// Its batches.
    pub cut: Cut,
    /// The orders of the epochs behind it, cut alike, for a policy that [has to know](Needs::NEXT_EPOCH) them.
    pub behind: Vec<Arc<Order>>,
}

impl Cut {
    /// Cuts a drawn order: as `even`, or by its own length where epochs may be short.
    pub fn of(order: &Order, is_short: bool, even: Batches, batch_size: usize, drop_last: bool) -> Self {
        if is_short { Self::At(Given::ends(order.ids.len(), batch_size, drop_last)) } else { Self::Even(even) }
    }
}

impl Plan {
    /// Batches of the epoch.
    pub fn len(&self) -> usize {
        match &self.cut {
            Cut::Even(batches) => batches.len(),
            Cut::At(ends) => ends.len(),
        }
    }
    /// Whether the epoch has no batch.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Where batch `number` lies in the order; empty from [`Plan::len`] on.
    pub fn range(&self, number: usize) -> Range<usize> {
        match &self.cut {
            Cut::Even(batches) => batches.range(number),
            Cut::At(ends) => {
                let end = |k: usize| ends.get(k).or(ends.last()).copied().unwrap_or(0);
                number.checked_sub(1).map_or(0, end)..end(number)
            }
        }
    }
    /// The order of an epoch that goes on from place `from`, where other samples came than those planned: at the places
    /// of `substituted` before it. Who came early is not in the rest; who is owed has that one's place.
    pub fn settled(&self, from: usize, substituted: &[(u32, SampleId)]) -> Order {
        let mut order = Order::clone(&self.order);
        let mut owed: VecDeque<SampleId> = VecDeque::new();
        // How often a sample is owed, or below 0 how often it came early.
        let mut balance: HashMap<SampleId, i64> = HashMap::new();
        for &(place, early) in substituted.iter().filter(|&&(place, _)| (place as usize) < from) {
            let planned = order.ids[place as usize];
            *balance.entry(early).or_default() -= 1;
            *balance.entry(planned).or_default() += 1;
            owed.push_back(planned);
        }
        for id in order.ids.iter_mut().skip(from) {
            if balance.get(id).is_none_or(|&owed| owed >= 0) {
                continue;
            }
            let still_owed = |id: &SampleId| balance.get(id).is_some_and(|&owed| owed > 0);
            let paid = owed.iter().take_while(|id| !still_owed(id)).count();
            owed.drain(..paid);
            if let Some(owed) = owed.pop_front() {
                *balance.entry(owed).or_default() -= 1;
                *balance.entry(*id).or_default() += 1;
                *id = owed;
            }
        }
        order
    }
    /// Draws that are in a batch: the places before this one. Behind it lies what is dropped.
    pub fn drawn(&self) -> usize {
        self.range(self.len().saturating_sub(1)).end
    }
    /// What the policy is told when batch `first` is next: the accesses to come, as far as they are known.
    pub fn told(&self, first: usize) -> Cow<'_, [SampleId]> {
        let ids = &self.order.ids;
        if self.behind.is_empty() {
            return Cow::Borrowed(&ids[self.to_come(first)..]);
        }
        // What is dropped behind an epoch's last batch is no access.
        let drawn = self.drawn();
        let mut told = ids[self.to_come(first).min(drawn)..drawn].to_vec();
        self.behind.iter().for_each(|order| told.extend(order.ids.iter().take(drawn)));
        Cow::Owned(told)
    }
    /// Where the first batch that is still to come begins in the order.
    pub fn to_come(&self, first: usize) -> usize {
        if first < self.len() { self.range(first).start } else { self.order.ids.len() }
    }
}
