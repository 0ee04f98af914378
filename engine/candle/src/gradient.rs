//! The gradient of a row's loss and log-sum-exp at its logits: d loss = p − onehot(y), d lse = p, with p = exp(z − lse).
//!
//! [`fused`] is one pass over CPU logits, [`composed`] the same in candle's operations for any device; a test holds one to
//! the other. An ignored row may hold anything, NaN too: its gradient is 0.

use candle_core::{CpuStorage, D, DType, Error, Result, Storage, Tensor, WithDType};
use half::{bf16, f16};
use lossfeed_kernels::{Objective, Reals, Upstream, fast};

use crate::op::{contiguous, with_rows};

/// The kernels' own pass over CPU logits, on rayon's current pool. `both` and `grad_both` are (2, rows): loss, then lse.
pub(crate) fn fused(
    logits: &Tensor,
    targets: &Tensor,
    both: &Tensor,
    grad_both: &Tensor,
    ignore_index: i64,
) -> Result<Tensor> {
    match logits.dtype() {
        DType::F16 => rows::<f16>(logits, targets, both, grad_both, ignore_index),
        DType::BF16 => rows::<bf16>(logits, targets, both, grad_both, ignore_index),
        DType::F32 => rows::<f32>(logits, targets, both, grad_both, ignore_index),
        DType::F64 => rows::<f64>(logits, targets, both, grad_both, ignore_index),
        other => Err(Error::UnsupportedDTypeForOp(other, "lossfeed-score-rows").bt()),
    }
}

fn rows<T: WithDType + bytemuck::Pod>(
    logits: &Tensor,
    targets: &Tensor,
    both: &Tensor,
    grad_both: &Tensor,
    ignore_index: i64,
) -> Result<Tensor> {
    let (storage, layout) = logits.storage_and_layout();
    let (targets_storage, targets_layout) = targets.storage_and_layout();
    let targets = contiguous::<i64>(cpu(&targets_storage)?, targets_layout)?;
    let (rows, classes) = logits.dims2()?;
    let mut gradient = vec![T::zero(); rows * classes];
    with_rows(cpu(&storage)?, layout, |view| {
        let out = bytemuck::cast_slice_mut(&mut gradient);
        let objective = Objective { ignore_index, ..Objective::default() };
        if both.dtype() == DType::F64 {
            let (both, up) = (columns::<f64>(both)?, columns::<f64>(grad_both)?);
            let upstream = Upstream { term: Reals::F64(&up[..rows]), lse: Some(Reals::F64(&up[rows..])) };
            fast::backward(view, Reals::F64(&both[rows..]), targets, &objective, &upstream, out)
        } else {
            let (both, up) = (columns::<f32>(both)?, columns::<f32>(grad_both)?);
            let upstream = Upstream { term: Reals::F32(&up[..rows]), lse: Some(Reals::F32(&up[rows..])) };
            fast::backward(view, Reals::F32(&both[rows..]), targets, &objective, &upstream, out)
        }
        .map_err(Error::wrap)
    })?;
    Tensor::from_vec(gradient, (rows, classes), logits.device())
}

fn columns<R: WithDType>(both: &Tensor) -> Result<Vec<R>> {
    both.flatten_all()?.to_vec1()
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
    both: &Tensor,
    grad_both: &Tensor,
    ignore_index: i64,
) -> Result<Tensor> {
    let (rows, classes) = logits.dims2()?;
    let row = |of: &Tensor, at: usize| of.narrow(0, at, 1)?.reshape((rows, 1));
    // A target that names no class was flagged by the kernel; it must not become an address here.
    let inside = (targets.ge(0i64)? * targets.lt(classes as i64)?)?;
    let scored = (inside * targets.ne(ignore_index)?)?.reshape((rows, 1))?;
    let index = scored.where_cond(&targets.reshape((rows, 1))?, &targets.zeros_like()?.reshape((rows, 1))?)?;
    let zero = row(both, 0)?.zeros_like()?;
    let onehot = scored.where_cond(&row(grad_both, 0)?, &zero)?;
    let scale = (&onehot + scored.where_cond(&row(grad_both, 1)?, &zero)?)?;
    let p = logits.to_dtype(both.dtype())?.broadcast_sub(&row(both, 1)?)?.exp()?;
    let gradient = p.broadcast_mul(&scale)?;
    let everywhere = scored.broadcast_as((rows, classes))?.contiguous()?;
    let gradient = everywhere.where_cond(&gradient, &gradient.zeros_like()?)?;
    gradient.scatter_add(&index, &onehot.neg()?, D::Minus1)?.to_dtype(logits.dtype())
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn the_pass_and_the_operations_agree() {
        let device = Device::Cpu;
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let logits = Tensor::randn(0.0f32, 3.0, (7, 11), &device).unwrap().to_dtype(dtype).unwrap();
            let targets = Tensor::new(&[0i64, 10, -100, 3, 3, -100, 9], &device).unwrap();
            let real = if dtype == DType::F64 { dtype } else { DType::F32 };
            let lse = logits.to_dtype(real).unwrap().log_sum_exp(1).unwrap();
            let both = Tensor::stack(&[lse.zeros_like().unwrap(), lse], 0).unwrap();
            let upstream = Tensor::randn(0.0f32, 1.0, (2, 7), &device).unwrap().to_dtype(real).unwrap();
            let by = [fused, composed].map(|gradient| {
                let g = gradient(&logits, &targets, &both, &upstream, -100).unwrap();
                assert_eq!(g.dtype(), dtype);
                g.to_dtype(DType::F64).unwrap().to_vec2::<f64>().unwrap()
            });
            let close = if dtype == DType::BF16 { 2e-2 } else { 1e-6 };
            for (a, b) in by[0].iter().flatten().zip(by[1].iter().flatten()) {
                assert!((a - b).abs() <= close, "{dtype:?}: {a} and {b}");
            }
            assert!(by[0][2].iter().all(|&g| g == 0.0) && by[0][5].iter().all(|&g| g == 0.0));
        }
    }
}
