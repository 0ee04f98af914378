//! A whole journal in memory, and the same calls of the same books once more.

use std::io::Read;

use lossfeed_control::index::{ScoreTable, Standing};
use lossfeed_control::ledger::{Access, Ledger};
use lossfeed_control::policy::{self, Needs};
use lossfeed_control::{Error, Result, SampleId};

use crate::{Ending, Event, Limits, Meta, Reader, Verdict};

/// A recorded run.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// What is true of the whole run.
    pub meta: Meta,
    /// What happened, in order.
    pub events: Vec<Event>,
    /// Whether the run closed its journal.
    pub ending: Ending,
    /// What a sample takes in the cache, by id; 0 where it was never asked for.
    sizes: Vec<u64>,
}

/// What a policy made of a recorded run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// Accesses that found their sample resident.
    pub hits: u64,
    /// Accesses that did not.
    pub misses: u64,
    /// Accesses that were hits in the run and none here, or the other way round. With the run's own policy and capacity this is 0,
    /// or the journal has gaps.
    pub otherwise: u64,
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
                    if sizes[id] != 0 && sizes[id] != row.bytes {
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
            return Err(Error::unreadable("no batch was decided: there is nothing to replay"));
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

    /// Bytes of all samples that were delivered.
    pub fn delivered_bytes(&self) -> u64 {
        self.sizes.iter().sum()
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

/// The recorded run with a cache of that policy and capacity: the accesses, scores and failures of the run, in its order.
/// A policy that needs the whole future (`belady`) knows the whole journal; every other one a pass at its begin.
///
/// # Errors
/// `Settings` if there is no such policy.
pub fn replay(recording: &Recording, policy: &str, capacity_bytes: u64) -> Result<Replayed> {
    let samples = usize::try_from(recording.meta.samples)
        .map_err(|e| Error::unreadable("the dataset has more samples than fit").because(e))?;
    let bytes = |id: SampleId| recording.sizes.get(id as usize).copied().unwrap_or(0);
    let mut scores = ScoreTable::new(samples, recording.meta.smoothing);
    let mut ledger = Ledger::new(capacity_bytes, samples, policy::from_name(policy, samples)?);
    // The run's own policy is told what the run told it.
    let clairvoyant = ledger.needs().contains(Needs::WHOLE_FUTURE) && policy != recording.meta.policy;
    if clairvoyant {
        ledger.plan(&recording.to_come(0, true));
    }
    let mut evicted = Vec::new();
    let mut otherwise = 0;
    let mut clock = 0u32;
    for (number, event) in recording.events.iter().enumerate() {
        match event {
            Event::Begin { .. } if clairvoyant => {}
            Event::Begin { plan, .. } if plan.is_empty() => ledger.plan(&recording.to_come(number + 1, false)),
            Event::Begin { plan, .. } => ledger.plan(plan),
            Event::Decide { rows, .. } => {
                for row in rows {
                    let hit = ledger.access(row.id, &bytes, &scores, &mut evicted) == Access::Hit;
                    otherwise += u64::from(hit != (row.verdict == Verdict::Hit));
                }
                evicted.clear();
            }
            Event::Learn { rows, .. } => {
                for row in rows {
                    if let Some(belief) = scores.record(row.id, row.score, clock) {
                        ledger.rescore(row.id, belief);
                    }
                }
                clock = clock.wrapping_add(1);
            }
            Event::Cancel(ids) => ids.iter().for_each(|&id| ledger.cancel(id)),
            Event::Read(rows) => {
                for &(id, read) in rows {
                    if read { scores.recover(id) } else { scores.fail(id) }
                }
            }
            Event::Tried(ids) => {
                let average = scores.mean().unwrap_or(0.0) as f32;
                for &id in ids {
                    if scores.standing(id) == Standing::Unseen {
                        scores.tried(id);
                        ledger.rescore(id, average);
                    }
                }
            }
            Event::Believe(rows) => {
                for &(id, score) in rows {
                    if let Some(belief) = scores.record(id, score, clock) {
                        ledger.rescore(id, belief);
                    }
                }
            }
            Event::Lost(_) => {}
        }
    }
    let counts = ledger.counts();
    Ok(Replayed { hits: counts.hits, misses: counts.misses, otherwise })
}
