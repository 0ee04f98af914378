//! An epoch's plan: who is drawn, and how the draws are cut into batches.

use std::ops::Range;
use std::sync::Arc;

use crate::sampler::{Batches, Order};

/// Where an epoch's order is cut.
#[derive(Debug, Clone, PartialEq)]
pub enum Cut {
    /// Into batches of one size, the same number on every rank.
    Even(Batches),
    /// Where a recorded run was cut: the end of each batch.
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
    /// Where the first batch that is still to come begins in the order.
    pub fn to_come(&self, first: usize) -> usize {
        if first < self.len() { self.range(first).start } else { self.order.ids.len() }
    }
}
