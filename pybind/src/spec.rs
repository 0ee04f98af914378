//! Tensor specs as Python says them: `("float32", (3, 32, 32))`.

use lossfeed::{Dtype, TensorSpec};
use pyo3::prelude::*;

use crate::errors::raise;

/// A dtype's name and a shape without the batch dimension.
pub(crate) type PySpec = (String, Vec<usize>);

pub(crate) fn from_python(spec: PySpec) -> PyResult<TensorSpec> {
    let (dtype, shape) = spec;
    Ok(TensorSpec::new(Dtype::from_name(&dtype).map_err(raise)?, shape))
}

pub(crate) fn to_python(spec: &TensorSpec) -> PySpec {
    (spec.dtype.name().to_owned(), spec.shape.clone())
}
