//! A trace through a policy.
//!
//! A batch's accesses come first, in row order; then its scores are applied. The score of a sample is SHADE's:
//! ln(count + 10), count being the samples of the batch with a strictly smaller loss. The newest score is believed as
//! it is. No prefetch. Policies that need the whole future are told the whole trace, all others an epoch at its start.
//!
//! A policy that substitutes delivers an epoch's samples in another order than was recorded, and its hits are of that
//! order: they can be more than Belady's bound of the recorded one. A sample that comes early or late has the loss that
//! was recorded of it in that epoch, and its score is the rank among those delivered with it.

use std::sync::Arc;

use lossfeed_kernels::rank;
use serde::Serialize;

use super::Trace;
use crate::control::{Control, Cut, Plan, Row, Turn};
use crate::error::{Error, Result};
use crate::index::ScoreTable;
use crate::ledger::Ledger;
use crate::policy::{self, Needs};
use crate::sampler::Order;
use crate::types::SampleId;

/// The offset of SHADE Eq. 6 in its authors' code; the paper leaves it open.
const B0: f32 = 10.0;

/// What one policy made of a trace at one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replay {
    /// The policy's name, as asked for.
    pub policy: String,
    /// Size of the cache as a fraction of the dataset's bytes.
    pub capacity_fraction: f64,
    /// The same in bytes; in samples if the trace has no sizes.
    pub capacity_bytes: u64,
    /// Accesses that found their sample resident.
    pub hits: u64,
    /// Accesses that did not.
    pub misses: u64,
    /// hits / (hits + misses).
    pub hit_ratio: f64,
    /// Accesses at which another sample was delivered than was asked for; `None` under a policy that never does that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub substituted: Option<u64>,
}

/// Replays `trace` through the policy of that name (`app`, the paper's name for it, is `shade`) with room for
/// ⌊capacity_fraction × [`Trace::total_bytes`]⌋ bytes.
///
/// # Errors
/// `Settings` if there is no such policy or the fraction is not between 0 and 1.
pub fn replay(trace: &Trace, policy: &str, capacity_fraction: f64) -> Result<Replay> {
    if !(0.0..=1.0).contains(&capacity_fraction) {
        return Err(Error::settings(format!(
            "the capacity fraction is {capacity_fraction}: give a part of the dataset from 0 to 1"
        )));
    }
    let capacity_bytes = (capacity_fraction * trace.total_bytes() as f64).floor() as u64;
    Ok(Replay { capacity_fraction, ..replay_bytes(trace, policy, capacity_bytes)? })
}

/// The same with room for `capacity_bytes`, or for so many samples if the trace has no sizes.
///
/// # Errors
/// `Settings` if there is no such policy.
pub fn replay_bytes(trace: &Trace, policy: &str, capacity_bytes: u64) -> Result<Replay> {
    let name = if policy == "app" { "shade" } else { policy };
    let samples = trace.samples();
    let mut ledger = Ledger::new(capacity_bytes, samples, policy::from_name(name, samples)?);
    let clairvoyant = ledger.needs().contains(Needs::WHOLE_FUTURE);
    let mut own = OwnLosses::new(ledger.needs().contains(Needs::SUBSTITUTES), samples);
    if clairvoyant {
        ledger.plan(&trace.ids);
    }
    let mut control = Control::new(ScoreTable::new(samples, 0.0), ledger);
    for (epoch, batches) in trace.epochs().enumerate() {
        let Some(start) = batches.first().map(|rows| rows.start) else { continue };
        let rows = start..batches.last().map_or(start, |rows| rows.end);
        let order = Order { ids: trace.ids[rows.clone()].to_vec(), weights: vec![1.0; rows.len()] };
        let ends = batches.iter().map(|rows| rows.end - start).collect();
        let plan = Plan { epoch: epoch as u64, order: Arc::new(order), cut: Cut::At(ends) };
        let pass = if clairvoyant { control.begin(plan, 0) } else { control.plan_and_begin(plan, 0) };
        own.begin(&trace.ids[rows.clone()], &trace.losses[rows]);
        for rows in batches {
            let Turn::Decided(decision) = control.decide(pass, &|id| trace.bytes(id)) else { break };
            let (ids, losses) = (&trace.ids[rows.clone()], &trace.losses[rows]);
            match own.delivered(&decision.rows) {
                None => control.learn(None, ids.iter().copied().zip(rank::scores(&rank::counts(losses), B0))),
                Some((ids, losses)) => {
                    control.learn(None, ids.into_iter().zip(rank::scores(&rank::counts(&losses), B0)))
                }
            };
        }
    }
    let counts = control.counts();
    Ok(Replay {
        policy: policy.to_owned(),
        capacity_fraction: capacity_bytes as f64 / trace.total_bytes() as f64,
        capacity_bytes,
        hits: counts.hits,
        misses: counts.misses,
        hit_ratio: counts.hits as f64 / trace.requests() as f64,
        substituted: own.is_on.then_some(own.substituted),
    })
}

/// What was recorded of each sample in the epoch at hand, for policies that deliver it at another time.
struct OwnLosses {
    is_on: bool,
    /// By id; NaN if the epoch has none.
    losses: Vec<f32>,
    substituted: u64,
}

impl OwnLosses {
    fn new(is_on: bool, samples: usize) -> Self {
        Self { is_on, losses: vec![f32::NAN; if is_on { samples } else { 0 }], substituted: 0 }
    }
    fn begin(&mut self, ids: &[SampleId], losses: &[f32]) {
        if self.is_on {
            self.losses.fill(f32::NAN);
            ids.iter().zip(losses).for_each(|(&id, &loss)| self.losses[id as usize] = loss);
        }
    }
    /// The samples of a batch and their losses; `None` if they are those that the trace has there.
    fn delivered(&mut self, rows: &[Row]) -> Option<(Vec<SampleId>, Vec<f32>)> {
        let substituted = rows.iter().filter(|row| row.drawn != row.delivered).count() as u64;
        self.substituted += substituted;
        let ids = rows.iter().map(|row| row.delivered);
        (substituted > 0).then(|| (ids.clone().collect(), ids.map(|id| self.losses[id as usize]).collect()))
    }
}
