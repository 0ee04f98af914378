//! What must hold of scores and ranks, whatever runs the kernels.

use lossfeed_kernels::launch::{self, Gradient, Home, Reduction, Score};
use lossfeed_kernels::{AnyScores, Dtype, NOT_SCORED, Scores, rank, reference};

use crate::backward_reference::{Target, elements, row};
use crate::cases::{Case, Flavour, Lcg, case, plain_or_far, push};
use crate::compare::{Answer, same};
use crate::program::{Kind, Machine, Memory, Program};
use crate::shapes::{Shape, all};

pub(crate) const B0: f32 = 10.0;

/// A score call of `case`: the program and where its outputs are.
pub(crate) struct Scoring {
    pub(crate) program: Program,
    pub(crate) batch: Score,
    rows: usize,
    dtype: Dtype,
    tickets: u64,
}

/// Bytes of a score.
pub(crate) fn real(dtype: Dtype) -> usize {
    if dtype == Dtype::F64 { 8 } else { 4 }
}

/// Reals in the precision of `dtype`'s scores.
pub(crate) fn reals(program: &mut Program, dtype: Dtype, values: &[f64]) -> u64 {
    if dtype == Dtype::F64 {
        program.input(values)
    } else {
        program.input(&values.iter().map(|&v| v as f32).collect::<Vec<_>>())
    }
}

/// Logits and targets of `case`, as buffers. The logits are `kind`: outputs if the gradient will lie over them.
pub(crate) fn load(program: &mut Program, case: &Case, kind: Kind) -> (u64, u64) {
    let logits = program.buffer(kind, case.offset_bytes, case.bytes[case.offset_bytes..].to_vec());
    (logits, program.input(&case.targets))
}

impl Scoring {
    /// `launches` score calls, with the same memory lent to each.
    pub(crate) fn new(case: &Case, multiprocessors: u32, launches: usize) -> Scoring {
        let mut program = Program::default();
        let (logits, targets) = load(&mut program, case, Kind::Input);
        let (rows, real) = (case.rows, real(case.dtype));
        let lent = program.lend(rows, case.classes, multiprocessors);
        let batch = Score {
            logits,
            targets,
            rows,
            classes: case.classes,
            row_stride: case.row_stride as i64,
            ignore_index: case.ignore_index,
            loss: program.output(rows * real),
            max: program.output(rows * real),
            log_sum: program.output(rows * real),
            grad_norm: program.output(rows * real),
            entropy: program.output(rows * real),
            correct: program.output(rows),
            error: program.output(4),
            home: Home {
                count: program.output(4 * rows),
                rank_score: program.output(4 * rows),
                b0: B0,
                ..Home::default()
            },
            ..Score::default()
        };
        for _ in 0..launches {
            program.call(launch::score(case.dtype, &batch, &lent));
        }
        Scoring { program, batch, rows, dtype: case.dtype, tickets: lent.tickets }
    }

    pub(crate) fn answer(&self, memory: &Memory) -> Answer {
        let (b, n) = (&self.batch, self.rows);
        fn scores<R: bytemuck::AnyBitPattern>(b: &Score, n: usize, memory: &Memory) -> Scores<R> {
            Scores {
                loss: memory.column(b.loss, n),
                max: memory.column(b.max, n),
                log_sum: memory.column(b.log_sum, n),
                grad_norm: memory.column(b.grad_norm, n),
                entropy: memory.column(b.entropy, n),
                correct: memory.column(b.correct, n),
                count: memory.column(b.home.count, n),
                rank_score: memory.column(b.home.rank_score, n),
            }
        }
        let scores = if self.dtype == Dtype::F64 {
            AnyScores::F64(scores(b, n, memory))
        } else {
            AnyScores::F32(scores(b, n, memory))
        };
        let tickets_back = memory.bytes(self.tickets).iter().all(|&byte| byte == 0);
        Answer { scores, error: memory.column(b.error, 1)[0], tickets_back }
    }
}

/// Two calls under every schedule give the reference's scores and leave the tickets ready.
pub(crate) fn check(machine: &mut dyn Machine, case: &Case, multiprocessors: u32) -> Result<(), String> {
    let expected = reference::score(&case.view(), &case.targets, case.ignore_index, B0).unwrap();
    let scoring = Scoring::new(case, multiprocessors, 2);
    for &seed in machine.seeds() {
        let context = |e: String| format!("{e} in {case:?}, {multiprocessors} multiprocessors, schedule {seed:#x}");
        let memory = machine.run(&scoring.program, seed).map_err(context)?;
        scoring.answer(&memory).check(&expected, B0).map_err(context)?;
    }
    Ok(())
}

pub(crate) fn case_of(dtype: Dtype, shape: Shape, flavour: Flavour, seed: u64) -> Case {
    let (rows, classes, gap, front, _) = shape;
    case(dtype, rows, classes, classes + gap, front * dtype.bytes(), flavour, seed)
}

/// Every shape of the list, with flavours taking turns (a shape has `flavours` of them).
pub(crate) fn every_shape(machine: &mut dyn Machine, shapes: &'static [Shape], flavours: usize) {
    let kinds =
        [Flavour::Plain, Flavour::Nasty, Flavour::Confident, Flavour::Far(1e6), Flavour::Tied, Flavour::Far(3e38)];
    for (turn, (dtype, shape)) in all(shapes).enumerate() {
        for k in 0..flavours {
            let case = case_of(dtype, shape, kinds[(turn + k) % kinds.len()], 11);
            check(machine, &case, shape.4).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

/// The same bits from every schedule and from every run.
pub(crate) fn every_schedule_gives_the_same_bits(machine: &mut dyn Machine, shapes: &[Shape]) {
    for &shape in shapes {
        let scoring = Scoring::new(&case_of(Dtype::F32, shape, Flavour::Plain, 3), shape.4, 1);
        let run = |m: &mut dyn Machine, seed| -> Vec<u8> {
            let memory = m.run(&scoring.program, seed).unwrap();
            let b = &scoring.batch;
            [b.loss, b.max, b.log_sum, b.grad_norm, b.entropy].iter().flat_map(|&a| memory.bytes(a).to_vec()).collect()
        };
        let first = run(machine, 0);
        for &seed in machine.seeds() {
            assert_eq!(run(machine, seed), first, "{shape:?}, schedule {seed:#x}");
        }
    }
}

/// Where nobody asks for gradient norms and entropies, the kernel of losses alone writes the same bits into every other
/// column.
pub(crate) fn losses_alone(machine: &mut dyn Machine, shapes: &'static [Shape]) {
    let kinds =
        [Flavour::Plain, Flavour::Nasty, Flavour::Confident, Flavour::Far(1e6), Flavour::Tied, Flavour::Far(3e38)];
    for (turn, (dtype, shape)) in all(shapes).enumerate() {
        let case = case_of(dtype, shape, kinds[turn % kinds.len()], 13);
        let whole = Scoring::new(&case, shape.4, 0);
        let run = |machine: &mut dyn Machine, alone: bool, seed| {
            let (mut program, mut batch) = (whole.program.clone(), whole.batch);
            if alone {
                (batch.grad_norm, batch.entropy) = (0, 0);
            }
            batch.term = program.output(case.rows * real(dtype));
            let divisor = program.output(8);
            batch.reduction = Reduction { out: program.output(8), divisor, mean: true, ..Reduction::default() };
            let lent = program.lend(case.rows, case.classes, shape.4);
            let steps = launch::score(dtype, &batch, &lent);
            let kernel = steps[0].launch.kernel;
            program.call(steps);
            let memory = machine.run(&program, seed).unwrap_or_else(|e| panic!("{e}: {case:?}"));
            let home = batch.home;
            let columns = [
                batch.loss,
                batch.max,
                batch.log_sum,
                batch.correct,
                batch.term,
                batch.error,
                batch.reduction.out,
                divisor,
                home.count,
                home.rank_score,
            ];
            (kernel, columns.map(|at| memory.bytes(at).to_vec()))
        };
        let (full, expected) = run(machine, false, 0);
        assert!(full.starts_with("lossfeed_score_"), "{full}");
        for &seed in machine.seeds() {
            let (kernel, columns) = run(machine, true, seed);
            let family = if dtype == Dtype::F64 { "lossfeed_score_" } else { "lossfeed_loss_" };
            assert!(kernel.starts_with(family), "{kernel}");
            assert!(columns == expected, "{kernel} differs from {full}, schedule {seed:#x}: {case:?}");
        }
    }
}

/// Class weights and label smoothing: `term` and `share` are the definition's, and the scores stay those of the plain
/// loss.
pub(crate) fn terms(machine: &mut dyn Machine, shapes: &'static [Shape]) {
    for (turn, (dtype, shape)) in all(shapes).enumerate() {
        let mut rng = Lcg::new(turn as u64);
        // Sums of 30,000 rounded terms that are all alike round one way: there the plain reference is the one that is
        // off.
        let flavour = if shape.1 > 10_000 { Flavour::Plain } else { plain_or_far(rng.below(10) as usize) };
        let case = case_of(dtype, shape, flavour, 5);
        let weighted = turn % 3 != 0;
        let label_smoothing = [0.1, 0.0, 1.0, 0.3][turn % 4];
        let weight: Vec<f64> = (0..case.classes).map(|_| f64::from((rng.unit() + 1.0) as f32)).collect();
        let mut scoring = Scoring::new(&case, shape.4, 0);
        let (program, batch) = (&mut scoring.program, &mut scoring.batch);
        if weighted {
            batch.weight = reals(program, dtype, &weight);
            batch.weight_sum = reals(program, dtype, &[weight.iter().sum()]);
        }
        batch.label_smoothing = label_smoothing;
        batch.term = program.output(case.rows * real(dtype));
        batch.share = program.output(case.rows * real(dtype));
        let lent = program.lend(case.rows, case.classes, shape.4);
        program.call(launch::score(dtype, batch, &lent));
        let target = Target { weight: weighted.then_some(&weight[..]), label_smoothing };
        let seed = machine.seeds()[turn % machine.seeds().len()];
        let memory = machine.run(&scoring.program, seed).unwrap();
        let plain = reference::score(&case.view(), &case.targets, case.ignore_index, B0).unwrap();
        same(&plain, &scoring.answer(&memory).scores, B0).unwrap_or_else(|e| panic!("{e} in {case:?}"));
        let double = dtype == Dtype::F64;
        let terms = memory.reals(scoring.batch.term, case.rows, double);
        let shares = memory.reals(scoring.batch.share, case.rows, double);
        for (i, &y) in case.targets.iter().enumerate() {
            let (term, share) = if y == case.ignore_index {
                (0.0, 0.0)
            } else {
                (target.term(&row(&case.view(), i), y as usize), if weighted { weight[y as usize] } else { 1.0 })
            };
            let tolerance = if double { 1e-12 } else { 2e-5 } * (term.abs() + 10.0);
            // All of the loss smoothed away, 0 times a masked target's infinity is NaN, as in torch.
            let nothing_left = label_smoothing == 1.0 && term == f64::INFINITY;
            let same = terms[i] == term || terms[i].is_nan() && (term.is_nan() || nothing_left);
            let same = same || (terms[i] - term).abs() <= tolerance;
            assert!(same, "term {} of row {i}, not {term}: {case:?}", terms[i]);
            assert!((shares[i] - share).abs() <= 1e-6 * share, "share {} of row {i}, not {share}: {case:?}", shares[i]);
        }
    }
}

/// Where powers are flushed to 0 or a fused exponent would be off, losses keep their digits: far below 2^-126, and on
/// both sides of 2^22.
pub(crate) fn edges_of_the_exponent(machine: &mut dyn Machine) {
    // A target ahead of one other class by so much: the loss is exp(-ahead), down to subnormal numbers.
    let ahead = [60.0f32, 80.0, 86.0, 87.0, 87.5, 88.0, 90.0, 95.0, 100.0, 103.0];
    for classes in [2, 10, 300, 5000] {
        let mut bytes = Vec::new();
        for (row, by) in ahead.iter().enumerate() {
            let value = |class| {
                if class == 1 {
                    7.0
                } else if class == 0 {
                    7.0 - by
                } else {
                    f32::NEG_INFINITY
                }
            };
            (0..classes).for_each(|class| push(&mut bytes, Dtype::F32, f64::from(value((class + row) % classes))));
        }
        let mut case = case(Dtype::F32, ahead.len(), classes, classes, 0, Flavour::Plain, 1);
        (case.bytes, case.ignore_index) = (bytes, -100);
        case.targets = (0..ahead.len()).map(|row| (classes + 1 - row % classes) as i64 % classes as i64).collect();
        let scoring = Scoring::new(&case, 1, 1);
        let memory = machine.run(&scoring.program, 0).unwrap();
        for (&by, loss) in ahead.iter().zip(memory.reals(scoring.batch.loss, ahead.len(), false)) {
            let expected = (-f64::from(by)).exp();
            // An exponent near 126 is rounded (2.6e-6 of the loss), as log2(e) was (1.2e-6); ex2 may be two places off
            // (2.4e-7 each), where the loss is subnormal of its places, and those of the roundings before.
            let close = (loss - expected).abs() <= 5e-6 * expected + 5.7e-45;
            assert!(close, "{loss:e} is not {expected:e}, {by} ahead of {classes} classes");
        }
    }
    for offset in [4.0e6, 4_194_290.0, 4_194_304.0, 4.3e6, -4_194_304.0, 1e9, -1e12, 1e30] {
        for (rows, classes) in [(9, 10), (5, 300), (3, 5000)] {
            for dtype in [Dtype::BF16, Dtype::F32] {
                let case = case(dtype, rows, classes, classes, 0, Flavour::Far(offset), 3);
                check(machine, &case, 1).unwrap_or_else(|e| panic!("{e}, offset {offset}"));
            }
        }
    }
}

/// Losses with ties, both zeros, and values that take no part.
pub(crate) fn losses(n: usize, rng: &mut Lcg) -> Vec<f32> {
    let special = [f32::NAN, 0.0, -0.0, 1.0, -1.0, 0.5, f32::INFINITY, f32::NEG_INFINITY, -0.5];
    let mut draw = || match rng.below(3) {
        0 => special[rng.below(special.len() as u32) as usize],
        1 => rng.below(20) as f32 * 0.25,
        _ => rng.unit() as f32,
    };
    (0..n).map(|_| draw()).collect()
}

/// Counts of `sizes` losses are the definition's, bit for bit, and so are the scores.
pub(crate) fn ranks(machine: &mut dyn Machine, sizes: &[usize]) {
    let mut rng = Lcg::new(5);
    for &n in sizes {
        let losses = losses(n, &mut rng);
        let mut program = Program::default();
        let keys = program.input(&losses);
        let lent = program.lend(n, 1, 132);
        let home = Home { count: program.output(4 * n), rank_score: program.output(4 * n), b0: B0, ..Home::default() };
        for _ in 0..2 {
            program.call(launch::ranks(n, keys, 0, 0, &home, &lent));
        }
        // The definition is quadratic; `rank::counts` is held to it in rank.rs.
        let expected = if n <= 5000 { rank::naive::counts(&losses) } else { rank::counts(&losses) };
        let scores: Vec<u32> = rank::scores(&expected, B0).iter().map(|s| s.to_bits()).collect();
        for &seed in machine.seeds() {
            let memory = machine.run(&program, seed).unwrap();
            assert_eq!(memory.column::<i32>(home.count, n), expected, "{n} losses");
            let actual: Vec<u32> = memory.column(home.rank_score, n);
            let differs = actual.iter().zip(&scores).position(|(a, e)| a != e && !f32::from_bits(*e).is_nan());
            assert_eq!(differs, None, "{n} losses");
            assert!(memory.bytes(lent.tickets).iter().all(|&byte| byte == 0));
        }
    }
}

/// A target that names no class makes its own row NaN, is named, and touches no other row.
pub(crate) fn bad_targets(machine: &mut dyn Machine) {
    for (rows, classes) in [(40, 10), (40, 300), (5, 5000), (600, 4)] {
        let mut case = case(Dtype::F32, rows, classes, classes, 0, Flavour::Plain, 2);
        case.ignore_index = -100;
        case.targets.iter_mut().for_each(|t| *t = t.rem_euclid(classes as i64));
        let mut sound = case.clone();
        for (row, target) in [(2, classes as i64), (3, -1), (rows - 1, i64::MAX)] {
            case.targets[row] = target;
            sound.targets[row] = sound.ignore_index;
        }
        let expected = reference::score(&sound.view(), &sound.targets, -100, B0).unwrap();
        let scoring = Scoring::new(&case, 132, 1);
        for &seed in machine.seeds() {
            let memory = machine.run(&scoring.program, seed).unwrap();
            let answer = scoring.answer(&memory);
            assert_eq!(answer.error, 2, "the first bad row is named");
            let AnyScores::F32(mut scores) = answer.scores else { panic!("f32 logits are scored in f32") };
            for row in [2, 3, rows - 1] {
                assert!(scores.loss[row].is_nan() && scores.grad_norm[row].is_nan());
                assert_eq!((scores.correct[row], scores.count[row]), (NOT_SCORED, -1));
                scores.loss[row] = 0.0; // as if ignored, for the comparison
            }
            same(&expected, &AnyScores::F32(scores), B0).unwrap();
        }
    }
}

/// Rows further apart than 2^31 elements: the first, zeros, is left out; the second is scored.
pub(crate) fn rows_far_apart(machine: &mut dyn Machine) {
    const APART: i64 = (1 << 31) + 8;
    for classes in [10, 5000] {
        let one = case(Dtype::F16, 1, classes, classes, 0, Flavour::Plain, 6);
        let expected = reference::score(&one.view(), &[3], -100, B0).unwrap().into_f32();
        let mut two = case(Dtype::F16, 2, classes, classes, 0, Flavour::Plain, 6);
        (two.bytes, two.targets, two.ignore_index) = (one.bytes.clone(), vec![-100, 3], -100);
        let mut scoring = Scoring::new(&two, 132, 0);
        scoring.batch.logits = scoring.program.input_behind(2 * APART as usize, one.bytes.clone()) - 2 * APART as u64;
        scoring.batch.row_stride = APART;
        let lent = scoring.program.lend(2, classes, 132);
        scoring.program.call(launch::score(Dtype::F16, &scoring.batch, &lent));
        let gradient = scoring.program.output(2 * 2 * classes);
        scoring.program.call(launch::backward(
            Dtype::F16,
            &Gradient {
                logits: scoring.batch.logits,
                targets: scoring.batch.targets,
                max: scoring.batch.max,
                log_sum: scoring.batch.log_sum,
                upstream: scoring.batch.max,
                upstream_stride: 1,
                gradient,
                rows: 2,
                classes,
                row_stride: APART,
                gradient_stride: classes as i64,
                ignore_index: -100,
                ..Gradient::default()
            },
            132,
        ));
        let memory = machine.run(&scoring.program, 0).unwrap();
        let AnyScores::F32(scores) = scoring.answer(&memory).scores else { panic!("f16 logits are scored in f32") };
        let close = |a: f32, b: f32| assert!((a - b).abs() <= 3e-5 * b.abs(), "{a} is not {b}");
        close(scores.loss[1], expected.loss[0]);
        close(scores.grad_norm[1], expected.grad_norm[0]);
        let slopes = elements(&memory.bytes(gradient)[..4 * classes], Dtype::F16);
        assert!(slopes[..classes].iter().all(|s| *s == 0.0) && slopes[classes..].iter().all(|s| s.is_finite()));
        let sum: f64 = slopes[classes..].iter().map(|s| s.abs()).sum();
        assert!(sum > 0.0, "the row was read");
    }
}
