//! The CPU device's path: every row is read once, in SIMD lanes, on all cores.
//!
//! The plain version ([`crate::reference`]) reads a row twice, for its maximum and for its sums. Departures from it:
//!
//! 1. *Online softmax.* Running sums refer to the maximum so far and are rescaled when it grows. That is done once per
//!    4096 logits, which stay in the first-level cache meanwhile: one read of memory, one exponential per logit.
//! 2. *Fixed lanes.* Sums are kept in 16 lanes whatever the machine's vectors are, multiply-adds are fused everywhere
//!    (in hardware from AVX2 and NEON on; an older x86 calls a library for each and is slow), and a row is never split
//!    over threads. So scores are the same bit for bit on every instruction set and any number of threads, and with
//!    them the order of an epoch that depends on scores.
//! 3. *The target* counts as −∞ (which adds exactly 0) and its own term is merged at the end.
//! 4. Whether the target is the *first* maximum needs a second look only when another class ties with it.
//!
//! The gradient ([`backward`]) reads the logits once more and writes itself once; no softmax is kept in between.

mod block;
mod dispatch;
pub(crate) mod exp;
mod gradient;
mod prefetch;
mod row;
mod team;

pub use self::prefetch::prefetch_row;
pub use self::team::{Team, use_team};

use self::block::Block;
use self::dispatch::Level;
use crate::element::{BF16, Element, F16, Real};
use crate::objective::{AnyTerms, Objective, ObjectiveError, Pick, Plan, Terms, Upstream, expect};
use crate::scores::{Columns, check};
use crate::{AnyScores, Dtype, Rows, ScoreError, Scores, Softmax};

/// Logits a task should hold at least: about 20 µs of work, well above the cost of handing it to another thread.
const TASK_LOGITS: usize = 1 << 14;

/// Scores `rows` against `targets`; the contract of [`crate::reference::score`] in one read per row, on rayon's current
/// pool or [`use_team`]'s.
///
/// # Errors
/// [`ScoreError`] when targets and rows differ in number, a target names no class, or `b0` is not above 0.
pub fn score(rows: &Rows<'_>, targets: &[i64], ignore_index: i64, b0: f32) -> Result<AnyScores, ScoreError> {
    let objective = Objective { ignore_index, ..Objective::default() };
    match forward(rows, targets, &objective, b0) {
        Ok((scores, _)) => Ok(scores),
        Err(ObjectiveError::Score(error)) => Err(error),
        // No weights and no smoothing: nothing else can be wrong.
        Err(_) => Err(ScoreError::TargetCount { rows: rows.rows(), targets: targets.len() }),
    }
}

/// Scores and the terms of `objective`, from the same single read.
///
/// # Errors
/// As [`score`], and when the class weights do not fit or the smoothing is no share.
pub fn forward(
    rows: &Rows<'_>,
    targets: &[i64],
    objective: &Objective<'_>,
    b0: f32,
) -> Result<(AnyScores, AnyTerms), ObjectiveError> {
    check(rows, targets, objective.ignore_index, b0)?;
    let single = |(scores, terms)| (AnyScores::F32(scores), AnyTerms::F32(terms));
    let double = |(scores, terms)| (AnyScores::F64(scores), AnyTerms::F64(terms));
    Ok(match rows.dtype() {
        Dtype::F16 => single(all::<F16>(rows, targets, &Plan::new(objective, rows)?, b0)),
        Dtype::BF16 => single(all::<BF16>(rows, targets, &Plan::new(objective, rows)?, b0)),
        Dtype::F32 => single(all::<f32>(rows, targets, &Plan::new(objective, rows)?, b0)),
        Dtype::F64 => double(all::<f64>(rows, targets, &Plan::new(objective, rows)?, b0)),
    })
}

/// The row after `row`, where rows are so short that the processor does not see them coming by itself.
fn after<'a>(rows: &Rows<'a>, row: usize) -> &'a [u8] {
    const MOST: usize = 16 << 10;
    if row + 1 < rows.rows() && rows.classes() * rows.dtype().bytes() <= MOST { rows.row(row + 1) } else { &[] }
}

fn all<E: Element>(
    rows: &Rows<'_>,
    targets: &[i64],
    plan: &Plan<'_, E::Real>,
    b0: f32,
) -> (Scores<E::Real>, Terms<E::Real>)
where
    E::Real: Pick,
{
    let level = Level::of_this_machine();
    let mut columns = Columns::<E::Real>::ignored(targets.len());
    let mut terms = Terms { term: vec![E::Real::ZERO; targets.len()], share: vec![E::Real::ZERO; targets.len()] };
    let smoothing = plan.smooths().then_some(plan.weight);
    let task_rows = TASK_LOGITS.div_ceil(rows.classes());
    let outputs =
        columns.pieces(task_rows).zip(terms.term.chunks_mut(task_rows).zip(terms.share.chunks_mut(task_rows)));
    team::each(targets.chunks(task_rows).zip(outputs).enumerate(), |(task, (targets, (mut piece, (term, share))))| {
        let mut block = Block::new();
        for (k, &target) in targets.iter().enumerate() {
            if let (true, Ok(y)) = (target != plan.ignore_index, usize::try_from(target)) {
                let row = task * task_rows + k;
                let (score, distance) =
                    dispatch::row::<E>(level, rows.row(row), y, smoothing, after(rows, row), &mut block);
                (term[k], share[k]) = plan.row(y, score.loss, score.log_sum, distance);
                piece.set(k, score);
            }
        }
    });
    (columns.ranked(b0, crate::rank::counts), terms)
}

/// The gradient of the objective's terms at the logits, into `out`: `rows` x `classes` contiguous elements of the
/// logits' dtype. `softmax` is what the forward gave ([`AnyScores::softmax`]). The same bits with any number of
/// threads.
///
/// # Errors
/// [`ObjectiveError`] when an argument has the wrong length or precision. Nothing is written then.
pub fn backward(
    rows: &Rows<'_>,
    softmax: &Softmax<'_>,
    targets: &[i64],
    objective: &Objective<'_>,
    upstream: &Upstream<'_>,
    out: &mut [u8],
) -> Result<(), ObjectiveError> {
    check(rows, targets, objective.ignore_index, 1.0)?;
    let wanted = rows.rows() * rows.classes() * rows.dtype().bytes();
    if out.len() != wanted {
        return Err(ObjectiveError::Length { what: "bytes of the gradient", actual: out.len(), wanted });
    }
    slope(rows.dtype(), Some(rows), rows, softmax, targets, objective, upstream, out)
}

/// [`backward`] over the logits themselves: contiguous `rows` x `classes` elements of `dtype`, which the gradient
/// replaces.
///
/// # Errors
/// As [`backward`].
#[allow(clippy::too_many_arguments)]
pub fn backward_in_place(
    logits: &mut [u8],
    dtype: Dtype,
    rows: usize,
    classes: usize,
    softmax: &Softmax<'_>,
    targets: &[i64],
    objective: &Objective<'_>,
    upstream: &Upstream<'_>,
) -> Result<(), ObjectiveError> {
    let wanted = rows.saturating_mul(classes).saturating_mul(dtype.bytes());
    let what = "bytes of the logits";
    if logits.len() != wanted {
        return Err(ObjectiveError::Length { what, actual: logits.len(), wanted });
    }
    // A view of one row, repeated, stands for the shape; its bytes are not read.
    let row = vec![0; classes * dtype.bytes()];
    let shape = Rows::new(&row, dtype, rows, classes, 0).map_err(|_| ObjectiveError::Length {
        what,
        actual: logits.len(),
        wanted,
    })?;
    check(&shape, targets, objective.ignore_index, 1.0)?;
    slope(dtype, None, &shape, softmax, targets, objective, upstream, logits)
}

#[allow(clippy::too_many_arguments)]
fn slope(
    dtype: Dtype,
    source: Option<&Rows<'_>>,
    shape: &Rows<'_>,
    softmax: &Softmax<'_>,
    targets: &[i64],
    objective: &Objective<'_>,
    upstream: &Upstream<'_>,
    out: &mut [u8],
) -> Result<(), ObjectiveError> {
    match dtype {
        Dtype::F16 => all_slopes::<F16>(source, shape, softmax, targets, objective, upstream, out),
        Dtype::BF16 => all_slopes::<BF16>(source, shape, softmax, targets, objective, upstream, out),
        Dtype::F32 => all_slopes::<f32>(source, shape, softmax, targets, objective, upstream, out),
        Dtype::F64 => all_slopes::<f64>(source, shape, softmax, targets, objective, upstream, out),
    }
}

fn all_slopes<E: Element>(
    source: Option<&Rows<'_>>,
    shape: &Rows<'_>,
    softmax: &Softmax<'_>,
    targets: &[i64],
    objective: &Objective<'_>,
    upstream: &Upstream<'_>,
    out: &mut [u8],
) -> Result<(), ObjectiveError>
where
    E::Real: Pick,
{
    let (rows, classes) = (shape.rows(), shape.classes());
    let plan = Plan::<E::Real>::new(objective, shape)?;
    let max = expect::<E::Real>("row maxima", softmax.max, &[rows])?;
    let log_sum = expect::<E::Real>("logarithms of the sums", softmax.log_sum, &[rows])?;
    let term_up = expect::<E::Real>("gradients of the terms", upstream.term, &[1, rows])?;
    let lse_up =
        upstream.lse.map(|up| expect::<E::Real>("gradients of the log-sum-exps", up, &[1, rows])).transpose()?;
    if rows == 0 {
        return Ok(());
    }
    let of = |values: &[E::Real], row: usize| values[if values.len() == 1 { 0 } else { row }];
    let level = Level::of_this_machine();
    let task_rows = TASK_LOGITS.div_ceil(classes);
    let task = |(number, out): (usize, &mut [u8])| {
        for (k, out) in out.chunks_exact_mut(classes * E::BYTES).enumerate() {
            let row = number * task_rows + k;
            match usize::try_from(targets[row]) {
                Ok(y) if targets[row] != plan.ignore_index => {
                    let factors = plan.factors(y, of(term_up, row), lse_up.map_or(E::Real::ZERO, |up| of(up, row)));
                    let logits = source.map(|rows| rows.row(row));
                    let next = source.map_or(&[][..], |rows| after(rows, row));
                    dispatch::gradient::<E>(
                        level,
                        logits,
                        y,
                        (max[row], log_sum[row]),
                        factors,
                        plan.weight,
                        next,
                        out,
                    );
                }
                _ => out.fill(0),
            }
        }
    };
    team::each(out.chunks_mut(task_rows * classes * E::BYTES).enumerate(), task);
    Ok(())
}
