//! Gradients, and losses against probabilities, straight from their definitions, in double precision.

use half::{bf16, f16};
use lossfeed_kernels::{Dtype, Rows};

/// Row `row` of a matrix, exactly.
pub(crate) fn row(rows: &Rows<'_>, row: usize) -> Vec<f64> {
    elements(rows.row(row), rows.dtype())
}

/// Every element of `bytes`, exactly.
pub(crate) fn elements(bytes: &[u8], dtype: Dtype) -> Vec<f64> {
    let read = |b: &[u8]| match dtype {
        Dtype::F16 => f16::from_ne_bytes([b[0], b[1]]).to_f64(),
        Dtype::BF16 => bf16::from_ne_bytes([b[0], b[1]]).to_f64(),
        Dtype::F32 => f64::from(f32::from_ne_bytes(b.try_into().unwrap())),
        Dtype::F64 => f64::from_ne_bytes(b.try_into().unwrap()),
    };
    bytes.chunks_exact(dtype.bytes()).map(read).collect()
}

/// The maximum and ln Σ exp(z − max). Their sum is the log-sum-exp, which nothing here needs: even a double rounds ln
/// 10 away beside a logit of 3e38.
pub(crate) fn softmax(z: &[f64]) -> (f64, f64) {
    let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (max, z.iter().map(|v| (v - max).exp()).sum::<f64>().ln())
}

/// −ln p of every class.
fn minus_log_p(z: &[f64]) -> Vec<f64> {
    let (max, log_sum) = softmax(z);
    z.iter().map(|z| (max - z) + log_sum).collect()
}

/// What a row's training loss is made of.
pub(crate) struct Target<'a> {
    pub(crate) weight: Option<&'a [f64]>,
    pub(crate) label_smoothing: f64,
}

impl Target<'_> {
    fn weight(&self, class: usize) -> f64 {
        self.weight.map_or(1.0, |w| w[class])
    }

    /// −Σ_j t_j ln p_j with t = w ⊙ ((1 − s) onehot(y) + s / C).
    pub(crate) fn term(&self, z: &[f64], y: usize) -> f64 {
        let (minus_log_p, s) = (minus_log_p(z), self.label_smoothing);
        let share = |j: usize| (if j == y { 1.0 - s } else { 0.0 } + s / z.len() as f64) * self.weight(j);
        (0..z.len()).filter(|&j| share(j) != 0.0).map(|j| share(j) * minus_log_p[j]).sum()
    }

    /// d(g·term + g_lse·lse)/dz, and the size of the terms that it was summed from.
    pub(crate) fn gradient(&self, z: &[f64], y: usize, g: f64, g_lse: f64) -> Vec<[f64; 2]> {
        let s = self.label_smoothing;
        let share = |j: usize| (if j == y { 1.0 - s } else { 0.0 } + s / z.len() as f64) * self.weight(j);
        let mass: f64 = (0..z.len()).map(share).sum();
        slope(z, g * mass + g_lse, |j| g * share(j))
    }

    /// Smoothed probabilities.
    fn smooth(&self, q: &[f64]) -> Vec<f64> {
        let classes = q.len() as f64;
        q.iter().map(|q| q * (1.0 - self.label_smoothing) + self.label_smoothing / classes).collect()
    }

    /// (loss, max, log_sum, grad_norm, entropy, mass) against probabilities.
    pub(crate) fn probabilities(&self, z: &[f64], q: &[f64]) -> [f64; 6] {
        let ((max, log_sum), minus_log_p, q) = (softmax(z), minus_log_p(z), self.smooth(q));
        let mass = |j: usize| q[j] * self.weight(j);
        let p: Vec<f64> = minus_log_p.iter().map(|v| (-v).exp()).collect();
        let loss = (0..z.len()).filter(|&j| mass(j) != 0.0).map(|j| mass(j) * minus_log_p[j]).sum();
        let square: f64 = p.iter().zip(&q).map(|(p, q)| (p - q) * (p - q)).sum();
        let entropy = minus_log_p.iter().zip(&p).filter(|(_, p)| **p > 0.0).map(|(v, p)| p * v).sum();
        if log_sum.is_nan() {
            let none = f64::NAN; // no softmax
            return [none, none, none, none, none, (0..z.len()).map(mass).sum()];
        }
        [loss, max, log_sum, square.sqrt(), entropy, (0..z.len()).map(mass).sum()]
    }

    /// d(g·loss)/dz against probabilities.
    pub(crate) fn probability_gradient(&self, z: &[f64], q: &[f64], g: f64) -> Vec<[f64; 2]> {
        let q = self.smooth(q);
        let mass = |j: usize| q[j] * self.weight(j);
        let total: f64 = (0..z.len()).map(mass).sum();
        slope(z, g * total, |j| g * mass(j))
    }
}

fn slope(z: &[f64], all: f64, own: impl Fn(usize) -> f64) -> Vec<[f64; 2]> {
    let minus_log_p = minus_log_p(z);
    let one = |j: usize| {
        let spread = (-minus_log_p[j]).exp() * all;
        [spread - own(j), spread.abs() + own(j).abs()]
    };
    (0..z.len()).map(one).collect()
}
