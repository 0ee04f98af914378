//! What must hold of images that are erased in part and mixed in pairs: the CPU's bits, in every type, layout and size.

use lossfeed_kernels::image::{
    CHANNELS_MAX, Erase, ImageDtype, ImageMaker, ImageOptions, ImageTransform, MixOptions, Mixed, Mixing, batch_key,
    mix_plain,
};
use lossfeed_kernels::launch::{Images, erase, images, mix};
use proptest::prelude::*;

use crate::cases::Lcg;
use crate::program::{Kind, Machine, Program};

/// A batch and what becomes of it.
#[derive(Clone, Debug)]
pub(crate) struct MixingCase {
    transform: ImageTransform,
    rows: usize,
    /// In elements.
    out_offset: usize,
    seed: u64,
    erased: f64,
    mixing: Option<Mixing>,
}

pub(crate) fn any_mixing() -> impl Strategy<Value = MixingCase> {
    const DTYPES: &[ImageDtype] = &[ImageDtype::U8, ImageDtype::F16, ImageDtype::BF16, ImageDtype::F32];
    let sides = (1..30usize, 1..30usize, prop_oneof![Just(1), Just(3), Just(4), 1..=CHANNELS_MAX]);
    let how = (prop::sample::select(DTYPES), any::<bool>(), prop_oneof![Just(0usize), 0..4usize]);
    let drawn = (any::<u64>(), prop_oneof![Just(0.0), Just(0.5), Just(1.0)], 0..4usize);
    (sides, how, 1..9usize, drawn).prop_map(|((h, w, c), (dtype, channels_first, out_offset), rows, drawn)| {
        let (seed, erased, kind) = drawn;
        let (mean, std): (Vec<f64>, Vec<f64>) = (0..c).map(|c| (0.1 * c as f64, 0.2 + 0.3 * c as f64)).unzip();
        let float = dtype != ImageDtype::U8;
        let (mean, std): (&[f64], &[f64]) = if float { (&mean, &std) } else { (&[], &[]) };
        let (crop, padding, random_crop, flip) = (None, 0, false, 0.0);
        let options = ImageOptions { dtype, channels_first, crop, padding, random_crop, flip, mean, std };
        let transform = ImageTransform::new([h, w, c], &options).unwrap();
        let (mixup, cutmix) = [(0.0, 0.0), (0.4, 0.0), (0.0, 1.0), (1.0, 1.0)][kind];
        let mixing = Mixing::new(&MixOptions { mixup, cutmix, chance: 1.0, switch: 0.5 }).unwrap();
        MixingCase { transform, rows, out_offset, seed, erased, mixing }
    })
}

/// The batch's bits, by the machine: made, erased and mixed by launches one after the other.
pub(crate) fn check(machine: &mut dyn Machine, case: &MixingCase) -> Result<(), String> {
    let MixingCase { transform: t, rows, out_offset, seed, erased, mixing } = case;
    let (rows, key) = (*rows, batch_key(*seed, 1, 2));
    let mut rng = Lcg::new(*seed);
    let source: Vec<u8> = (0..rows * t.source_bytes()).map(|_| rng.below(256) as u8).collect();
    let ids: Vec<i64> = (0..rows as i64).map(|row| row * 7 - 3).collect();
    let erasing = Erase::new(*erased).unwrap();
    let mixed: Option<Mixed> = mixing.and_then(|mixing| mixing.draw(t.out_sides(), key, 3));

    let maker = ImageMaker::new(t.clone());
    let mut expected = vec![0u64; (rows * t.out_bytes()).div_ceil(8)];
    let expected = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut expected)[..rows * t.out_bytes()];
    for ((made, pixels), &id) in
        expected.chunks_exact_mut(t.out_bytes()).zip(source.chunks_exact(t.source_bytes())).zip(&ids)
    {
        maker.make(key, id, pixels, made);
        erasing.iter().for_each(|erase| erase.apply(t, key, id, made));
    }
    if let Some(mixed) = &mixed {
        mix_plain(t, mixed, expected);
    }

    let mut program = Program::default();
    let (from, named) = (program.buffer(Kind::Input, 0, source), program.input(&ids));
    let out = program.buffer(Kind::Output, out_offset * t.dtype().bytes(), vec![0xff; rows * t.out_bytes()]);
    program.call(images(t, &Images { rows, key, source: from, ids: named, out }).unwrap());
    let drawn = |erase: &Erase| ids.iter().map(|&id| erase.draw(t.out_sides(), key, id)).collect::<Vec<_>>();
    let parts = erasing.iter().flat_map(drawn).enumerate();
    let parts: Vec<_> = parts.filter_map(|(row, at)| Some((row, at?))).collect();
    program.call(erase(t, &parts, out));
    if let Some(mixed) = &mixed {
        program.call(mix(t, mixed, rows, out).unwrap());
    }
    for &schedule in machine.seeds() {
        let memory = machine.run(&program, schedule)?;
        if let Some(at) = memory.bytes(out).iter().zip(expected.iter()).position(|(a, e)| a != e) {
            return Err(format!("byte {at} is {}, not {}: {t:?} {mixed:?}", memory.bytes(out)[at], expected[at]));
        }
    }
    Ok(())
}

/// Shapes that people train on, and more rows than one launch erases.
pub(crate) fn trained_on(machine: &mut dyn Machine) {
    for (side, rows) in [(32, 17), (56, 4), (3, 700)] {
        for channels_first in [false, true] {
            for dtype in [ImageDtype::F16, ImageDtype::BF16, ImageDtype::F32] {
                for (seed, (mixup, cutmix)) in [(0.8, 0.0), (0.0, 1.0)].into_iter().enumerate() {
                    let (crop, padding, random_crop, flip) = (None, 2, true, 0.5);
                    let (mean, std): (&[f64], &[f64]) = (&[0.48, 0.46, 0.41], &[0.23]);
                    let options = ImageOptions { dtype, channels_first, crop, padding, random_crop, flip, mean, std };
                    let transform = ImageTransform::new([side, side, 3], &options).unwrap();
                    let mixing = Mixing::new(&MixOptions { mixup, cutmix, chance: 1.0, switch: 0.5 }).unwrap();
                    let (out_offset, seed) = (0, seed as u64);
                    check(machine, &MixingCase { transform, rows, out_offset, seed, erased: 1.0, mixing }).unwrap();
                }
            }
        }
    }
}
