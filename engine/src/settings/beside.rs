//! What lies beside a sample's image in its tail, and goes its way: masks, boxes, and what belongs to boxes.

use crate::error::{Error, Result};
use crate::types::Dtype;
use lossfeed_kernels::image::{ImageDtype, ImageOptions, ImageTransform};

/// What loader threads make of a sample's tail, on any device.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct BesideSettings {
    /// As the image's crop without resizing ([`super::TransformSettings::crop`]), whoever makes that.
    pub crop: Option<[usize; 2]>,
    /// As its padding.
    pub padding: usize,
    /// As its kind of crop.
    pub random_crop: bool,
    /// As its chance of being mirrored.
    pub flip: f64,
    /// All parts of the tail, in their order.
    pub parts: Vec<BesidePart>,
}

/// A part of the tail.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct BesidePart {
    /// As users call it.
    pub name: String,
    /// How many numbers say its shape.
    pub dimensions: usize,
    /// Its element type as it is stored.
    pub dtype: Dtype,
    /// What becomes of it.
    pub role: BesideRole,
}

/// What becomes of a part of the tail.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BesideRole {
    /// Nothing.
    Keep,
    /// A mask: it becomes one of the image's size, of this element type.
    Mask(Stored, Dtype),
    /// Boxes, (left, top, right, bottom) each: they become f32 in the pixels of the result.
    Boxes(Stored),
    /// As many values as the boxes of that part: those of boxes that vanish go with them. Of this element type.
    Along(Stored, Dtype, usize),
}

/// How a part is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stored {
    /// Its elements.
    Array,
    /// A PNG.
    Image,
    /// An array in NumPy's format.
    Npy,
    /// A list, or one of lists.
    Json,
}

impl BesidePart {
    /// Whether it has boxes.
    pub fn is_boxes(&self) -> bool {
        matches!(self.role, BesideRole::Boxes(_))
    }
}

impl BesideSettings {
    /// The crop without resizing and the mirroring, of images of `source` (height, width).
    ///
    /// # Errors
    /// [`crate::ErrorKind::Settings`] for numbers that do not fit.
    pub fn cut(&self, [height, width]: [usize; 2]) -> Result<ImageTransform> {
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
        ImageTransform::new([height, width, 1], &options).map_err(|e| Error::settings(format!("transform: {e}")))
    }
}
