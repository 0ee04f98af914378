//! Which part of an image of any size becomes an image of a fixed one. What is decided here is resampled elsewhere.
//!
//! Three ways, all torchvision's to the pixel. *Part*: `RandomResizedCrop(size, scale, ratio)`. *Covering*: the image
//! is scaled, its aspect kept, until it covers a size; then `size` is cut out of it: `Resize(n)` with
//! `CenterCrop(size)` or `RandomCrop(size)`. *Cut*: `size` is cut out of the image as it is, `CenterCrop` or
//! `RandomCrop` alone.

use super::{GOLDEN, ImageError, SIDE_MAX, mix, places_drawn};

/// Tries of a random part before the middle of the image is taken: torchvision's number.
const TRIES: usize = 10;
/// Aspect ratios that may be asked for.
const RATIOS: std::ops::RangeInclusive<f64> = 1e-3..=1e3;

/// How the part is found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CropKind {
    /// A rectangle drawn at random.
    Part {
        /// Least and largest area, as shares of the image's.
        scale: [f64; 2],
        /// Least and largest width over height, drawn evenly by logarithm.
        ratio: [f64; 2],
    },
    /// Cut out of the image scaled to cover `to`.
    Covering {
        /// Height and width that the scaled image covers, one of them exactly.
        to: [usize; 2],
        /// The place is drawn; else it is the middle (halves to the even side, as Python rounds).
        random: bool,
    },
    /// Cut out of the image as it is, which must be as large.
    Cut {
        /// The place is drawn, by the words of [`super::ImageTransform::draw`]; else it is the middle.
        random: bool,
    },
}

/// A checked crop of images of any size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResizedCrop {
    size: [usize; 2],
    kind: CropKind,
}

/// A rectangle of an image, in its pixels; pixel (y, x) spans y to y + 1 and x to x + 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Region {
    /// First line.
    pub top: f64,
    /// First column.
    pub left: f64,
    /// Lines.
    pub height: f64,
    /// Columns.
    pub width: f64,
    /// Resampled as if nothing were around it (crop, then resize). Else the pixels next to it count at its edges (resize,
    /// then crop).
    pub alone: bool,
}

/// A crop in whole pixels: a part of the image is scaled, and the result is cut out of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// First line and column of the part.
    pub at: [usize; 2],
    /// Its height and width.
    pub part: [usize; 2],
    /// Height and width that it is scaled to.
    pub scaled: [usize; 2],
    /// First line and column of the result in that.
    pub cut: [usize; 2],
}

impl Region {
    /// All of an image of `height` and `width`.
    pub fn whole([height, width]: [usize; 2]) -> Self {
        Region { top: 0.0, left: 0.0, height: height as f64, width: width as f64, alone: false }
    }

    /// Whether it is all of an image of that size.
    pub fn is_whole(&self, size: [usize; 2]) -> bool {
        Region { alone: false, ..*self } == Self::whole(size)
    }
}

impl ResizedCrop {
    /// Crops that become `size` (height, width).
    ///
    /// # Errors
    /// Whatever makes no sense, with its numbers.
    pub fn new(size: [usize; 2], kind: CropKind) -> Result<Self, ImageError> {
        let sides = 1..=SIDE_MAX;
        if !size.iter().all(|side| sides.contains(side)) {
            return Err(ImageError::Size("crop", size[0], size[1]));
        }
        match kind {
            CropKind::Part { scale: [least, most], ratio: [narrow, wide] } => {
                if !(0.0 < least && least <= most && most <= 1.0) {
                    return Err(ImageError::Scale(least, most));
                }
                if !(narrow <= wide && RATIOS.contains(&narrow) && RATIOS.contains(&wide)) {
                    return Err(ImageError::Ratio(narrow, wide));
                }
            }
            CropKind::Covering { to, .. } => {
                if !to.iter().all(|side| sides.contains(side)) {
                    return Err(ImageError::Size("resize", to[0], to[1]));
                }
                if size[0] > to[0] || size[1] > to[1] {
                    return Err(ImageError::Larger(size[0], size[1], to[0], to[1]));
                }
            }
            CropKind::Cut { .. } => {}
        }
        Ok(Self { size, kind })
    }

    /// Height and width of what it gives.
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// Whether chance decides anything.
    pub fn is_random(&self) -> bool {
        match self.kind {
            CropKind::Part { .. } => true,
            CropKind::Covering { random, .. } | CropKind::Cut { random } => random,
        }
    }

    /// True if an image of `height` and `width` is large enough.
    pub fn fits(&self, [height, width]: [usize; 2]) -> bool {
        !matches!(self.kind, CropKind::Cut { .. }) || (self.size[0] <= height && self.size[1] <= width)
    }

    /// The region of an image of `height` and `width` (at least 1 each, and [`Self::fits`]) for sample `id` in the
    /// batch of `key`. It is within the image.
    pub fn region(&self, size: [usize; 2], key: u64, id: i64) -> Region {
        let Placed { at, part, scaled, cut } = self.placed(size, key, id);
        let whole = |[top, left]: [usize; 2], [height, width]: [usize; 2], alone| Region {
            top: top as f64,
            left: left as f64,
            height: height as f64,
            width: width as f64,
            alone,
        };
        if scaled == part {
            return whole([at[0] + cut[0], at[1] + cut[1]], self.size, matches!(self.kind, CropKind::Part { .. }));
        }
        if let CropKind::Part { .. } = self.kind {
            return whole(at, part, true);
        }
        // In the image's own pixels.
        let back = |i: usize, at: usize| at as f64 * (size[i] as f64 / scaled[i] as f64);
        Region {
            top: back(0, cut[0]),
            left: back(1, cut[1]),
            height: back(0, self.size[0]),
            width: back(1, self.size[1]),
            alone: false,
        }
    }

    /// The same in whole pixels.
    pub fn placed(&self, size: [usize; 2], key: u64, id: i64) -> Placed {
        let all = |scaled, cut| Placed { at: [0, 0], part: size, scaled, cut };
        match self.kind {
            CropKind::Part { scale, ratio } => {
                let [at, part] = part(size, scale, ratio, &mut Words::new(key, id));
                Placed { at, part, scaled: self.size, cut: [0, 0] }
            }
            CropKind::Covering { to, random } => {
                let (scaled, mut words) = (covering(size, to), Words::new(key, id));
                let place = |i: usize| {
                    let room = scaled[i] - self.size[i];
                    if random { words.below(room + 1) } else { room / 2 + room % 2 * (room / 2 % 2) }
                };
                all(scaled, [0, 1].map(place))
            }
            CropKind::Cut { random } => {
                let places = [0, 1].map(|i| size[i].saturating_sub(self.size[i]) + 1);
                all(size, places_drawn(random, places, key, id).1)
            }
        }
    }
}

/// The size of the image once it covers `to`: one side exactly, the other rounded down.
fn covering([height, width]: [usize; 2], to: [usize; 2]) -> [usize; 2] {
    // height / width against to[0] / to[1]: which side is the last to be covered.
    if height * to[1] >= width * to[0] { [height * to[1] / width, to[1]] } else { [to[0], width * to[0] / height] }
}

/// As torchvision's `RandomResizedCrop.get_params`.
/// First line and column, height and width.
fn part([height, width]: [usize; 2], scale: [f64; 2], ratio: [f64; 2], words: &mut Words) -> [[usize; 2]; 2] {
    let (full_height, full_width) = (height as f64, width as f64);
    let logs = ratio.map(f64::ln);
    for _ in 0..TRIES {
        let area = full_height * full_width * words.between(scale);
        let aspect = words.between(logs).exp();
        let (part_height, part_width) =
            ((area / aspect).sqrt().round_ties_even(), (area * aspect).sqrt().round_ties_even());
        if (1.0..=full_height).contains(&part_height) && (1.0..=full_width).contains(&part_width) {
            let top = words.below(height - part_height as usize + 1);
            let left = words.below(width - part_width as usize + 1);
            return [[top, left], [part_height as usize, part_width as usize]];
        }
    }
    // The middle, as much of it as the ratios allow.
    let aspect = full_width / full_height;
    let part_height = if aspect < ratio[0] { (full_width / ratio[0]).round_ties_even() } else { full_height };
    let part_width = if aspect > ratio[1] { (full_height * ratio[1]).round_ties_even() } else { full_width };
    let (part_height, part_width) = (part_height.clamp(1.0, full_height), part_width.clamp(1.0, full_width));
    let (part_height, part_width) = (part_height as usize, part_width as usize);
    [[(height - part_height) / 2, (width - part_width) / 2], [part_height, part_width]]
}

/// The words of one sample's draws: SplitMix64, two words beyond those that [`super::ImageTransform::draw`] takes.
pub(super) struct Words(u64);

impl Words {
    pub(super) fn new(key: u64, id: i64) -> Self {
        Self(mix(key ^ mix((id as u64).wrapping_add(GOLDEN))).wrapping_add(GOLDEN))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Evenly from `low` to `high`.
    pub(super) fn between(&mut self, [low, high]: [f64; 2]) -> f64 {
        low + (high - low) * ((self.next() >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// Evenly below `n`, at least 1.
    pub(super) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::batch_key;

    const PART: CropKind = CropKind::Part { scale: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0] };

    fn covering_of(to: [usize; 2], random: bool) -> CropKind {
        CropKind::Covering { to, random }
    }

    fn inside(region: Region, [height, width]: [usize; 2]) -> bool {
        let slack = 1e-9;
        region.top >= 0.0
            && region.left >= 0.0
            && region.height > 0.0
            && region.width > 0.0
            && region.top + region.height <= height as f64 * (1.0 + slack)
            && region.left + region.width <= width as f64 * (1.0 + slack)
    }

    #[test]
    fn the_middle_of_a_covering_image_is_where_torchvision_has_it() {
        // Resize(256) makes 341 x 256 of 500 x 375 and CenterCrop(224) begins at round(58.5) = 58 and 16.
        let crop = ResizedCrop::new([224, 224], covering_of([256, 256], false)).unwrap();
        let region = crop.region([375, 500], 1, 1);
        let (down, across) = (375.0 / 256.0, 500.0 / 341.0);
        assert_eq!((region.top, region.left), (16.0 * down, 58.0 * across));
        assert_eq!((region.height, region.width, region.alone), (224.0 * down, 224.0 * across, false));
        // The other way up, and 259: round(1.5) = 2, where 257 has round(0.5) = 0.
        let tall = crop.region([500, 375], 9, 9);
        assert_eq!((tall.top, tall.left), (58.0 * across, 16.0 * down));
        for (side, begins) in [(224, 0.0), (225, 0.0), (226, 1.0), (227, 2.0), (229, 2.0), (231, 4.0)] {
            let crop = ResizedCrop::new([224, 224], covering_of([side, side], false)).unwrap();
            assert_eq!(crop.region([side, side], 0, 0).top, begins, "{side}");
        }
        assert!(!crop.is_random());
        // Any shape is covered, one side exactly.
        assert_eq!(covering([100, 100], [50, 200]), [200, 200]);
        assert_eq!(covering([300, 100], [50, 200]), [600, 200]);
        assert_eq!(covering([1, 65_535], [256, 256]), [256, 256 * 65_535]);
    }

    #[test]
    fn regions_lie_within_images_of_any_size() {
        let sides = [1, 2, 3, 7, 31, 224, 375, 500, 4099, 65_536];
        let kinds = [
            PART,
            CropKind::Part { scale: [1e-6, 1e-6], ratio: [1e-3, 1e-3] },
            CropKind::Part { scale: [1.0, 1.0], ratio: [1e3, 1e3] },
            covering_of([256, 256], true),
            covering_of([256, 300], false),
        ];
        for kind in kinds {
            let crop = ResizedCrop::new([224, 200], kind).unwrap();
            for (n, (&height, &width)) in sides.iter().flat_map(|h| sides.iter().map(move |w| (h, w))).enumerate() {
                for id in 0..20 {
                    let region = crop.region([height, width], n as u64, id);
                    assert!(inside(region, [height, width]), "{kind:?} of {height} x {width}: {region:?}");
                }
            }
        }
    }

    #[test]
    fn parts_have_the_areas_ratios_and_places_that_were_asked_for() {
        // Any such part fits into a square, so none is drawn again.
        let kind = CropKind::Part { scale: [0.2, 0.6], ratio: [0.8, 1.25] };
        let crop = ResizedCrop::new([224, 224], kind).unwrap();
        let (n, size) = (20_000, [400, 400]);
        let all = |seed| -> Vec<Region> { (0..n).map(|id| crop.region(size, batch_key(seed, 0, 0), id)).collect() };
        let regions = all(3);
        assert_eq!(regions, all(3));
        assert!(regions.iter().zip(&all(4)).filter(|(a, b)| a == b).count() < 10);
        // Each drawn evenly: in how many of eight equal parts of its range every draw lies. A side is rounded to whole
        // pixels, so the ends get a little slack. Five standard deviations of such a count are 234.
        let even = |what: &str, low: f64, high: f64, of: &dyn Fn(&Region) -> f64| {
            let mut counts = [0i64; 8];
            for region in &regions {
                let at = (of(region) - low) / (high - low);
                assert!((-0.02..=1.02).contains(&at), "{what}: {region:?}");
                counts[(at * 8.0).clamp(0.0, 7.0) as usize] += 1;
            }
            assert!(counts.iter().all(|count| (count - n / 8).abs() < 234), "{what}: {counts:?}");
        };
        even("area", 0.2, 0.6, &|r| r.height * r.width / 160_000.0);
        even("ratio", -(1.25f64.ln()), 1.25f64.ln(), &|r| (r.width / r.height).ln());
        even("top", 0.0, 1.0, &|r| (r.top + 0.5) / (401.0 - r.height));
        even("left", 0.0, 1.0, &|r| (r.left + 0.5) / (401.0 - r.width));
        assert!(regions.iter().all(|r| r.alone && r.top.fract() + r.height.fract() == 0.0));
        // A part of three quarters that is taller than wide does not fit into a wide image: it is drawn again.
        let crop = ResizedCrop::new([224, 224], PART).unwrap();
        assert!((0..n).all(|id| inside(crop.region([375, 500], 3, id), [375, 500])));
    }

    #[test]
    fn what_never_fits_is_the_middle_as_torchvision_takes_it() {
        // A line of 1000 pixels: no ratio of at most 4/3 with an area of all of it.
        let crop = ResizedCrop::new([8, 8], CropKind::Part { scale: [1.0, 1.0], ratio: [0.75, 4.0 / 3.0] }).unwrap();
        let wide = Region { top: 0.0, left: 433.0, height: 100.0, width: 133.0, alone: true };
        assert_eq!(crop.region([100, 1000], 5, 5), wide);
        let tall = Region { top: 433.0, left: 0.0, height: 133.0, width: 100.0, alone: true };
        assert_eq!(crop.region([1000, 100], 5, 5), tall);
    }

    /// So a run draws the same crops whether an image is cut before its pixels reach a row or after.
    #[test]
    fn a_cut_is_where_a_transform_would_cut() {
        let size = [40, 31];
        for random in [true, false] {
            let crop = ResizedCrop::new([17, 30], CropKind::Cut { random }).unwrap();
            let options = crate::image::ImageOptions {
                dtype: crate::image::ImageDtype::U8,
                channels_first: false,
                crop: Some([17, 30]),
                padding: 0,
                random_crop: random,
                flip: 0.5,
                mean: &[],
                std: &[],
            };
            let transform = crate::image::ImageTransform::new([40, 31, 3], &options).unwrap();
            for id in 0..200 {
                let (region, draw) = (crop.region(size, 7, id), transform.draw(7, id));
                assert_eq!((region.top, region.left), (draw.top as f64, draw.left as f64), "{id}");
                assert_eq!((region.height, region.width), (17.0, 30.0));
            }
            assert_eq!(crop.is_random(), random);
            assert!(crop.fits([17, 30]) && !crop.fits([16, 99]) && !crop.fits([99, 29]));
        }
        assert!(ResizedCrop::new([9, 9], PART).unwrap().fits([1, 1]), "what is resized has no least size");
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_numbers() {
        let refused = |size, kind| ResizedCrop::new(size, kind).unwrap_err().to_string();
        let part = |scale, ratio| CropKind::Part { scale, ratio };
        assert!(refused([0, 4], PART).contains("crop=(0, 4)"));
        for scale in [[0.0, 1.0], [0.5, 0.2], [0.5, 1.5], [f64::NAN, 1.0], [0.1, f64::NAN]] {
            assert!(refused([4, 4], part(scale, [0.75, 1.5])).contains("scale=("), "{scale:?}");
        }
        for ratio in [[0.0, 1.0], [2.0, 1.0], [1.0, 1e9], [f64::NAN, 1.0], [1.0, f64::INFINITY]] {
            assert!(refused([4, 4], part([0.1, 1.0], ratio)).contains("ratio=("), "{ratio:?}");
        }
        let larger = refused([224, 300], covering_of([256, 256], false));
        assert!(larger.contains("crop=(224, 300) is larger than resize=(256, 256)"), "{larger}");
        assert!(refused([1, 1], covering_of([1, 1 << 20], false)).contains("resize=(1, 1048576)"));
    }
}
