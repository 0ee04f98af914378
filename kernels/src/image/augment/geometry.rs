//! Pixels that move: each of the result is the nearest one of where it comes from, or the fill if that is beyond.
//!
//! Pixel (y, x) lies at its centre. Halfway between two pixels the next one is taken.

use super::turn::turned;
use std::array::from_fn;

/// Fractions of a pixel that places are counted in: 2^32 each, exact to 2^−17 over the largest image.
const FRACTION: u32 = 32;

/// `line` moved: what was at `n + by` is at `n`.
pub(super) fn shifted<T: Copy>(line: &mut [T], by: isize, fill: T) {
    let count = by.unsigned_abs().min(line.len());
    let kept = line.len() - count;
    if by < 0 {
        line.copy_within(..kept, count);
        line[..count].fill(fill);
    } else {
        line.copy_within(count.., 0);
        line[kept..].fill(fill);
    }
}

/// Pixels across for each pixel down, from the top edge.
pub(super) fn sheared_across<T: Copy>(pixels: &mut [T], width: usize, by: f64, fill: T) {
    for (y, line) in pixels.chunks_exact_mut(width).enumerate() {
        shifted(line, (by * (y as f64 + 0.5) + 0.5).floor() as isize, fill);
    }
}

/// Pixels down for each pixel across, from the left edge; `before` is the image, and `pixels` what becomes of it.
pub(super) fn sheared_down<T: Copy>(before: &[T], pixels: &mut [T], size: [usize; 2], by: f64, fill: T) {
    warped(before, pixels, size, [[1.0, 0.0, 0.0], [by, 1.0, by / 2.0]], fill);
}

/// Turned around the centre by `degrees`, against the clock.
pub(super) fn rotated<T: Copy>(before: &[T], pixels: &mut [T], size: [usize; 2], degrees: f64, fill: T) {
    let (sin, cos) = turned(-degrees);
    let [middle_y, middle_x] = size.map(|side| (side - 1) as f64 / 2.0);
    let from = [
        [cos, sin, middle_x - cos * middle_x - sin * middle_y],
        [-sin, cos, middle_y + sin * middle_x - cos * middle_y],
    ];
    warped(before, pixels, size, from, fill);
}

/// Pixel (y, x) comes from column `from[0]` · (x, y, 1) and line `from[1]` · (x, y, 1).
fn warped<T: Copy>(before: &[T], pixels: &mut [T], [height, width]: [usize; 2], from: [[f64; 3]; 2], fill: T) {
    let whole = |place: f64| (place * (1u64 << FRACTION) as f64).round_ties_even() as i64;
    let steps = from.map(|[across, ..]| whole(across));
    for (y, line) in pixels.chunks_exact_mut(width).enumerate() {
        let mut at: [i64; 2] = from_fn(|axis| whole(from[axis][1] * y as f64 + from[axis][2] + 0.5));
        for pixel in line {
            // What lies before the first is beyond the last here.
            let [x, y] = at.map(|place| (place >> FRACTION) as usize);
            *pixel = if x < width && y < height { before[y * width + x] } else { fill };
            at = [at[0] + steps[0], at[1] + steps[1]];
        }
    }
}
