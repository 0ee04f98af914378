//! What must hold of the mean (or the sum) that a score launch makes of its terms, and of a backward that starts from
//! it.

use half::{bf16, f16};
use lossfeed_kernels::Dtype;
use lossfeed_kernels::launch::{self, Gradient, Home, Reduction, Score};

use crate::backward_reference::elements;
use crate::cases::{Case, Flavour, Lcg};
use crate::checks::{B0, case_of, load, real, reals};
use crate::program::{Kind, Machine, Program};
use crate::shapes::{Shape, all};

/// A number as the logits' type holds it, or as their arithmetic's does.
fn rounded(value: f64, dtype: Dtype, narrow: bool) -> f64 {
    match (dtype, narrow) {
        (Dtype::F64, _) => value,
        (Dtype::F16, true) => f16::from_f32(value as f32).to_f64(),
        (Dtype::BF16, true) => bf16::from_f32(value as f32).to_f64(),
        _ => f64::from(value as f32),
    }
}

/// The relative distance of neighbouring numbers.
fn step(dtype: Dtype, narrow: bool) -> f64 {
    match (dtype, narrow) {
        (Dtype::F64, _) => 1e-15,
        (Dtype::F16, true) => 0.5f64.powi(10),
        (Dtype::BF16, true) => 0.5f64.powi(7),
        _ => 0.5f64.powi(23),
    }
}

fn positive(n: usize, rng: &mut Lcg) -> Vec<f32> {
    (0..n).map(|_| (rng.unit() + 1.0) as f32).collect()
}

/// One launch leaves terms, shares, and what they come to, in every type, weighted or not; the same bits in every
/// order.
pub(crate) fn means(machine: &mut dyn Machine, shapes: &'static [Shape]) {
    for (turn, (dtype, shape)) in all(shapes).enumerate() {
        let mut rng = Lcg::new(turn as u64);
        let mut case = case_of(dtype, shape, Flavour::Plain, 7);
        let nobody = turn % 7 == 6; // not one row counts
        if nobody {
            case.targets.fill(case.ignore_index);
        }
        let (mean, narrow, weighted) = (turn % 3 != 2, turn % 2 == 0, turn % 4 == 1);
        let mut program = Program::default();
        let (logits, targets) = load(&mut program, &case, Kind::Input);
        let (rows, bytes) = (case.rows, real(dtype));
        let sample_rows = (1..4).rev().find(|n| rows % n == 0).unwrap();
        let samples = positive(rows / sample_rows, &mut rng);
        let weight: Vec<f64> = positive(case.classes, &mut rng).into_iter().map(f64::from).collect();
        let (out, divisor) = (program.output(8), program.output(8));
        let reduction = Reduction {
            out,
            narrow,
            mean,
            divisor,
            sample_weight: if turn % 2 == 1 { program.input(&samples) } else { 0 },
            sample_rows,
        };
        let mut batch = Score {
            logits,
            targets,
            rows,
            classes: case.classes,
            row_stride: case.row_stride as i64,
            ignore_index: case.ignore_index,
            loss: program.output(rows * bytes),
            weight: if weighted { reals(&mut program, dtype, &weight) } else { 0 },
            weight_sum: if weighted { reals(&mut program, dtype, &[weight.iter().sum()]) } else { 0 },
            label_smoothing: [0.0, 0.1][turn % 2],
            reduction,
            ..Score::default()
        };
        let lent = program.lend(rows, case.classes, shape.4);
        // The number alone; then with the columns it is made of, and with ranks in the same block at the end.
        let steps = launch::score(dtype, &batch, &lent);
        assert_eq!(steps.len(), 1, "a mean takes no launch of its own");
        program.call(steps);
        let (out, divisor) = (program.output(8), program.output(8));
        batch.reduction = Reduction { out, divisor, ..reduction };
        (batch.term, batch.share) = (program.output(rows * bytes), program.output(rows * bytes));
        batch.home = Home { count: program.output(4 * rows), b0: B0, ..Home::default() };
        program.call(launch::score(dtype, &batch, &lent));
        let mut before: Option<Vec<u8>> = None;
        for &seed in machine.seeds() {
            let memory = machine.run(&program, seed).unwrap_or_else(|e| panic!("{e}: {case:?}"));
            let double = dtype == Dtype::F64;
            let (terms, shares) = (memory.reals(batch.term, rows, double), memory.reals(batch.share, rows, double));
            let factor = |row: usize| if turn % 2 == 1 { f64::from(samples[row / sample_rows]) } else { 1.0 };
            let sum: f64 = terms.iter().enumerate().map(|(row, term)| term * factor(row)).sum();
            let share: f64 = shares.iter().sum();
            let expected = rounded(if mean { sum / share } else { sum }, dtype, narrow);
            for (out, divisor) in [(reduction.out, reduction.divisor), (out, divisor)] {
                let actual = if narrow {
                    elements(&memory.bytes(out)[..dtype.bytes()], dtype)[0]
                } else {
                    memory.reals(out, 1, double)[0]
                };
                let near = (actual - expected).abs() <= step(dtype, narrow) * expected.abs() + 1e-12 * expected.abs();
                assert!(near || actual.is_nan() && expected.is_nan(), "{actual}, not {expected}: {case:?}");
                assert_eq!(actual.is_nan(), share == 0.0 && mean, "a mean over nothing: {case:?}");
                let over = memory.reals(divisor, 1, double)[0];
                assert!((over - share).abs() <= 1e-6 * share, "{over}, not {share}: {case:?}");
            }
            let bits = [out, divisor].map(|at| memory.bytes(at)[..8].to_vec()).concat();
            assert_eq!(*before.get_or_insert(bits.clone()), bits, "schedule {seed:#x}: {case:?}");
            assert!(memory.bytes(lent.tickets).iter().all(|&byte| byte == 0));
        }
    }
}

/// One number in the logits' type, over the mean's divisor, times each sample's weight, is the gradient of those
/// numbers a row.
pub(crate) fn backward_of_a_mean(machine: &mut dyn Machine, shapes: &'static [Shape]) {
    for (turn, (dtype, shape)) in all(shapes).enumerate() {
        let mut rng = Lcg::new(turn as u64);
        let case: Case = case_of(dtype, shape, Flavour::Plain, 9);
        let (rows, classes) = (case.rows, case.classes);
        let sample_rows = (1..4).rev().find(|n| rows % n == 0).unwrap();
        let samples = positive(rows / sample_rows, &mut rng);
        let (narrow, divisor) = (turn % 2 == 0, f64::from(3.0f32 * rows as f32));
        let g = rounded(0.7, dtype, true);
        let each: Vec<f64> = (0..rows)
            .map(|row| match dtype {
                Dtype::F64 => g / divisor * f64::from(samples[row / sample_rows]),
                _ => f64::from(g as f32 / divisor as f32 * samples[row / sample_rows]),
            })
            .collect();
        let mut program = Program::default();
        let (logits, targets) = load(&mut program, &case, Kind::Input);
        let column = |program: &mut Program, rng: &mut Lcg| {
            reals(program, dtype, &positive(rows, rng).iter().map(|&v| f64::from(v)).collect::<Vec<_>>())
        };
        let (max, log_sum) = (column(&mut program, &mut rng), column(&mut program, &mut rng));
        let plain = Gradient {
            logits,
            targets,
            max,
            log_sum,
            upstream: reals(&mut program, dtype, &each),
            upstream_stride: 1,
            gradient: program.output(rows * classes * dtype.bytes()),
            rows,
            classes,
            row_stride: case.row_stride as i64,
            gradient_stride: classes as i64,
            ignore_index: case.ignore_index,
            ..Gradient::default()
        };
        let mut one = Vec::new();
        crate::cases::push(&mut one, dtype, g);
        let upstream = if narrow { program.buffer(Kind::Input, 0, one) } else { reals(&mut program, dtype, &[g]) };
        let of_mean = Gradient {
            upstream,
            upstream_stride: 0,
            upstream_narrow: narrow,
            divisor: reals(&mut program, dtype, &[divisor]),
            sample_weight: program.input(&samples),
            sample_rows,
            gradient: program.output(rows * classes * dtype.bytes()),
            ..plain
        };
        for batch in [plain, of_mean] {
            program.call(launch::backward(dtype, &batch, shape.4));
        }
        let memory = machine.run(&program, 0).unwrap_or_else(|e| panic!("{e}: {case:?}"));
        assert!(memory.bytes(plain.gradient) == memory.bytes(of_mean.gradient), "another gradient: {case:?}");
    }
}
