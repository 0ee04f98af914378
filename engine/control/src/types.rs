//! Words shared by every room.

use crate::error::{Error, Result};

/// A sample's name: its position in the dataset.
pub type SampleId = u32;

/// The largest number of samples a dataset may hold (one id is kept back as "none").
pub const MAX_SAMPLES: usize = u32::MAX as usize - 1;

/// More than any cache keeps of one sample: stands for a size that is not known.
pub const SIZE_UNKNOWN: u64 = u32::MAX as u64;

/// Element types that travel in batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    Bool,
    U8,
    I8,
    I16,
    I32,
    I64,
    U16,
    U32,
    U64,
    F16,
    Bf16,
    F32,
    F64,
    C64,
    C128,
}

impl Dtype {
    /// Size of one element in bytes.
    pub fn size_bytes(self) -> usize {
        match self {
            Dtype::Bool | Dtype::U8 | Dtype::I8 => 1,
            Dtype::I16 | Dtype::U16 | Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::I32 | Dtype::U32 | Dtype::F32 => 4,
            Dtype::I64 | Dtype::U64 | Dtype::F64 | Dtype::C64 => 8,
            Dtype::C128 => 16,
        }
    }
    /// The name NumPy and torch share (`bfloat16` is torch's alone).
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Bool => "bool",
            Dtype::U8 => "uint8",
            Dtype::I8 => "int8",
            Dtype::I16 => "int16",
            Dtype::I32 => "int32",
            Dtype::I64 => "int64",
            Dtype::U16 => "uint16",
            Dtype::U32 => "uint32",
            Dtype::U64 => "uint64",
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
            Dtype::F32 => "float32",
            Dtype::F64 => "float64",
            Dtype::C64 => "complex64",
            Dtype::C128 => "complex128",
        }
    }
    /// The inverse of [`Dtype::name`].
    pub fn from_name(name: &str) -> Result<Self> {
        use Dtype::*;
        let all = [Bool, U8, I8, I16, I32, I64, U16, U32, U64, F16, Bf16, F32, F64, C64, C128];
        all.into_iter().find(|d| d.name() == name).ok_or_else(|| {
            let known = all.map(Self::name).join(", ");
            Error::settings(format!("dtype {name:?} cannot travel in a batch: use one of {known}"))
        })
    }
}

/// Element type and shape of one sample's tensor (without the batch dimension), C-contiguous.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct TensorSpec {
    /// Element type.
    pub dtype: Dtype,
    /// Shape of one sample; empty for a scalar.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// A spec from its parts.
    pub fn new(dtype: Dtype, shape: impl Into<Vec<usize>>) -> Self {
        Self { dtype, shape: shape.into() }
    }
    /// A scalar int64: the target of classification datasets.
    pub fn class_index() -> Self {
        Self::new(Dtype::I64, [])
    }
    /// One byte, 0: what stands for the target of samples that have none.
    pub fn no_target() -> Self {
        Self::new(Dtype::U8, [])
    }
    /// Bytes of one sample's tensor.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size_bytes()
    }
}
