//! The way of an image's pixels through every crop and the mirroring, for its masks, and boxes in
//! its pixels. The draws are the image's own, so one sample has one.
//!
//! A mask takes the nearest pixel as torch's `interpolate(mode="nearest")` does, which torchvision's `v2` uses for
//! masks that are tensors: source `floor(at · side / scaled)`, in f32. Beyond the image it is 0, as the image is.

use super::{Draw, ImageTransform, Placed, ResizedCrop};

/// The way of one image's pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Geometry {
    placed: Placed,
    /// Height and width of what was placed.
    window: [usize; 2],
    /// First line and column of the result in that; less than 0 where it is padded.
    shift: [isize; 2],
    out: [usize; 2],
    flip: bool,
}

impl Geometry {
    /// For an image of `size` (height, width) that `crop` makes one of `cut`'s source, for sample `id` in the batch of
    /// `key`; without a crop it is of that size.
    pub fn new(size: [usize; 2], crop: Option<&ResizedCrop>, cut: &ImageTransform, key: u64, id: i64) -> Self {
        let all = Placed { at: [0, 0], part: size, scaled: size, cut: [0, 0] };
        let placed = crop.map_or(all, |crop| crop.placed(size, key, id));
        let Draw { top, left, flip } = cut.draw(key, id);
        let [height, width, _] = cut.source;
        let shift = [top, left].map(|at| at as isize - cut.padding as isize);
        Self { placed, window: [height, width], shift, out: cut.out_sides(), flip }
    }

    /// Height and width of the result.
    pub fn out(&self) -> [usize; 2] {
        self.out
    }

    /// The line (`axis` 0) or column (1) of the image that each of the result's is taken from; `None`: none.
    fn sources(&self, axis: usize) -> impl Iterator<Item = Option<usize>> {
        let Placed { at, part, scaled, cut } = self.placed;
        let (at, part, scaled, cut) = (at[axis], part[axis], scaled[axis], cut[axis]);
        let (window, shift, out) = (self.window[axis], self.shift[axis], self.out[axis]);
        let (mirrored, ratio) = (self.flip && axis == 1, part as f32 / scaled as f32);
        (0..out).map(move |to| {
            let to = if mirrored { out - 1 - to } else { to };
            let to = usize::try_from(to as isize + shift).ok().filter(|&to| to < window)? + cut;
            let from = if part == scaled { to } else { (to as f32 * ratio).floor() as usize };
            Some(at + from.min(part - 1))
        })
    }

    /// The mask of the result: of `mask`, which has `bytes` bytes a pixel of the image's `width`. What has no pixel
    /// in the image is 0.
    pub fn nearest(&self, mask: &[u8], width: usize, bytes: usize, out: &mut Vec<u8>) {
        let columns: Vec<Option<usize>> = self.sources(1).collect();
        let row_bytes = width * bytes;
        for line in self.sources(0) {
            let start = out.len();
            out.resize(start + columns.len() * bytes, 0);
            let Some(row) = line.and_then(|line| mask.get(line * row_bytes..(line + 1) * row_bytes)) else { continue };
            let pixels = out.get_mut(start..).unwrap_or_default().chunks_exact_mut(bytes);
            for (to, from) in pixels.zip(&columns) {
                if let Some(from) = from.and_then(|from| row.get(from * bytes..(from + 1) * bytes)) {
                    to.copy_from_slice(from);
                }
            }
        }
    }

    /// A box (left, top, right, bottom, in the image's pixels) in those of the result, clipped to it. It may be empty.
    pub fn boxed(&self, corners: [f64; 4]) -> [f64; 4] {
        let along = |axis: usize, value: f64| {
            let Placed { at, part, scaled, cut } = self.placed;
            let value = (value - at[axis] as f64) * (scaled[axis] as f64 / part[axis] as f64) - cut[axis] as f64;
            let value = value.clamp(0.0, self.window[axis] as f64) - self.shift[axis] as f64;
            value.clamp(0.0, self.out[axis] as f64)
        };
        let [left, top, right, bottom] = corners;
        let (mut left, mut right) = (along(1, left), along(1, right));
        if self.flip {
            let width = self.out[1] as f64;
            (left, right) = (width - right, width - left);
        }
        [left, along(0, top), right, along(0, bottom)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{CropKind, ImageDtype, ImageOptions};

    fn cut(size: [usize; 2], crop: Option<[usize; 2]>, padding: usize, flip: f64) -> ImageTransform {
        let options = ImageOptions {
            dtype: ImageDtype::U8,
            channels_first: false,
            crop,
            padding,
            random_crop: true,
            flip,
            mean: &[],
            std: &[],
        };
        ImageTransform::new([size[0], size[1], 1], &options).unwrap()
    }

    /// A mask that goes the image's way has its pixels, where nothing is resized.
    #[test]
    fn a_mask_is_cut_padded_and_mirrored_as_its_image_is() {
        for (size, crop, padding) in [([5, 7], None, 0), ([5, 7], Some([3, 4]), 0), ([6, 4], Some([7, 5]), 3)] {
            let image: Vec<u8> = (1..=(size[0] * size[1]) as u8).collect();
            for flip in [0.0, 0.5, 1.0] {
                let transform = cut(size, crop, padding, flip);
                for id in 0..40 {
                    let (mut wanted, mut mask) = (vec![0; transform.out_bytes()], Vec::new());
                    crate::image::make_plain(&transform, transform.draw(9, id), &image, &mut wanted);
                    Geometry::new(size, None, &transform, 9, id).nearest(&image, size[1], 1, &mut mask);
                    assert_eq!(mask, wanted, "{size:?} {crop:?} {padding} {flip} {id}");
                }
            }
        }
    }

    #[test]
    fn boxes_go_the_way_of_the_pixels_that_they_are_around() {
        let crop = ResizedCrop::new([20, 30], CropKind::Part { scale: [0.2, 0.9], ratio: [0.5, 2.0] }).unwrap();
        let transform = cut([20, 30], None, 0, 0.5);
        for id in 0..200 {
            let geometry = Geometry::new([40, 50], Some(&crop), &transform, 3, id);
            // One pixel of the image, 13 down and 21 across, is where its box is.
            let mut mask = vec![0u8; 40 * 50];
            mask[13 * 50 + 21] = 1;
            let mut out = Vec::new();
            geometry.nearest(&mask, 50, 1, &mut out);
            let [left, top, right, bottom] = geometry.boxed([21.0, 13.0, 22.0, 14.0]);
            for (at, _) in out.iter().enumerate().filter(|(_, on)| **on == 1) {
                let (y, x) = ((at / 30) as f64, (at % 30) as f64);
                assert!(
                    (top - 1.0..bottom + 1.0).contains(&y) && (left - 1.0..right + 1.0).contains(&x),
                    "{id}: {x} {y}"
                );
            }
            let all = geometry.boxed([-9.0, -9.0, 99.0, 99.0]);
            assert_eq!(all, [0.0, 0.0, 30.0, 20.0], "clipped");
        }
        let outside = Geometry::new([9, 9], None, &cut([9, 9], None, 0, 0.0), 0, 0).boxed([-5.0, -5.0, -1.0, 4.0]);
        assert_eq!(outside, [0.0, 0.0, 0.0, 4.0]);
    }
}
