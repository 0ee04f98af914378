//! The gradient of a row's term at its logits: p − s/C − (1 − s) onehot(y), with smoothing s and p = exp((z − max) −
//! log_sum).
//!
//! [`fused`] is one pass over CPU logits, [`composed`] the same in candle's operations for any device; a test holds one
//! to the other. An ignored row may hold anything, NaN too: its gradient is 0.

use candle_core::{CpuStorage, D, DType, Error, Result, Storage, Tensor, WithDType};
use half::{bf16, f16};
use lossfeed_kernels::{Objective, Reals, Softmax, Upstream, fast};

use crate::shape::{contiguous, with_rows};

/// The kernels' own pass over CPU logits, on rayon's current pool. `found` and `grad_found` are (3, rows): term, max,
/// log_sum.
pub(crate) fn fused(
    logits: &Tensor,
    targets: &Tensor,
    found: &Tensor,
    grad_found: &Tensor,
    objective: &Objective<'_>,
) -> Result<Tensor> {
    match logits.dtype() {
        DType::F16 => rows::<f16>(logits, targets, found, grad_found, objective),
        DType::BF16 => rows::<bf16>(logits, targets, found, grad_found, objective),
        DType::F32 => rows::<f32>(logits, targets, found, grad_found, objective),
        DType::F64 => rows::<f64>(logits, targets, found, grad_found, objective),
        other => Err(Error::UnsupportedDTypeForOp(other, "lossfeed-score-rows").bt()),
    }
}

fn rows<T: WithDType + bytemuck::Pod>(
    logits: &Tensor,
    targets: &Tensor,
    found: &Tensor,
    grad_found: &Tensor,
    objective: &Objective<'_>,
) -> Result<Tensor> {
    let (storage, layout) = logits.storage_and_layout();
    let (targets_storage, targets_layout) = targets.storage_and_layout();
    let targets = contiguous::<i64>(cpu(&targets_storage)?, targets_layout)?;
    let (rows, classes) = logits.dims2()?;
    let mut gradient = vec![T::zero(); rows * classes];
    with_rows(cpu(&storage)?, layout, |view| {
        let out = bytemuck::cast_slice_mut(&mut gradient);
        if found.dtype() == DType::F64 {
            let (found, up) = (columns::<f64>(found)?, columns::<f64>(grad_found)?);
            let (max, log_sum) = found[rows..].split_at(rows);
            let softmax = Softmax { max: Reals::F64(max), log_sum: Reals::F64(log_sum) };
            let upstream = Upstream { term: Reals::F64(&up[..rows]), lse: None };
            fast::backward(view, &softmax, targets, objective, &upstream, out)
        } else {
            let (found, up) = (columns::<f32>(found)?, columns::<f32>(grad_found)?);
            let (max, log_sum) = found[rows..].split_at(rows);
            let softmax = Softmax { max: Reals::F32(max), log_sum: Reals::F32(log_sum) };
            let upstream = Upstream { term: Reals::F32(&up[..rows]), lse: None };
            fast::backward(view, &softmax, targets, objective, &upstream, out)
        }
        .map_err(Error::wrap)
    })?;
    Tensor::from_vec(gradient, (rows, classes), logits.device())
}

fn columns<R: WithDType>(of: &Tensor) -> Result<Vec<R>> {
    of.flatten_all()?.to_vec1()
}

fn cpu(storage: &Storage) -> Result<&CpuStorage> {
    match storage {
        Storage::Cpu(storage) => Ok(storage),
        _ => Err(Error::msg("the tensor is not on the CPU").bt()),
    }
}

/// The same in candle's operations, on any device, without a host synchronisation.
pub(crate) fn composed(
    logits: &Tensor,
    targets: &Tensor,
    found: &Tensor,
    grad_found: &Tensor,
    objective: &Objective<'_>,
) -> Result<Tensor> {
    let (rows, classes) = logits.dims2()?;
    let row = |of: &Tensor, at: usize| of.narrow(0, at, 1)?.reshape((rows, 1));
    // A target that names no class was flagged by the kernel; it must not become an address here.
    let inside = (targets.ge(0i64)? * targets.lt(classes as i64)?)?;
    let scored = (inside * targets.ne(objective.ignore_index)?)?.reshape((rows, 1))?;
    let index = scored.where_cond(&targets.reshape((rows, 1))?, &targets.zeros_like()?.reshape((rows, 1))?)?;
    let smoothing = objective.label_smoothing;
    let upstream = scored.where_cond(&row(grad_found, 0)?, &row(found, 0)?.zeros_like()?)?;
    let below = logits.to_dtype(found.dtype())?.broadcast_sub(&row(found, 1)?)?;
    let p = below.broadcast_sub(&row(found, 2)?)?.exp()?;
    let p = if smoothing > 0.0 { (p - smoothing / classes as f64)? } else { p };
    let gradient = p.broadcast_mul(&upstream)?;
    let everywhere = scored.broadcast_as((rows, classes))?.contiguous()?;
    let gradient = everywhere.where_cond(&gradient, &gradient.zeros_like()?)?;
    gradient.scatter_add(&index, &(upstream * (smoothing - 1.0))?, D::Minus1)?.to_dtype(logits.dtype())
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn the_pass_and_the_operations_agree() {
        let device = Device::Cpu;
        // An offset whose last place is a sixteenth: of a log-sum-exp it would be in every p.
        for (dtype, offset) in [(DType::F32, 0.0), (DType::F32, 1e6), (DType::F64, 1e6), (DType::BF16, 0.0)] {
            let logits = Tensor::randn(0.0f32, 3.0, (7, 11), &device).unwrap().to_dtype(DType::F64).unwrap();
            let logits = (logits + offset).unwrap().to_dtype(dtype).unwrap();
            let targets = Tensor::new(&[0i64, 10, -100, 3, 3, -100, 9], &device).unwrap();
            let real = if dtype == DType::F64 { dtype } else { DType::F32 };
            let max = logits.to_dtype(real).unwrap().max(1).unwrap();
            let below = logits.to_dtype(real).unwrap().broadcast_sub(&max.unsqueeze(1).unwrap()).unwrap();
            let found = Tensor::stack(&[max.zeros_like().unwrap(), max, below.log_sum_exp(1).unwrap()], 0).unwrap();
            let upstream = Tensor::randn(0.0f32, 1.0, (3, 7), &device).unwrap().to_dtype(real).unwrap();
            for label_smoothing in [0.0, 0.1, 1.0] {
                let objective = Objective { label_smoothing, ..Objective::default() };
                let by = [fused, composed].map(|gradient| {
                    let g = gradient(&logits, &targets, &found, &upstream, &objective).unwrap();
                    assert_eq!(g.dtype(), dtype);
                    g.to_dtype(DType::F64).unwrap().to_vec2::<f64>().unwrap()
                });
                let close = if dtype == DType::BF16 { 2e-2 } else { 1e-6 };
                for (a, b) in by[0].iter().flatten().zip(by[1].iter().flatten()) {
                    assert!((a - b).abs() <= close, "{dtype:?}, smoothing {label_smoothing}: {a} and {b}");
                }
                assert!(by[0][2].iter().all(|&g| g == 0.0) && by[0][5].iter().all(|&g| g == 0.0));
            }
        }
    }
}
