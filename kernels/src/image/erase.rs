//! Random erasing (Zhong et al., AAAI 2020): a rectangle of a finished image becomes 0.

use super::crop::Words;
use super::{ImageError, ImageTransform, checked_chance, mix};

/// torchvision's `RandomErasing`: shares of the image's area, height over width, and tries before it is left as it is.
const SCALE: [f64; 2] = [0.02, 0.33];
const RATIO: [f64; 2] = [0.3, 3.3];
const TRIES: usize = 10;

/// A checked chance of being erased in part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Erase {
    /// Erased are draws below this, of 2^53.
    below: u64,
}

/// Where: first line, first column, lines, columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Erased {
    pub top: usize,
    pub left: usize,
    pub height: usize,
    pub width: usize,
}

impl Erase {
    /// With a chance from 0 to 1; `None` for 0.
    ///
    /// # Errors
    /// For a number that is no chance.
    pub fn new(chance: f64) -> Result<Option<Self>, ImageError> {
        checked_chance("erase", chance)?;
        Ok((chance > 0.0).then_some(Self { below: (chance * (1u64 << 53) as f64) as u64 }))
    }

    /// What chance erases of sample `id`, made `height` × `width`, in the batch of `key`.
    pub fn draw(&self, [height, width]: [usize; 2], key: u64, id: i64) -> Option<Erased> {
        // Words of its own: crops have drawn from the key's.
        let mut words = Words::new(mix(key ^ 0x6572_6173_6521), id);
        if words.next() >> 11 >= self.below {
            return None;
        }
        let logs = RATIO.map(f64::ln);
        for _ in 0..TRIES {
            let area = (height * width) as f64 * words.between(SCALE);
            let aspect = words.between(logs).exp();
            let lines = (area * aspect).sqrt().round_ties_even() as usize;
            let columns = (area / aspect).sqrt().round_ties_even() as usize;
            if lines < height && columns < width {
                let (top, left) = (words.below(height - lines + 1), words.below(width - columns + 1));
                return Some(Erased { top, left, height: lines, width: columns });
            }
        }
        None
    }

    /// Erases what chance decides of sample `id`, which `transform` has made in `out`: 0 in any element type is bytes of
    /// 0, and after normalisation it is the mean.
    pub fn apply(&self, transform: &ImageTransform, key: u64, id: i64, out: &mut [u8]) {
        let [height, width] = transform.out;
        let Some(at) = self.draw([height, width], key, id) else { return };
        let size = transform.dtype().bytes();
        let (planes, pixel) = match transform.channels_first {
            true => (transform.source[2], size),
            false => (1, size * transform.source[2]),
        };
        for plane in out.chunks_exact_mut(out.len() / planes) {
            for line in plane.chunks_exact_mut(width * pixel).skip(at.top).take(at.height) {
                line[at.left * pixel..][..at.width * pixel].fill(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{ImageDtype, ImageOptions, batch_key};

    #[test]
    fn what_is_erased_is_one_rectangle_in_every_layout_and_type() {
        let erase = Erase::new(0.5).unwrap().unwrap();
        for (dtype, channels_first) in
            [(ImageDtype::U8, false), (ImageDtype::U8, true), (ImageDtype::BF16, false), (ImageDtype::F32, true)]
        {
            let options = ImageOptions {
                dtype,
                channels_first,
                crop: Some([11, 9]),
                padding: 0,
                random_crop: true,
                flip: 0.0,
                mean: &[],
                std: &[],
            };
            let transform = ImageTransform::new([12, 13, 3], &options).unwrap();
            let size = dtype.bytes();
            for id in 0..200 {
                let mut out = vec![0xa5; transform.out_bytes()];
                erase.apply(&transform, 7, id, &mut out);
                let at = erase.draw([11, 9], 7, id);
                for (n, element) in out.chunks_exact(size).enumerate() {
                    let (y, x) = match channels_first {
                        true => (n % 99 / 9, n % 9),
                        false => (n / 27, n / 3 % 9),
                    };
                    let inside = at.is_some_and(|at| {
                        (at.top..at.top + at.height).contains(&y) && (at.left..at.left + at.width).contains(&x)
                    });
                    assert!(element.iter().all(|&byte| byte == if inside { 0 } else { 0xa5 }), "{id} {at:?} {y} {x}");
                }
            }
        }
    }

    #[test]
    fn chance_and_area_are_what_was_asked_for() {
        let n = 20_000;
        for (chance, least, most) in [(0.25, 4700, 5300), (1.0, 20_000, 20_000)] {
            let erase = Erase::new(chance).unwrap().unwrap();
            let all = |seed| -> Vec<_> { (0..n).map(|id| erase.draw([224, 224], batch_key(seed, 1, 2), id)).collect() };
            let drawn = all(1);
            assert_eq!(drawn, all(1));
            let erased: Vec<Erased> = drawn.iter().flatten().copied().collect();
            // Five standard deviations of such a count are 306.
            assert!((least..=most).contains(&erased.len()), "{} of {n} at {chance}", erased.len());
            let share = |at: &Erased| (at.height * at.width) as f64 / (224.0 * 224.0);
            assert!(erased.iter().all(|at| (0.019..0.335).contains(&share(at))));
            assert!(erased.iter().all(|at| at.top + at.height <= 224 && at.left + at.width <= 224));
            let mean = erased.iter().map(share).sum::<f64>() / erased.len() as f64;
            assert!((mean - 0.175).abs() < 0.01, "{mean}: evenly from 0.02 to 0.33");
            assert!(drawn.iter().zip(&all(2)).filter(|(a, b)| a.is_some() && a == b).count() < 20);
        }
        assert_eq!(Erase::new(0.0).unwrap(), None);
        for chance in [-0.1, 1.1, f64::NAN] {
            assert!(matches!(Erase::new(chance), Err(ImageError::Chance("erase", _))));
        }
        // Nothing fits into one line.
        let erase = Erase::new(1.0).unwrap().unwrap();
        assert!((0..99).all(|id| erase.draw([1, 9], 1, id).is_none_or(|at| at.height == 0)));
    }
}
