//! The backward, over class indices and over probabilities.

use super::arguments::{Arguments, GradientArguments, ProbabilityGradientArguments};
use super::{BLOCK_CLASSES, Launch, Step, THREADS, by_dtype, family, pieces, rows_per_block};
use crate::Dtype;

/// A block takes this many classes of a long row, fewer where rows are few.
const PIECE_CLASSES: usize = 16_384;
/// The least it takes.
const PIECE_CLASSES_MIN: usize = 2048;

/// What the backward over class indices reads and writes. Addresses on the device; `R` as for [`super::Score`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Gradient {
    /// `rows` x `classes` elements.
    pub logits: u64,
    /// int64.
    pub targets: u64,
    /// `R`: the forward's.
    pub max: u64,
    /// `R`: the forward's.
    pub log_sum: u64,
    /// `R`: upstream gradient of every row's term.
    pub upstream: u64,
    /// Elements between them: 0 or 1.
    pub upstream_stride: i32,
    /// They have the logits' type instead: what a loss of that type hands down.
    pub upstream_narrow: bool,
    /// `R`: what they are divided by ([`super::Reduction::divisor`] of a mean), or 0.
    pub divisor: u64,
    /// float32: a factor of each sample's upstream gradient, or 0.
    pub sample_weight: u64,
    /// Neighbouring rows that are one sample; 0 is 1.
    pub sample_rows: usize,
    /// `R`: upstream gradient of every row's lse, or 0.
    pub upstream_lse: u64,
    /// Elements between them: 0 or 1.
    pub upstream_lse_stride: i32,
    /// `R`: class weights, or 0.
    pub weight: u64,
    /// `R`: their sum, needed with smoothing.
    pub weight_sum: u64,
    /// In 0..=1.
    pub label_smoothing: f64,
    /// As the logits; may be the logits, with the same stride.
    pub gradient: u64,
    /// Rows.
    pub rows: usize,
    /// Classes.
    pub classes: usize,
    /// Elements between rows of logits.
    pub row_stride: i64,
    /// Elements between rows of the gradient, at least `classes`.
    pub gradient_stride: i64,
    /// Rows with this target get zeros.
    pub ignore_index: i64,
}

/// What the backward over probabilities reads and writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProbabilityGradient {
    /// `rows` x `classes` elements.
    pub logits: u64,
    /// As the logits.
    pub probabilities: u64,
    /// `R`: the forward's.
    pub max: u64,
    /// `R`: the forward's.
    pub log_sum: u64,
    /// `R`: the forward's.
    pub mass: u64,
    /// `R`: upstream gradient of every row's loss.
    pub upstream: u64,
    /// Elements between them: 0 or 1.
    pub upstream_stride: i32,
    /// `R`: class weights, or 0.
    pub weight: u64,
    /// In 0..=1.
    pub label_smoothing: f64,
    /// As the logits; may be the logits, with the same stride.
    pub gradient: u64,
    /// Rows.
    pub rows: usize,
    /// Classes.
    pub classes: usize,
    /// Elements between rows of logits.
    pub row_stride: i64,
    /// Elements between rows of probabilities.
    pub probability_stride: i64,
    /// Elements between rows of the gradient, at least `classes`.
    pub gradient_stride: i64,
}

/// The launch of the backward over class indices. None for no rows.
pub fn backward(dtype: Dtype, batch: &Gradient, multiprocessors: u32) -> Option<Step> {
    let (launch, pieces, piece_classes) =
        shape(batch.rows, batch.classes, by_dtype(dtype, family!("backward")), multiprocessors)?;
    let arguments = GradientArguments {
        logits: batch.logits,
        targets: batch.targets,
        max: batch.max,
        log_sum: batch.log_sum,
        upstream: batch.upstream,
        divisor: batch.divisor,
        sample_weight: batch.sample_weight,
        upstream_lse: batch.upstream_lse,
        weight: batch.weight,
        weight_sum: batch.weight_sum,
        gradient: batch.gradient,
        row_stride: batch.row_stride,
        gradient_stride: batch.gradient_stride,
        ignore_index: batch.ignore_index,
        label_smoothing: batch.label_smoothing,
        upstream_stride: batch.upstream_stride,
        upstream_lse_stride: batch.upstream_lse_stride,
        rows: batch.rows as i32,
        classes: batch.classes as i32,
        pieces: pieces as i32,
        piece_classes: piece_classes as i32,
        sample_rows: batch.sample_rows.max(1) as u32,
        upstream_narrow: u32::from(batch.upstream_narrow),
    };
    Some(Step { launch, arguments: Arguments::Gradient(arguments) })
}

/// The launch of the backward over probabilities. None for no rows.
pub fn backward_probabilities(dtype: Dtype, batch: &ProbabilityGradient, multiprocessors: u32) -> Option<Step> {
    let (launch, pieces, piece_classes) =
        shape(batch.rows, batch.classes, by_dtype(dtype, family!("probability_backward")), multiprocessors)?;
    let arguments = ProbabilityGradientArguments {
        logits: batch.logits,
        probabilities: batch.probabilities,
        max: batch.max,
        log_sum: batch.log_sum,
        mass: batch.mass,
        upstream: batch.upstream,
        weight: batch.weight,
        gradient: batch.gradient,
        row_stride: batch.row_stride,
        probability_stride: batch.probability_stride,
        gradient_stride: batch.gradient_stride,
        label_smoothing: batch.label_smoothing,
        upstream_stride: batch.upstream_stride,
        rows: batch.rows as i32,
        classes: batch.classes as i32,
        pieces: pieces as i32,
        piece_classes: piece_classes as i32,
        unused: 0,
    };
    Some(Step { launch, arguments: Arguments::ProbabilityGradient(arguments) })
}

/// Launch, pieces of a row, classes of a piece. Nothing is reduced, so any number of blocks may share a row.
pub(super) fn shape(
    rows: usize,
    classes: usize,
    kernel: &'static str,
    multiprocessors: u32,
) -> Option<(Launch, u32, u32)> {
    if rows == 0 {
        return None;
    }
    if classes <= BLOCK_CLASSES {
        let (block, grid) = rows_per_block(rows, classes);
        return Some((Launch { kernel, grid, block, shared_bytes: 0 }, 1, classes as u32));
    }
    // Eight blocks of 256 threads fill a multiprocessor.
    let wanted = (8 * multiprocessors.max(1) as usize).div_ceil(rows).max(classes.div_ceil(PIECE_CLASSES));
    let (mut pieces_of_row, mut piece_classes) = pieces(classes, wanted, PIECE_CLASSES_MIN);
    if rows as u64 * u64::from(pieces_of_row) > i32::MAX as u64 {
        (pieces_of_row, piece_classes) = (1, classes as u32);
    }
    let grid = rows as u32 * pieces_of_row;
    Some((Launch { kernel, grid, block: (THREADS, 1), shared_bytes: 0 }, pieces_of_row, piece_classes))
}
