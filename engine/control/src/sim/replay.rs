//! A trace through a policy.
//!
//! A batch's accesses come first, in row order; then its scores are applied. The score of a sample is SHADE's:
//! ln(count + 10), count being the samples of the batch with a strictly smaller loss. The newest score is believed as it is. No
//! prefetch. `belady` is told the whole trace, every other policy an epoch at its start.

use lossfeed_kernels::rank;
use serde::Serialize;

use super::Trace;
use crate::error::{Error, Result};
use crate::index::ScoreTable;
use crate::ledger::Ledger;
use crate::policy::{self, Needs};

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
    let mut scores = ScoreTable::new(samples, 0.0);
    let mut ledger = Ledger::new(capacity_bytes, samples, policy::from_name(name, samples)?);
    let mut evicted = Vec::new();
    let clairvoyant = ledger.needs().contains(Needs::WHOLE_FUTURE);
    if clairvoyant {
        ledger.plan(&trace.ids);
    }
    let mut step = 0;
    for batches in trace.epochs() {
        if let (Some(first), Some(last), false) = (batches.first(), batches.last(), clairvoyant) {
            ledger.plan(&trace.ids[first.start..last.end]);
        }
        for rows in batches {
            let (ids, losses) = (&trace.ids[rows.clone()], &trace.losses[rows]);
            for &id in ids {
                ledger.access(id, &|id| trace.bytes(id), &scores, &mut evicted);
            }
            evicted.clear();
            for (&id, score) in ids.iter().zip(rank::scores(&rank::counts(losses), B0)) {
                if let Some(belief) = scores.record(id, score, step) {
                    ledger.rescore(id, belief);
                }
            }
            step += 1;
        }
    }
    let counts = ledger.counts();
    Ok(Replay {
        policy: policy.to_owned(),
        capacity_fraction: capacity_bytes as f64 / trace.total_bytes() as f64,
        capacity_bytes,
        hits: counts.hits,
        misses: counts.misses,
        hit_ratio: counts.hits as f64 / trace.requests() as f64,
    })
}
