//! The forward over class indices.

use super::arguments::{Arguments, Mean, ScoreArguments};
use super::{
    BLOCK_CLASSES, Columns, HEAD_BYTES, Home, KEY_BYTES, Launch, Lent, MULTIPROCESSORS_MAX, PARTIALS_MAX, PIECES_MAX,
    SPLIT_ROWS, Scratch, Step, THREADS, by_dtype, family, finish, pieces, rank, rows_per_block,
};
use crate::Dtype;

/// Fewest classes of a piece: below, starting a block costs more than it saves.
const PIECE_CLASSES: usize = 2048;
/// What starting and ending a block costs, in classes it could have read meanwhile.
const BLOCK_COST: usize = 2048;
/// With at most this many rows a multiprocessor, rows that a warp could take alone get a block each: the GPU is not
/// full.
const FEW_ROWS: usize = 4;
/// Classes from which on more than a warp can share such a row: below, the row's lanes have one load each.
const FEW_ROWS_CLASSES: usize = 512;
/// Rows of fewer 128-bit words than this get a block of 128 threads, others of 256: twice as many waves, of which the
/// last leaves the memory idle. Below, on an H200, what a thread does once a row and in the rounds at its ends takes
/// longer than that (the model in `kernels/README.md`).
const SHORT_ROW_WORDS: usize = 3840;
/// With so many rows a multiprocessor (four waves of warps), rows of up to [`WARP_ROW_WORDS`] stay with a warp.
const MANY_ROWS: usize = 96;
/// 16,384 classes of a 16-bit type.
const WARP_ROW_WORDS: usize = 2048;
/// Where the row tickets start, in bytes; the batch's ticket is in front of them.
const ROW_TICKETS: u64 = 4096;

/// One number for the whole batch: the mean or the sum of its terms, made by the block that comes last. Addresses on
/// the device; with `out` 0 nobody wants it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reduction {
    /// One value: Σ term / Σ share, or Σ term. NaN for a mean over no share, as torch's.
    pub out: u64,
    /// `out` has the logits' type; else `R`.
    pub narrow: bool,
    /// The mean; else the sum.
    pub mean: bool,
    /// `R`: Σ share, which [`super::Gradient::divisor`] takes for the mean. 0 = not wanted.
    pub divisor: u64,
    /// float32: a factor of each sample's terms, or 0. Shares stay what they are.
    pub sample_weight: u64,
    /// Neighbouring rows that are one sample; 0 is 1.
    pub sample_rows: usize,
}

/// A batch of logits and class indices. Addresses on the device; an output of 0 is not written. `R` is double for f64
/// logits and float for others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Score {
    /// `rows` x `classes` elements, aligned to one.
    pub logits: u64,
    /// int64.
    pub targets: u64,
    /// Rows, at most [`crate::Rows::MAX`].
    pub rows: usize,
    /// Classes, likewise.
    pub classes: usize,
    /// Elements between rows.
    pub row_stride: i64,
    /// Rows with this target are left out.
    pub ignore_index: i64,
    /// `R`, never 0.
    pub loss: u64,
    /// `R`: the row's largest logit, for the backward.
    pub max: u64,
    /// `R`: ln Σ exp(z − max), for the backward.
    pub log_sum: u64,
    /// `R`.
    pub grad_norm: u64,
    /// `R`.
    pub entropy: u64,
    /// u8.
    pub correct: u64,
    /// `R`, a weight a class; for `term` and `share` only.
    pub weight: u64,
    /// `R`: the sum of the weights. Needed with `weight` and smoothing.
    pub weight_sum: u64,
    /// In 0..=1; for `term` only.
    pub label_smoothing: f64,
    /// `R`: the row's part in the training loss.
    pub term: u64,
    /// `R`: its part in the mean's divisor.
    pub share: u64,
    /// The mean or the sum of the terms, which need not be wanted themselves.
    pub reduction: Reduction,
    /// u32 on the device: becomes the minimum of itself and the first row whose target names no class.
    pub error: u64,
    /// [`super::mail::BadRows`], to which such rows are reported while the host reads along.
    pub bad_rows: u64,
    /// Ranks and mail.
    pub home: Home,
}

/// The launches that score a batch. None for no rows.
pub fn score(dtype: Dtype, batch: &Score, lent: &Lent) -> Vec<Step> {
    let (rows, classes) = (batch.rows, batch.classes);
    if rows == 0 {
        return Vec::new();
    }
    let scratch = Scratch::new(lent.scratch, rows, classes);
    let (launch, pieces, piece_classes) = shape(rows, classes, wanted(batch), dtype, lent.multiprocessors);
    let columns = Columns { loss: batch.loss, grad_norm: batch.grad_norm, entropy: batch.entropy };
    let finish = finish(rows, dtype, &batch.home, &columns, scratch.keys, scratch.counts, lent);
    let reduction = &batch.reduction;
    let mean = Mean {
        parts: if reduction.out != 0 { scratch.parts } else { 0 },
        out: reduction.out,
        divisor: reduction.divisor,
        sample_weight: reduction.sample_weight,
        sample_rows: reduction.sample_rows.max(1) as u32,
        count: launch.grid / pieces,
        divide: u32::from(reduction.mean),
        narrow: u32::from(reduction.narrow),
    };
    let arguments = ScoreArguments {
        finish,
        mean,
        logits: batch.logits,
        targets: batch.targets,
        row_stride: batch.row_stride,
        ignore_index: batch.ignore_index,
        loss: batch.loss,
        max: batch.max,
        log_sum: batch.log_sum,
        grad_norm: batch.grad_norm,
        entropy: batch.entropy,
        correct: batch.correct,
        weight: batch.weight,
        weight_sum: batch.weight_sum,
        term: batch.term,
        share: batch.share,
        keys: if batch.home.ranks() { scratch.keys } else { 0 },
        partials: scratch.partials,
        row_tickets: lent.tickets + ROW_TICKETS,
        error: batch.error,
        bad_rows: batch.bad_rows,
        label_smoothing: batch.label_smoothing,
        rows: rows as i32,
        classes: classes as i32,
        pieces: pieces as i32,
        piece_classes: piece_classes as i32,
    };
    let mut steps = vec![Step { launch, arguments: Arguments::Score(arguments) }];
    rank::follow(&mut steps, &finish, &scratch);
    steps
}

/// The kernels of a forward, by what they measure: each costs more than the one before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wanted {
    Loss,
    Scores,
    /// Only the term of a smoothed loss needs the sum of all logits.
    Smooth,
}

fn wanted(batch: &Score) -> Wanted {
    let terms = batch.term != 0 || batch.reduction.out != 0;
    if terms && batch.label_smoothing > 0.0 {
        return Wanted::Smooth;
    }
    if batch.grad_norm == 0 && batch.entropy == 0 { Wanted::Loss } else { Wanted::Scores }
}

/// Launch, pieces of a row, classes of a piece.
pub(super) fn shape(
    rows: usize,
    classes: usize,
    wanted: Wanted,
    dtype: Dtype,
    multiprocessors: u32,
) -> (Launch, u32, u32) {
    let names = match wanted {
        // Double precision has no kernel for losses alone.
        Wanted::Loss => ["lossfeed_loss_f16", "lossfeed_loss_bf16", "lossfeed_loss_f32", "lossfeed_score_f64"],
        Wanted::Scores => family!("score"),
        Wanted::Smooth => family!("smooth"),
    };
    let kernel = by_dtype(dtype, names);
    let shared_bytes = HEAD_BYTES + KEY_BYTES;
    let multiprocessors = multiprocessors.clamp(1, MULTIPROCESSORS_MAX) as usize;
    let words = classes * dtype.bytes() / 16;
    let few = rows <= FEW_ROWS * multiprocessors && classes >= FEW_ROWS_CLASSES;
    let many = rows >= MANY_ROWS * multiprocessors && words <= WARP_ROW_WORDS;
    if few || classes > BLOCK_CLASSES && !many {
        let threads = if !few && words < SHORT_ROW_WORDS { 128 } else { THREADS };
        // Blocks that the multiprocessors hold at once, by the kernels' launch bounds.
        let resident = multiprocessors * (if wanted == Wanted::Smooth { 512 } else { 768 } / threads as usize);
        let most = if rows <= SPLIT_ROWS && classes > BLOCK_CLASSES { split(rows, classes, resident) } else { 1 };
        let (pieces, piece_classes) = pieces(classes, most, PIECE_CLASSES);
        let launch = Launch { kernel, grid: rows as u32 * pieces, block: (threads, 1), shared_bytes };
        return (launch, pieces, piece_classes);
    }
    let (block, grid) = rows_per_block(rows, classes);
    (Launch { kernel, grid, block, shared_bytes }, 1, classes as u32)
}

/// How many blocks should share a row. Blocks run in waves of `resident`, and the last wave takes as long as any: the
/// fewest pieces that come within a twentieth of the shortest time.
fn split(rows: usize, classes: usize, resident: usize) -> usize {
    let most = (classes / PIECE_CLASSES).min(PARTIALS_MAX / rows).clamp(1, PIECES_MAX);
    let time = |pieces: usize| (rows * pieces).div_ceil(resident) * (classes.div_ceil(pieces) + BLOCK_COST);
    let shortest = (1..=most).map(time).min().unwrap_or(0);
    (1..=most).find(|&pieces| time(pieces) * 20 <= shortest * 21).unwrap_or(1)
}
