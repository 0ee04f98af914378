//! The image transform as Python makes it: checked against a dataset before a loader is made.

use lossfeed::Error;
use lossfeed::settings::{TransformSettings, transformed};
use lossfeed_kernels::image::{ImageTransform as Core, batch_key};
use pyo3::prelude::*;

use crate::errors::raise;
use crate::source::Source;
use crate::spec::{self, PySpec};

/// What becomes of a dataset's pixels.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct ImageTransform(pub(crate) Core);

#[pymethods]
impl ImageTransform {
    /// `settings` is the engine's `TransformSettings` as JSON.
    #[new]
    fn new(source: &Source, settings: &str) -> PyResult<Self> {
        let settings: TransformSettings =
            serde_json::from_str(settings).map_err(|e| raise(Error::settings(format!("transform: {e}"))))?;
        settings.build(source.dataset.spec()).map(Self).map_err(raise)
    }

    /// (dtype, shape in memory) of what it makes of a sample.
    #[getter]
    fn spec(&self) -> PySpec {
        spec::to_python(&transformed(&self.0))
    }

    /// Whether chance changes every delivery of a sample.
    #[getter]
    fn random(&self) -> bool {
        self.0.is_random()
    }

    /// What the draws of a batch have in common.
    #[staticmethod]
    fn key(seed: u64, epoch: u64, number: u64) -> u64 {
        batch_key(seed, epoch, number)
    }
}
