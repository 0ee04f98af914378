//! The loss to be differentiated: a weighted, smoothed cross entropy over class indices, and its gradient's contract.
//!
//! For row z with target y, class weights w (1 if there are none), W = Σ w_c, label smoothing s, C classes, p =
//! softmax(z):
//!
//! ```text
//! term  = (1 − s) · w_y · (lse(z) − z_y) + s/C · (W · lse(z) − Σ_c w_c z_c)
//! share = w_y                                   what the row adds to the denominator of a mean
//! ∂(g · term + h · lse)/∂z_j = (g · ((1 − s) w_y + s W / C) + h) · p_j − g · s/C · w_j − [j = y] · g · (1 − s) · w_y
//! ```
//!
//! This is torch's definition of `cross_entropy` with class indices. An ignored row has term 0, share 0 and a gradient
//! of exact zeros, whatever its logits are. A row without a softmax (see the crate's head) has a NaN term and a NaN
//! gradient.

use crate::element::Real;
use crate::reals::Reals;
use crate::{Rows, ScoreError};
use thiserror::Error;

/// Which loss. The default is the plain cross entropy that leaves out target −100.
#[derive(Clone, Copy, Debug)]
pub struct Objective<'a> {
    /// Rows with this target are left out.
    pub ignore_index: i64,
    /// One weight a class.
    pub class_weight: Option<Reals<'a>>,
    /// Share of the loss that is spread over all classes, in 0..=1.
    pub label_smoothing: f64,
}

impl Default for Objective<'_> {
    fn default() -> Self {
        Objective { ignore_index: -100, class_weight: None, label_smoothing: 0.0 }
    }
}

/// The differentiable part of a batch, one entry a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Terms<R> {
    /// The row's loss with class weight and smoothing.
    pub term: Vec<R>,
    /// What it adds to the denominator of a mean.
    pub share: Vec<R>,
}

/// Terms in the precision of their logits.
#[derive(Clone, Debug, PartialEq)]
pub enum AnyTerms {
    /// Of f16, bf16 or f32 logits.
    F32(Terms<f32>),
    /// Of f64 logits.
    F64(Terms<f64>),
}

/// What comes down from above: the gradients of the batch's terms, and of its log-sum-exps if those were used too.
#[derive(Clone, Copy, Debug)]
pub struct Upstream<'a> {
    /// ∂/∂term: one a row, or a single one for all rows.
    pub term: Reals<'a>,
    /// ∂/∂lse: likewise, or none.
    pub lse: Option<Reals<'a>>,
}

/// Why a loss or a gradient cannot be computed. Nothing is written then.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum ObjectiveError {
    /// The targets do not fit the logits.
    #[error(transparent)]
    Score(#[from] ScoreError),
    /// An argument has the wrong length.
    #[error("{what}: {actual} numbers given, {wanted} needed")]
    Length {
        /// Which argument.
        what: &'static str,
        /// Its length.
        actual: usize,
        /// What it should be.
        wanted: usize,
    },
    /// An argument has the wrong precision.
    #[error("{what} are {actual}; these logits need {wanted}")]
    Precision {
        /// Which argument.
        what: &'static str,
        /// What they are.
        actual: &'static str,
        /// What they should be.
        wanted: &'static str,
    },
    /// Smoothing is a share.
    #[error("label_smoothing is {given}; it must lie in 0..=1")]
    Smoothing {
        /// The value given.
        given: f64,
    },
}

/// An objective in one precision, with what all rows share worked out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a, R> {
    pub(crate) ignore_index: i64,
    pub(crate) weight: Option<&'a [R]>,
    /// 1 − s.
    own: R,
    /// s / C.
    spread: R,
    /// W.
    weight_sum: R,
}

/// What multiplies what in the gradient of one row: `softmax · p_j − spread · w_j − [j = y] · target`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factors<R> {
    pub(crate) softmax: R,
    pub(crate) spread: R,
    pub(crate) target: R,
}

/// Picks one precision's slice out of [`Reals`].
pub(crate) trait Pick: Real {
    const NAME: &'static str;
    fn pick(reals: Reals<'_>) -> Option<&[Self]>;
    fn sum(values: &[Self]) -> Self;
}

macro_rules! pick {
    ($t:ty, $variant:ident, $name:literal) => {
        impl Pick for $t {
            const NAME: &'static str = $name;
            fn pick(reals: Reals<'_>) -> Option<&[Self]> {
                if let Reals::$variant(values) = reals { Some(values) } else { None }
            }
            fn sum(values: &[Self]) -> Self {
                values.iter().map(|&v| f64::from(v)).sum::<f64>() as $t
            }
        }
    };
}
pick!(f32, F32, "f32");
pick!(f64, F64, "f64");

/// The argument's slice, if it has the precision and one of the lengths.
pub(crate) fn expect<'a, R: Pick>(
    what: &'static str,
    reals: Reals<'a>,
    lengths: &[usize],
) -> Result<&'a [R], ObjectiveError> {
    let found = R::pick(reals).ok_or(ObjectiveError::Precision { what, actual: reals.name(), wanted: R::NAME })?;
    match lengths {
        _ if lengths.contains(&found.len()) => Ok(found),
        [.., wanted] => Err(ObjectiveError::Length { what, actual: found.len(), wanted: *wanted }),
        [] => Ok(found),
    }
}

impl<'a, R: Pick> Plan<'a, R> {
    pub(crate) fn new(objective: &Objective<'a>, rows: &Rows<'_>) -> Result<Self, ObjectiveError> {
        let (classes, s) = (rows.classes(), objective.label_smoothing);
        if !(0.0..=1.0).contains(&s) {
            return Err(ObjectiveError::Smoothing { given: s });
        }
        let weight = objective.class_weight.map(|w| expect("class weights", w, &[classes])).transpose()?;
        Ok(Plan {
            ignore_index: objective.ignore_index,
            weight,
            own: R::of_f64(1.0 - s),
            spread: R::of_f64(s / classes as f64),
            weight_sum: weight.map_or(R::of_f64(classes as f64), R::sum),
        })
    }

    /// Whether Σ w_c (max − z_c) is needed.
    #[inline]
    pub(crate) fn smooths(&self) -> bool {
        self.spread > R::ZERO
    }

    #[inline]
    fn share(&self, y: usize) -> R {
        self.weight.map_or(R::of_f64(1.0), |w| w[y])
    }

    /// Term and share of a row with target `y`, its loss, log-sum and Σ w_c (max − z_c): differences, so that no offset
    /// of the logits is left to be rounded to.
    #[inline]
    pub(crate) fn row(&self, y: usize, loss: R, log_sum: R, distance: R) -> (R, R) {
        let share = self.share(y);
        let term = self.own * share * loss;
        if self.smooths() {
            (term + self.spread * (self.weight_sum * log_sum + distance), share)
        } else {
            (term, share)
        }
    }

    /// The gradient's factors of a row with target `y`.
    #[inline]
    pub(crate) fn factors(&self, y: usize, upstream: R, lse_upstream: R) -> Factors<R> {
        let own = self.own * self.share(y);
        Factors {
            softmax: upstream * (own + self.spread * self.weight_sum) + lse_upstream,
            spread: upstream * self.spread,
            target: upstream * own,
        }
    }
}
