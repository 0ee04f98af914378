//! What must hold of images, whatever makes them: the plain definition's bits, in every type, layout, size and draw.

use lossfeed_kernels::image::{
    CHANNELS_MAX, ImageDtype, ImageMaker, ImageOptions, ImageTransform, batch_key, make_plain,
};
use lossfeed_kernels::launch::{Images, images};
use proptest::prelude::*;

use crate::cases::Lcg;
use crate::program::{Kind, Machine, Program};

/// A transform, a batch for it, and where the batch starts in memory.
#[derive(Clone, Debug)]
pub(crate) struct ImageCase {
    transform: ImageTransform,
    ids: Vec<i64>,
    key: u64,
    source: Vec<u8>,
    source_offset: usize,
    /// In elements.
    out_offset: usize,
}

impl ImageCase {
    fn new(source: [usize; 3], options: &ImageOptions<'_>, rows: usize, seed: u64) -> ImageCase {
        let transform = ImageTransform::new(source, options).unwrap();
        let mut rng = Lcg::new(seed);
        let pixels = (0..rows * transform.source_bytes()).map(|_| rng.below(256) as u8).collect();
        // Ids repeat, are huge and negative: whatever the slot holds.
        let ids = (0..rows).map(|row| if row % 3 == 2 { 5 } else { (row as i64 - 1) << (row % 40) }).collect();
        let (source_offset, out_offset) = (rng.below(17) as usize, if seed.is_multiple_of(2) { 0 } else { 3 });
        ImageCase { transform, ids, key: batch_key(seed, 3, 9), source: pixels, source_offset, out_offset }
    }

    fn expected(&self) -> Vec<u8> {
        let t = &self.transform;
        let mut out = vec![0; self.ids.len() * t.out_bytes()];
        for ((row, &id), made) in self.ids.iter().enumerate().zip(out.chunks_exact_mut(t.out_bytes())) {
            let source = &self.source[row * t.source_bytes()..][..t.source_bytes()];
            make_plain(t, t.draw(self.key, id), source, made);
        }
        out
    }
}

pub(crate) fn any_image() -> impl Strategy<Value = ImageCase> {
    const DTYPES: &[ImageDtype] = &[ImageDtype::U8, ImageDtype::F16, ImageDtype::BF16, ImageDtype::F32];
    let sides = (1..40usize, 1..40usize, prop_oneof![Just(1), Just(3), Just(4), 1..=CHANNELS_MAX], 0..9usize);
    let how = (prop::sample::select(DTYPES), any::<bool>(), any::<bool>(), any::<(u16, u16, bool)>());
    (sides, how, prop_oneof![Just(0.0), Just(1.0), Just(0.5)], 1..9usize, any::<u64>()).prop_map(
        |((h, w, c, padding), (dtype, channels_first, random_crop, (y, x, crop)), flip, rows, seed)| {
            let side = |n: usize, by: u16| 1 + usize::from(by) % (n + 2 * padding);
            let crop = crop.then(|| [side(h, y), side(w, x)]);
            let (mean, std): (Vec<f64>, Vec<f64>) = (0..c).map(|c| (0.1 * c as f64, 0.2 + 0.3 * c as f64)).unzip();
            let float = dtype != ImageDtype::U8;
            let (mean, std): (&[f64], &[f64]) = if float { (&mean, &std) } else { (&[], &[]) };
            let options = ImageOptions { dtype, channels_first, crop, padding, random_crop, flip, mean, std };
            ImageCase::new([h, w, c], &options, rows, seed)
        },
    )
}

/// The batch's bits, by the machine.
pub(crate) fn check(machine: &mut dyn Machine, case: &ImageCase) -> Result<(), String> {
    let (t, rows) = (&case.transform, case.ids.len());
    let mut program = Program::default();
    let source = program.buffer(Kind::Input, case.source_offset, case.source.clone());
    let ids = program.input(&case.ids);
    let offset = case.out_offset * t.dtype().bytes();
    let out = program.buffer(Kind::Output, offset, vec![0xff; rows * t.out_bytes()]);
    let step = images(t, &Images { rows, key: case.key, source, ids, out }).unwrap();
    program.call(step);
    let expected = case.expected();
    for &seed in machine.seeds() {
        let memory = machine.run(&program, seed)?;
        if let Some(at) = memory.bytes(out).iter().zip(&expected).position(|(a, e)| a != e) {
            return Err(format!("byte {at} is {}, not {}: {t:?}", memory.bytes(out)[at], expected[at]));
        }
    }
    Ok(())
}

/// Shapes that people train on.
pub(crate) fn trained_on(machine: &mut dyn Machine, rows: usize) {
    let mean = [0.485, 0.456, 0.406];
    let std = [0.229, 0.224, 0.225];
    for (source, crop, padding) in [([32, 32, 3], None, 4), ([60, 80, 3], Some([56, 56]), 0), ([28, 28, 1], None, 0)] {
        for channels_first in [false, true] {
            for dtype in [ImageDtype::F16, ImageDtype::BF16, ImageDtype::F32] {
                let (mean, std) = (&mean[..source[2]], &std[..source[2]]);
                let options =
                    ImageOptions { dtype, channels_first, crop, padding, random_crop: true, flip: 0.5, mean, std };
                check(machine, &ImageCase::new(source, &options, rows, 4)).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn tables_equal_the_definition(case in any_image()) {
        let maker = ImageMaker::new(case.transform.clone());
        let (from, to) = (case.transform.source_bytes(), case.transform.out_bytes());
        // Elements of the result must be aligned: 64 is more than any needs.
        let mut out = vec![0u64; (case.ids.len() * to).div_ceil(8)];
        let out: &mut [u8] = bytemuck::cast_slice_mut(&mut out);
        for (row, &id) in case.ids.iter().enumerate() {
            let made = &mut out[row * to..][..to];
            maker.make(case.key, id, &case.source[row * from..][..from], made);
        }
        prop_assert_eq!(&out[..case.ids.len() * to], &case.expected()[..]);
    }
}
