//! What becomes of a sample's pixels on their way into a batch: a crop of an image of any size, changes of its colours,
//! automatic augmentation, then the transform.

use super::{Settings, TransformSettings};
use crate::error::{Error, Result};
use crate::types::{Dtype, TensorSpec};
use lossfeed_kernels::image::{
    Augment, AugmentKind, AugmentOptions, ColorJitter, CropKind, Erase, ImageDtype, ImageError, ImageOptions,
    ImageTransform, JitterOptions, MixOptions, Mixed, Mixing, ResizedCrop, Retouch,
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
    /// Cut out of the image as it is.
    Cut {
        /// The place is drawn in each delivery; else the middle.
        random: bool,
    },
}

impl CropSettings {
    fn build(&self, channels: usize) -> Result<ResizedCrop> {
        if ![1, 3].contains(&channels) {
            return Err(Error::settings(format!(
                "transform: images of {channels} channels cannot be resized, only those of 1 or 3: leave scale and resize out"
            )));
        }
        let kind = match self.of {
            CropOf::Part { scale, ratio } => CropKind::Part { scale, ratio },
            CropOf::Covering { to, random } => CropKind::Covering { to, random },
            CropOf::Cut { random } => CropKind::Cut { random },
        };
        ResizedCrop::new(self.size, kind).map_err(refused)
    }
}

/// How colours change in each delivery; see [`lossfeed_kernels::image::ColorJitter`]. Loader threads do it where the
/// engine's settings ask for it; a GPU's kernels do where the courier is asked ([`ImageSteps::retouch`]).
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

/// How the images of a finished batch are mixed in pairs; see [`lossfeed_kernels::image::Mixing`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct MixSettings {
    /// Alpha of mixup; 0: none.
    pub mixup: f64,
    /// Alpha of CutMix, likewise.
    pub cutmix: f64,
    /// Chance that a batch is mixed.
    pub chance: f64,
    /// Chance that it is CutMix, where both are asked for.
    pub switch: f64,
}

impl MixSettings {
    fn build(&self) -> Result<Option<Mixing>> {
        let &Self { mixup, cutmix, chance, switch } = self;
        Mixing::new(&MixOptions { mixup, cutmix, chance, switch }).map_err(refused)
    }
}

/// Automatic augmentation, and the crop and the mirroring that come before it; see
/// [`lossfeed_kernels::image::Augment`]. Who does it: as for [`JitterSettings`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct AugmentSettings {
    /// What is drawn.
    pub of: AugmentOf,
    /// Strengths from none to the strongest.
    pub bins: usize,
    /// Levels of pixels from beyond the image: none (0), one, or one a channel.
    pub fill: Vec<u8>,
    /// As [`TransformSettings::crop`], whose place it takes.
    pub crop: Option<[usize; 2]>,
    /// As [`TransformSettings::padding`], likewise.
    pub padding: usize,
    /// As [`TransformSettings::random_crop`], likewise.
    pub random_crop: bool,
    /// As [`TransformSettings::flip`], likewise.
    pub flip: f64,
}

/// Which augmentation.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AugmentOf {
    /// RandAugment.
    Rand {
        /// How many operations follow each other.
        ops: usize,
        /// Their strength, below the settings' `bins`.
        magnitude: usize,
    },
    /// TrivialAugment Wide.
    Trivial,
}

impl AugmentSettings {
    /// For images of height, width and channels.
    fn build(&self, shape: [usize; 3]) -> Result<Augmentation> {
        let options = ImageOptions {
            dtype: ImageDtype::U8,
            channels_first: false,
            crop: self.crop,
            padding: self.padding,
            random_crop: self.random_crop,
            flip: self.flip,
            mean: &[],
            std: &[],
        };
        let cut = ImageTransform::new(shape, &options).map_err(refused)?;
        let kind = match self.of {
            AugmentOf::Rand { ops, magnitude } => AugmentKind::Rand { ops, magnitude },
            AugmentOf::Trivial => AugmentKind::Trivial,
        };
        let options = AugmentOptions { kind, bins: self.bins, fill: &self.fill };
        let augment = Augment::new(cut.shape(), &options).map_err(refused)?;
        let nothing = cut.shape() == shape && !cut.is_random() && self.padding == 0 && self.flip == 0.0;
        Ok(Augmentation { cut: (!nothing).then_some(cut), augment })
    }
}

/// Automatic augmentation of bytes, and what comes before it.
#[derive(Debug, Clone, PartialEq)]
pub struct Augmentation {
    /// Cuts and mirrors. `None`: nothing to do.
    pub cut: Option<ImageTransform>,
    /// Then this.
    pub augment: Augment,
}

/// The steps, checked against a dataset's samples.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageSteps {
    /// The first, done by loader threads.
    pub crop: Option<ResizedCrop>,
    /// The second, of what the first gives.
    pub jitter: Option<ColorJitter>,
    /// The third, of what that gives.
    pub augment: Option<Augmentation>,
    /// The fourth, of what that gives.
    pub transform: Option<ImageTransform>,
    /// The fifth, of what that gives.
    pub erase: Option<Erase>,
    /// The last, of a whole batch.
    pub mixing: Option<Mixing>,
    /// Height, width and channels of the dataset's samples; all 0 where the transform is the only step.
    pub(crate) source: [usize; 3],
    retouch: Option<Retouch>,
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
        augment: Option<&AugmentSettings>,
        transform: Option<&TransformSettings>,
    ) -> Result<Self> {
        let erase = Erase::new(transform.map_or(0.0, |t| t.erase)).map_err(refused)?;
        let mixing = transform.and_then(|t| t.mix).map(|mix| mix.build()).transpose()?.flatten();
        let early = crop.is_some() || jitter.is_some() || augment.is_some();
        let source = if early { pixels(spec)? } else { [0; 3] };
        let jitter = jitter.map(|jitter| jitter.build(source[2])).transpose()?.flatten();
        let crop = crop.map(|crop| crop.build(source[2])).transpose()?;
        if let Some(crop) = crop.filter(|crop| !crop.fits([source[0], source[1]])) {
            let [height, width] = crop.size();
            return Err(refused(ImageError::Crop(height, width, source[0], source[1])));
        }
        let mut made = spec.clone();
        if let Some(crop) = &crop {
            let [height, width] = crop.size();
            made = TensorSpec::new(Dtype::U8, [height, width, source[2]]);
        }
        let augment = augment.map(|augment| augment.build(pixels(&made)?)).transpose()?;
        let retouch = match (&jitter, &augment) {
            (None, None) => None,
            (jitter, augment) => {
                let (cut, augment) = augment.clone().map_or((None, None), |a| (a.cut, Some(a.augment)));
                Retouch::new(pixels(&made)?, *jitter, cut, augment)
            }
        };
        if let Some(cut) = augment.as_ref().and_then(|a| a.cut.as_ref()) {
            made = transformed(cut);
        }
        let transform = transform.map(|t| t.build(&made)).transpose()?;
        let delivered = transform.as_ref().map_or(made, transformed);
        Ok(Self { crop, jitter, augment, transform, erase, mixing, source, retouch, delivered })
    }

    /// Those that `settings` ask for.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of(spec: &TensorSpec, settings: &Settings) -> Result<Self> {
        let Settings { crop, jitter, augment, transform, .. } = settings;
        Self::new(spec, crop.as_ref(), jitter.as_ref(), augment.as_ref(), transform.as_ref())
    }

    /// Whether there is a step at all.
    pub fn any(&self) -> bool {
        self.crop.is_some() || self.jitter.is_some() || self.augment.is_some() || self.transform.is_some()
    }

    /// Element type and shape of what comes out.
    pub fn delivered(&self) -> &TensorSpec {
        &self.delivered
    }

    /// The second and the third step, for a device.
    pub fn retouch(&self) -> Option<&Retouch> {
        self.retouch.as_ref()
    }

    /// How the batch of `key` is mixed on a rank; `None`: it stays as it is.
    pub fn mixed(&self, key: u64, rank: u32) -> Option<Mixed> {
        self.mixing.as_ref()?.draw(self.transform.as_ref()?.out_sides(), key, rank)
    }

    /// Whether chance decides anything: deliveries of one sample then differ.
    pub fn is_random(&self) -> bool {
        self.erase.is_some()
            || self.mixing.is_some()
            || self.jitter.is_some()
            || self.augment.is_some()
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
            "transform= needs uint8 images of shape (height, width, channels) or (height, width), and this dataset's \
             samples are {} of shape {shape:?}: remove it and transform batch.data in the loop",
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
