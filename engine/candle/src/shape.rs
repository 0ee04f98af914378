//! Tensors as the kernels see them.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Error, Layout, Result, WithDType};
use half::{bf16, f16};
use lossfeed_kernels::{Dtype, Rows};

/// A 2-D layout as (rows, classes, elements between rows); classes lie side by side.
pub(crate) fn row_shape(layout: &Layout) -> Result<(usize, usize, usize)> {
    let (rows, classes) = layout.shape().dims2()?;
    let strides = layout.stride();
    if classes > 1 && strides[1] != 1 {
        return Err(Error::msg(format!("the classes of a row are {} elements apart, expected 1", strides[1])).bt());
    }
    // The stride of a single row means nothing.
    Ok((rows, classes, if rows > 1 { strides[0] } else { classes }))
}

/// The elements of a contiguous tensor.
pub(crate) fn contiguous<'a, T: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    let (from, to) =
        layout.contiguous_offsets().ok_or_else(|| Error::RequiresContiguous { op: "lossfeed-score-rows" }.bt())?;
    Ok(&storage.as_slice::<T>()?[from..to])
}

/// Calls `f` with CPU logits as the kernels see them, without a copy.
pub(crate) fn with_rows<R>(storage: &CpuStorage, layout: &Layout, f: impl FnOnce(&Rows<'_>) -> Result<R>) -> Result<R> {
    fn bytes<T: WithDType + bytemuck::Pod>(storage: &CpuStorage, start: usize) -> Result<&[u8]> {
        // An empty tensor may start behind its buffer's end.
        Ok(bytemuck::cast_slice(storage.as_slice::<T>()?.get(start..).unwrap_or_default()))
    }
    let start = layout.start_offset();
    let (bytes, dtype) = match storage.dtype() {
        DType::F16 => (bytes::<f16>(storage, start)?, Dtype::F16),
        DType::BF16 => (bytes::<bf16>(storage, start)?, Dtype::BF16),
        DType::F32 => (bytes::<f32>(storage, start)?, Dtype::F32),
        DType::F64 => (bytes::<f64>(storage, start)?, Dtype::F64),
        other => return Err(Error::UnsupportedDTypeForOp(other, "lossfeed-score-rows").bt()),
    };
    let (rows, classes, row_stride) = row_shape(layout)?;
    f(&Rows::new(bytes, dtype, rows, classes, row_stride).map_err(Error::wrap)?)
}
