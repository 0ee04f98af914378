//! Scores come home: measurements of a batch become importance of exactly the samples it delivered.

pub mod file;

use crate::cache::{Cache, Scorable};
use crate::error::{Error, Result};
use crate::journal::Scored;
use crate::loader::Ticket;
use crate::sampler::random_belief;
use crate::settings::{Column, ScoreKind};
use crate::stats::Counters;
use crate::types::SampleId;
use lossfeed_sync::Mutex;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// SHADE's b0: the authors' code uses 10, the paper leaves it open.
pub const RANK_OFFSET: f32 = 10.0;

/// What was measured of a batch, one value a row.
#[derive(Debug, Clone, Copy)]
pub struct Measured<'a> {
    /// Losses, float32.
    pub loss: &'a [f32],
    /// Gradient-norm bounds, or `None` where they are not known.
    pub grad_norm: Option<&'a [f32]>,
    /// Entropies, or `None` where they are not known.
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

impl Measured<'_> {
    fn has(&self, kind: ScoreKind) -> bool {
        match kind.needs() {
            None => true,
            Some(Column::GradientNorm) => self.grad_norm.is_some(),
            Some(Column::Entropy) => self.entropy.is_some(),
        }
    }
}

/// The one measurement that a run's score table holds. Two in one table would compare what cannot be compared.
///
/// A kind that was asked for by name is the run's. Otherwise the run's first scores settle it: the kind that suits
/// policy and sampler, or losses where those scores bring nothing else.
#[derive(Debug)]
pub struct Scale {
    named: Option<ScoreKind>,
    suits: ScoreKind,
    settled: Mutex<Option<ScoreKind>>,
}

impl Scale {
    /// `named`: what was asked for, if anything. `suits`: what is taken otherwise.
    pub fn new(named: Option<ScoreKind>, suits: ScoreKind) -> Self {
        Self { named, suits, settled: Mutex::new(named) }
    }

    /// The measurement in force.
    pub fn kind(&self) -> ScoreKind {
        self.settled().unwrap_or(self.suits)
    }

    /// The measurement that the scores so far are on, if there were any or one was asked for.
    pub fn settled(&self) -> Option<ScoreKind> {
        *self.settled.lock()
    }

    /// Whether scores on this measurement may be put into the run's table.
    ///
    /// # Errors
    /// `Settings` if another was asked for by name.
    pub fn accepts(&self, kind: ScoreKind) -> Result<()> {
        match self.named {
            Some(named) if named != kind => Err(Error::settings(format!(
                "the state holds scores by {} and this loader scores by {}: make it with score={:?}, or start a new \
                 run",
                kind.name(),
                named.name(),
                kind.name()
            ))),
            _ => Ok(()),
        }
    }

    /// The run's table now holds a resumed run's scores: on that measurement, or on none yet.
    pub fn replace(&self, kind: Option<ScoreKind>) {
        *self.settled.lock() = self.named.or(kind);
    }

    /// The measurement to take from these scores.
    fn settle(&self, measured: &Measured<'_>) -> Result<ScoreKind> {
        let kind = *self.settled.lock().get_or_insert_with(|| {
            if measured.has(self.suits) {
                return self.suits;
            }
            tracing::info!(
                "the first scores have no {}: this run's importance is the loss (score={:?} sets that from the start)",
                self.suits.name(),
                ScoreKind::Loss.name()
            );
            ScoreKind::Loss
        });
        if measured.has(kind) {
            return Ok(kind);
        }
        Err(Error::usage(format!(
            "these scores have no {0}, by which this run is scored: give {0} with every batch, or make the loader \
             with score={1:?}",
            kind.name(),
            ScoreKind::Loss.name()
        )))
    }
}

/// What is written into the score table.
#[derive(Debug, Clone, Copy)]
pub enum Belief<'a> {
    /// What was measured.
    Measured(&'a Scale),
    /// Noise fixed by (seed, id), for sampler and policy alike: the control of every claim about scores.
    Noise(u64),
}

/// What a row's score is made of.
enum Value {
    Of(ScoreKind),
    Noise(u64),
}

impl Belief<'_> {
    fn settle(&self, measured: &Measured<'_>) -> Result<Value> {
        Ok(match self {
            Self::Measured(scale) => Value::Of(scale.settle(measured)?),
            Self::Noise(seed) => Value::Noise(*seed),
        })
    }
}

/// Credits the scores of one batch, under one lock. Returns how many samples were scored.
///
/// Rows without a rank never enter the table; they are counted. A batch is scored once: a second call (a recomputed
/// forward pass, a second head) returns 0 and is counted. Never waits for I/O.
pub fn credit(
    cache: &Cache,
    counters: &Counters,
    belief: Belief<'_>,
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
    // A refusal scores nothing; of a batch that was scored already nothing is taken, so there is nothing to refuse.
    let value = if ticket.scored.load(Acquire) { None } else { Some(belief.settle(measured)?) };
    let Some(value) = value.filter(|_| !ticket.scored.swap(true, AcqRel)) else {
        counters.scores_repeated_total.fetch_add(rows as u64, Relaxed);
        return Ok(0);
    };
    let of = Scorable { serial: ticket.serial, epoch: ticket.epoch, number: ticket.number };
    Ok(record(cache, counters, value, Some(of), ticket.ids.iter().map(|&id| Some(id)), measured))
}

/// Credits scores to samples that are named one by one, as those of a replayed graph are: nothing tells whether they
/// were scored before. Ids below 0 or not below `samples` name nobody; their rows are counted with those that have no
/// rank.
pub fn credit_ids(
    cache: &Cache,
    counters: &Counters,
    belief: Belief<'_>,
    samples: usize,
    ids: &[i64],
    measured: &Measured<'_>,
) -> Result<usize> {
    if let Some(length) = measured.other_length(ids.len()) {
        return Err(Error::usage(format!("{length} scores for {} ids: one row an id", ids.len())));
    }
    let value = belief.settle(measured)?;
    let known = |&id: &i64| SampleId::try_from(id).ok().filter(|&id| (id as usize) < samples);
    Ok(record(cache, counters, value, None, ids.iter().map(known), measured))
}

/// Writes the scores of one batch, under one lock. Returns how many samples were scored.
fn record(
    cache: &Cache,
    counters: &Counters,
    value: Value,
    of_batch: Option<Scorable>,
    ids: impl ExactSizeIterator<Item = Option<SampleId>>,
    measured: &Measured<'_>,
) -> usize {
    let rows = ids.len();
    let counts = |row: &usize| measured.count[*row] >= 0 && measured.loss[*row].is_finite();
    let batch_mean = || {
        let losses = (0..rows).filter(counts).map(|row| f64::from(measured.loss[row]));
        (losses.clone().sum::<f64>() / losses.count() as f64) as f32
    };
    let batch_mean = if matches!(value, Value::Of(ScoreKind::Batch)) { batch_mean() } else { f32::NAN };
    let of = |kind: ScoreKind, row: usize| match kind {
        ScoreKind::Loss => measured.loss[row],
        // A column that lacks was refused before; a row of none would be NaN, which is no score.
        ScoreKind::GradientNorm => measured.grad_norm.map_or(f32::NAN, |g| g[row]),
        ScoreKind::Entropy => measured.entropy.map_or(f32::NAN, |e| e[row]),
        ScoreKind::Batch => batch_mean,
        ScoreKind::BatchRank => (measured.count[row] as f32 + RANK_OFFSET).ln(),
    };
    let mut negative = 0;
    let score = |(row, id): (usize, Option<SampleId>)| {
        let id = id.filter(|_| measured.count[row] >= 0)?;
        let score = match value {
            Value::Of(kind) => of(kind, row),
            Value::Noise(seed) => random_belief(seed, id),
        };
        // Chances are in proportion to it: below 0 it is none. Taken for 0, a sample would be held to be learnt.
        if score < 0.0 {
            negative += 1;
            return None;
        }
        let gradient_norm = measured.grad_norm.map_or(f32::NAN, |norms| norms[row]);
        Some(Scored { id, score, loss: measured.loss[row], gradient_norm })
    };
    let scored = cache.learn(of_batch, ids.enumerate().map(score));
    counters.scores_negative_total.fetch_add(negative, Relaxed);
    counters.scores_total.fetch_add(scored as u64, Relaxed);
    counters.scores_unranked_total.fetch_add((rows - scored) as u64, Relaxed);
    scored
}
