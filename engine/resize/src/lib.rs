//! Antialiased bilinear resizing (a triangle filter over the source pixels), the kernel of Pillow's `BILINEAR`.
//!
//! A crate of its own for the sake of compile time. The filters of `fast_image_resize` are generic and become hundreds
//! of functions in the crate that calls them: in the engine they were three quarters of its compile time, and it is
//! compiled for its own tests, for the other tests and for the Python package.

use std::fmt::Display;

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{InnerPixel, U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions};

/// A resizer with its reusable buffers.
#[derive(Default)]
pub struct Resizer(fast_image_resize::Resizer);

impl Resizer {
    /// Resizes `from` to `to`, both (height, width), 1 or 3 channels of u8. The aspect ratio is not kept.
    ///
    /// # Errors
    /// Why it cannot be, if the numbers do not fit the pixels.
    pub fn resize(
        &mut self,
        pixels: &[u8],
        from: (usize, usize),
        out: &mut [u8],
        to: (usize, usize),
        channels: usize,
    ) -> Result<(), String> {
        // By type, not by `PixelType`, which would compile the filters for 13 kinds of pixels.
        let resized = match channels {
            1 => self.typed::<U8>(pixels, from, out, to),
            3 => self.typed::<U8x3>(pixels, from, out, to),
            _ => Err("only 1 and 3 channels are resized".into()),
        };
        resized.map_err(|e| format!("resizing {from:?} to {to:?}, {channels} channels: {e}"))
    }

    fn typed<P: PixelTrait + InnerPixel>(
        &mut self,
        pixels: &[u8],
        from: (usize, usize),
        out: &mut [u8],
        to: (usize, usize),
    ) -> Result<(), String> {
        let side = |n: usize| u32::try_from(n).map_err(told);
        let source = TypedImageRef::<P>::from_buffer(side(from.1)?, side(from.0)?, pixels).map_err(told)?;
        let mut target = TypedImage::<P>::from_buffer(side(to.1)?, side(to.0)?, out).map_err(told)?;
        let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
        self.0.resize_typed(&source, &mut target, &options).map_err(told)
    }
}

fn told(e: impl Display) -> String {
    e.to_string()
}
