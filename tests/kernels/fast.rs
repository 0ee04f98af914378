//! The CPU device's path against the reference.

use lossfeed_kernels::{Dtype, fast, reference};
use proptest::prelude::*;

use crate::cases::{Flavour, any_case, case};
use crate::compare::same;

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn fast_equals_reference_on_any_batch(case in any_case(24, prop_oneof![Just(1usize), 1..48usize, 500..530usize], false)) {
        let b0 = 10.0;
        let expected = reference::score(&case.view(), &case.targets, case.ignore_index, b0).unwrap();
        let actual = fast::score(&case.view(), &case.targets, case.ignore_index, b0).unwrap();
        if let Err(difference) = same(&expected, &actual, b0) {
            return Err(TestCaseError::fail(format!("{difference} in {case:?}")));
        }
    }
}

#[test]
fn fast_equals_reference_where_rows_span_blocks_and_batches_span_tasks() {
    for dtype in Dtype::ALL {
        for (rows, classes) in [(3, 50_257), (3000, 11), (70, 1000)] {
            for flavour in [Flavour::Plain, Flavour::Confident, Flavour::Huge, Flavour::Nasty] {
                let case = case(dtype, rows, classes, classes + 1, 1, flavour, 7);
                let expected = reference::score(&case.view(), &case.targets, case.ignore_index, 10.0).unwrap();
                let actual = fast::score(&case.view(), &case.targets, case.ignore_index, 10.0).unwrap();
                same(&expected, &actual, 10.0).unwrap_or_else(|e| panic!("{e} in {case:?} {flavour:?}"));
            }
        }
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let case = case(Dtype::BF16, 700, 333, 333, 0, Flavour::Plain, 3);
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let scores =
            pool.install(|| fast::score(&case.view(), &case.targets, case.ignore_index, 10.0)).unwrap().into_f32();
        let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        (
            bits(&scores.loss),
            bits(&scores.max),
            bits(&scores.log_sum),
            bits(&scores.grad_norm),
            bits(&scores.entropy),
            scores.count,
        )
    };
    assert_eq!(on(1), on(5));
}

#[test]
fn an_empty_batch_has_no_scores_and_both_paths_refuse_alike() {
    let empty = case(Dtype::F32, 0, 10, 10, 0, Flavour::Plain, 0);
    assert!(fast::score(&empty.view(), &[], -100, 10.0).unwrap().is_empty());
    let case = case(Dtype::F16, 4, 10, 10, 1, Flavour::Plain, 0);
    for targets in [&[0i64, 1, 10, 99][..], &[0, 1], &[0, -1, 2, 3]] {
        let expected = reference::score(&case.view(), targets, -100, 10.0).unwrap_err();
        assert_eq!(fast::score(&case.view(), targets, -100, 10.0).unwrap_err(), expected);
    }
}
