//! Masks, boxes and their labels in a sample's tail, which go the way of its image.

use crate::error::{Error, Result};
use crate::types::Dtype;
use lossfeed_kernels::image::{ImageDtype, ImageOptions, ImageTransform};

/// Changes of a sample's tail by loader threads, on any device.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct BesideSettings {
    /// The image's crop without resizing, see [`super::TransformSettings::crop`]; loader threads or a device make that.
    pub crop: Option<[usize; 2]>,
    /// The image's padding.
    pub padding: usize,
    /// The crop's place is drawn.
    pub random_crop: bool,
    /// Chance that the image is mirrored.
    pub flip: f64,
    /// All parts of the tail, in their order.
    pub parts: Vec<BesidePart>,
}

/// A part of the tail.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct BesidePart {
    /// Name that users know it by.
    pub name: String,
    /// Number of dimensions, and of lengths in the tail.
    pub dimensions: usize,
    /// Its element type as it is stored.
    pub dtype: Dtype,
    /// Change of this part.
    pub role: BesideRole,
}

/// Change of one part of the tail.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BesideRole {
    /// Nothing.
    Keep,
    /// A mask: it becomes one of the image's size, of this element type.
    Mask(Stored, Dtype),
    /// Boxes, (left, top, right, bottom) each: they become f32 in the pixels of the result.
    Boxes(Stored),
    /// One value a box of the part with this number, of this element type; dropped with its box.
    Along(Stored, Dtype, usize),
}

/// Format of a stored part.
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
    /// True if it has boxes.
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
