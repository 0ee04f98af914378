//! Numbers a row, in one of two precisions.

/// Numbers in the precision of the logits' arithmetic: f32 for f16, bf16 and f32 logits, f64 for f64.
#[derive(Clone, Copy, Debug)]
pub enum Reals<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Double precision.
    F64(&'a [f64]),
}

impl<'a> Reals<'a> {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Reals::F32(v) => v.len(),
            Reals::F64(v) => v.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Reals::F32(_) => "f32",
            Reals::F64(_) => "f64",
        }
    }
}

/// What the forward leaves of every row's softmax, one a row each: p_j = exp((z_j − max) − log_sum).
///
/// Two numbers and not their sum: that one is rounded to the last place of the logits' offset, and with it every p.
#[derive(Clone, Copy, Debug)]
pub struct Softmax<'a> {
    /// The largest logit.
    pub max: Reals<'a>,
    /// ln Σ exp(z − max).
    pub log_sum: Reals<'a>,
}
