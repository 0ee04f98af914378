//! The reference against the textbook formulas in double precision, and its refusals.

use lossfeed_kernels::{AnyScores, Dtype, NOT_SCORED, Rows, ScoreError, ShapeError, reference};

use crate::cases::{Flavour, case};

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn score(values: &[f32], classes: usize, targets: &[i64], ignore_index: i64) -> lossfeed_kernels::Scores<f32> {
    let bytes = bytes(values);
    let rows = Rows::new(&bytes, Dtype::F32, targets.len(), classes, classes).unwrap();
    reference::score(&rows, targets, ignore_index, 10.0).unwrap().into_f32()
}

#[test]
fn double_precision_scores_equal_the_textbook_formulas() {
    for seed in 0..20 {
        let case = case(Dtype::F64, 16, 37, 40, 0, Flavour::Plain, seed);
        let AnyScores::F64(scores) = reference::score(&case.view(), &case.targets, case.ignore_index, 10.0).unwrap()
        else {
            panic!("f64 logits are scored in f64");
        };
        for (row, &target) in case.targets.iter().enumerate() {
            if target == case.ignore_index {
                continue;
            }
            let z: Vec<f64> =
                case.view().row(row).chunks_exact(8).map(|b| f64::from_ne_bytes(b.try_into().unwrap())).collect();
            let y = target as usize;
            let sum: f64 = z.iter().map(|v| v.exp()).sum();
            let p: Vec<f64> = z.iter().map(|v| v.exp() / sum).collect();
            let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12 * (1.0 + b.abs()), "row {row}: {a} is not {b}");
            close(scores.lse()[row], sum.ln());
            close(scores.loss[row], sum.ln() - z[y]);
            close(scores.grad_norm[row], (p.iter().map(|p| p * p).sum::<f64>() - 2.0 * p[y] + 1.0).sqrt());
            close(scores.entropy[row], -p.iter().map(|p| p * p.ln()).sum::<f64>());
            let argmax = (0..z.len()).fold(0, |best, j| if z[j] > z[best] { j } else { best });
            assert_eq!(scores.correct[row], u8::from(argmax == y));
        }
    }
}

#[test]
fn a_tiny_loss_keeps_its_relative_precision_in_single_precision() {
    // One class 20 ahead of one other: loss = ln(1 + e^-20), grad_norm = √2 / (1 + e^20).
    let scores = score(&[10.0, -10.0], 2, &[0], -100);
    let exact = (-20f64).exp().ln_1p();
    assert!((f64::from(scores.loss[0]) / exact - 1.0).abs() < 1e-6, "{}", scores.loss[0]);
    let exact = 2f64.sqrt() / (1.0 + 20f64.exp());
    assert!((f64::from(scores.grad_norm[0]) / exact - 1.0).abs() < 1e-6, "{}", scores.grad_norm[0]);
}

#[test]
fn the_first_maximum_wins() {
    let scores = score(&[1.0, 2.0, 2.0, 1.0, 2.0, 2.0], 3, &[1, 2], -100);
    assert_eq!(scores.correct, [1, 0]);
}

#[test]
fn one_class_leaves_nothing_to_learn() {
    let scores = score(&[-3.0], 1, &[0], -100);
    assert_eq!((scores.loss[0], scores.lse()[0], scores.grad_norm[0], scores.entropy[0]), (0.0, -3.0, 0.0, 0.0));
    assert_eq!((scores.correct[0], scores.count[0]), (1, 0));
}

#[test]
fn an_ignored_row_has_loss_zero_and_no_rank_and_counts_for_nobody() {
    let scores = score(&[0.0, 1.0, 0.0, 1.0, 0.0, 1.0], 2, &[0, -100, 1], -100);
    assert_eq!(scores.loss[1], 0.0);
    assert!(scores.grad_norm[1].is_nan() && scores.entropy[1].is_nan() && scores.lse()[1].is_nan());
    assert!(scores.max[1].is_nan() && scores.log_sum[1].is_nan());
    assert_eq!(scores.correct, [0, NOT_SCORED, 1]);
    assert_eq!(scores.count, [1, -1, 0]);
    assert!(scores.rank_score[1].is_nan());
}

#[test]
fn rows_without_a_softmax_are_nan_and_a_masked_target_is_infinite() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let values = [1.0, nan, 2.0, 1.0, inf, 2.0, -inf, -inf, -inf, -inf, 1.0, 2.0, -inf, 1.0, 2.0];
    let scores = score(&values, 3, &[0, 0, 0, 0, 2], -100);
    for row in 0..3 {
        assert!(scores.loss[row].is_nan() && scores.lse()[row].is_nan() && scores.grad_norm[row].is_nan());
        assert!(scores.entropy[row].is_nan());
    }
    assert_eq!(scores.correct, [0, 0, 0, 0, 1]);
    assert_eq!(scores.count, [-1, -1, -1, -1, 0]);
    assert_eq!(scores.loss[3], inf);
    assert!(scores.entropy[3].is_finite() && scores.grad_norm[3] > 1.0);
    assert!(scores.loss[4].is_finite() && scores.entropy[4].is_finite());
}

#[test]
fn a_target_outside_the_classes_names_row_target_and_classes() {
    let bytes = bytes(&[0.0; 6]);
    let rows = Rows::new(&bytes, Dtype::F32, 2, 3, 3).unwrap();
    for (target, ok) in [(2, true), (3, false), (-1, false), (i64::MIN, false), (i64::MAX, false), (-100, true)] {
        let result = reference::score(&rows, &[0, target], -100, 10.0);
        if ok {
            assert!(result.is_ok());
        } else {
            assert_eq!(result, Err(ScoreError::TargetOutOfRange { row: 1, target, classes: 3 }));
        }
    }
    assert_eq!(reference::score(&rows, &[0], -100, 10.0), Err(ScoreError::TargetCount { rows: 2, targets: 1 }));
    for b0 in [0.0, -1.0, f32::INFINITY] {
        assert_eq!(reference::score(&rows, &[0, 0], -100, b0), Err(ScoreError::Base { b0 }));
    }
    assert!(matches!(reference::score(&rows, &[0, 0], -100, f32::NAN), Err(ScoreError::Base { .. })));
}

#[test]
fn a_view_that_leaves_its_bytes_is_refused() {
    let bytes = [0u8; 24];
    assert!(Rows::new(&bytes, Dtype::F32, 2, 3, 3).is_ok());
    assert!(Rows::new(&bytes, Dtype::F32, 4, 3, 1).is_ok());
    assert!(Rows::new(&bytes, Dtype::F32, 1_000_000, 6, 0).is_ok());
    assert!(Rows::new(&[], Dtype::F32, 0, 3, usize::MAX).is_ok());
    assert_eq!(Rows::new(&bytes, Dtype::F32, 2, 0, 3).unwrap_err(), ShapeError::NoClasses);
    assert!(matches!(Rows::new(&bytes, Dtype::F32, 2, 3, 4), Err(ShapeError::TooShort { needed_bytes: 28, .. })));
    assert!(matches!(Rows::new(&bytes, Dtype::F64, 2, 3, usize::MAX), Err(ShapeError::TooShort { .. })));
    assert!(matches!(Rows::new(&bytes, Dtype::F32, usize::MAX, 1, 0), Err(ShapeError::TooMany { .. })));
}
