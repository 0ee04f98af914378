//! What scoring returns, and why it may refuse.

use thiserror::Error;

use crate::element::Real;
use crate::{Reals, Rows, Softmax};

/// `correct` of a row that was not scored (ignored).
pub const NOT_SCORED: u8 = 255;

/// Scores of a batch, one entry a row in every column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores<R> {
    /// Cross entropy in nats; never negative. 0 for an ignored row, NaN for a row without a softmax, +∞ for a masked
    /// target.
    pub loss: Vec<R>,
    /// The row's largest logit. NaN for an ignored row and for one without a softmax.
    pub max: Vec<R>,
    /// ln Σ exp(z − max), in 0..=ln(classes); NaN likewise. Apart from the maximum, because their sum is rounded to the
    /// maximum's last place: p = exp((z − max) − log_sum) is exact to a few units whatever the logits' offset is.
    pub log_sum: Vec<R>,
    /// ‖softmax − onehot(target)‖, in 0..=√2.
    pub grad_norm: Vec<R>,
    /// Entropy of the softmax in nats, in 0..=ln(classes).
    pub entropy: Vec<R>,
    /// 1 when the target is the first maximum of the row, else 0; [`NOT_SCORED`] for an ignored row.
    pub correct: Vec<u8>,
    /// Rows of the batch with a strictly smaller loss; −1 for a row without a rank.
    pub count: Vec<i32>,
    /// ln(count + b0); NaN for a row without a rank.
    pub rank_score: Vec<f32>,
}

impl<R> Scores<R> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.loss.len()
    }

    /// Whether the batch had no rows.
    pub fn is_empty(&self) -> bool {
        self.loss.is_empty()
    }
}

impl<R: Copy + std::ops::Add<Output = R>> Scores<R> {
    /// Log-sum-exps of the rows: max + log_sum, rounded. Not for softmaxes; see [`Scores::log_sum`].
    pub fn lse(&self) -> Vec<R> {
        self.max.iter().zip(&self.log_sum).map(|(&max, &log_sum)| max + log_sum).collect()
    }
}

/// Scores in the precision of their logits.
#[derive(Clone, Debug, PartialEq)]
pub enum AnyScores {
    /// Of f16, bf16 or f32 logits.
    F32(Scores<f32>),
    /// Of f64 logits.
    F64(Scores<f64>),
}

impl AnyScores {
    /// Number of rows.
    pub fn len(&self) -> usize {
        match self {
            AnyScores::F32(s) => s.len(),
            AnyScores::F64(s) => s.len(),
        }
    }

    /// Whether the batch had no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the backward needs of every row.
    pub fn softmax(&self) -> Softmax<'_> {
        match self {
            AnyScores::F32(s) => Softmax { max: Reals::F32(&s.max), log_sum: Reals::F32(&s.log_sum) },
            AnyScores::F64(s) => Softmax { max: Reals::F64(&s.max), log_sum: Reals::F64(&s.log_sum) },
        }
    }

    /// The scores as f32 columns; rounds those of f64 logits.
    pub fn into_f32(self) -> Scores<f32> {
        match self {
            AnyScores::F32(s) => s,
            AnyScores::F64(s) => {
                let narrow = |column: Vec<f64>| column.into_iter().map(|v| v as f32).collect();
                Scores {
                    loss: narrow(s.loss),
                    max: narrow(s.max),
                    log_sum: narrow(s.log_sum),
                    grad_norm: narrow(s.grad_norm),
                    entropy: narrow(s.entropy),
                    correct: s.correct,
                    count: s.count,
                    rank_score: s.rank_score,
                }
            }
        }
    }
}

/// Why a batch cannot be scored. Nothing is scored then.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum ScoreError {
    /// One target a row.
    #[error("{targets} targets for {rows} rows of logits; give one target a row")]
    TargetCount {
        /// Rows of logits.
        rows: usize,
        /// Targets given.
        targets: usize,
    },
    /// The first target that names no class.
    #[error(
        "target {target} of row {row} is outside 0..{classes}; fix the label, or pass it as ignore_index to leave such rows out"
    )]
    TargetOutOfRange {
        /// Row, from 0.
        row: usize,
        /// Its target.
        target: i64,
        /// Number of classes.
        classes: usize,
    },
    /// The offset inside the rank score's logarithm.
    #[error("b0 is {b0}; ln(count + b0) needs a finite b0 above 0 (10 in SHADE's code)")]
    Base {
        /// The offset given.
        b0: f32,
    },
}

/// Everything of a row except its rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowScore<R> {
    pub(crate) loss: R,
    pub(crate) max: R,
    pub(crate) log_sum: R,
    pub(crate) grad_norm: R,
    pub(crate) entropy: R,
    pub(crate) correct: u8,
}

impl<R: Real> RowScore<R> {
    pub(crate) fn ignored() -> Self {
        RowScore { loss: R::ZERO, correct: NOT_SCORED, ..Self::undefined() }
    }

    /// A row without a softmax.
    pub(crate) fn undefined() -> Self {
        RowScore { loss: R::NAN, max: R::NAN, log_sum: R::NAN, grad_norm: R::NAN, entropy: R::NAN, correct: 0 }
    }
}

/// Refuses what cannot be scored, naming the first offence.
pub(crate) fn check(rows: &Rows<'_>, targets: &[i64], ignore_index: i64, b0: f32) -> Result<(), ScoreError> {
    if targets.len() != rows.rows() {
        return Err(ScoreError::TargetCount { rows: rows.rows(), targets: targets.len() });
    }
    if !(b0.is_finite() && b0 > 0.0) {
        return Err(ScoreError::Base { b0 });
    }
    let classes = rows.classes();
    match targets.iter().position(|&t| t != ignore_index && !(0..classes as i64).contains(&t)) {
        Some(row) => Err(ScoreError::TargetOutOfRange { row, target: targets[row], classes }),
        None => Ok(()),
    }
}

/// Every column of a batch except the ranks.
pub(crate) struct Columns<R> {
    pub(crate) loss: Vec<R>,
    pub(crate) max: Vec<R>,
    pub(crate) log_sum: Vec<R>,
    pub(crate) grad_norm: Vec<R>,
    pub(crate) entropy: Vec<R>,
    pub(crate) correct: Vec<u8>,
}

impl<R: Real> Columns<R> {
    /// `rows` rows that are ignored.
    pub(crate) fn ignored(rows: usize) -> Self {
        let row = RowScore::<R>::ignored();
        Columns {
            loss: vec![row.loss; rows],
            max: vec![row.max; rows],
            log_sum: vec![row.log_sum; rows],
            grad_norm: vec![row.grad_norm; rows],
            entropy: vec![row.entropy; rows],
            correct: vec![row.correct; rows],
        }
    }

    /// The same columns in pieces of `rows` rows.
    pub(crate) fn pieces(&mut self, rows: usize) -> impl ExactSizeIterator<Item = Piece<'_, R>> + Send {
        let softmax = self.max.chunks_mut(rows).zip(self.log_sum.chunks_mut(rows));
        let others = self.grad_norm.chunks_mut(rows).zip(self.entropy.chunks_mut(rows));
        let plain = self.loss.chunks_mut(rows).zip(self.correct.chunks_mut(rows));
        plain.zip(softmax.zip(others)).map(|((loss, correct), ((max, log_sum), (grad_norm, entropy)))| Piece {
            loss,
            max,
            log_sum,
            grad_norm,
            entropy,
            correct,
        })
    }

    /// With the ranks, by `counts`. An ignored row takes no part in them.
    pub(crate) fn ranked(self, b0: f32, counts: impl Fn(&[f32]) -> Vec<i32>) -> Scores<R> {
        let key = |(loss, &correct): (&R, &u8)| if correct == NOT_SCORED { f32::NAN } else { loss.to_f32() };
        let keys: Vec<f32> = self.loss.iter().zip(&self.correct).map(key).collect();
        let count = counts(&keys);
        let rank_score = crate::rank::scores(&count, b0);
        let Columns { loss, max, log_sum, grad_norm, entropy, correct } = self;
        Scores { loss, max, log_sum, grad_norm, entropy, correct, count, rank_score }
    }
}

/// Some rows of the columns.
pub(crate) struct Piece<'a, R> {
    loss: &'a mut [R],
    max: &'a mut [R],
    log_sum: &'a mut [R],
    grad_norm: &'a mut [R],
    entropy: &'a mut [R],
    correct: &'a mut [u8],
}

impl<R> Piece<'_, R> {
    pub(crate) fn set(&mut self, row: usize, score: RowScore<R>) {
        self.loss[row] = score.loss;
        self.max[row] = score.max;
        self.log_sum[row] = score.log_sum;
        self.grad_norm[row] = score.grad_norm;
        self.entropy[row] = score.entropy;
        self.correct[row] = score.correct;
    }
}
