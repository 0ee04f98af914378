//! Antialiased bilinear resizing (a triangle filter over the source pixels), the kernel of Pillow's `BILINEAR`.

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions};

use crate::error::{Error, Result};

/// A resizer with its reusable buffers.
#[derive(Default)]
pub(super) struct Resizer(fast_image_resize::Resizer);

impl Resizer {
    /// Resizes `from` to `to`, both (height, width), 1 or 3 channels of u8. The aspect ratio is not kept.
    pub(super) fn resize(
        &mut self,
        pixels: &[u8],
        from: (usize, usize),
        out: &mut [u8],
        to: (usize, usize),
        channels: usize,
    ) -> Result<()> {
        let kind = if channels == 1 { PixelType::U8 } else { PixelType::U8x3 };
        let failed = |e: &dyn std::fmt::Display| Error::internal(format!("resizing {from:?} to {to:?}: {e}"));
        let side = |n: usize| u32::try_from(n).map_err(|e| failed(&e));
        let source = ImageRef::new(side(from.1)?, side(from.0)?, pixels, kind).map_err(|e| failed(&e))?;
        let mut target = Image::from_slice_u8(side(to.1)?, side(to.0)?, out, kind).map_err(|e| failed(&e))?;
        let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
        self.0.resize(&source, &mut target, &options).map_err(|e| failed(&e))
    }
}
