//! `examples/train.rs` trains: the loss falls, the cache answers, and the source is read less than once a request.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../examples/train.rs"]
mod train;

#[test]
fn the_example_learns_on_generated_data_and_fetches_less_than_it_delivers() {
    let summary = train::run(None, 4, "cost-aware").unwrap();
    assert_eq!(summary.losses.len(), 4);
    assert!(summary.losses[3] < 0.5 * summary.losses[0], "{summary:?}");
    assert!(summary.hit_ratio > 0.05, "{summary:?}");
    assert!(summary.fetched < 4.0 * 4096.0, "{summary:?}");
}
