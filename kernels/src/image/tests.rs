//! Against arithmetic by hand, and chance against counts.

use super::*;

const PLAIN: ImageOptions<'static> = ImageOptions {
    dtype: ImageDtype::F32,
    channels_first: false,
    crop: None,
    padding: 0,
    random_crop: true,
    flip: 0.0,
    mean: &[],
    std: &[],
};

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(bytes)
}

fn both_ways(transform: &ImageTransform, draw: Draw, source: &[u8]) -> Vec<u8> {
    let mut out = vec![0xa5; transform.out_bytes()];
    make_plain(transform, draw, source, &mut out);
    out
}

#[test]
fn pixels_become_what_torchvision_makes_of_them() {
    // Two lines of two pixels of three channels.
    let source: Vec<u8> = vec![0, 51, 255, 102, 153, 204, 1, 2, 3, 250, 251, 252];
    let options = ImageOptions { mean: &[0.5, 0.25, 0.0], std: &[0.5, 0.25, 1.0], channels_first: true, ..PLAIN };
    let t = ImageTransform::new([2, 2, 3], &options).unwrap();
    assert_eq!(t.shape(), [3, 2, 2]);
    let made = floats(&both_ways(&t, t.draw(1, 1), &source));
    for (at, value) in made.into_iter().enumerate() {
        let (c, pixel) = (at / 4, at % 4);
        let unit = f64::from(source[pixel * 3 + c]) / 255.0;
        let expected = (unit - options.mean[c]) / options.std[c];
        assert!((f64::from(value) - expected).abs() < 1e-6, "{value}, not {expected}");
    }
}

#[test]
fn a_crop_reaches_into_the_padding_and_a_flip_mirrors_what_it_shows() {
    let t = ImageTransform::new([2, 3, 1], &ImageOptions { dtype: ImageDtype::U8, padding: 1, ..PLAIN }).unwrap();
    let source = [1, 2, 3, 4, 5, 6];
    assert_eq!(both_ways(&t, Draw { top: 0, left: 0, flip: false }, &source), [0, 0, 0, 0, 1, 2]);
    assert_eq!(both_ways(&t, Draw { top: 2, left: 2, flip: false }, &source), [5, 6, 0, 0, 0, 0]);
    assert_eq!(both_ways(&t, Draw { top: 2, left: 2, flip: true }, &source), [0, 6, 5, 0, 0, 0]);
    assert_eq!(both_ways(&t, Draw { top: 1, left: 1, flip: true }, &source), [3, 2, 1, 6, 5, 4]);
}

#[test]
fn chance_is_fair_reproducible_and_another_one_in_every_batch() {
    let options = ImageOptions { padding: 4, flip: 0.25, ..PLAIN };
    let t = ImageTransform::new([32, 32, 3], &options).unwrap();
    let n = 90_000;
    let (mut tops, mut lefts, mut flips) = ([0; 9], [0; 9], 0);
    for id in 0..n {
        let draw = t.draw(batch_key(7, id as u64 % 3, 5), id);
        assert_eq!(draw, t.draw(batch_key(7, id as u64 % 3, 5), id));
        (tops[draw.top], lefts[draw.left]) = (tops[draw.top] + 1, lefts[draw.left] + 1);
        flips += i64::from(draw.flip);
    }
    // Five standard deviations of a count of n draws with chance 1/9: 470.
    for count in tops.into_iter().chain(lefts) {
        assert!((count - n / 9).abs() < 470, "{tops:?} {lefts:?}");
    }
    assert!((flips - n / 4).abs() < 650, "{flips} of {n}");
    // Neighbours in any of the four words are drawn independently: of 81 x 2 outcomes two agree by chance only.
    let all =
        |seed, epoch, number| -> Vec<Draw> { (0..2000).map(|id| t.draw(batch_key(seed, epoch, number), id)).collect() };
    let base = all(1, 1, 1);
    for other in [all(2, 1, 1), all(1, 2, 1), all(1, 1, 2), all(1, 1, 0), all(0, 1, 1)] {
        let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < 60, "{same} of 2000 draws agree, about 16 should");
    }
    let always = ImageTransform::new([4, 4, 3], &ImageOptions { flip: 1.0, ..PLAIN }).unwrap();
    assert!((0..1000).all(|id| always.draw(3, id).flip));
    let never = ImageTransform::new([4, 4, 3], &PLAIN).unwrap();
    assert!((0..1000).all(|id| !never.draw(3, id).flip));
    let centre = ImageOptions { crop: Some([2, 3]), random_crop: false, ..PLAIN };
    let centre = ImageTransform::new([5, 7, 1], &centre).unwrap();
    assert_eq!(centre.draw(9, 9), Draw { top: 1, left: 2, flip: false });
}

#[test]
fn what_makes_no_sense_is_refused_with_its_numbers() {
    let refused = |source, options: &ImageOptions<'_>| ImageTransform::new(source, options).unwrap_err();
    let image = [32, 48, 3];
    assert_eq!(refused([0, 4, 3], &PLAIN), ImageError::Source(0, 4, 3));
    assert_eq!(refused([4, 4, 17], &PLAIN), ImageError::Source(4, 4, 17));
    let crop = ImageOptions { crop: Some([40, 48]), padding: 3, ..PLAIN };
    assert_eq!(refused(image, &crop), ImageError::Crop(40, 48, 38, 54));
    assert_eq!(refused(image, &ImageOptions { crop: Some([0, 1]), ..PLAIN }), ImageError::Crop(0, 1, 32, 48));
    assert_eq!(refused(image, &ImageOptions { padding: usize::MAX, ..PLAIN }), ImageError::Padding(usize::MAX));
    for flip in [-0.1, 1.1, f64::NAN] {
        assert!(matches!(refused(image, &ImageOptions { flip, ..PLAIN }), ImageError::Chance("flip", _)));
    }
    assert_eq!(refused(image, &ImageOptions { mean: &[0.1, 0.2], ..PLAIN }), ImageError::Count("mean", 2, 3));
    assert_eq!(refused(image, &ImageOptions { std: &[0.1, 0.0, 1.0], ..PLAIN }), ImageError::Value("std", 0.0));
    assert_eq!(refused(image, &ImageOptions { std: &[-1.0], ..PLAIN }), ImageError::Value("std", -1.0));
    assert!(matches!(refused(image, &ImageOptions { mean: &[f64::NAN], ..PLAIN }), ImageError::Value("mean", _)));
    assert!(matches!(refused(image, &ImageOptions { std: &[1e-42], ..PLAIN }), ImageError::Value("std", _)));
    assert_eq!(refused(image, &ImageOptions { dtype: ImageDtype::U8, mean: &[0.5], ..PLAIN }), ImageError::Bytes);
}
