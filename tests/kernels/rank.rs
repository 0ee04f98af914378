//! In-batch ranks against their definition.

use lossfeed_kernels::rank;
use proptest::prelude::*;

fn any_loss() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => 0.0f32..8.0,
        4 => (0..6u8).prop_map(|v| f32::from(v) * 0.5),
        1 => Just(-0.0f32),
        1 => Just(f32::NAN),
        1 => Just(-f32::NAN),
        1 => Just(f32::INFINITY),
        1 => Just(f32::NEG_INFINITY),
        1 => any::<f32>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn sorted_counts_equal_the_definition(losses in prop::collection::vec(any_loss(), 0..200)) {
        prop_assert_eq!(rank::counts(&losses), rank::naive::counts(&losses));
    }

    #[test]
    fn counts_follow_their_losses_through_a_permutation(losses in prop::collection::vec(any_loss(), 1..100), by in 0..100usize) {
        let mut rotated = losses.clone();
        rotated.rotate_left(by % losses.len());
        let mut counts = rank::counts(&losses);
        counts.rotate_left(by % losses.len());
        prop_assert_eq!(rank::counts(&rotated), counts);
    }
}

#[test]
fn ties_share_a_count_and_zeros_are_equal() {
    let nan = f32::NAN;
    let losses = [0.5, 0.0, -0.0, nan, 0.5, f32::INFINITY, 2.0];
    assert_eq!(rank::counts(&losses), [2, 0, 0, -1, 2, -1, 4]);
}

#[test]
fn the_papers_two_batches_put_their_second_samples_on_top_with_equal_scores() {
    let first = rank::counts(&[0.3, 0.5, 0.4]);
    let second = rank::counts(&[0.6, 1.2, 0.8]);
    assert_eq!(first, [0, 2, 1]);
    assert_eq!(first, second);
    assert_eq!(rank::scores(&first, 10.0), rank::scores(&second, 10.0));
    assert_eq!(rank::scores(&[2], 10.0), [12f32.ln()]);
}

#[test]
fn no_rank_is_no_score() {
    let scores = rank::scores(&[-1, 0], 10.0);
    assert!(scores[0].is_nan() && scores[1] == 10f32.ln());
    assert!(rank::counts(&[]).is_empty() && rank::scores(&[], 10.0).is_empty());
}
