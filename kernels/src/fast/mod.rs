//! The CPU device's path: every row is read once, in SIMD lanes, on all cores.
//!
//! The plain version ([`crate::reference`]) reads a row twice, for its maximum and for its sums. Departures from it:
//!
//! 1. *Online softmax.* Running sums refer to the maximum so far and are rescaled when it grows. That is done once per
//!    512 logits, which are widened into a buffer that stays in the first-level cache: one read of memory, one exponential
//!    per logit.
//! 2. *Fixed lanes.* Sums are kept in 16 lanes whatever the machine's vectors are, there is no fused multiply-add, and a row is
//!    never split over threads. So scores are the same bit for bit on every instruction set and any number of threads,
//!    and with them the order of an epoch that depends on scores.
//! 3. *The target's slot* is overwritten with −∞ (which adds exactly 0) and its term is merged at the end.
//! 4. Whether the target is the *first* maximum needs a second look only when another class ties with it.
//!
//! Left on the table: fused multiply-add (about a fifth of the arithmetic), at the price of 2.

mod dispatch;
pub(crate) mod exp;
mod row;

use rayon::prelude::*;

use crate::element::{BF16, Element, F16};
use crate::scores::{RowScore, check, columns};
use crate::{AnyScores, Dtype, Rows, ScoreError, Scores};

/// Logits a task should hold at least: about 20 µs of work, well above the cost of handing it to another thread.
const TASK_LOGITS: usize = 1 << 14;

/// Scores `rows` against `targets`; the contract of [`crate::reference::score`] in one read per row, on rayon's current pool.
///
/// # Errors
/// [`ScoreError`] when targets and rows differ in number, a target names no class, or `b0` is not above 0.
pub fn score(rows: &Rows<'_>, targets: &[i64], ignore_index: i64, b0: f32) -> Result<AnyScores, ScoreError> {
    check(rows, targets, ignore_index, b0)?;
    Ok(match rows.dtype() {
        Dtype::F16 => AnyScores::F32(all::<F16>(rows, targets, ignore_index, b0)),
        Dtype::BF16 => AnyScores::F32(all::<BF16>(rows, targets, ignore_index, b0)),
        Dtype::F32 => AnyScores::F32(all::<f32>(rows, targets, ignore_index, b0)),
        Dtype::F64 => AnyScores::F64(all::<f64>(rows, targets, ignore_index, b0)),
    })
}

fn all<E: Element>(rows: &Rows<'_>, targets: &[i64], ignore_index: i64, b0: f32) -> Scores<E::Real> {
    let level = dispatch::Level::of_this_machine();
    let mut scored = vec![RowScore::ignored(); targets.len()];
    let task = |first: usize, targets: &[i64], out: &mut [RowScore<E::Real>]| {
        let mut scratch = row::Scratch::new();
        for (k, (&target, out)) in targets.iter().zip(out).enumerate() {
            if let (true, Ok(y)) = (target != ignore_index, usize::try_from(target)) {
                *out = dispatch::row::<E>(level, rows.row(first + k), y, &mut scratch);
            }
        }
    };
    let task_rows = TASK_LOGITS.div_ceil(rows.classes());
    if targets.len() <= task_rows {
        task(0, targets, &mut scored);
    } else {
        let tasks = targets.par_chunks(task_rows).zip(scored.par_chunks_mut(task_rows)).enumerate();
        tasks.for_each(|(t, (targets, out))| task(t * task_rows, targets, out));
    }
    columns(&scored, b0, crate::rank::counts)
}
