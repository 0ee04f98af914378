//! Antialiased bilinear resizing (a triangle filter over the source pixels), the kernel of Pillow's `BILINEAR`.
//!
//! A crate of its own for the sake of compile time. The filters of `fast_image_resize` are generic and become hundreds
//! of functions in the crate that calls them: in the engine they were three quarters of its compile time, and it is
//! compiled for its own tests, for the other tests and for the Python package.

use std::fmt::Display;

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{InnerPixel, U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions};

/// A rectangle of an image, in its pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Region {
    /// First line.
    pub top: f64,
    /// First column.
    pub left: f64,
    /// Lines.
    pub height: f64,
    /// Columns.
    pub width: f64,
    /// Pixels around it do not count, so it consists of whole ones. Else they count at its edges.
    pub alone: bool,
}

/// A resizer with its reusable buffers.
#[derive(Default)]
pub struct Resizer(fast_image_resize::Resizer);

impl Resizer {
    /// Resizes `region` of an image of `from` to `to`, both (height, width), 1 or 3 channels of u8. Only what the region
    /// needs is read. The aspect ratio is the caller's matter.
    ///
    /// # Errors
    /// Why it cannot be, if the numbers do not fit the pixels.
    pub fn resize(
        &mut self,
        pixels: &[u8],
        from: [usize; 2],
        region: Region,
        out: &mut [u8],
        to: [usize; 2],
        channels: usize,
    ) -> Result<(), String> {
        // By type, not by `PixelType`, which would compile the filters for 13 kinds of pixels.
        let resized = match channels {
            1 => self.typed::<U8>(pixels, from, region, out, to),
            3 => self.typed::<U8x3>(pixels, from, region, out, to),
            _ => Err("only 1 and 3 channels are resized".into()),
        };
        resized.map_err(|e| format!("resizing {region:?} of {from:?} to {to:?}, {channels} channels: {e}"))
    }

    fn typed<P: PixelTrait + InnerPixel>(
        &mut self,
        pixels: &[u8],
        from: [usize; 2],
        region: Region,
        out: &mut [u8],
        to: [usize; 2],
    ) -> Result<(), String> {
        let side = |n: usize| u32::try_from(n).map_err(told);
        let [height, width] = [side(from[0])?, side(from[1])?];
        let whole = TypedImageRef::<P>::from_buffer(width, height, pixels).map_err(told)?;
        let mut target = TypedImage::<P>::from_buffer(side(to[1])?, side(to[0])?, out).map_err(told)?;
        let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
        let Region { top, left, .. } = region;
        // Rounding may have carried its ends over the image's.
        let rest = |begin: f64, length: f64, side: u32| length.min(f64::from(side) - begin);
        let (lines, columns) = (rest(top, region.height, height), rest(left, region.width, width));
        // One kind of view for both, or the filters would be compiled twice.
        if region.alone {
            let view = TypedCroppedImage::from_ref(&whole, left as u32, top as u32, columns as u32, lines as u32);
            return self.0.resize_typed(&view.map_err(told)?, &mut target, &options).map_err(told);
        }
        let view = TypedCroppedImage::from_ref(&whole, 0, 0, width, height).map_err(told)?;
        self.0.resize_typed(&view, &mut target, &options.crop(left, top, columns, lines)).map_err(told)
    }
}

fn told(e: impl Display) -> String {
    e.to_string()
}
