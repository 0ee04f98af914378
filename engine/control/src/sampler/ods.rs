//! Opportunistic sampling, of Seneca (FAST'26): whoever is wanted and not cached changes places with a cached sample
//! that this epoch has not had yet.
//!
//! Departures: the original serves several jobs that share a cache, drops a sample that all of them have used, and
//! fetches another one in the background; its hits are those reads. Here is the part that concerns one job: an order.
//! With one permutation an epoch, all substitutions together put the residents of the epoch's beginning first.

use serde::{Deserialize, Serialize};

use super::{Order, Outlook, Sampler, tilt};
use crate::error::Result;

/// Every owned sample once an epoch: those that are cached when it begins, shuffled, and then the rest, shuffled. Every
/// weight is that of a pass, and the epoch's mean is exact. Batches are no random part of the data, though: the first
/// ones hold what is cached.
///
/// A policy that evicts who was used longest ago (`lru`, `fifo`) then hits as often as one that evicts nobody: the
/// samples are used before they leave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ods {}

impl Sampler for Ods {
    fn name(&self) -> &'static str {
        "ods"
    }
    fn draw(&self, outlook: &Outlook<'_>) -> Result<Order> {
        let Order { ids, weights } = tilt::first_pass(outlook);
        let (cached, rest): (Vec<_>, Vec<_>) = ids.into_iter().partition(|&id| (outlook.resident)(id));
        Ok(Order { ids: [cached, rest].concat(), weights })
    }
}
