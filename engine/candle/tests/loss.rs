//! The loss on candle tensors: values and gradients against candle's own loss and against differences, layouts,
//! refusals.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use candle_core::{DType, Device, IndexOp, Result, Tensor, Var};
use candle_nn::loss;
use lossfeed_candle::{Options, Reduction, cross_entropy, sample_scores};
use lossfeed_kernels::{NOT_SCORED, ScoreError};

const CPU: Device = Device::Cpu;
const DTYPES: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// Numbers that repeat from run to run.
fn noise(seed: u64, n: usize) -> Vec<f64> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 11) as f64 / (1u64 << 53) as f64 * 8.0 - 4.0
    };
    std::iter::repeat_with(next).take(n).collect()
}

fn logits(rows: usize, classes: usize, dtype: DType) -> Var {
    let z = Tensor::from_vec(noise(7, rows * classes), (rows, classes), &CPU).unwrap();
    Var::from_tensor(&z.to_dtype(dtype).unwrap()).unwrap()
}

fn targets(rows: usize, classes: usize) -> Tensor {
    let y: Vec<u32> = (0..rows).map(|i| (i * i + 3 * i) as u32 % classes as u32).collect();
    Tensor::from_vec(y, rows, &CPU).unwrap()
}

fn flat(t: &Tensor) -> Vec<f64> {
    t.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap()
}

#[track_caller]
fn assert_close(a: &Tensor, b: &Tensor, tolerance: f64, what: &str) {
    assert_eq!(a.dims(), b.dims(), "{what}");
    for (k, (a, b)) in flat(a).iter().zip(flat(b)).enumerate() {
        assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{what}: {a} and {b} at {k}");
    }
}

#[test]
fn mean_and_gradient_are_those_of_candles_own_loss() {
    for dtype in DTYPES {
        for (rows, classes) in [(1, 1), (1, 7), (64, 10), (5, 33), (3, 1000), (600, 3)] {
            let z = logits(rows, classes, dtype);
            let y = targets(rows, classes);
            let (ours, scores) = cross_entropy(&z, &y, &Options::default()).unwrap();
            let wide = Var::from_tensor(&z.to_dtype(DType::F64).unwrap()).unwrap();
            let theirs = loss::cross_entropy(&wide, &y).unwrap();
            let what = format!("{rows}x{classes} {dtype:?}");
            let (value, gradient) = match dtype {
                DType::F16 => (1e-6, 1e-3),
                DType::BF16 => (1e-6, 1e-2),
                DType::F32 => (1e-6, 1e-6),
                _ => (1e-12, 1e-12),
            };
            assert_close(&ours, &theirs, value, &what);
            assert_eq!((scores.len(), scores.to_host().unwrap().len()), (rows, rows));
            let (g, h) = (ours.backward().unwrap(), theirs.backward().unwrap());
            let (g, h) = (g.get(&z).unwrap(), h.get(&wide).unwrap());
            assert_eq!(g.dtype(), dtype);
            assert_close(g, h, gradient, &what);
        }
    }
}

#[test]
fn the_gradient_is_the_slope_with_and_without_smoothing_ignored_rows_and_every_reduction() {
    let (rows, classes, step) = (6, 5, 1e-5);
    let y = Tensor::new(&[0i64, 4, -100, 2, 2, -100], &CPU).unwrap();
    let upstream = Tensor::from_vec(noise(3, rows), rows, &CPU).unwrap();
    for label_smoothing in [0.0, 0.1, 1.0] {
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            let options = Options { label_smoothing, reduction, ..Options::default() };
            let value = |z: &Tensor| -> Tensor {
                let (loss, _) = cross_entropy(z, &y, &options).unwrap();
                // A different upstream gradient for every row.
                if reduction == Reduction::None { (loss * &upstream).unwrap().sum_all().unwrap() } else { loss }
            };
            let z = logits(rows, classes, DType::F64);
            let grads = value(&z).backward().unwrap();
            let analytic = flat(grads.get(&z).unwrap());
            let start = flat(&z);
            for k in 0..start.len() {
                let at = |by: f64| {
                    let mut moved = start.clone();
                    moved[k] += by;
                    let z = Tensor::from_vec(moved, (rows, classes), &CPU).unwrap();
                    value(&z).to_scalar::<f64>().unwrap()
                };
                let slope = (at(step) - at(-step)) / (2.0 * step);
                assert!(
                    (slope - analytic[k]).abs() < 1e-8,
                    "{options:?}: slope {slope}, gradient {} at {k}",
                    analytic[k]
                );
            }
        }
    }
}

#[test]
fn smoothing_is_the_mixture_it_is_defined_as() {
    let (rows, classes, epsilon) = (9, 12, 0.3);
    let (z, y) = (logits(rows, classes, DType::F64), targets(rows, classes));
    let options = Options { label_smoothing: epsilon, reduction: Reduction::Sum, ..Options::default() };
    let (ours, scores) = cross_entropy(&z, &y, &options).unwrap();
    let log_p = candle_nn::ops::log_softmax(&z, 1).unwrap();
    let plain = flat(&log_p.gather(&y.unsqueeze(1).unwrap(), 1).unwrap()).iter().sum::<f64>();
    let spread = flat(&log_p).iter().sum::<f64>() / classes as f64;
    let expected = -(1.0 - epsilon) * plain - epsilon * spread;
    assert!((ours.to_scalar::<f64>().unwrap() - expected).abs() < 1e-10);
    let (_, unsmoothed) = cross_entropy(&z, &y, &Options::default()).unwrap();
    assert_eq!(scores.to_host().unwrap(), unsmoothed.to_host().unwrap(), "scores are of the plain loss");
}

#[test]
fn ignored_rows_have_no_loss_no_gradient_no_score_and_no_share_even_if_they_hold_nan() {
    let mut values = noise(5, 4 * 3);
    values[3..6].fill(f64::NAN);
    let z = Var::from_tensor(&Tensor::from_vec(values, (4, 3), &CPU).unwrap()).unwrap();
    let y = Tensor::new(&[1i64, -7, 0, 2], &CPU).unwrap();
    for label_smoothing in [0.0, 0.1] {
        let options = Options { ignore_index: -7, label_smoothing, ..Options::default() };
        let (loss, scores) = cross_entropy(&z, &y, &options).unwrap();
        let kept = Tensor::cat(&[z.i(0..1).unwrap(), z.i(2..4).unwrap()], 0).unwrap();
        let (without, _) = cross_entropy(&kept, &Tensor::new(&[1i64, 0, 2], &CPU).unwrap(), &options).unwrap();
        assert_close(&loss, &without, 1e-14, "as if the row were not there");
        let gradient = loss.backward().unwrap();
        let gradient = gradient.get(&z).unwrap();
        assert!(flat(&gradient.i(1).unwrap()).iter().all(|&g| g == 0.0));
        assert!(flat(gradient).iter().all(|g| g.is_finite()));
        let scores = scores.to_host().unwrap().into_f32();
        assert_eq!((scores.correct[1], scores.count[1], scores.loss[1]), (NOT_SCORED, -1, 0.0));
    }
    let none = Tensor::new(&[-7i64; 4], &CPU).unwrap();
    let (loss, _) = cross_entropy(&z, &none, &Options { ignore_index: -7, ..Options::default() }).unwrap();
    assert!(loss.to_scalar::<f64>().unwrap().is_nan(), "a mean over nothing");
}

#[test]
fn every_layout_gives_the_contiguous_answer_and_its_gradient() {
    type View = fn(&Tensor) -> Result<Tensor>;
    // From a (12, 10) variable; the last repeats one row, the one before one column.
    let views: [(&str, View); 6] = [
        ("transposed", |v| v.t()),
        ("columns 1..6", |v| v.i((.., 1..6))),
        ("rows 3..8, columns 2..9", |v| v.i((3..8, 2..9))),
        ("one row", |v| v.i(4..5)),
        ("a repeated column", |v| v.i((.., 3..4))?.expand((12, 6))),
        ("a repeated row", |v| v.i(2..3)?.expand((8, 10))),
    ];
    for dtype in DTYPES {
        for (name, view) in views {
            let base = logits(12, 10, dtype);
            let z = view(&base).unwrap();
            let (rows, classes) = z.dims2().unwrap();
            let y = targets(rows, classes);
            let (ours, scores) = cross_entropy(&z, &y, &Options::default()).unwrap();
            let twin = Var::from_tensor(base.as_tensor()).unwrap();
            let copied = view(&twin).unwrap().force_contiguous().unwrap();
            let (plain, plain_scores) = cross_entropy(&copied, &y, &Options::default()).unwrap();
            assert_eq!(scores.to_host().unwrap().into_f32().loss, plain_scores.to_host().unwrap().into_f32().loss);
            let (g, h) = (ours.backward().unwrap(), plain.backward().unwrap());
            assert_close(g.get(&base).unwrap(), h.get(&twin).unwrap(), 1e-6, &format!("{name} {dtype:?}"));
        }
    }
}

#[test]
fn targets_may_be_of_any_integer_type_and_layout() {
    let z = logits(6, 4, DType::F32);
    let y = targets(6, 4);
    let expected = cross_entropy(&z, &y, &Options::default()).unwrap().0;
    for dtype in [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64] {
        let (loss, _) = cross_entropy(&z, &y.to_dtype(dtype).unwrap(), &Options::default()).unwrap();
        assert_close(&loss, &expected, 0.0, &format!("{dtype:?}"));
    }
    let table = Tensor::stack(&[&y, &y], 1).unwrap().to_dtype(DType::I64).unwrap();
    let (loss, _) = cross_entropy(&z, &table.i((.., 1)).unwrap(), &Options::default()).unwrap();
    assert_close(&loss, &expected, 0.0, "a column of targets");
}

#[test]
fn wrong_calls_are_refused_with_what_is_wrong() {
    let z = logits(3, 4, DType::F32);
    let y = |values: &[i64]| Tensor::new(values, &CPU).unwrap();
    let message = |z: &Tensor, y: &Tensor, options: Options| cross_entropy(z, y, &options).unwrap_err().to_string();
    let usual = Options::default();

    let error = cross_entropy(&z, &y(&[0, 4, 1]), &usual).unwrap_err();
    assert!(error.to_string().contains("target 4 of row 1 is outside 0..4"), "{error}");
    let error = sample_scores(&z, &y(&[0, 0, -1]), &usual).unwrap_err();
    assert!(error.to_string().contains("target -1 of row 2"), "{error}");
    let named = ScoreError::TargetOutOfRange { row: 2, target: -1, classes: 4 }.to_string();
    assert!(error.to_string().contains(&named), "{error}");

    assert!(message(&z, &y(&[0, 1]), usual).contains("[3, 4], targets [2]"));
    assert!(message(&z.flatten_all().unwrap(), &y(&[0]), usual).contains("[12]"));
    let floats = Tensor::new(&[0f32, 1.0, 2.0], &CPU).unwrap();
    assert!(message(&z, &floats, usual).contains("integer"));
    assert!(message(&z.to_dtype(DType::U8).unwrap(), &y(&[0, 1, 2]), usual).contains("U8"));
    assert!(message(&Tensor::zeros((3, 0), DType::F32, &CPU).unwrap(), &y(&[0, 1, 2]), usual).contains("classes"));
    for label_smoothing in [-0.1, 1.1, f64::NAN] {
        assert!(message(&z, &y(&[0, 1, 2]), Options { label_smoothing, ..usual }).contains("label_smoothing"));
    }
    assert!(message(&z, &y(&[0, 1, 2]), Options { rank_base: 0.0, ..usual }).contains("b0 is 0"));
}

#[test]
fn an_empty_batch_has_an_empty_loss_and_no_scores() {
    let z = Tensor::zeros((0, 4), DType::F32, &CPU).unwrap();
    let y = Tensor::zeros(0, DType::I64, &CPU).unwrap();
    let options = Options { reduction: Reduction::Sum, ..Options::default() };
    let (loss, scores) = cross_entropy(&z, &y, &options).unwrap();
    assert_eq!(loss.to_scalar::<f32>().unwrap(), 0.0);
    assert!(scores.is_empty() && scores.is_ready().unwrap());
}

#[test]
fn scores_are_those_of_the_kernels_and_ranks_are_in_the_batch() {
    // SHADE's worked example: the losses of both batches have the same order, so the second sample leads both.
    for losses in [[0.3f64, 0.5, 0.4], [0.6, 1.2, 0.8]] {
        // Two classes, the target's logit 0: loss = ln(1 + e^z).
        let z: Vec<f64> = losses.iter().flat_map(|l| [0.0, (l.exp() - 1.0).ln()]).collect();
        let z = Tensor::from_vec(z, (3, 2), &CPU).unwrap();
        let scores = sample_scores(&z, &Tensor::new(&[0u8; 3], &CPU).unwrap(), &Options::default()).unwrap();
        let scores = scores.to_host().unwrap().into_f32();
        assert_eq!(scores.count, [0, 2, 1]);
        assert_eq!(scores.rank_score[1], 12f32.ln());
        for (loss, expected) in scores.loss.iter().zip(losses) {
            assert!((f64::from(*loss) - expected).abs() < 1e-6);
        }
    }
}

#[test]
fn loss_and_gradient_do_not_depend_on_an_offset_of_the_logits() {
    let (rows, classes) = (8, 10);
    let y = targets(rows, classes);
    for (dtype, offset) in [(DType::F32, 1e6), (DType::F32, -3e38), (DType::BF16, 1e30), (DType::F64, 1e6)] {
        let far = (logits(rows, classes, DType::F64).as_tensor() + offset).unwrap().to_dtype(dtype).unwrap();
        // The same softmaxes around 0: a double holds the differences.
        let wide = far.to_dtype(DType::F64).unwrap();
        let near = wide.broadcast_sub(&wide.max_keepdim(1).unwrap()).unwrap();
        for label_smoothing in [0.0, 0.1] {
            let options = Options { label_smoothing, ..Options::default() };
            let by = [&far, &near].map(|z| {
                let z = Var::from_tensor(z).unwrap();
                let (loss, _) = cross_entropy(&z, &y, &options).unwrap();
                let gradient = loss.backward().unwrap().get(&z).unwrap().clone();
                (loss, gradient)
            });
            let what = format!("{dtype:?} at {offset:e}, smoothing {label_smoothing}");
            let gradient = if dtype == DType::BF16 { 1e-2 } else { 1e-6 };
            assert_close(&by[0].0, &by[1].0, 1e-6, &what);
            assert_close(&by[0].1, &by[1].1, gradient, &what);
        }
    }
}
