//! From pixels of one size to pixels of another.

use lossfeed_kernels::image::{CropKind, Region, ResizedCrop};
use lossfeed_resize::Resizer;

use super::{Fit, MAX_PIXELS};
use crate::error::{Error, Result};

/// How images of any size become samples of one, when they are decoded. Sizes are (height, width).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resize {
    /// The size that an image is stretched to, or scaled to cover where it is cropped.
    pub to: (usize, usize),
    /// The part of that which is taken from its middle, the aspect ratio kept. `None`: all of it, stretched.
    pub crop: Option<(usize, usize)>,
}

impl Resize {
    /// Height and width of what it makes.
    pub(super) fn size(&self) -> [usize; 2] {
        self.crop.unwrap_or(self.to).into()
    }

    /// What it takes of an image of `size`.
    ///
    /// # Errors
    /// `Settings` for sizes that make no sense.
    pub fn region(&self, size: (usize, usize)) -> Result<Region> {
        Ok(match self.fit()? {
            Fit::Stretch => Region::whole(size.into()),
            Fit::Crop(crop) => crop.region(size.into(), 0, 0),
        })
    }

    /// Checked.
    pub(super) fn fit(&self) -> Result<Fit> {
        let (height, width) = self.to;
        if height == 0 || width == 0 || height.saturating_mul(width) > MAX_PIXELS {
            return Err(Error::settings(format!(
                "resize=({height}, {width}) is not possible: both must be at least 1 and their product at most {MAX_PIXELS}"
            )));
        }
        if self.crop.is_none() {
            return Ok(Fit::Stretch);
        }
        let covering = CropKind::Covering { to: self.to.into(), random: false };
        let crop = ResizedCrop::new(self.size(), covering).map_err(|e| Error::settings(e.to_string()))?;
        Ok(Fit::Crop(crop))
    }
}

/// Resamples `region` of `pixels`, which are `size` (height, width) × channels, to `to`. Whole pixels that keep their
/// number are copied.
///
/// # Errors
/// `Internal` if the numbers do not fit the pixels.
pub fn resample(
    resizer: &mut Resizer,
    pixels: &[u8],
    size: [usize; 2],
    region: Region,
    out: &mut [u8],
    to: [usize; 2],
    channels: usize,
) -> Result<()> {
    let Region { top, left, height, width, alone } = region;
    let whole = [height, width] == to.map(|side| side as f64) && top.fract() == 0.0 && left.fract() == 0.0;
    let inside = top >= 0.0 && left >= 0.0 && top + height <= size[0] as f64 && left + width <= size[1] as f64;
    if whole && inside && pixels.len() >= size[0] * size[1] * channels {
        let (step, row, left) = (size[1] * channels, to[1] * channels, left as usize * channels);
        let lines = pixels.chunks_exact(step).skip(top as usize).filter_map(|line| line.get(left..left + row));
        out.chunks_exact_mut(row).zip(lines).for_each(|(out, line)| out.copy_from_slice(line));
        return Ok(());
    }
    let region = lossfeed_resize::Region { top, left, height, width, alone };
    resizer.resize(pixels, size, region, out, to, channels).map_err(Error::internal)
}
