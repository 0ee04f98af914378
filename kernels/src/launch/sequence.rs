//! Scores of sequences from the scores of their tokens.

use super::arguments::{Arguments, SequenceArguments};
use super::{Columns, HEAD_BYTES, Home, KEY_BYTES, Launch, Lent, Scratch, Step, finish, rank};
use crate::Dtype;

/// Which loss of a sequence is ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RankBy {
    /// The mean over its tokens.
    #[default]
    Mean,
    /// The largest.
    Max,
    /// The sum.
    Sum,
}

/// Token scores in, sequence scores out. Addresses on the device; an output of 0 is not written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sequences {
    /// Sequences.
    pub sequences: usize,
    /// Tokens of each.
    pub length: usize,
    /// `R`: token losses, one sequence after the other.
    pub loss: u64,
    /// `R`, or 0.
    pub grad_norm: u64,
    /// `R`, or 0.
    pub entropy: u64,
    /// u8: 255 marks a token that does not count.
    pub correct: u64,
    /// `R`, never 0; NaN where no token counts, as in the others.
    pub mean: u64,
    /// `R`.
    pub max: u64,
    /// `R`.
    pub sum: u64,
    /// `R`.
    pub mean_grad_norm: u64,
    /// `R`.
    pub mean_entropy: u64,
    /// int32: tokens that count.
    pub counted: u64,
    /// What is ranked and mailed as the sequence's loss.
    pub rank_by: RankBy,
    /// Ranks and mail of the sequences.
    pub home: Home,
}

/// The launches, for `R` = double if `double`. None for no sequences. With [`RankBy::Max`] or [`RankBy::Sum`] that
/// column must be wanted if there is mail.
pub fn sequences(double: bool, batch: &Sequences, lent: &Lent) -> Vec<Step> {
    let rows = batch.sequences;
    if rows == 0 {
        return Vec::new();
    }
    let scratch = Scratch::new(lent.scratch, rows, 1);
    let (rank_by, loss) = match batch.rank_by {
        RankBy::Mean => (0, batch.mean),
        RankBy::Max => (1, batch.max),
        RankBy::Sum => (2, batch.sum),
    };
    let columns = Columns { loss, grad_norm: batch.mean_grad_norm, entropy: batch.mean_entropy };
    let (kernel, real) =
        if double { ("lossfeed_sequence_f64", Dtype::F64) } else { ("lossfeed_sequence_f32", Dtype::F32) };
    let finish = finish(rows, real, &batch.home, &columns, scratch.keys, scratch.counts, lent);
    let arguments = SequenceArguments {
        finish,
        loss: batch.loss,
        grad_norm: batch.grad_norm,
        entropy: batch.entropy,
        correct: batch.correct,
        mean: batch.mean,
        max: batch.max,
        sum: batch.sum,
        mean_grad_norm: batch.mean_grad_norm,
        mean_entropy: batch.mean_entropy,
        counted: batch.counted,
        keys: if batch.home.ranks() { scratch.keys } else { 0 },
        sequences: rows as i32,
        length: batch.length as i32,
        rank_by,
        unused: 0,
    };
    let launch =
        Launch { kernel, grid: (rows as u32).div_ceil(8), block: (32, 8), shared_bytes: HEAD_BYTES + KEY_BYTES };
    let mut steps = vec![Step { launch, arguments: Arguments::Sequence(arguments) }];
    rank::follow(&mut steps, &finish, &scratch);
    steps
}
