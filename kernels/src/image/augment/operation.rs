//! The operations, on bytes.

use super::geometry;
use crate::image::Change;
use std::array::from_fn;

/// What happens to an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation {
    /// Nothing.
    Identity,
    /// Each line moves to the left, by so much for each pixel from the top.
    ShearX(f64),
    /// Each column moves up, by so much for each pixel from the left.
    ShearY(f64),
    /// To the right, in pixels.
    TranslateX(isize),
    /// Down, in pixels.
    TranslateY(isize),
    /// Around the centre against the clock, in degrees.
    Rotate(f64),
    /// Brightness, contrast or saturation.
    Color(Change),
    /// A factor of the distance from the blurred image.
    Sharpness(f32),
    /// Only so many of a level's highest bits stay.
    Posterize(u32),
    /// Levels from this one on are inverted.
    Solarize(u8),
    /// The levels of each channel are stretched to all of 0 to 255.
    AutoContrast,
    /// The levels of each channel are spread until all are as frequent as can be.
    Equalize,
}

impl Operation {
    /// How many are drawn from: [`Operation::Color`] is three of them.
    pub(super) const COUNT: usize = 14;

    /// Changes an image of `shape` (height, width, channels). `before` is memory to work in.
    pub(super) fn apply(self, shape: [usize; 3], fill: [u8; 3], pixels: &mut [u8], before: &mut Vec<u8>) {
        let [height, width, channels] = shape;
        match channels {
            1 => self.change::<1>([height, width], [fill[0]], pixels, before),
            _ => self.change::<3>([height, width], fill, pixels, before),
        }
    }

    fn change<const C: usize>(self, size: [usize; 2], fill: [u8; C], bytes: &mut [u8], before: &mut Vec<u8>) {
        let [_, width] = size;
        if let Self::ShearY(_) | Self::Rotate(_) | Self::Sharpness(_) = self {
            before.clear();
            before.extend_from_slice(bytes);
        }
        let (before, _) = before.as_chunks::<C>();
        let (pixels, _) = bytes.as_chunks_mut::<C>();
        match self {
            Self::Identity => {}
            Self::ShearX(by) => geometry::sheared_across(pixels, width, by, fill),
            Self::ShearY(by) => geometry::sheared_down(before, pixels, size, by, fill),
            Self::TranslateX(by) => {
                pixels.chunks_exact_mut(width).for_each(|line| geometry::shifted(line, -by, fill));
            }
            Self::TranslateY(by) => geometry::shifted(pixels, -by * width as isize, fill),
            Self::Rotate(degrees) => geometry::rotated(before, pixels, size, degrees, fill),
            Self::Color(change) => change.apply(C, bytes),
            Self::Sharpness(factor) => sharpen::<C>(before.as_flattened(), bytes, size, factor),
            Self::Posterize(bits) => {
                let kept = !(u32::from(u8::MAX) >> bits) as u8;
                bytes.iter_mut().for_each(|level| *level &= kept);
            }
            Self::Solarize(from) => {
                bytes.iter_mut().for_each(|level| *level = if *level >= from { !*level } else { *level });
            }
            Self::AutoContrast => by_channel(pixels, ends(pixels).map(stretched)),
            Self::Equalize => by_channel(pixels, counts(pixels).map(|counts| equalized(&counts))),
        }
    }
}

/// Each level of each channel by its own table.
fn by_channel<const C: usize>(pixels: &mut [[u8; C]], tables: [[u8; 256]; C]) {
    for pixel in pixels {
        *pixel = from_fn(|c| tables[c][usize::from(pixel[c])]);
    }
}

/// The least and the largest level of each channel.
fn ends<const C: usize>(pixels: &[[u8; C]]) -> [[u8; 2]; C] {
    // Many pixels side by side, for vectors.
    let (many, rest) = pixels.as_chunks::<16>();
    let (mut least, mut most) = ([[u8::MAX; C]; 16], [[0; C]; 16]);
    for pixels in many {
        for ((least, most), pixel) in
            least.as_flattened_mut().iter_mut().zip(most.as_flattened_mut()).zip(pixels.as_flattened())
        {
            (*least, *most) = ((*least).min(*pixel), (*most).max(*pixel));
        }
    }
    from_fn(|c| {
        let least = least.iter().chain(rest).map(|pixel| pixel[c]).min().unwrap_or(0);
        [least, most.iter().chain(rest).map(|pixel| pixel[c]).max().unwrap_or(0)]
    })
}

/// Levels stretched so that these ends become 0 and 255, or 254 by the rounding of f32, as in torchvision.
fn stretched([least, most]: [u8; 2]) -> [u8; 256] {
    if least >= most {
        return from_fn(|level| level as u8);
    }
    let scale = f32::from(most - least) * (1.0 / 255.0);
    from_fn(|level| ((level as f32 - f32::from(least)) / scale) as u8)
}

/// How often each level comes in each channel.
fn counts<const C: usize>(pixels: &[[u8; C]]) -> [[usize; 256]; C] {
    // Neighbours are often alike, and a count waits for the last write to it: four tables in turn.
    let mut counts = [[[0u32; 256]; C]; 4];
    let (fours, rest) = pixels.as_chunks::<4>();
    let mut count = |n: usize, pixel: &[u8; C]| (0..C).for_each(|c| counts[n][c][usize::from(pixel[c])] += 1);
    fours.iter().for_each(|four| (0..4).for_each(|n| count(n, &four[n])));
    rest.iter().for_each(|pixel| count(0, pixel));
    from_fn(|c| from_fn(|level| counts.iter().map(|counts| counts[c][level] as usize).sum()))
}

/// Levels by how many pixels lie below them: Pillow's way, in steps of as many pixels as each of 255 levels would have
/// without those of the highest. Fewer than that, and nothing changes.
fn equalized(counts: &[usize; 256]) -> [u8; 256] {
    let (all, highest) = (counts.iter().sum::<usize>(), counts.iter().rev().find(|&&count| count > 0));
    let step = (all - highest.unwrap_or(&0)) / 255;
    if step == 0 {
        return from_fn(|level| level as u8);
    }
    let mut below = step / 2;
    counts.map(|count| {
        let level = (below / step).min(255) as u8;
        below += count;
        level
    })
}

/// Away from the blurred image, or towards it: its weights are 1 for each neighbour and 5 in the middle. Pixels at the
/// edges have no blurred ones, and stay.
fn sharpen<const C: usize>(before: &[u8], after: &mut [u8], [height, width]: [usize; 2], factor: f32) {
    if height < 3 || width < 3 {
        return;
    }
    let (row, inner, weight) = (width * C, (width - 2) * C, 1.0 - factor);
    for y in 1..height - 1 {
        // Slices of one length each, for vectors.
        let [a, b, c, d, middle, e, f, g, h]: [&[u8]; 9] =
            from_fn(|n| &before[(y + n / 3 - 1) * row + n % 3 * C..][..inner]);
        let line = &mut after[y * row + C..][..inner];
        for x in 0..inner {
            let of = |line: &[u8]| u16::from(line[x]);
            let sum = of(a) + of(b) + of(c) + of(d) + 5 * of(middle) + of(e) + of(f) + of(g) + of(h);
            // Rounded: a thirteenth of a whole number never lies halfway.
            let blurred = f32::from((2 * sum + 13) / 26);
            let level = f32::from(middle[x]);
            line[x] = (level + (blurred - level) * weight) as u8;
        }
    }
}
