//! Scores come home: measurements of a batch become importance of exactly the samples it delivered.

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::loader::Ticket;
use crate::sampler::random_belief;
use crate::settings::ScoreKind;
use crate::stats::Counters;
use crate::types::SampleId;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

/// SHADE's b0: the authors' code uses 10, the paper leaves it open.
pub const RANK_OFFSET: f32 = 10.0;

/// What was measured of a batch, one value a row.
#[derive(Debug, Clone, Copy)]
pub struct Measured<'a> {
    /// Losses, float32.
    pub loss: &'a [f32],
    /// Gradient-norm bounds, or `None` where only losses are known (then the loss stands for it).
    pub grad_norm: Option<&'a [f32]>,
    /// Entropies, or `None` where only losses are known.
    pub entropy: Option<&'a [f32]>,
    /// In-batch rank counts; negative = no rank (NaN, infinite or ignored row).
    pub count: &'a [i32],
}

impl Measured<'_> {
    /// The length of a column that is not `rows` long.
    fn other_length(&self, rows: usize) -> Option<usize> {
        let lengths = [
            self.loss.len(),
            self.grad_norm.map_or(rows, <[f32]>::len),
            self.entropy.map_or(rows, <[f32]>::len),
            self.count.len(),
        ];
        lengths.into_iter().find(|&l| l != rows)
    }
}

/// What is written into the score table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Belief {
    /// What was measured.
    Measured(ScoreKind),
    /// Noise fixed by (seed, id), for sampler and policy alike: the control of every claim about scores.
    Noise(u64),
}

/// Credits the scores of one batch, under one lock. Returns how many samples were scored.
///
/// Rows without a rank never enter the table; they are counted. A batch is scored once: a second call (a recomputed
/// forward pass, a second head) returns 0 and is counted. Never waits for I/O.
pub fn credit(
    cache: &Cache,
    counters: &Counters,
    belief: Belief,
    ticket: &Ticket,
    measured: &Measured<'_>,
) -> Result<usize> {
    let rows = ticket.ids.len();
    if let Some(length) = measured.other_length(rows) {
        return Err(Error::usage(format!(
            "{length} scores for a batch of {rows} samples (batch {} of epoch {}): score the logits of this very batch, one row a sample",
            ticket.number, ticket.epoch
        )));
    }
    if ticket.scored.swap(true, AcqRel) {
        counters.scores_repeated_total.fetch_add(rows as u64, Relaxed);
        return Ok(0);
    }
    Ok(record(cache, counters, belief, Some(ticket.serial), ticket.ids.iter().map(|&id| Some(id)), measured))
}

/// Credits scores to samples that are named one by one, as those of a replayed graph are: nothing tells whether they were
/// scored before. Ids below 0 or not below `samples` name nobody; their rows are counted with those that have no rank.
pub fn credit_ids(
    cache: &Cache,
    counters: &Counters,
    belief: Belief,
    samples: usize,
    ids: &[i64],
    measured: &Measured<'_>,
) -> Result<usize> {
    if let Some(length) = measured.other_length(ids.len()) {
        return Err(Error::usage(format!("{length} scores for {} ids: one row an id", ids.len())));
    }
    let known = |&id: &i64| SampleId::try_from(id).ok().filter(|&id| (id as usize) < samples);
    Ok(record(cache, counters, belief, None, ids.iter().map(known), measured))
}

/// Writes the scores of one batch, under one lock. Returns how many samples were scored.
fn record(
    cache: &Cache,
    counters: &Counters,
    belief: Belief,
    serial: Option<u64>,
    ids: impl ExactSizeIterator<Item = Option<SampleId>>,
    measured: &Measured<'_>,
) -> usize {
    let rows = ids.len();
    let value = |kind: ScoreKind, row: usize| match kind {
        ScoreKind::Loss => measured.loss[row],
        ScoreKind::GradientNorm => measured.grad_norm.map_or(measured.loss[row], |g| g[row]),
        ScoreKind::Entropy => measured.entropy.map_or(measured.loss[row], |e| e[row]),
        ScoreKind::Rank => (measured.count[row] as f32 + RANK_OFFSET).ln(),
    };
    let score = |(row, id): (usize, Option<SampleId>)| {
        let id = id.filter(|_| measured.count[row] >= 0)?;
        Some(match belief {
            Belief::Measured(kind) => (id, value(kind, row)),
            Belief::Noise(seed) => (id, random_belief(seed, id)),
        })
    };
    let scored = cache.learn(serial, ids.enumerate().map(score));
    counters.scores_total.fetch_add(scored as u64, Relaxed);
    counters.scores_unranked_total.fetch_add((rows - scored) as u64, Relaxed);
    scored
}
