//! A whole journal in memory, and the same calls of the same books once more.

use std::collections::HashSet;
use std::io::Read;

use std::sync::Arc;

use lossfeed_control::control::{Control, Cut, Plan};
use lossfeed_control::index::ScoreTable;
use lossfeed_control::ledger::Ledger;
use lossfeed_control::policy::{self, Needs};
use lossfeed_control::sampler::{Order, random_belief};
use lossfeed_control::sim::{Ages, Composition, Epoch, Options, Population, Tally};
use lossfeed_control::{Error, Result, SampleId};

use crate::{Ending, Event, Limits, Meta, Reader, Row, Verdict};

/// What no cache keeps: the size of a sample that was delivered, and of which no size is told.
const UNKNOWN: u64 = u64::MAX;

/// A recorded run.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// What is true of the whole run.
    pub meta: Meta,
    /// What happened, in order.
    pub events: Vec<Event>,
    /// Whether the run closed its journal.
    pub ending: Ending,
    /// What a sample takes in the cache, by id; 0 where it was never asked for, [`UNKNOWN`] where nothing tells.
    sizes: Vec<u64>,
}

/// What a policy made of a recorded run.
#[derive(Debug, Clone, PartialEq)]
pub struct Replayed {
    /// Accesses that found their sample resident.
    pub hits: u64,
    /// Accesses that did not.
    pub misses: u64,
    /// Accesses that were hits in the run and none here, or the other way round. With the run's own policy and capacity
    /// this is 0, or the journal has gaps.
    pub otherwise: u64,
    /// By epoch.
    pub epochs: Vec<Epoch>,
    /// Who was in the cache at the end, if a population was there to tell them by.
    pub residents: Option<Composition>,
}

impl Recording {
    /// Reads a journal to its end.
    ///
    /// # Errors
    /// As [`Reader::next_event`]; also if a sample has two sizes, or nothing was decided.
    pub fn read(reader: impl Read, limits: Limits) -> Result<Self> {
        let mut reader = Reader::new(reader, limits)?;
        let mut events = Vec::new();
        let mut sizes = Vec::new();
        while let Some(event) = reader.next_event()? {
            if let Event::Decide { epoch, step, rows } = &event {
                for row in rows {
                    let id = row.id as usize;
                    // As far as the ids go: a description that promises many samples must not cost their memory.
                    if sizes.len() <= id {
                        sizes.resize(id + 1, 0);
                    }
                    if row.bytes == 0 {
                        sizes[id] = if sizes[id] == 0 { UNKNOWN } else { sizes[id] };
                        continue;
                    }
                    if ![0, UNKNOWN, row.bytes].contains(&sizes[id]) {
                        return Err(Error::unreadable(format!(
                            "epoch {epoch} step {step}: sample {id} takes {} bytes here and {} before: a sample has one size",
                            row.bytes, sizes[id]
                        )));
                    }
                    sizes[id] = row.bytes;
                }
            }
            events.push(event);
        }
        if sizes.is_empty() {
            return Err(Error::unreadable("it contains no batch: there is nothing to replay"));
        }
        let ending = reader.ending().unwrap_or(Ending::Cut);
        Ok(Self { meta: reader.meta().clone(), events, ending, sizes })
    }

    /// Hits and misses of the run itself.
    pub fn counted(&self) -> (u64, u64) {
        let mut counted = (0, 0);
        for event in &self.events {
            if let Event::Decide { rows, .. } = event {
                let hits = rows.iter().filter(|row| row.verdict == Verdict::Hit).count() as u64;
                counted.0 += hits;
                counted.1 += rows.len() as u64 - hits;
            }
        }
        counted
    }

    /// Rows that the run could not write.
    pub fn lost(&self) -> u64 {
        self.events.iter().map(|event| if let Event::Lost(rows) = event { *rows } else { 0 }).sum()
    }

    /// Distinct samples that were delivered.
    pub fn delivered(&self) -> usize {
        self.sizes.iter().filter(|&&bytes| bytes != 0).count()
    }

    /// Bytes of all samples that were delivered, as far as they are told.
    pub fn delivered_bytes(&self) -> u64 {
        self.sizes.iter().filter(|&&bytes| bytes != UNKNOWN).sum()
    }

    /// Every sample that was delivered, and what it takes in the cache where that is told.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (SampleId, Option<u64>)> + '_ {
        let delivered = self.sizes.iter().enumerate().filter(|(_, bytes)| **bytes != 0);
        delivered.map(|(id, &bytes)| (id as SampleId, Some(bytes).filter(|&bytes| bytes != UNKNOWN)))
    }

    /// The samples as the run left them: what was believed of them at last, and how long ago they were delivered.
    pub fn population(&self) -> Population {
        let samples = self.sizes.len();
        let (mut scores, mut ages) = (ScoreTable::new(samples, self.meta.smoothing), Ages::new(samples));
        // A score may be of a sample that no decision names, where the journal has gaps.
        let mut believe = |id: SampleId, score| {
            if (id as usize) < samples {
                scores.record(id, score, 0);
            }
        };
        for event in &self.events {
            match event {
                Event::Decide { rows, .. } => rows.iter().for_each(|row| ages.meet(row.id)),
                Event::Learn { rows, .. } => rows.iter().for_each(|row| believe(row.id, row.score)),
                Event::Believe(rows) => rows.iter().for_each(|&(id, score)| believe(id, score)),
                _ => {}
            }
        }
        Population::new(scores.as_slice(), &ages)
    }

    /// The accesses to come from event `first` on: to the end of the pass, or of the journal.
    fn to_come(&self, first: usize, whole: bool) -> Vec<SampleId> {
        let rest = self.events[first..].iter();
        rest.take_while(|event| whole || !matches!(event, Event::Begin { .. }))
            .filter_map(|event| if let Event::Decide { rows, .. } = event { Some(rows) } else { None })
            .flat_map(|rows| rows.iter().map(|row| row.id))
            .collect()
    }
}

/// The recorded run with a cache of that policy and capacity: the accesses, scores and failures of the run, in its
/// order. A policy that needs the whole future (`belady`) knows the whole journal; every other one a pass at its begin.
///
/// # Errors
/// `Settings` if there is no such policy.
pub fn replay(recording: &Recording, policy: &str, capacity_bytes: u64) -> Result<Replayed> {
    replay_with(recording, policy, capacity_bytes, &Options::default())
}

/// The same with `options`. A journal tells who was delivered, so no policy substitutes here.
///
/// # Errors
/// `Settings` if there is no such policy.
pub fn replay_with(
    recording: &Recording,
    policy: &str,
    capacity_bytes: u64,
    options: &Options<'_>,
) -> Result<Replayed> {
    let samples = usize::try_from(recording.meta.samples)
        .map_err(|e| Error::unreadable("the dataset has more samples than fit").because(e))?;
    let bytes = |id: SampleId| recording.sizes.get(id as usize).copied().unwrap_or(0);
    let mut ledger = Ledger::new(capacity_bytes, samples, policy::from_name(policy, samples)?);
    // The run's own policy is told what the run told it, others what a run of theirs would tell them.
    let own = policy == recording.meta.policy;
    let clairvoyant = ledger.needs().contains(Needs::NEXT_EPOCH) && !own;
    let told_more = policy::find(&recording.meta.policy).is_ok_and(|run| run.needs.contains(Needs::NEXT_EPOCH)) && !own;
    if clairvoyant {
        ledger.plan(&recording.to_come(0, true));
    }
    let mut control = Control::new(ScoreTable::new(samples, recording.meta.smoothing), ledger);
    let score = |id, score: f32| match options.noise {
        Some(seed) if score.is_finite() => random_belief(seed, id),
        _ => score,
    };
    let (mut tally, mut counted) = (Tally::new(samples, options.costs), None);
    let mut otherwise = 0;
    for (number, event) in recording.events.iter().enumerate() {
        match event {
            Event::Begin { epoch, plan, .. } => {
                let ids =
                    if plan.is_empty() || told_more { recording.to_come(number + 1, false) } else { plan.to_vec() };
                let cut = Cut::At(vec![ids.len()]);
                let order = Arc::new(Order { weights: vec![1.0; ids.len()], ids });
                let plan = Plan { epoch: *epoch, order, cut, behind: Vec::new() };
                if clairvoyant {
                    control.begin(plan, 0)
                } else {
                    control.plan_and_begin(plan, 0)
                };
            }
            Event::Decide { epoch, rows, .. } => {
                if counted.replace(*epoch) != Some(*epoch) {
                    tally.begin_epoch();
                }
                otherwise += decide(&mut control, &mut tally, rows, &bytes);
            }
            Event::Learn { rows, .. } => {
                control.learn(None, rows.iter().map(|row| (row.id, score(row.id, row.score))));
            }
            Event::Believe(rows) => {
                control.learn(None, rows.iter().map(|&(id, belief)| (id, score(id, belief))));
            }
            Event::Cancel(ids) => ids.iter().for_each(|&id| {
                control.cancel(id);
            }),
            Event::Read(rows) => {
                let ids: Vec<SampleId> = rows.iter().map(|&(id, _)| id).collect();
                control.read(0, &ids, &|row| !rows[row].1);
            }
            Event::Tried(ids) => ids.iter().for_each(|&id| {
                control.tried(id);
            }),
            // Orders are the run's: who drew them does not count.
            // And when samples came changes no book.
            Event::Sampler(_) | Event::Weights(_) | Event::Io { .. } | Event::Lost(_) => {}
        }
    }
    let counts = control.counts();
    let residents = options.population.zip(control.ledger());
    let residents = residents.map(|(population, ledger)| population.composition(ledger.residents_iter()));
    Ok(Replayed { hits: counts.hits, misses: counts.misses, otherwise, epochs: tally.finish(), residents })
}

/// Decides a batch and counts it. Answers of how many rows the run's own cache had it otherwise.
fn decide(control: &mut Control, tally: &mut Tally, rows: &[Row], bytes: &dyn Fn(SampleId) -> u64) -> u64 {
    // What was not known in the run is not known here.
    let unknown: HashSet<SampleId> = rows.iter().filter(|row| row.bytes == 0).map(|row| row.id).collect();
    let told = |id| if unknown.contains(&id) { UNKNOWN } else { bytes(id) };
    let verdicts = control.follow(rows.iter().map(|row| row.id), &told);
    let hits = verdicts.iter().map(|&verdict| verdict == Verdict::Hit);
    let known = |id| Some(bytes(id)).filter(|&bytes| bytes != UNKNOWN).unwrap_or(0);
    tally.batch(rows.iter().map(|row| row.id).zip(hits), known);
    tally.weigh(rows.iter().map(|row| row.weight));
    let differs = |(verdict, row): (Verdict, &Row)| (verdict == Verdict::Hit) != (row.verdict == Verdict::Hit);
    verdicts.into_iter().zip(rows).filter(|&pair| differs(pair)).count() as u64
}
