//! Scores and gradients on the CPU device: what a batch of logits costs.
//!
//! `read` sums the same bytes and is the bound of the one-read forward; `reference` is the plain two-pass version on
//! one core. Throughput counts logit bytes. `RAYON_NUM_THREADS=1` shows one core.

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use lossfeed_kernels::{AnyScores, Dtype, Objective, Reals, Rows, Upstream, fast, rank, reference};

fn main() {
    divan::main();
}

/// Rows x classes: ImageNet-1k, a GPT-2 vocabulary, CIFAR-10.
const SHAPES: [(usize, usize); 3] = [(4096, 1000), (256, 50_257), (1024, 10)];

struct Batch {
    bytes: Vec<u8>,
    targets: Vec<i64>,
    dtype: Dtype,
    rows: usize,
    classes: usize,
}

impl Batch {
    fn new(dtype: Dtype, (rows, classes): (usize, usize)) -> Batch {
        let mut state = 1u64;
        let mut unit = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32
        };
        let mut bytes = Vec::with_capacity(rows * classes * dtype.bytes());
        for _ in 0..rows * classes {
            let z = 12.0 * unit() - 6.0;
            match dtype {
                // The upper half of an f32, cut off.
                Dtype::BF16 => bytes.extend(((z.to_bits() >> 16) as u16).to_ne_bytes()),
                // A half between 1 and 2 in every bit pattern of its mantissa: the cost does not depend on the value.
                Dtype::F16 => bytes.extend((0x3c00 | (z.to_bits() & 0x3ff) as u16).to_ne_bytes()),
                Dtype::F32 => bytes.extend(z.to_ne_bytes()),
                Dtype::F64 => bytes.extend(f64::from(z).to_ne_bytes()),
            }
        }
        let targets = (0..rows).map(|_| (unit() * classes as f32) as i64 % classes as i64).collect();
        Batch { bytes, targets, dtype, rows, classes }
    }

    fn view(&self) -> Option<Rows<'_>> {
        Rows::new(&self.bytes, self.dtype, self.rows, self.classes, self.classes).ok()
    }
}

fn forward<const DTYPE: usize>(bencher: Bencher<'_, '_>, shape: (usize, usize), plain: bool) {
    let batch = Batch::new(Dtype::ALL[DTYPE], shape);
    let Some(view) = batch.view() else { return };
    bencher.counter(BytesCount::new(batch.bytes.len())).counter(ItemsCount::new(batch.rows)).bench(|| {
        if plain {
            reference::score(black_box(&view), &batch.targets, -100, 10.0)
        } else {
            fast::score(black_box(&view), &batch.targets, -100, 10.0)
        }
    });
}

/// The const is the position in [`Dtype::ALL`]: f16, bf16, f32, f64.
#[divan::bench(args = SHAPES, consts = [0, 1, 2, 3])]
fn score_fast<const DTYPE: usize>(bencher: Bencher<'_, '_>, shape: (usize, usize)) {
    forward::<DTYPE>(bencher, shape, false);
}

/// The gradient of the losses, from the maxima and log-sums that the forward left.
#[divan::bench(args = SHAPES, consts = [0, 1, 2, 3])]
fn gradient<const DTYPE: usize>(bencher: Bencher<'_, '_>, shape: (usize, usize)) {
    let batch = Batch::new(Dtype::ALL[DTYPE], shape);
    let Some(view) = batch.view() else { return };
    let Ok(scores) = fast::score(&view, &batch.targets, -100, 10.0) else { return };
    let one = match &scores {
        AnyScores::F32(_) => Reals::F32(&[1.0]),
        AnyScores::F64(_) => Reals::F64(&[1.0]),
    };
    let upstream = Upstream { term: one, lse: None };
    let mut out = vec![0; batch.bytes.len()];
    bencher.counter(BytesCount::new(batch.bytes.len())).counter(ItemsCount::new(batch.rows)).bench_local(|| {
        fast::backward(black_box(&view), &scores.softmax(), &batch.targets, &Objective::default(), &upstream, &mut out)
    });
}

#[divan::bench(args = [SHAPES[1], SHAPES[2]], consts = [2], sample_count = 10)]
fn score_reference<const DTYPE: usize>(bencher: Bencher<'_, '_>, shape: (usize, usize)) {
    forward::<DTYPE>(bencher, shape, true);
}

#[divan::bench(args = SHAPES)]
fn read(bencher: Bencher<'_, '_>, shape: (usize, usize)) {
    let batch = Batch::new(Dtype::F32, shape);
    bencher.counter(BytesCount::new(batch.bytes.len())).bench(|| {
        let words = black_box(&batch.bytes).chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        words.fold(0u32, u32::wrapping_add)
    });
}

#[divan::bench(args = [64, 512, 4096, 65_536])]
fn rank_counts(bencher: Bencher<'_, '_>, rows: usize) {
    let mut state = 1u32;
    let losses: Vec<f32> = (0..rows)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 * 1e-6
        })
        .collect();
    bencher.counter(ItemsCount::new(rows)).bench(|| rank::counts(black_box(&losses)));
}
