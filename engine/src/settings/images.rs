//! What becomes of a sample's pixels on their way into a batch: a crop of an image of any size, changes of its colours,
//! then the transform.

use super::{Settings, TransformSettings};
use crate::error::{Error, Result};
use crate::types::{Dtype, TensorSpec};
use lossfeed_kernels::image::{
    ColorJitter, CropKind, Erase, ImageDtype, ImageError, ImageTransform, JitterOptions, ResizedCrop,
};

/// A crop of images of any size, resized to one; see [`lossfeed_kernels::image::ResizedCrop`]. Loader threads make it,
/// whatever the device.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct CropSettings {
    /// Height and width of the result.
    pub size: [usize; 2],
    /// Which part of an image it is.
    pub of: CropOf,
}

/// Which part of an image is cropped.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CropOf {
    /// A rectangle drawn anew in each delivery.
    Part {
        /// Least and largest area, as shares of the image's.
        scale: [f64; 2],
        /// Least and largest width over height.
        ratio: [f64; 2],
    },
    /// A part of the image scaled, its aspect kept, to cover a size.
    Covering {
        /// That size: height and width.
        to: [usize; 2],
        /// At a place drawn anew in each delivery; else the middle.
        random: bool,
    },
}

/// How colours change in each delivery; see [`lossfeed_kernels::image::ColorJitter`]. Loader threads do it on any device.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct JitterSettings {
    /// Least and largest factor of brightness; `None` leaves it.
    pub brightness: Option<[f64; 2]>,
    /// Of contrast.
    pub contrast: Option<[f64; 2]>,
    /// Of saturation.
    pub saturation: Option<[f64; 2]>,
    /// Least and largest turn of the hue, in shares of the circle.
    pub hue: Option<[f64; 2]>,
    /// Chance that these change.
    pub chance: f64,
    /// Chance of becoming grey.
    pub grayscale: f64,
}

impl JitterSettings {
    fn build(&self, channels: usize) -> Result<Option<ColorJitter>> {
        let &Self { brightness, contrast, saturation, hue, chance, grayscale } = self;
        let options = JitterOptions { brightness, contrast, saturation, hue, chance, grayscale };
        let jitter = ColorJitter::new(options).map_err(refused)?;
        if jitter.is_some() && ![1, 3].contains(&channels) {
            return Err(Error::settings(format!(
                "transform: images of {channels} channels have no colours to change, only those of 1 or 3: leave brightness, contrast, saturation, hue and grayscale out"
            )));
        }
        Ok(jitter)
    }
}

/// The steps, checked against a dataset's samples.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageSteps {
    /// The first, done by loader threads.
    pub crop: Option<ResizedCrop>,
    /// The second, of what the first gives, done by loader threads too.
    pub jitter: Option<ColorJitter>,
    /// The third, of what that gives.
    pub transform: Option<ImageTransform>,
    /// The last, of what that gives.
    pub erase: Option<Erase>,
    /// Height, width and channels of the dataset's samples; all 0 where there is neither crop nor jitter.
    pub(crate) source: [usize; 3],
    delivered: TensorSpec,
}

impl ImageSteps {
    /// For samples of `spec`, which must be u8 of (height, width, channels) or (height, width) if there is a step.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Settings`] for other samples, and for whatever of the settings does not fit them.
    pub fn new(
        spec: &TensorSpec,
        crop: Option<&CropSettings>,
        jitter: Option<&JitterSettings>,
        transform: Option<&TransformSettings>,
    ) -> Result<Self> {
        let erase = Erase::new(transform.map_or(0.0, |t| t.erase)).map_err(refused)?;
        let source = if crop.is_some() || jitter.is_some() { pixels(spec)? } else { [0; 3] };
        let jitter = jitter.map(|jitter| jitter.build(source[2])).transpose()?.flatten();
        let Some(crop) = crop else {
            let transform = transform.map(|t| t.build(spec)).transpose()?;
            let delivered = transform.as_ref().map_or_else(|| spec.clone(), transformed);
            return Ok(Self { crop: None, jitter, transform, erase, source, delivered });
        };
        if ![1, 3].contains(&source[2]) {
            return Err(Error::settings(format!(
                "transform: images of {} channels cannot be resized, only those of 1 or 3: leave scale and resize out",
                source[2]
            )));
        }
        let kind = match crop.of {
            CropOf::Part { scale, ratio } => CropKind::Part { scale, ratio },
            CropOf::Covering { to, random } => CropKind::Covering { to, random },
        };
        let crop = ResizedCrop::new(crop.size, kind).map_err(refused)?;
        let [height, width] = crop.size();
        let cropped = TensorSpec::new(Dtype::U8, [height, width, source[2]]);
        let transform = transform.map(|t| t.build(&cropped)).transpose()?;
        let delivered = transform.as_ref().map_or(cropped, transformed);
        Ok(Self { crop: Some(crop), jitter, transform, erase, source, delivered })
    }

    /// Those that `settings` ask for.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of(spec: &TensorSpec, settings: &Settings) -> Result<Self> {
        let Settings { crop, jitter, transform, .. } = settings;
        Self::new(spec, crop.as_ref(), jitter.as_ref(), transform.as_ref())
    }

    /// Whether there is a step at all.
    pub fn any(&self) -> bool {
        self.crop.is_some() || self.jitter.is_some() || self.transform.is_some()
    }

    /// Element type and shape of what comes out.
    pub fn delivered(&self) -> &TensorSpec {
        &self.delivered
    }

    /// Whether chance decides anything: deliveries of one sample then differ.
    pub fn is_random(&self) -> bool {
        self.erase.is_some()
            || self.jitter.is_some()
            || self.crop.is_some_and(|c| c.is_random())
            || self.transform.as_ref().is_some_and(|t| t.is_random())
    }
}

fn refused(e: ImageError) -> Error {
    Error::settings(format!("transform: {e}"))
}

/// Height, width and channels of samples that are images.
pub(super) fn pixels(spec: &TensorSpec) -> Result<[usize; 3]> {
    match (spec.dtype, spec.shape.as_slice()) {
        (Dtype::U8, &[height, width, channels]) => Ok([height, width, channels]),
        (Dtype::U8, &[height, width]) => Ok([height, width, 1]),
        (dtype, shape) => Err(Error::settings(format!(
            "transform makes uint8 images of shape (height, width, channels) or (height, width); this dataset's samples are {} of shape {shape:?}: leave transform out and change batch.data in the loop",
            dtype.name()
        ))),
    }
}

/// Element type and shape of what a transform makes.
fn transformed(transform: &ImageTransform) -> TensorSpec {
    let dtype = match transform.dtype() {
        ImageDtype::U8 => Dtype::U8,
        ImageDtype::F16 => Dtype::F16,
        ImageDtype::BF16 => Dtype::Bf16,
        ImageDtype::F32 => Dtype::F32,
    };
    TensorSpec::new(dtype, transform.shape())
}
