//! Samples that are more than one array.

use crate::error::{Error, Result};
use crate::types::{Dtype, TensorSpec};

/// What a row is made of: arrays of fixed shapes, one after the other and without gaps, and behind them, where the
/// samples differ in size, a *tail* of any length. What the tail holds is known to whoever made the source.
///
/// In a batch every array lies by itself: the rows of the first one, then those of the second, and so on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields {
    each: Vec<TensorSpec>,
    row: TensorSpec,
    tailed: bool,
}

impl Fields {
    /// Rows of the arrays `each`, and of a tail if `tailed`.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Settings`] for an array without elements, and a row beyond the address space.
    pub fn new(each: Vec<TensorSpec>, tailed: bool) -> Result<Self> {
        let mut bytes = 0_usize;
        for (number, spec) in each.iter().enumerate() {
            let array = spec.shape.iter().try_fold(spec.dtype.size_bytes(), |a, &b| a.checked_mul(b));
            bytes = array.filter(|&array| array > 0).and_then(|array| bytes.checked_add(array)).ok_or_else(|| {
                Error::settings(format!(
                    "array {number} of a sample has shape {:?}: it must have an element, and fit into memory",
                    spec.shape
                ))
            })?;
        }
        Ok(Self { each, row: TensorSpec::new(Dtype::U8, [bytes]), tailed })
    }

    /// The arrays, in their order.
    pub fn each(&self) -> &[TensorSpec] {
        &self.each
    }

    /// All arrays of a row, as bytes.
    pub fn row(&self) -> &TensorSpec {
        &self.row
    }

    /// Whether a tail follows.
    pub fn tailed(&self) -> bool {
        self.tailed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_as_long_as_its_arrays_and_one_beyond_memory_is_refused() {
        let two = vec![TensorSpec::new(Dtype::F32, [2, 3]), TensorSpec::class_index()];
        assert_eq!(Fields::new(two, false).unwrap().row().bytes(), 32);
        assert_eq!(Fields::new(Vec::new(), false).unwrap().row().bytes(), 0, "nothing but a target");
        for shape in [vec![3, 0], vec![usize::MAX, 2], vec![usize::MAX]] {
            let error = Fields::new(vec![TensorSpec::class_index(), TensorSpec::new(Dtype::F32, shape)], false);
            assert!(error.unwrap_err().to_string().contains("array 1"));
        }
    }
}
