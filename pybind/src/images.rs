//! What becomes of images, as Python makes it: checked against a dataset before a loader is made.

use lossfeed::Error;
use lossfeed::engine::ImagesBy;
use lossfeed::settings::{AugmentSettings, CropSettings, ImageSteps, JitterSettings, TransformSettings};
use lossfeed::source::Resize;
use lossfeed_kernels::image::batch_key;
use pyo3::prelude::*;

use crate::errors::raise;
use crate::source::Source;
use crate::spec::{self, PySpec};

/// Top, left, height, width, and whether the partner is around it.
type MixedBox = (usize, usize, usize, usize, bool);

/// What becomes of a dataset's pixels.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct ImageTransform {
    steps: ImageSteps,
    /// A device retouches too: colours and augmentation.
    retouches: bool,
}

impl ImageTransform {
    /// The steps that a device does, for the batch of `key` on `rank`.
    pub(crate) fn on_the_device(&self, key: u64, rank: u32) -> PyResult<ImagesBy<'_>> {
        let none = || raise(Error::internal("a device's transform that has no such step"));
        let transform = self.steps.transform.as_ref().ok_or_else(none)?;
        let retouch = self.steps.retouch().filter(|_| self.retouches);
        Ok(ImagesBy { retouch, transform, erase: self.steps.erase.as_ref(), mixed: self.steps.mixed(key, rank), key })
    }
}

#[pymethods]
impl ImageTransform {
    /// `settings` is the engine's `TransformSettings` as JSON, `crop` its `CropSettings`, `jitter` its `JitterSettings`
    /// and `augment` its `AugmentSettings`, if there are such. `retouches`: a device does those two, and no loader thread.
    #[new]
    fn new(
        source: &Source,
        settings: &str,
        crop: Option<&str>,
        jitter: Option<&str>,
        augment: Option<&str>,
        retouches: bool,
    ) -> PyResult<Self> {
        let unknown = |e: serde_json::Error| raise(Error::settings(format!("transform: {e}")));
        let transform: TransformSettings = serde_json::from_str(settings).map_err(unknown)?;
        let crop: Option<CropSettings> = crop.map(serde_json::from_str).transpose().map_err(unknown)?;
        let jitter: Option<JitterSettings> = jitter.map(serde_json::from_str).transpose().map_err(unknown)?;
        let augment: Option<AugmentSettings> = augment.map(serde_json::from_str).transpose().map_err(unknown)?;
        let (crop, jitter, augment) = (crop.as_ref(), jitter.as_ref(), augment.as_ref());
        let steps = ImageSteps::new(source.dataset.spec(), crop, jitter, augment, Some(&transform)).map_err(raise)?;
        Ok(Self { steps, retouches })
    }

    /// (dtype, shape in memory) of what it makes of a sample.
    #[getter]
    fn spec(&self) -> PySpec {
        spec::to_python(self.steps.delivered())
    }

    /// Whether chance changes every delivery of a sample.
    #[getter]
    fn random(&self) -> bool {
        self.steps.is_random()
    }

    /// Bytes on a device that the pixels of `rows` samples take, with room to work in.
    fn pixels_bytes(&self, rows: usize) -> PyResult<usize> {
        Ok(self.on_the_device(0, 0)?.pixels_bytes(rows))
    }

    /// How the batch of `key` is mixed on a rank: the share of own pixels, and of CutMix the box as (top, left, height,
    /// width, whether the partner is around it); None where it stays as it is.
    fn mixed(&self, key: u64, rank: u32) -> Option<(f32, Option<MixedBox>)> {
        let mixed = self.steps.mixed(key, rank)?;
        let found = mixed.part.map(|part| (part.top, part.left, part.height, part.width, part.outside));
        Some((mixed.lam, found))
    }

    /// Whether batches may be mixed.
    #[getter]
    fn mixes(&self) -> bool {
        self.steps.mixing.is_some()
    }

    /// What the draws of a batch have in common.
    #[staticmethod]
    fn key(seed: u64, epoch: u64, number: u64) -> u64 {
        batch_key(seed, epoch, number)
    }
}

/// (left, top, right, bottom) of what is resampled to `crop` when an image of `size` is scaled to cover `resize` and cut
/// in its middle. All sizes are (height, width).
#[pyfunction]
pub(crate) fn crop_box(
    size: (usize, usize),
    resize: (usize, usize),
    crop: (usize, usize),
) -> PyResult<(f64, f64, f64, f64)> {
    let region = Resize { to: resize, crop: Some(crop) }.region(size).map_err(raise)?;
    let (right, bottom) = (region.left + region.width, region.top + region.height);
    // Rounding may have carried them over the image's end.
    Ok((region.left, region.top, right.min(size.1 as f64), bottom.min(size.0 as f64)))
}
