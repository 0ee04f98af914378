//! A matrix of logits as it lies in memory: borrowed bytes, a dtype, a row stride.

use thiserror::Error;

/// Element type of the logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an f32.
    BF16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision; scored in double precision.
    F64,
}

impl Dtype {
    /// All of them, narrow first.
    pub const ALL: [Dtype; 4] = [Dtype::F16, Dtype::BF16, Dtype::F32, Dtype::F64];

    /// Size of one element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Dtype::F16 | Dtype::BF16 => 2,
            Dtype::F32 => 4,
            Dtype::F64 => 8,
        }
    }

    /// `f16`, `bf16`, `f32`, `f64`: the suffix of the kernels' names.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F16 => "f16",
            Dtype::BF16 => "bf16",
            Dtype::F32 => "f32",
            Dtype::F64 => "f64",
        }
    }
}

/// Why bytes and shape do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// A row of zero logits has no softmax.
    #[error("logits have 0 classes; a row needs at least 1")]
    NoClasses,
    /// Rank counts and class indices are 32-bit.
    #[error("logits have {rows} rows of {classes} classes; at most {max} of either are supported")]
    TooMany {
        /// Rows asked for.
        rows: usize,
        /// Classes asked for.
        classes: usize,
        /// The largest supported number of either.
        max: usize,
    },
    /// The last row would end behind the buffer.
    #[error(
        "logits of {rows} rows x {classes} classes with a row stride of {row_stride} elements need {needed_bytes} bytes, the buffer has {actual_bytes}"
    )]
    TooShort {
        /// Rows asked for.
        rows: usize,
        /// Classes asked for.
        classes: usize,
        /// Distance of two rows in elements.
        row_stride: usize,
        /// Bytes that shape and stride span.
        needed_bytes: u128,
        /// Bytes given.
        actual_bytes: usize,
    },
}

/// `rows` x `classes` logits, unit column stride, in native byte order. The bytes may start at any address.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    bytes: &'a [u8],
    dtype: Dtype,
    rows: usize,
    classes: usize,
    row_stride: usize,
}

impl<'a> Rows<'a> {
    /// The most rows, and the most classes, a view may have.
    pub const MAX: usize = i32::MAX as usize;

    /// Checks that the view stays inside `bytes`. `row_stride` counts elements; 0 repeats the first row and a stride
    /// below `classes` overlaps rows, both allowed since nothing is written.
    pub fn new(
        bytes: &'a [u8],
        dtype: Dtype,
        rows: usize,
        classes: usize,
        row_stride: usize,
    ) -> Result<Rows<'a>, ShapeError> {
        if classes == 0 {
            return Err(ShapeError::NoClasses);
        }
        if rows > Self::MAX || classes > Self::MAX {
            return Err(ShapeError::TooMany { rows, classes, max: Self::MAX });
        }
        if rows > 0 {
            let elements = (rows as u128 - 1) * row_stride as u128 + classes as u128;
            let needed_bytes = elements * dtype.bytes() as u128;
            if needed_bytes > bytes.len() as u128 {
                return Err(ShapeError::TooShort {
                    rows,
                    classes,
                    row_stride,
                    needed_bytes,
                    actual_bytes: bytes.len(),
                });
            }
        }
        Ok(Rows { bytes, dtype, rows, classes, row_stride })
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Number of samples.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of logits a sample has.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Distance of two rows in elements.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// The bytes of row `row`'s logits. Panics outside the view, as slices do.
    pub fn row(&self, row: usize) -> &'a [u8] {
        let size = self.dtype.bytes();
        let start = row * self.row_stride * size;
        &self.bytes[start..start + self.classes * size]
    }
}
