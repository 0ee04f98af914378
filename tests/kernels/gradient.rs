//! The CPU's terms and gradients against the definition in double precision, and the definition against finite
//! differences.

use lossfeed_kernels::{
    AnyScores, AnyTerms, Dtype, Objective, ObjectiveError, Reals, Rows, ScoreError, Softmax, Upstream, fast, reference,
};
use proptest::prelude::*;

use crate::cases::{Case, Flavour, Lcg, any_case, case};

/// Numbers in the precision of a dtype's arithmetic.
#[derive(Clone)]
enum Numbers {
    F32(Vec<f32>),
    F64(Vec<f64>),
}

impl Numbers {
    fn new(dtype: Dtype, values: Vec<f64>) -> Numbers {
        match dtype {
            Dtype::F64 => Numbers::F64(values),
            _ => Numbers::F32(values.into_iter().map(|v| v as f32).collect()),
        }
    }
    fn reals(&self) -> Reals<'_> {
        match self {
            Numbers::F32(values) => Reals::F32(values),
            Numbers::F64(values) => Reals::F64(values),
        }
    }
    fn wide(&self) -> Vec<f64> {
        match self {
            Numbers::F32(values) => values.iter().map(|&v| f64::from(v)).collect(),
            Numbers::F64(values) => values.clone(),
        }
    }
}

/// A case with everything a gradient depends on.
struct Problem {
    case: Case,
    weight: Option<Numbers>,
    smoothing: f64,
    term_up: Numbers,
    lse_up: Option<Numbers>,
}

impl Problem {
    fn new(case: Case, seed: u64) -> Problem {
        let mut rng = Lcg::new(seed);
        let (rows, classes, dtype) = (case.rows, case.classes, case.dtype);
        let mut draw = |n: usize| Numbers::new(dtype, (0..n).map(|_| 1.5 * rng.unit()).collect());
        let (single, per_row, weights) = (draw(1), draw(rows), draw(classes));
        Problem {
            weight: (seed & 1 == 1).then_some(weights),
            smoothing: [0.0, 0.0, 0.1, 1.0][(seed >> 1) as usize % 4],
            lse_up: [None, Some(single.clone()), Some(per_row.clone())][(seed >> 3) as usize % 3].clone(),
            term_up: if seed >> 5 & 1 == 1 { single } else { per_row },
            case,
        }
    }
    fn objective(&self) -> Objective<'_> {
        Objective {
            ignore_index: self.case.ignore_index,
            class_weight: self.weight.as_ref().map(Numbers::reals),
            label_smoothing: self.smoothing,
        }
    }
    fn upstream(&self) -> Upstream<'_> {
        Upstream { term: self.term_up.reals(), lse: self.lse_up.as_ref().map(Numbers::reals) }
    }
    fn forward(&self) -> (AnyScores, Vec<f64>, Vec<f64>) {
        match fast::forward(&self.case.view(), &self.case.targets, &self.objective(), 10.0).unwrap() {
            (scores @ AnyScores::F32(_), AnyTerms::F32(t)) => {
                (scores, Numbers::F32(t.term).wide(), Numbers::F32(t.share).wide())
            }
            (scores @ AnyScores::F64(_), AnyTerms::F64(t)) => (scores, t.term, t.share),
            _ => panic!("scores and terms differ in precision"),
        }
    }
    fn backward(&self, scores: &AnyScores) -> Vec<u8> {
        let Case { dtype, rows, classes, targets, .. } = &self.case;
        let mut out = vec![0xa5; rows * classes * dtype.bytes()];
        let (objective, upstream, softmax) = (self.objective(), self.upstream(), scores.softmax());
        fast::backward(&self.case.view(), &softmax, targets, &objective, &upstream, &mut out).unwrap();
        let view = self.case.view();
        let mut place: Vec<u8> = (0..*rows).flat_map(|row| view.row(row).to_vec()).collect();
        fast::backward_in_place(&mut place, *dtype, *rows, *classes, &softmax, targets, &objective, &upstream).unwrap();
        assert!(same_but_for_nan(&out, &place, *dtype), "in place is the same");
        out
    }
    /// Terms, shares and gradient are those of the definition, to what the precision allows.
    fn check(&self) -> Result<(), String> {
        let Case { dtype, classes, targets, ignore_index, .. } = &self.case;
        let view = self.case.view();
        let (scores, term, share) = self.forward();
        let (terms, shares) = reference::terms(&view, targets, &self.objective());
        let slope = reference::gradient(&view, targets, &self.objective(), &self.upstream());
        let actual = widen(&self.backward(&scores), *dtype);
        let unit = if *dtype == Dtype::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
        // Rounding of the result: half a last place, or half the smallest subnormal.
        let (last, least) = match dtype {
            Dtype::F16 => (4.9e-4, 3.1e-8),
            Dtype::BF16 => (4.0e-3, 1e-38),
            _ => (unit, 1e-37),
        };
        // The largest factor of a row's gradient.
        let size =
            4.0 + self.weight.as_ref().map_or(1.0, |w| w.wide().iter().map(|w| w.abs()).sum::<f64>() / *classes as f64);
        let log_sum = match &scores {
            AnyScores::F32(s) => Numbers::F32(s.log_sum.clone()).wide(),
            AnyScores::F64(s) => s.log_sum.clone(),
        };
        for (row, log_sum) in log_sum.into_iter().enumerate() {
            if (share[row] - shares[row]).abs() > unit * shares[row].abs() {
                return Err(format!("share of row {row}: expected {}, got {}", shares[row], share[row]));
            }
            let logits = view.row(row);
            // Differences are what a term is made of: how far the logits are from 0 does not matter.
            let finite = || widen(logits, *dtype).into_iter().filter(|z| z.is_finite());
            let (top, low) = (finite().fold(f64::NEG_INFINITY, f64::max), finite().fold(f64::INFINITY, f64::min));
            let bound = 64.0 * unit * size * (top - low).max(1.0) * (1.0 + (*classes as f64).sqrt());
            if !close(terms[row], term[row], bound) {
                return Err(format!("term of row {row}: expected {:e}, got {:e}", terms[row], term[row]));
            }
            for class in 0..*classes {
                let (expected, found) = (slope[row * classes + class], actual[row * classes + class]);
                if targets[row] == *ignore_index && found.to_bits() != 0 {
                    return Err(format!("the gradient of an ignored row is {found}"));
                }
                // exp((z − max) − log_sum) knows the log-sum, which is ln(classes) at most, to a unit in its last
                // place.
                let bound = 8.0 * unit * size * (2.0 + log_sum) + last * expected.abs() + least;
                if log_sum.is_finite() && !close(expected, found, bound) {
                    return Err(format!(
                        "gradient at {row}, {class}: expected {expected:e}, got {found:e}, bound {bound:e}"
                    ));
                }
                if targets[row] != *ignore_index && log_sum.is_nan() && !found.is_nan() {
                    return Err(format!("row {row} has no softmax and the gradient {found:e}"));
                }
            }
        }
        Ok(())
    }
}

fn close(expected: f64, actual: f64, bound: f64) -> bool {
    if expected.is_finite() {
        (expected - actual).abs() <= bound
    } else {
        expected.is_nan() == actual.is_nan() && !actual.is_finite()
    }
}

fn widen(bytes: &[u8], dtype: Dtype) -> Vec<f64> {
    let half = |b: &[u8]| u16::from_ne_bytes(b.try_into().unwrap());
    let elements = bytes.chunks_exact(dtype.bytes());
    match dtype {
        Dtype::F16 => elements.map(|b| half::f16::from_bits(half(b)).to_f64()).collect(),
        Dtype::BF16 => elements.map(|b| half::bf16::from_bits(half(b)).to_f64()).collect(),
        Dtype::F32 => elements.map(|b| f64::from(f32::from_ne_bytes(b.try_into().unwrap()))).collect(),
        Dtype::F64 => elements.map(|b| f64::from_ne_bytes(b.try_into().unwrap())).collect(),
    }
}

fn same_but_for_nan(a: &[u8], b: &[u8], dtype: Dtype) -> bool {
    widen(a, dtype).iter().zip(widen(b, dtype)).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn terms_and_gradients_are_the_definitions_on_any_batch(
        case in any_case(12, prop_oneof![Just(1usize), 1..48usize, 500..530usize], false), seed in any::<u64>()
    ) {
        if case.ignore_index < 0 || (case.ignore_index as usize) < case.classes {
            Problem::new(case.clone(), seed).check().map_err(|e| TestCaseError::fail(format!("{e} in {case:?}, seed {seed}")))?;
        }
    }
}

#[test]
fn gradients_are_the_definitions_where_rows_span_blocks_and_batches_span_tasks() {
    for dtype in Dtype::ALL {
        for (rows, classes) in [(3, 50_257), (1700, 11), (40, 1000)] {
            for seed in [0, 0b100101, 0b001110] {
                let case = case(dtype, rows, classes, classes + 1, 1, Flavour::Plain, 7);
                Problem::new(case.clone(), seed).check().unwrap_or_else(|e| panic!("{e} in {case:?}"));
            }
        }
    }
}

#[test]
fn the_definition_of_the_gradient_is_the_slope_of_the_definition_of_the_term() {
    for seed in 0..64 {
        let problem = Problem::new(case(Dtype::F64, 3, 7, 7, 0, Flavour::Plain, seed), seed);
        let (objective, upstream) = (problem.objective(), problem.upstream());
        let Case { targets, ignore_index, .. } = &problem.case;
        let of = |n: &Numbers, row: usize| if n.wide().len() == 1 { n.wide()[0] } else { n.wide()[row] };
        let value = |logits: &[f64]| {
            let bytes: Vec<u8> = logits.iter().flat_map(|z| z.to_ne_bytes()).collect();
            let rows = Rows::new(&bytes, Dtype::F64, 3, 7, 7).unwrap();
            let (terms, _) = reference::terms(&rows, targets, &objective);
            (0..3)
                .map(|row| {
                    let lse = logits[row * 7..][..7].iter().map(|z| z.exp()).sum::<f64>().ln();
                    let lse_part = if targets[row] == *ignore_index {
                        0.0
                    } else {
                        problem.lse_up.as_ref().map_or(0.0, |n| of(n, row))
                    };
                    of(&problem.term_up, row) * terms[row] + lse_part * lse
                })
                .sum::<f64>()
        };
        let logits = widen(&problem.case.bytes, Dtype::F64);
        let slope = reference::gradient(&problem.case.view(), targets, &objective, &upstream);
        for at in 0..21 {
            let step = |by: f64| {
                let mut moved = logits.clone();
                moved[at] += by;
                value(&moved)
            };
            let numeric = (step(1e-5) - step(-1e-5)) / 2e-5;
            assert!((numeric - slope[at]).abs() < 1e-8, "seed {seed}, logit {at}: {numeric} and {}", slope[at]);
        }
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_gradients_bits() {
    let problem = Problem::new(case(Dtype::BF16, 700, 333, 333, 0, Flavour::Plain, 3), 0b000101);
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let (scores, term, _) = problem.forward();
            (problem.backward(&scores), term.into_iter().map(f64::to_bits).collect::<Vec<_>>())
        })
    };
    assert_eq!(on(1), on(5));
}

#[test]
fn what_does_not_fit_is_refused_with_its_numbers() {
    let case = case(Dtype::F32, 4, 10, 10, 0, Flavour::Plain, 0);
    let (view, targets) = (case.view(), [0i64, 1, 2, 3]);
    let plain = Objective::default();
    let one = Upstream { term: Reals::F32(&[1.0]), lse: None };
    let zeros = [0.0f32; 4];
    let softmax = Softmax { max: Reals::F32(&zeros), log_sum: Reals::F32(&zeros) };
    let mut out = vec![0u8; 160];
    let mut run =
        |softmax: Softmax<'_>, targets: &[i64], objective: &Objective<'_>, upstream: &Upstream<'_>, bytes: usize| {
            fast::backward(&view, &softmax, targets, objective, upstream, &mut out[..bytes]).unwrap_err().to_string()
        };
    let nine = [1.0f32; 9];
    let weighted = Objective { class_weight: Some(Reals::F32(&nine)), ..plain };
    assert_eq!(run(softmax, &targets, &weighted, &one, 160), "class weights: 9 numbers given, 10 needed");
    let smooth = Objective { label_smoothing: 1.5, ..plain };
    assert_eq!(run(softmax, &targets, &smooth, &one, 160), "label_smoothing is 1.5; it must lie in 0..=1");
    let short = Softmax { max: Reals::F32(&zeros[..3]), ..softmax };
    assert_eq!(run(short, &targets, &plain, &one, 160), "row maxima: 3 numbers given, 4 needed");
    let short = Softmax { log_sum: Reals::F32(&zeros[..3]), ..softmax };
    assert_eq!(run(short, &targets, &plain, &one, 160), "logarithms of the sums: 3 numbers given, 4 needed");
    let double = Upstream { term: Reals::F64(&[1.0]), lse: None };
    assert_eq!(run(softmax, &targets, &plain, &double, 160), "gradients of the terms are f64; these logits need f32");
    assert_eq!(run(softmax, &targets, &plain, &one, 156), "bytes of the gradient: 156 numbers given, 160 needed");
    assert!(run(softmax, &[0, 1, 2, 10], &plain, &one, 160).contains("target 10 of row 3 is outside 0..10"));
    let error = fast::forward(&view, &targets[..3], &plain, 10.0).unwrap_err();
    assert_eq!(error, ObjectiveError::Score(ScoreError::TargetCount { rows: 4, targets: 3 }));
    assert_eq!(out, vec![0u8; 160], "nothing was written");
}
