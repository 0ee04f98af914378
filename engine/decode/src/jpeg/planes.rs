//! From a JPEG's components, as they are stored, to pixels: what the decoder does for ordinary sampling, done here with
//! libjpeg-turbo's integers for any, and for four components.

use libjpeg_turbo_rs::{ColorSpace, RawImage};

use super::super::pixels::{light, put_colors, put_grays};
use super::headers::{Component, across, down, largest};
use crate::error::{Error, Result};

/// Makes pixels of 1 or 3 channels.
pub(super) fn write(
    raw: &RawImage,
    components: &[Component],
    space: ColorSpace,
    channels: usize,
    out: &mut [u8],
) -> Result<()> {
    let (width, height) = (raw.width, raw.height);
    let mut planes = Vec::with_capacity(components.len());
    for (number, component) in components.iter().enumerate() {
        let (Some(samples), Some(&stride)) = (raw.planes.get(number), raw.plane_widths.get(number)) else {
            return Err(Error::internal("a JPEG component without a plane"));
        };
        planes.push(Plane::new(samples, stride, component, largest(components), (width, height)));
    }
    let mut rows = vec![vec![0; width]; planes.len()];
    for (y, out) in out.chunks_exact_mut(width * channels).enumerate() {
        planes.iter().zip(&mut rows).for_each(|(plane, row)| plane.write_row(y, row));
        let at = |component: usize, x: usize| rows.get(component).and_then(|row| row.get(x)).copied().unwrap_or(0);
        let three = |x| [at(0, x), at(1, x), at(2, x)];
        match space {
            ColorSpace::YCbCr if channels == 1 => put_grays((0..width).map(|x| at(0, x)), channels, out),
            ColorSpace::YCbCr => put_colors((0..width).map(|x| rgb_of_ycc(three(x))), channels, out),
            ColorSpace::Rgb => put_colors((0..width).map(three), channels, out),
            // YCCK: the light of a YCbCr is what ink is stored as.
            ColorSpace::Cmyk => put_colors((0..width).map(|x| light_of(three(x), at(3, x))), channels, out),
            _ => put_colors(
                (0..width).map(|x| light_of(rgb_of_ycc(three(x)).map(|value| 255 - value), at(3, x))),
                channels,
                out,
            ),
        }
    }
    Ok(())
}

/// How a component becomes as wide and high as the image.
#[derive(Clone, Copy, PartialEq)]
enum Widening {
    /// Each sample as often as the factors say.
    Repeated,
    /// Between two samples of a row, three quarters of the nearer.
    Across,
    /// Between two rows.
    Down,
    Both,
}

/// A component: its samples without those that fill up the last MCUs.
struct Plane<'a> {
    samples: &'a [u8],
    stride: usize,
    width: usize,
    height: usize,
    by: (usize, usize),
    widening: Widening,
}

impl<'a> Plane<'a> {
    fn new(
        samples: &'a [u8],
        stride: usize,
        component: &Component,
        (widest, tallest): (usize, usize),
        (width, height): (usize, usize),
    ) -> Self {
        let by = (widest / across(component).max(1), tallest / down(component).max(1));
        let width = (width * across(component)).div_ceil(widest);
        let widening = match by {
            (2, 1) if width > 2 => Widening::Across,
            (2, 2) if width > 2 => Widening::Both,
            (1, 2) => Widening::Down,
            _ => Widening::Repeated,
        };
        Self { samples, stride, width, height: (height * down(component)).div_ceil(tallest), by, widening }
    }

    /// A sample; beyond an edge, the one at it.
    fn at(&self, x: usize, y: usize) -> u32 {
        let (x, y) = (x.min(self.width.saturating_sub(1)), y.min(self.height.saturating_sub(1)));
        self.samples.get(y * self.stride + x).copied().unwrap_or(0).into()
    }

    fn write_row(&self, y: usize, row: &mut [u8]) {
        let (near_y, far_y) = nearest(y);
        let above = y.is_multiple_of(2);
        for (x, out) in row.iter_mut().enumerate() {
            let (near_x, far_x) = nearest(x);
            let left = x.is_multiple_of(2);
            *out = match self.widening {
                Widening::Repeated => self.at(x / self.by.0.max(1), y / self.by.1.max(1)),
                // What is halfway between two values goes up and down in turn.
                Widening::Across => {
                    let y = y / self.by.1.max(1);
                    (3 * self.at(near_x, y) + self.at(far_x, y) + if left { 1 } else { 2 }) >> 2
                }
                Widening::Down => (3 * self.at(x, near_y) + self.at(x, far_y) + if above { 1 } else { 2 }) >> 2,
                Widening::Both => {
                    let column = |x| 3 * self.at(x, near_y) + self.at(x, far_y);
                    (3 * column(near_x) + column(far_x) + if left { 8 } else { 7 }) >> 4
                }
            } as u8;
        }
    }
}

/// The sample that a place of twice as many lies in, and the one on its other side: none before the first.
fn nearest(place: usize) -> (usize, usize) {
    let near = place / 2;
    (near, if place.is_multiple_of(2) { near.saturating_sub(1) } else { near + 1 })
}

/// Inks to light. They are stored inverted, as Adobe's programs do and Pillow takes for granted.
fn light_of([c, m, y]: [u8; 3], k: u8) -> [u8; 3] {
    light(&[c, m, y, k].map(|stored| 255 - stored))
}

/// YCbCr of JFIF with libjpeg's integers.
fn rgb_of_ycc([y, cb, cr]: [u8; 3]) -> [u8; 3] {
    let [y, cb, cr] = [i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128];
    let half = 1 << 15;
    let green = (-22554 * cb - 46802 * cr + half) >> 16;
    [y + ((91881 * cr + half) >> 16), y + green, y + ((116130 * cb + half) >> 16)]
        .map(|value| value.clamp(0, 255) as u8)
}
