//! What must hold of the backward, and of scores against probabilities, whatever runs the kernels.

use lossfeed_kernels::launch::{self, Gradient, Home, Probabilities, ProbabilityGradient};
use lossfeed_kernels::{Dtype, Rows, rank};

use crate::backward_reference::{Target, elements, row, softmax};
use crate::cases::{Case, Flavour, Lcg, plain_or_far, push};
use crate::checks::{B0, case_of, load, real, reals};
use crate::program::{Kind, Machine, Meddle, Program};
use crate::shapes::{Shape, all};

/// Relative error of a rounding to `dtype`, and the least number it can hold.
fn rounding(dtype: Dtype) -> (f64, f64) {
    match dtype {
        Dtype::F16 => (0.5f64.powi(11), 0.5f64.powi(25)),
        Dtype::BF16 => (0.5f64.powi(8), 1e-39),
        Dtype::F32 => (0.5f64.powi(24), 1e-44),
        Dtype::F64 => (0.5f64.powi(53), 0.0),
    }
}

/// `actual` is the gradient whose value and size of terms `expected` gives, rounded twice.
fn close(actual: f64, [value, size]: [f64; 2], dtype: Dtype) -> bool {
    let arithmetic = if dtype == Dtype::F64 { 1e-11 } else { 1e-5 };
    let (relative, least) = rounding(dtype);
    actual.is_nan() && value.is_nan() || (actual - value).abs() <= relative * value.abs() + arithmetic * size + least
}

fn random(n: usize, rng: &mut Lcg) -> Vec<f64> {
    (0..n).map(|_| f64::from((rng.unit() + 1.0) as f32)).collect()
}

/// A place for a gradient: over the logits, or apart with an odd stride and offset.
struct Place {
    address: u64,
    stride: usize,
}

fn place(program: &mut Program, case: &Case, logits: u64, in_place: bool, turn: usize) -> Place {
    if in_place {
        return Place { address: logits, stride: case.row_stride };
    }
    let (stride, size) = (case.classes + turn % 3, case.dtype.bytes());
    let bytes = ((case.rows - 1) * stride + case.classes) * size;
    let address = program.buffer(Kind::Output, turn % 5 * size, vec![0xa5; bytes]);
    Place { address, stride }
}

/// Every row of the gradient at `place` passes `row_check`, and nothing between the rows was written.
fn rows_of(case: &Case, bytes: &[u8], place: &Place, before: &[u8], mut row_check: impl FnMut(usize, Vec<f64>)) {
    let size = case.dtype.bytes();
    for i in 0..case.rows {
        let start = i * place.stride * size;
        let end = start + case.classes * size;
        row_check(i, elements(&bytes[start..end], case.dtype));
        let next = if i + 1 < case.rows { (i + 1) * place.stride * size } else { end };
        assert_eq!(bytes[end..next], before[end..next], "written behind row {i} of {case:?}");
    }
}

/// The gradient over class indices, in and out of place, with everything that can be had.
pub(crate) fn backward(machine: &mut dyn Machine, shapes: &'static [Shape]) {
    for (turn, (dtype, shape)) in all(shapes).enumerate() {
        let mut rng = Lcg::new(turn as u64);
        let mut case = case_of(dtype, shape, plain_or_far(rng.below(10) as usize), 21);
        let size = dtype.bytes();
        for i in 0..case.rows {
            if case.targets[i] == case.ignore_index {
                // Left out: whatever it holds.
                let start = case.offset_bytes + i * case.row_stride * size;
                case.bytes[start..start + case.classes * size].fill(0xff);
            }
        }
        // A target that names no class, in a shape that has rows to spare.
        let bad = (case.rows > 8).then_some(5);
        if let Some(row) = bad {
            case.targets[row] = case.classes as i64 + 1;
        }
        let (in_place, weighted, shared) = (turn % 4 == 3, turn % 3 == 1, turn % 5 == 2);
        let label_smoothing = [0.0, 0.1, 0.0, 0.9, 1.0][turn % 5];
        let (g, g_lse) = (random(case.rows, &mut rng), random(case.rows, &mut rng));
        let weight = random(case.classes, &mut rng);
        let (max, log_sum): (Vec<f64>, Vec<f64>) = (0..case.rows).map(|i| softmax(&row(&case.view(), i))).unzip();

        let mut program = Program::default();
        let kind = if in_place { Kind::Output } else { Kind::Input };
        let (logits, targets) = load(&mut program, &case, kind);
        let place = place(&mut program, &case, logits, in_place, turn);
        let batch = Gradient {
            logits,
            targets,
            max: reals(&mut program, dtype, &max),
            log_sum: reals(&mut program, dtype, &log_sum),
            upstream: reals(&mut program, dtype, &g),
            upstream_stride: i32::from(!shared),
            upstream_lse: if turn % 2 == 0 { reals(&mut program, dtype, &g_lse) } else { 0 },
            upstream_lse_stride: i32::from(shared),
            weight: if weighted { reals(&mut program, dtype, &weight) } else { 0 },
            weight_sum: if weighted { reals(&mut program, dtype, &[weight.iter().sum()]) } else { 0 },
            label_smoothing,
            gradient: place.address,
            rows: case.rows,
            classes: case.classes,
            row_stride: case.row_stride as i64,
            gradient_stride: place.stride as i64,
            ignore_index: case.ignore_index,
            ..Gradient::default()
        };
        program.call(launch::backward(dtype, &batch, shape.4));
        let seed = machine.seeds()[turn % machine.seeds().len()];
        let memory = machine.run(&program, seed).unwrap_or_else(|e| panic!("{e}: {case:?}"));
        let before = if in_place {
            case.bytes[case.offset_bytes..].to_vec()
        } else {
            vec![0xa5; memory.bytes(place.address).len()]
        };
        let target = Target { weight: weighted.then_some(&weight[..]), label_smoothing };
        rows_of(&case, memory.bytes(place.address), &place, &before, |i, actual| {
            if Some(i) == bad {
                assert!(actual.iter().all(|a| a.is_nan()), "row {i} has a bad target");
            } else if case.targets[i] == case.ignore_index {
                assert!(actual.iter().all(|a| *a == 0.0), "row {i} is left out: {case:?}");
            } else {
                let g_lse = if turn % 2 == 0 { g_lse[if shared { i } else { 0 }] } else { 0.0 };
                let g = g[if shared { 0 } else { i }];
                let expected = target.gradient(&row(&case.view(), i), case.targets[i] as usize, g, g_lse);
                for (j, (&a, e)) in actual.iter().zip(expected).enumerate() {
                    assert!(
                        close(a, e, dtype),
                        "gradient {a:e} of row {i}, class {j}, not {e:?}: {case:?}, turn {turn}"
                    );
                }
            }
        });
    }
}

/// Forward and backward against probabilities.
pub(crate) fn probabilities(machine: &mut dyn Machine, shapes: &'static [Shape]) {
    for (turn, (dtype, shape)) in all(shapes).enumerate() {
        let mut rng = Lcg::new(turn as u64);
        let case = case_of(dtype, shape, plain_or_far(rng.below(10) as usize), 31);
        let (rows, classes, double) = (case.rows, case.classes, dtype == Dtype::F64);
        let (weighted, label_smoothing) = (turn % 3 == 1, [0.0, 0.1, 1.0][turn % 3]);
        let weight = random(classes, &mut rng);
        // A few classes share the mass; the others have none.
        let stride = classes + turn % 2;
        let mut bytes = Vec::new();
        for i in 0..(rows - 1) * stride + classes {
            let value = if rng.below(4) == 0 || i % stride == 0 { f64::from(rng.below(64)) / 128.0 } else { 0.0 };
            push(&mut bytes, dtype, value);
        }
        let targets = Rows::new(&bytes, dtype, rows, classes, stride).unwrap();
        let g = random(rows, &mut rng);
        let target = Target { weight: weighted.then_some(&weight[..]), label_smoothing };
        let expected: Vec<[f64; 6]> =
            (0..rows).map(|i| target.probabilities(&row(&case.view(), i), &row(&targets, i))).collect();

        let mut program = Program::default();
        let (logits, _) = load(&mut program, &case, Kind::Output); // an output, for the gradient in place
        let forward_logits = program.buffer(Kind::Input, case.offset_bytes, case.bytes[case.offset_bytes..].to_vec());
        let lent = program.lend(rows, classes, shape.4);
        let mut out = || program.output(rows * real(dtype));
        let columns = [out(), out(), out(), out(), out(), out()];
        let forward = Probabilities {
            logits: forward_logits,
            probabilities: program.buffer(Kind::Input, turn % 3 * dtype.bytes(), bytes.clone()),
            rows,
            classes,
            row_stride: case.row_stride as i64,
            probability_stride: stride as i64,
            loss: columns[0],
            max: columns[1],
            log_sum: columns[2],
            grad_norm: columns[3],
            entropy: columns[4],
            mass: columns[5],
            weight: if weighted { reals(&mut program, dtype, &weight) } else { 0 },
            label_smoothing,
            home: Home { count: program.output(4 * rows), b0: B0, ..Home::default() },
        };
        program.call(launch::probabilities(dtype, &forward, &lent));
        let place = place(&mut program, &case, logits, turn % 2 == 0, turn);
        let backward = ProbabilityGradient {
            logits,
            probabilities: forward.probabilities,
            max: forward.max,
            log_sum: forward.log_sum,
            mass: forward.mass,
            upstream: reals(&mut program, dtype, &g),
            upstream_stride: 1,
            weight: forward.weight,
            label_smoothing,
            gradient: place.address,
            rows,
            classes,
            row_stride: case.row_stride as i64,
            probability_stride: stride as i64,
            gradient_stride: place.stride as i64,
        };
        program.call(launch::backward_probabilities(dtype, &backward, shape.4));
        let seed = machine.seeds()[turn % machine.seeds().len()];
        let memory = machine.run(&program, seed).unwrap_or_else(|e| panic!("{e}: {case:?}"));
        for (column, name) in ["loss", "max", "log_sum", "grad_norm", "entropy", "mass"].iter().enumerate() {
            let actual = memory.reals(columns[column], rows, double);
            for i in 0..rows {
                let [loss, _, log_sum, _, _, mass] = expected[i].map(|v| if v.is_nan() { 0.0 } else { v.abs() });
                // A difference of squares loses half of the digits.
                let scale = if *name == "grad_norm" { 300.0 } else { 1.0 + log_sum * (1.0 + mass) + loss };
                let tolerance = if double { 1e-10 } else { 1e-5 } * scale;
                let e = expected[i][column];
                let same = actual[i] == e || actual[i].is_nan() && e.is_nan() || (actual[i] - e).abs() <= tolerance;
                assert!(same, "{name} {} of row {i}, not {e}: {case:?}", actual[i]);
            }
        }
        let keys: Vec<f32> = memory.reals(columns[0], rows, double).iter().map(|&v| v as f32).collect();
        assert_eq!(memory.column::<i32>(forward.home.count, rows), rank::naive::counts(&keys));
        let before = if place.address == logits {
            case.bytes[case.offset_bytes..].to_vec()
        } else {
            vec![0xa5; memory.bytes(place.address).len()]
        };
        rows_of(&case, memory.bytes(place.address), &place, &before, |i, actual| {
            let expected = target.probability_gradient(&row(&case.view(), i), &row(&targets, i), g[i]);
            for (j, (&a, e)) in actual.iter().zip(expected).enumerate() {
                assert!(close(a, e, dtype), "gradient {a:e} of row {i}, class {j}, not {e:?}: {case:?}, turn {turn}");
            }
        });
    }
}

/// Blocks that start in their natural order take the rows from the last to the first: an upstream gradient that becomes
/// 0 halfway leaves the first rows without one.
pub(crate) fn the_last_rows_come_first(machine: &mut dyn Machine) {
    let (rows, classes, dtype) = (8, 5000, Dtype::F32);
    let mut case = case_of(dtype, (rows, classes, 0, 0, 1), Flavour::Plain, 3);
    (case.targets, case.ignore_index) = ((0..rows as i64).collect(), -100);
    let mut program = Program::default();
    let (logits, targets) = load(&mut program, &case, Kind::Input);
    let zeros = program.input(&[0f32; 8]);
    let ones = program.buffer(Kind::State, 0, bytemuck::cast_slice(&[1f32; 2]).to_vec());
    let gradient = program.output(rows * classes * 4);
    let (row_stride, gradient_stride) = (case.row_stride as i64, classes as i64);
    let over_classes = Gradient {
        logits,
        targets,
        max: zeros,
        log_sum: zeros,
        upstream: ones,
        gradient,
        rows,
        classes,
        row_stride,
        gradient_stride,
        ignore_index: -100,
        ..Gradient::default()
    };
    let over_probabilities = ProbabilityGradient {
        logits,
        probabilities: logits,
        max: zeros,
        log_sum: zeros,
        mass: zeros,
        upstream: ones,
        gradient,
        rows,
        classes,
        row_stride,
        probability_stride: row_stride,
        gradient_stride,
        ..ProbabilityGradient::default()
    };
    let steps =
        [launch::backward(dtype, &over_classes, 1), launch::backward_probabilities(dtype, &over_probabilities, 1)];
    for step in steps {
        let step = step.unwrap();
        assert_eq!((step.launch.grid, step.launch.block), (rows as u32, (256, 1)));
        let mut program = program.clone();
        program.meddle = Some(Meddle { at: 4 * 256, to: ones, with: [0; 8] });
        program.call([step]);
        let memory = machine.run(&program, 0).unwrap();
        let written = elements(memory.bytes(gradient), dtype);
        let has_one: Vec<bool> = written.chunks(classes).map(|row| row.iter().any(|&value| value != 0.0)).collect();
        assert_eq!(has_one, [false, false, false, false, true, true, true, true]);
    }
}
