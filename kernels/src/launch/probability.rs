//! The forward over probabilities.

use super::arguments::{Arguments, ProbabilityArguments};
use super::{
    BLOCK_CLASSES, Columns, HEAD_BYTES, Home, KEY_BYTES, Launch, Lent, Scratch, Step, THREADS, by_dtype, family,
    finish, rank, rows_per_block,
};
use crate::Dtype;

/// A batch of logits and probabilities. Addresses on the device; an output of 0 is not written. `R` as for
/// [`super::Score`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Probabilities {
    /// `rows` x `classes` elements.
    pub logits: u64,
    /// As the logits.
    pub probabilities: u64,
    /// Rows.
    pub rows: usize,
    /// Classes.
    pub classes: usize,
    /// Elements between rows of logits.
    pub row_stride: i64,
    /// Elements between rows of probabilities.
    pub probability_stride: i64,
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
    /// `R`: what the backward needs of the row.
    pub mass: u64,
    /// `R`: class weights, or 0.
    pub weight: u64,
    /// In 0..=1.
    pub label_smoothing: f64,
    /// Ranks and mail.
    pub home: Home,
}

/// The launches that score a batch. None for no rows.
pub fn probabilities(dtype: Dtype, batch: &Probabilities, lent: &Lent) -> Vec<Step> {
    let rows = batch.rows;
    if rows == 0 {
        return Vec::new();
    }
    let scratch = Scratch::new(lent.scratch, rows, batch.classes);
    let (block, grid) =
        if batch.classes > BLOCK_CLASSES { ((THREADS, 1), rows as u32) } else { rows_per_block(rows, batch.classes) };
    let kernel = by_dtype(dtype, family!("probability"));
    let launch = Launch { kernel, grid, block, shared_bytes: HEAD_BYTES + KEY_BYTES };
    let columns = Columns { loss: batch.loss, grad_norm: batch.grad_norm, entropy: batch.entropy };
    let finish = finish(rows, dtype, &batch.home, &columns, scratch.keys, scratch.counts, lent);
    let arguments = ProbabilityArguments {
        finish,
        logits: batch.logits,
        probabilities: batch.probabilities,
        row_stride: batch.row_stride,
        probability_stride: batch.probability_stride,
        loss: batch.loss,
        max: batch.max,
        log_sum: batch.log_sum,
        grad_norm: batch.grad_norm,
        entropy: batch.entropy,
        mass: batch.mass,
        weight: batch.weight,
        keys: if batch.home.ranks() { scratch.keys } else { 0 },
        label_smoothing: batch.label_smoothing,
        rows: rows as i32,
        classes: batch.classes as i32,
    };
    let mut steps = vec![Step { launch, arguments: Arguments::Probability(arguments) }];
    rank::follow(&mut steps, &finish, &scratch);
    steps
}
