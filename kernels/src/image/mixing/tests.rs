//! The draws against the distributions that they are from; pairs against the definition.

use super::*;
use crate::image::{ImageOptions, batch_key};

const SIDES: [usize; 2] = [20, 31];

fn mixing(mixup: f64, cutmix: f64, chance: f64, switch: f64) -> Mixing {
    Mixing::new(&MixOptions { mixup, cutmix, chance, switch }).unwrap().unwrap()
}

fn drawn(mixing: &Mixing, count: u64) -> Vec<Option<Mixed>> {
    (0..count).map(|number| mixing.draw(SIDES, batch_key(3, number / 1000, number % 1000), 0)).collect()
}

/// The largest distance of the draws' distribution from what it should be, times √n: 1.95 is met once in a thousand.
fn distance(mut draws: Vec<f64>, expected: impl Fn(f64) -> f64) -> f64 {
    draws.sort_by(f64::total_cmp);
    let n = draws.len() as f64;
    let apart =
        |(k, &x): (usize, &f64)| (expected(x) - k as f64 / n).abs().max((expected(x) - (k + 1) as f64 / n).abs());
    draws.iter().enumerate().map(apart).fold(0.0, f64::max) * n.sqrt()
}

#[test]
fn lam_is_from_the_beta_distribution() {
    let lams = |alpha| {
        (0..40_000).map(move |i| {
            let mut words = Words::new(7, i);
            symmetric_beta(alpha, words.between([0.0, 1.0]), words.between([0.0, 1.0]))
        })
    };
    let arcsine = |x: f64| std::f64::consts::FRAC_2_PI * x.sqrt().asin();
    assert!(distance(lams(0.5).collect(), arcsine) < 1.95);
    assert!(distance(lams(1.0).collect(), |x| x) < 1.95);
    assert!(distance(lams(2.0).collect(), |x| x * x * (3.0 - 2.0 * x)) < 1.95);
    assert!(distance(lams(1.0).collect(), |x| x * x * (3.0 - 2.0 * x)) > 10.0, "the test can fail");
    for alpha in [1e-6, 0.01, 0.2, 0.8, 30.0, 1000.0] {
        let (sum, squares) = lams(alpha).fold((0.0, 0.0), |(s, q), x| (s + x, q + (x - 0.5) * (x - 0.5)));
        let (mean, variance, expected) = (sum / 4e4, squares / 4e4, 1.0 / (8.0 * alpha + 4.0));
        assert!(lams(alpha).all(|x| (0.0..=1.0).contains(&x)), "{alpha}");
        assert!((mean - 0.5).abs() < 5.0 * (expected / 4e4).sqrt(), "{alpha}: a mean of {mean}");
        assert!((variance / expected - 1.0).abs() < 0.04, "{alpha}: a variance of {variance}, not {expected}");
    }
    for (u, v) in [(0.0, 0.25), (0.0, 0.0), (0.0, 0.5), (1.0 - f64::EPSILON, 0.3)] {
        assert!([1e-9, 1.0, 1000.0].iter().all(|&alpha| (0.0..=1.0).contains(&symmetric_beta(alpha, u, v))));
    }
}

#[test]
fn own_makes_up_more_and_lam_is_its_share_of_the_pixels() {
    let both = mixing(0.8, 1.0, 0.75, 0.25);
    let draws = drawn(&both, 20_000);
    let (cut, blended): (Vec<Mixed>, Vec<Mixed>) =
        draws.iter().flatten().copied().partition(|mixed| mixed.part.is_some());
    // Some boxes are of no pixel, so a little less than their chance.
    assert!((cut.len() as f64 / 20_000.0 - 0.1875).abs() < 0.015, "{}", cut.len());
    assert!((blended.len() as f64 / 20_000.0 - 0.5625).abs() < 0.015, "{}", blended.len());
    assert!(draws.iter().flatten().all(|mixed| (0.5..1.0).contains(&mixed.lam)));
    for MixedPart { top, left, height, width, outside } in cut.iter().filter_map(|mixed| mixed.part) {
        assert!(height > 0 && width > 0 && top + height <= SIDES[0] && left + width <= SIDES[1]);
        assert_eq!(outside, 2 * height * width > SIDES[0] * SIDES[1]);
    }
    assert!(cut.iter().any(|mixed| mixed.part.is_some_and(|part| part.outside)));
    // Ranks, epochs and batches draw apart.
    let lams = |epoch, rank| (0..50).map(|n| both.draw(SIDES, batch_key(3, epoch, n), rank)).collect::<Vec<_>>();
    assert_ne!(lams(0, 0), lams(1, 0));
    assert_ne!(lams(0, 0), lams(0, 1));
    assert_eq!(lams(4, 2), lams(4, 2));
}

#[test]
fn only_what_is_asked_for_is_drawn() {
    assert_eq!(Mixing::new(&MixOptions { chance: 1.0, ..MixOptions::default() }), Ok(None));
    assert_eq!(Mixing::new(&MixOptions { mixup: 1.0, chance: 0.0, ..MixOptions::default() }), Ok(None));
    assert!(drawn(&mixing(1.0, 0.0, 1.0, 0.9), 500).iter().flatten().all(|mixed| mixed.part.is_none()));
    assert!(drawn(&mixing(0.0, 1.0, 1.0, 0.1), 500).iter().flatten().all(|mixed| mixed.part.is_some()));
    let refused = |options| Mixing::new(&options).unwrap_err();
    let base = MixOptions { mixup: 1.0, cutmix: 1.0, chance: 1.0, switch: 0.5 };
    assert_eq!(refused(MixOptions { mixup: -0.1, ..base }), ImageError::Alpha("mixup", -0.1));
    assert_eq!(refused(MixOptions { cutmix: 1001.0, ..base }), ImageError::Alpha("cutmix", 1001.0));
    assert!(matches!(refused(MixOptions { mixup: f64::NAN, ..base }), ImageError::Alpha("mixup", _)));
    assert_eq!(refused(MixOptions { chance: 1.1, ..base }), ImageError::Chance("mix_chance", 1.1));
    assert_eq!(refused(MixOptions { switch: -0.1, ..base }), ImageError::Chance("switch", -0.1));
}

#[test]
fn a_box_is_torchvisions() {
    // `CutMix.make_params` with H = 20, W = 31, lam = 0.75 and centres in the middle and in a corner.
    let part = |top, left, height, width| Some(MixedPart { top, left, height, width, outside: false });
    let found = cut_out(SIDES, 0.75, [10, 15]).unwrap();
    assert_eq!((found.part, found.lam), (part(5, 8, 10, 14), (1.0 - 140.0 / 620.0) as f32));
    assert_eq!(cut_out(SIDES, 0.75, [0, 30]).unwrap().part, part(0, 23, 5, 8));
    assert_eq!(cut_out(SIDES, 1.0, [10, 15]), None);
    let most = cut_out(SIDES, 0.01, [10, 15]).unwrap();
    assert_eq!((most.part.map(|part| part.outside), most.lam), (Some(true), (540.0 / 620.0) as f32));
}

#[test]
fn pairs_in_place_equal_the_definition() {
    let mut words = Words::new(1, 1);
    let both = mixing(0.7, 1.0, 1.0, 0.5);
    for dtype in [ImageDtype::U8, ImageDtype::F16, ImageDtype::BF16, ImageDtype::F32] {
        for channels_first in [false, true] {
            for (rows, shape) in [(0, [3, 4, 3]), (1, [3, 4, 3]), (2, [1, 1, 1]), (5, [6, 5, 3]), (8, [4, 9, 4])] {
                let options = ImageOptions {
                    dtype,
                    channels_first,
                    crop: None,
                    padding: 0,
                    random_crop: false,
                    flip: 0.0,
                    mean: &[],
                    std: &[],
                };
                let transform = ImageTransform::new(shape, &options).unwrap();
                for key in 0..20 {
                    let Some(mixed) = both.draw(transform.out, key, 0) else { continue };
                    let mut data = vec![0u64; (rows * transform.out_bytes()).div_ceil(8)];
                    let data = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut data)[..rows * transform.out_bytes()];
                    for element in data.chunks_exact_mut(dtype.bytes()) {
                        let value = words.between([-2.5, 2.5]) as f32;
                        match dtype {
                            ImageDtype::U8 => element[0] = words.below(256) as u8,
                            ImageDtype::F16 => F16::write(value, element),
                            ImageDtype::BF16 => BF16::write(value, element),
                            ImageDtype::F32 => f32::write(value, element),
                        }
                    }
                    let mut expected = data.to_vec();
                    mix_plain(&transform, &mixed, &mut expected);
                    assert!(rows < 2 || mixed.part.is_some() || expected != *data);
                    mix_rows(&transform, &mixed, data);
                    assert_eq!(data, expected, "{dtype:?} {rows} x {shape:?} {mixed:?}");
                }
            }
        }
    }
}
