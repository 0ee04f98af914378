//! A trace through a policy.
//!
//! A batch's accesses come first, in row order; then its scores are applied. The score of a sample is SHADE's:
//! ln(count + 10), count being the samples of the batch with a strictly smaller loss. The newest score is believed as
//! it is. No prefetch. Policies that need the whole future are told the whole trace, all others an epoch at its start.
//! A policy that does not look at scores is not told of any.
//!
//! A policy that substitutes delivers an epoch's samples in another order than was recorded, and its hits are of that
//! order: they can be more than Belady's bound of the recorded one. A sample that comes early or late has the loss that
//! was recorded of it in that epoch, and its score is the rank among those delivered with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::own_losses::OwnLosses;
use super::pipeline::{Costs, Time};
use super::population::{Composition, Population};
use super::tally::{Epoch, Tally, total_time};
use super::trace::Trace;
use crate::control::{Control, Cut, Plan, Turn, Verdict};
use crate::error::Result;
use crate::index::ScoreTable;
use crate::ledger::Ledger;
use crate::policy::{Entry, Needs};
use crate::sampler::{Order, random_belief};
use crate::types::SampleId;

/// What one policy made of a trace at one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replay {
    /// The policy's name.
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
    /// Counts of [`Options::watch`].
    #[serde(flatten)]
    pub watched: BTreeMap<&'static str, u64>,
    /// By epoch, [`EPOCHS_MAX`](super::EPOCHS_MAX) at most.
    pub epochs: Vec<Epoch>,
    /// Who was in the cache at the end, if a population was there to tell them by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residents: Option<Composition>,
    /// How long all epochs took, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// What else a replay does.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options<'a> {
    /// Every score is replaced by noise fixed by this seed and the sample: the control that tells what scores are
    /// worth.
    pub noise: Option<u64>,
    /// Time is counted.
    pub costs: Option<Costs>,
    /// Residents are told by these samples' scores and ages.
    pub population: Option<&'a Population>,
    /// Creates a counter for each run, where samples have sizes.
    pub watch: Option<fn() -> Box<dyn Watch>>,
}

/// Counts more of a replayed run than the replay itself.
pub trait Watch {
    /// An epoch begins.
    fn begin_epoch(&mut self);
    /// `id` is fetched; its batch was decided before.
    fn fetched(&mut self, id: SampleId, bytes: u64, books: &Ledger);
    /// What was counted, by name.
    fn counted(&self) -> BTreeMap<&'static str, u64>;
}

impl Replay {
    /// From what was counted. `fraction` is what the capacity is of the dataset.
    pub fn counted(
        policy: &str,
        (fraction, bytes): (f64, u64),
        epochs: Vec<Epoch>,
        residents: Option<Composition>,
    ) -> Self {
        let (hits, misses) = epochs.iter().fold((0, 0), |(h, m), epoch| (h + epoch.hits, m + epoch.misses));
        Self {
            policy: policy.to_owned(),
            capacity_fraction: fraction,
            capacity_bytes: bytes,
            hits,
            misses,
            hit_ratio: hits as f64 / (hits + misses) as f64,
            substituted: None,
            watched: BTreeMap::new(),
            time: total_time(&epochs),
            epochs,
            residents,
        }
    }
}

/// Replays `trace` through the policy with room for ⌊capacity_fraction × [`Trace::total_bytes`]⌋ bytes.
///
/// # Errors
/// `Settings` if the fraction is not between 0 and 1.
pub fn replay(trace: &Trace, policy: &Entry, capacity_fraction: f64) -> Result<Replay> {
    let bytes = trace.capacity(capacity_fraction)?;
    Ok(replay_with(trace, policy, (capacity_fraction, bytes), &Options::default()))
}

/// The same with `options`; the capacity is what it is of the dataset, which is reported as it is given, and bytes.
pub fn replay_with(trace: &Trace, policy: &Entry, capacity: (f64, u64), options: &Options<'_>) -> Replay {
    let samples = trace.samples();
    let mut ledger = Ledger::new(capacity.1, samples, (policy.make)(samples));
    let needs = ledger.needs();
    let clairvoyant = needs.contains(Needs::NEXT_EPOCH);
    if clairvoyant {
        ledger.plan(&trace.ids);
    }
    let scored = needs.contains(Needs::SCORES) && !trace.scores.is_empty();
    let bytes = |id: SampleId| trace.bytes(id);
    let mut control = Control::new(ScoreTable::new(samples, 0.0), ledger);
    let mut tally = Tally::new(samples, options.costs);
    let mut watch = options.watch.filter(|_| trace.has_sizes()).map(|make| make());
    let mut own = needs.contains(Needs::SUBSTITUTES).then(|| OwnLosses::new(samples));
    for (epoch, batches) in trace.epochs().enumerate() {
        let Some(start) = batches.first().map(|rows| rows.start) else { continue };
        tally.begin_epoch();
        watch.iter_mut().for_each(|watch| watch.begin_epoch());
        let rows = start..batches.last().map_or(start, |rows| rows.end);
        let order = Order { ids: trace.ids[rows.clone()].to_vec(), weights: vec![1.0; rows.len()] };
        let ends = batches.iter().map(|rows| rows.end - start).collect();
        let plan = Plan { epoch: epoch as u64, order: Arc::new(order), cut: Cut::At(ends), behind: Vec::new() };
        let pass = if clairvoyant { control.begin(plan, 0) } else { control.plan_and_begin(plan, 0) };
        if let Some(own) = &mut own {
            own.begin_epoch(&trace.ids[rows.clone()], &trace.losses[rows]);
        }
        for rows in batches {
            let Turn::Decided(decision) = control.decide(pass, &bytes) else { break };
            tally.batch(decision.rows.iter().map(|row| (row.delivered, row.verdict == Verdict::Hit)), bytes);
            if let Some((watch, books)) = watch.as_mut().zip(control.ledger()) {
                decision.fetched().for_each(|id| watch.fetched(id, bytes(id), books));
            }
            let own = own.as_mut().and_then(|own| own.scores(&decision.rows));
            if scored {
                let told = decision.rows.iter().zip(own.as_deref().unwrap_or(&trace.scores[rows]));
                let told = told.filter(|(_, score)| score.is_finite());
                let score = |id, score| options.noise.map_or(score, |seed| random_belief(seed, id));
                control.learn(None, told.map(|(row, &recorded)| (row.delivered, score(row.delivered, recorded))));
            }
        }
    }
    let residents = options.population.zip(control.ledger());
    let residents = residents.map(|(population, ledger)| population.composition(ledger.residents_iter()));
    let substituted = own.map(|own| own.substituted);
    let watched = watch.map(|watch| watch.counted()).unwrap_or_default();
    Replay { substituted, watched, ..Replay::counted(policy.name, capacity, tally.finish(), residents) }
}
