//! A batch of the engine as candle tensors.

use std::sync::Arc;

use candle_core::{Device, Error, Result, Shape, Tensor, WithDType};
use half::{bf16, f16};
use lossfeed::loader::Ticket;
use lossfeed::{Dtype, SampleId, TensorSpec};

/// A delivered batch on a candle device. The engine's slot is free again once this has been made.
#[derive(Debug, Clone)]
pub struct Batch {
    /// (rows, sample's shape…), in the dataset's type (bool becomes u8).
    pub data: Tensor,
    /// (rows, target's shape…); int64 (rows) for class indices.
    pub target: Tensor,
    /// (rows), f32: the weights that make a weighted mean unbiased.
    pub weight: Tensor,
    pub(crate) ticket: Ticket,
}

impl Batch {
    /// Copies a batch of the engine to `device`.
    ///
    /// # Errors
    /// A type candle does not have (int8), or what the device says.
    pub fn new(batch: &lossfeed::loader::Batch, device: &Device) -> Result<Self> {
        let (slot, rows) = (&batch.slot, batch.rows);
        let layout = slot.layout();
        let ([data], false) = (layout.fields(), slot.has_tails()) else {
            return Err(Error::Msg("candle batches have one array a sample: this dataset's have several".into()));
        };
        Ok(Self {
            data: tensor(slot.data().map_err(Error::wrap)?, &data.spec, rows, device)?,
            target: tensor(slot.target(), layout.target(), rows, device)?,
            weight: Tensor::from_slice(&slot.weight()[..rows], rows, device)?,
            ticket: batch.ticket.clone(),
        })
    }

    /// The samples really in it, a row each; scores are credited to exactly these.
    pub fn ids(&self) -> &Arc<[SampleId]> {
        &self.ticket.ids
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.ticket.ids.len()
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.ticket.ids.is_empty()
    }

    /// Its epoch and its position in it, from 0.
    pub fn position(&self) -> (u64, usize) {
        (self.ticket.epoch, self.ticket.number)
    }
}

/// The first `rows` rows of `spec` in `bytes`, as a tensor of its own.
fn tensor(bytes: &[u8], spec: &TensorSpec, rows: usize, device: &Device) -> Result<Tensor> {
    fn of<T: WithDType + bytemuck::Pod>(bytes: &[u8], shape: Vec<usize>, device: &Device) -> Result<Tensor> {
        Tensor::from_vec(bytemuck::pod_collect_to_vec::<u8, T>(bytes), Shape::from(shape), device)
    }
    let bytes = &bytes[..spec.bytes() * rows];
    let shape = std::iter::once(rows).chain(spec.shape.iter().copied()).collect();
    match spec.dtype {
        Dtype::Bool | Dtype::U8 => of::<u8>(bytes, shape, device),
        Dtype::I16 => of::<i16>(bytes, shape, device),
        Dtype::I32 => of::<i32>(bytes, shape, device),
        Dtype::I64 => of::<i64>(bytes, shape, device),
        Dtype::F16 => of::<f16>(bytes, shape, device),
        Dtype::Bf16 => of::<bf16>(bytes, shape, device),
        Dtype::F32 => of::<f32>(bytes, shape, device),
        Dtype::F64 => of::<f64>(bytes, shape, device),
        Dtype::U32 => of::<u32>(bytes, shape, device),
        Dtype::I8 => Err(Error::msg("candle has no int8: store the samples as uint8 or int16")),
        other @ (Dtype::U16 | Dtype::U64 | Dtype::C64 | Dtype::C128) => {
            Err(Error::Msg(format!("candle has no {}: store the samples as int32, int64 or float32", other.name())))
        }
    }
}
