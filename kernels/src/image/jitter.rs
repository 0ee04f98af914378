//! Colour jitter: brightness, contrast, saturation and hue of an image's bytes, changed in an order drawn anew, and
//! now and then no colour at all.
//!
//! torchvision's `ColorJitter`, `RandomApply` and `RandomGrayscale`, with its formulas for uint8 images (`v2`): each
//! step ends in whole levels, cut off towards 0, as there.

use super::crop::Words;
use super::{ImageError, checked_chance, mix};

/// What of the colours is drawn: `None` leaves them as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct JitterOptions {
    /// Least and largest factor of all levels.
    pub brightness: Option<[f64; 2]>,
    /// Of the distance from the image's mean grey.
    pub contrast: Option<[f64; 2]>,
    /// Of the distance from each pixel's grey.
    pub saturation: Option<[f64; 2]>,
    /// Least and largest turn of the colour circle, −0.5 to 0.5.
    pub hue: Option<[f64; 2]>,
    /// Chance that these are changed at all.
    pub chance: f64,
    /// Chance that an image becomes grey, after them.
    pub grayscale: f64,
}

/// Checked [`JitterOptions`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColorJitter {
    pub(crate) ranges: [Option<[f64; 2]>; 4],
    /// Changed are draws below this, of 2^53.
    pub(crate) below: u64,
    pub(crate) grey_below: u64,
}

/// One change, with its factor.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Change {
    Brightness(f32),
    Contrast(f32),
    Saturation(f32),
    Hue(f32),
}

/// What chance decided for one image.
#[derive(Clone, Debug, PartialEq)]
pub struct Jittered {
    /// In their order.
    pub changes: Vec<Change>,
    /// Grey in the end.
    pub grey: bool,
}

const NAMES: [&str; 4] = ["brightness", "contrast", "saturation", "hue"];
const KINDS: [fn(f32) -> Change; 4] = [Change::Brightness, Change::Contrast, Change::Saturation, Change::Hue];
/// Weights of red, green and blue in a pixel's grey (ITU-R 601-2, as torchvision rounds them).
const GREY: [f32; 3] = [0.2989, 0.587, 0.114];
/// Pixels that are changed at once.
const SIDE_BY_SIDE: usize = 64;

impl ColorJitter {
    /// `None` where nothing would change.
    ///
    /// # Errors
    /// For factors below 0, turns beyond half a circle, ends in the wrong order, and numbers that are no chances.
    pub fn new(options: JitterOptions) -> Result<Option<Self>, ImageError> {
        let JitterOptions { brightness, contrast, saturation, hue, chance, grayscale } = options;
        let ranges = [brightness, contrast, saturation, hue];
        for (&name, range) in NAMES.iter().zip(ranges) {
            let (least, most) = if name == "hue" { (-0.5, 0.5) } else { (0.0, f64::from(f32::MAX)) };
            if let Some([low, high]) = range
                && !(least <= low && low <= high && high <= most)
            {
                return Err(ImageError::Jitter(name, low, high));
            }
        }
        for (name, chance) in [("jitter", chance), ("grayscale", grayscale)] {
            checked_chance(name, chance)?;
        }
        let below = |chance: f64| (chance * (1u64 << 53) as f64) as u64;
        let changes = ranges.iter().any(Option::is_some) && chance > 0.0;
        Ok((changes || grayscale > 0.0).then(|| Self { ranges, below: below(chance), grey_below: below(grayscale) }))
    }

    /// The words' key in the batch of `key`.
    pub(crate) fn key(key: u64) -> u64 {
        mix(key ^ 0x6a_6974_7465_7221)
    }

    /// What chance decides for sample `id` in the batch of `key`.
    pub fn draw(&self, key: u64, id: i64) -> Jittered {
        // Words of its own: crops and erasing have others.
        let mut words = Words::new(Self::key(key), id);
        let changed = words.next() >> 11 < self.below;
        let grey = words.next() >> 11 < self.grey_below;
        let mut order = [0, 1, 2, 3];
        for left in (1..order.len()).rev() {
            order.swap(left, words.below(left + 1));
        }
        let factors = self.ranges.map(|range| range.map(|ends| words.between(ends) as f32));
        let change = |of: usize| Some(KINDS[of](factors[of]?));
        let changes = if changed { order.into_iter().filter_map(change).collect() } else { Vec::new() };
        Jittered { changes, grey }
    }

    /// Changes the pixels of sample `id`: `channels` bytes each, 1 or 3.
    pub fn apply(&self, key: u64, id: i64, channels: usize, pixels: &mut [u8]) {
        let Jittered { changes, grey } = self.draw(key, id);
        for change in changes {
            change.apply(channels, pixels);
        }
        if grey && channels == 3 {
            by_pixel(pixels, |pixel| [grey_of(pixel); 3]);
        }
    }
}

impl Change {
    /// Changes an image. Of one channel there is neither saturation nor hue.
    pub(super) fn apply(self, channels: usize, pixels: &mut [u8]) {
        match (self, channels) {
            (Self::Brightness(factor), _) => by_level(pixels, |level| level * factor),
            (Self::Contrast(factor), _) => {
                let sum: f64 = match channels {
                    3 => pixels
                        .as_chunks()
                        .0
                        .iter()
                        .map(|pixel: &[u8; 3]| f64::from(grey_of(pixel.map(f32::from))))
                        .sum(),
                    _ => pixels.iter().map(|&level| f64::from(level)).sum(),
                };
                let mean = (sum / (pixels.len() / channels).max(1) as f64) as f32;
                by_level(pixels, |level| level * factor + mean * (1.0 - factor));
            }
            (Self::Saturation(factor), 3) => {
                by_pixel(pixels, |pixel| {
                    let grey = grey_of(pixel) * (1.0 - factor);
                    pixel.map(|level| level * factor + grey)
                });
            }
            (Self::Hue(turn), 3) => by_pixel(pixels, |pixel| turned(pixel, turn)),
            (Self::Saturation(_) | Self::Hue(_), _) => {}
        }
    }
}

/// A pixel's grey, in whole levels.
#[inline(always)]
fn grey_of([red, green, blue]: [f32; 3]) -> f32 {
    // A cast rounds down; baseline processors have a function for it, and no instruction.
    (red * GREY[0] + green * GREY[1] + blue * GREY[2]) as i32 as f32
}

/// The same for all bytes of a level: casts end at 0 and 255.
fn by_level(pixels: &mut [u8], change: impl Fn(f32) -> f32) {
    let mut levels = [0; 256];
    levels.iter_mut().zip(0..=u8::MAX).for_each(|(level, of)| *level = change(f32::from(of)) as u8);
    pixels.iter_mut().for_each(|level| *level = levels[usize::from(*level)]);
}

/// Changes pixels side by side, for vectors: levels to levels, cut off towards 0 and at 255.
fn by_pixel(pixels: &mut [u8], change: impl Fn([f32; 3]) -> [f32; 3]) {
    for pixels in pixels.as_chunks_mut::<3>().0.chunks_mut(SIDE_BY_SIDE) {
        let [mut reds, mut greens, mut blues] = [[0.0; SIDE_BY_SIDE]; 3];
        for (n, &[red, green, blue]) in pixels.iter().enumerate() {
            (reds[n], greens[n], blues[n]) = (f32::from(red), f32::from(green), f32::from(blue));
        }
        for ((red, green), blue) in reds.iter_mut().zip(&mut greens).zip(&mut blues) {
            [*red, *green, *blue] = change([*red, *green, *blue]);
        }
        for (n, pixel) in pixels.iter_mut().enumerate() {
            *pixel = [reds[n] as u8, greens[n] as u8, blues[n] as u8];
        }
    }
}

/// One of two numbers, both of which are there already: a branch would keep pixels from vectors.
#[inline(always)]
fn either(first: bool, one: f32, other: f32) -> f32 {
    let mask = u32::from(first).wrapping_neg();
    f32::from_bits((one.to_bits() & mask) | (other.to_bits() & !mask))
}

/// A pixel whose hue is turned by a share of the circle: to hue, saturation and value, and back.
#[inline(always)]
fn turned(pixel: [f32; 3], turn: f32) -> [f32; 3] {
    let [red, green, blue] = pixel.map(|level| level / 255.0);
    let larger = |a: f32, b: f32| either(a > b, a, b);
    let smaller = |a: f32, b: f32| either(a < b, a, b);
    let (most, least) = (larger(larger(red, green), blue), smaller(smaller(red, green), blue));
    let range = most - least;
    let [to_red, to_green, to_blue] = [red, green, blue].map(|level| (most - level) / range);
    let of_others = either(most == green, 2.0 + to_red - to_blue, 4.0 + to_green - to_red);
    let sixth = either(most == red, to_blue - to_green, of_others);
    // Casts take the whole part away, for the same reason as in a pixel's grey.
    let hue = sixth / 6.0 + 1.0 + turn;
    let hue = hue - hue as i32 as f32;
    let hue = either(hue < 0.0, hue + 1.0, hue) * 6.0;
    let sixths = hue as i32;
    let part = hue - sixths as f32;
    // Rounding may give a whole circle.
    let sector = sixths * i32::from(sixths < 6);
    let saturation = range / most;
    let low = most * (1.0 - saturation);
    let falling = most * (1.0 - saturation * part);
    let rising = most * (1.0 - saturation * (1.0 - part));
    let primary = |full: [i32; 2], from: i32, to: i32| {
        let between = either(sector == from, rising, either(sector == to, falling, low));
        either((sector == full[0]) | (sector == full[1]), most, between)
    };
    let made = [primary([0, 5], 4, 1), primary([1, 2], 0, 3), primary([3, 4], 2, 5)];
    // As torchvision makes bytes of floats: 256 equal parts, the last with both its ends. Grey has no hue.
    std::array::from_fn(|c| either(range == 0.0, pixel[c], made[c] * 255.999))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::batch_key;

    const ALL: JitterOptions = JitterOptions {
        brightness: Some([0.6, 1.4]),
        contrast: Some([0.5, 1.5]),
        saturation: Some([0.0, 2.0]),
        hue: Some([-0.1, 0.3]),
        chance: 0.8,
        grayscale: 0.2,
    };

    fn pixels(count: usize) -> Vec<u8> {
        (0..3 * count as u64).map(|k| (mix(k) >> 56) as u8).collect()
    }

    #[test]
    fn what_is_drawn_is_spread_evenly_and_is_the_same_again() {
        let (jitter, n) = (ColorJitter::new(ALL).unwrap().unwrap(), 40_000);
        let all: Vec<Jittered> = (0..n).map(|id| jitter.draw(batch_key(1, 2, 3), id)).collect();
        assert_eq!(all[7], jitter.draw(batch_key(1, 2, 3), 7));
        assert_ne!(all[7], jitter.draw(batch_key(1, 2, 4), 7));
        let share = |of: &dyn Fn(&Jittered) -> bool| all.iter().filter(|&j| of(j)).count() as f64 / n as f64;
        // Five standard errors.
        let near = |share: f64, chance: f64| (share - chance).abs() < 5.0 * (0.25 / n as f64).sqrt();
        assert!(near(share(&|j| j.grey), 0.2) && near(share(&|j| j.changes.len() == 4), 0.8));
        assert!(near(share(&|j| j.grey && j.changes.is_empty()), 0.04), "one chance has nothing to do with the other");
        assert!(all.iter().all(|j| j.changes.is_empty() || j.changes.len() == 4));
        let kind = |change: &Change| match change {
            Change::Brightness(_) => 0,
            Change::Contrast(_) => 1,
            Change::Saturation(_) => 2,
            Change::Hue(_) => 3,
        };
        let orders: std::collections::HashSet<Vec<i32>> =
            all.iter().map(|j| j.changes.iter().map(kind).collect()).collect();
        assert_eq!(orders.len(), 25, "all 24 orders, and none");
        for place in 0..4 {
            assert!(near(share(&|j| j.changes.get(place).is_some_and(|c| kind(c) == 3)), 0.2));
        }
        let turns: Vec<f32> = all
            .iter()
            .flat_map(|j| &j.changes)
            .filter_map(|c| if let Change::Hue(turn) = c { Some(*turn) } else { None })
            .collect();
        assert!(turns.iter().all(|turn| (-0.1..=0.3).contains(turn)));
        assert!(near(turns.iter().filter(|&&turn| turn < 0.0).count() as f64 / turns.len() as f64, 0.25));
    }

    #[test]
    fn changes_that_change_nothing_leave_every_byte() {
        let before = pixels(5000);
        for change in [Change::Brightness(1.0), Change::Contrast(1.0), Change::Saturation(1.0)] {
            let mut after = before.clone();
            change.apply(3, &mut after);
            assert_eq!(after, before, "{change:?}");
        }
        // There and back through hue: a level at most.
        for turn in [0.0, 1.0, -1.0] {
            let off = |a: &u8, b: &u8| a.abs_diff(*b);
            let mut after = before.clone();
            Change::Hue(turn).apply(3, &mut after);
            assert!(after.iter().zip(&before).all(|(a, b)| off(a, b) <= 1), "{turn}");
        }
        for change in [Change::Saturation(0.0), Change::Hue(0.3)] {
            let mut after = before.clone();
            change.apply(1, &mut after);
            assert_eq!(after, before, "one channel has neither");
        }
    }

    #[test]
    fn factors_do_what_they_say() {
        let made = |change: Change, pixel: [u8; 3]| {
            let mut pixel = pixel.to_vec();
            change.apply(3, &mut pixel);
            pixel
        };
        assert_eq!(made(Change::Brightness(1.5), [10, 101, 200]), [15, 151, 255]);
        assert_eq!(made(Change::Brightness(0.0), [10, 101, 200]), [0, 0, 0]);
        // Its mean grey is its own: 0.2989·10 + 0.587·101 + 0.114·200 = 85.08.
        assert_eq!(made(Change::Contrast(0.0), [10, 101, 200]), [85, 85, 85]);
        assert_eq!(made(Change::Saturation(0.0), [10, 101, 200]), [85, 85, 85]);
        assert_eq!(made(Change::Saturation(2.0), [10, 101, 200]), [0, 117, 255]);
        // Thirds of the circle: red is green, green is blue.
        assert_eq!(made(Change::Hue(1.0 / 3.0), [255, 0, 0]), [0, 255, 0]);
        assert_eq!(made(Change::Hue(-1.0 / 3.0), [255, 0, 0]), [0, 0, 255]);
        assert_eq!(made(Change::Hue(0.5), [90, 90, 90]), [90, 90, 90]);
    }

    /// By the sector of the hue.
    fn plainly_turned(pixel: [u8; 3], turn: f32) -> [u8; 3] {
        let [red, green, blue] = pixel.map(|level| f32::from(level) / 255.0);
        let (most, least) = (red.max(green).max(blue), red.min(green).min(blue));
        let range = most - least;
        if range == 0.0 {
            // Grey has no hue.
            return pixel;
        }
        let [to_red, to_green, to_blue] = [red, green, blue].map(|level| (most - level) / range);
        let sixth = if most == red {
            to_blue - to_green
        } else if most == green {
            2.0 + to_red - to_blue
        } else {
            4.0 + to_green - to_red
        };
        let hue = (sixth / 6.0 + 1.0 + turn).rem_euclid(1.0) * 6.0;
        let (sector, part) = (hue.floor(), hue - hue.floor());
        let saturation = range / most;
        let low = most * (1.0 - saturation);
        let falling = most * (1.0 - saturation * part);
        let rising = most * (1.0 - saturation * (1.0 - part));
        let made = match sector as u32 {
            0 => [most, rising, low],
            1 => [falling, most, low],
            2 => [low, most, rising],
            3 => [low, falling, most],
            4 => [rising, low, most],
            // Rounding may give a whole circle.
            5 => [most, low, falling],
            _ => [most, rising, low],
        };
        // As torchvision makes bytes of floats: 256 equal parts, the last with both its ends.
        made.map(|level| (level * 255.999) as u8)
    }

    #[test]
    fn every_color_stays_a_color_whatever_the_turn() {
        let colors = (0..1u32 << 15).map(|color| [color & 31, (color >> 5) & 31, color >> 10]);
        let colors: Vec<[u8; 3]> = colors.map(|color| color.map(|level| (level * 255 / 31) as u8)).collect();
        for turn in [-1.0, -0.5, -0.3, -f32::EPSILON, 0.0, f32::EPSILON, 1.0 / 3.0, 0.17, 0.5, 1.0] {
            let mut all = colors.as_flattened().to_vec();
            Change::Hue(turn).apply(3, &mut all);
            for (pixel, made) in colors.iter().zip(all.as_chunks::<3>().0) {
                assert_eq!(*made, plainly_turned(*pixel, turn), "{pixel:?} {turn}");
                let ends = |p: &[u8; 3]| (*p.iter().min().unwrap(), *p.iter().max().unwrap());
                let ((low, high), (was_low, was_high)) = (ends(made), ends(pixel));
                assert!(low.abs_diff(was_low) <= 1 && high.abs_diff(was_high) <= 1, "{pixel:?} {turn} {made:?}");
            }
        }
    }

    #[test]
    fn images_of_any_number_of_pixels_change_pixel_by_pixel() {
        for change in [Change::Saturation(1.7), Change::Saturation(0.3), Change::Hue(0.21)] {
            for count in [0, 1, 15, 16, 17, 100] {
                let (mut all, mut each) = (pixels(count), pixels(count));
                change.apply(3, &mut all);
                each.chunks_exact_mut(3).for_each(|pixel| change.apply(3, pixel));
                assert_eq!(all, each, "{change:?} of {count}");
            }
        }
        for pixel in pixels(2000).as_chunks::<3>().0 {
            let floats = pixel.map(f32::from);
            let floor = (floats[0] * GREY[0] + floats[1] * GREY[1] + floats[2] * GREY[2]).floor();
            assert_eq!(grey_of(floats), floor, "{pixel:?}");
            let mut made = pixel.to_vec();
            Change::Saturation(1.37).apply(3, &mut made);
            assert_eq!(made, floats.map(|level| (level * 1.37 + floor * (1.0 - 1.37f32)) as u8), "{pixel:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let off = JitterOptions { chance: 1.0, ..JitterOptions::default() };
        assert_eq!(ColorJitter::new(off), Ok(None));
        assert_eq!(ColorJitter::new(JitterOptions { chance: 0.0, grayscale: 0.0, ..ALL }), Ok(None));
        assert!(ColorJitter::new(JitterOptions { grayscale: 0.1, ..off }).unwrap().is_some());
        for refused in [
            JitterOptions { brightness: Some([-0.1, 1.0]), ..off },
            JitterOptions { contrast: Some([1.2, 1.0]), ..off },
            JitterOptions { saturation: Some([0.0, f64::INFINITY]), ..off },
            JitterOptions { saturation: Some([f64::NAN, 1.0]), ..off },
            JitterOptions { hue: Some([-0.6, 0.1]), ..off },
            JitterOptions { hue: Some([0.0, 0.51]), ..off },
            JitterOptions { chance: 1.5, ..off },
            JitterOptions { grayscale: f64::NAN, ..off },
        ] {
            assert!(ColorJitter::new(refused).is_err(), "{refused:?}");
        }
    }
}
