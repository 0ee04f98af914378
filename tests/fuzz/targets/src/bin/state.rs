//! A loader's state of anybody, as it lies and with its checksum put right.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lossfeed::loader::checkpoint::Checkpoint;

/// What a state ends with: FNV-1a over everything before.
fn sealed(body: &[u8]) -> Vec<u8> {
    let sum = body.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    [body, &sum.to_le_bytes()].concat()
}

fn check(bytes: &[u8]) {
    // Whatever is wrong with a state is an error with words.
    let Ok(state) = Checkpoint::from_bytes(bytes) else { return };
    // What a sampler or a policy reads later is finite, and a weight is above 0.
    let beliefs = state.scores.iter().flat_map(|(beliefs, _)| beliefs);
    assert!(beliefs.into_iter().all(|b| !b.is_infinite()), "an infinite belief");
    assert!(state.order.iter().flat_map(|o| &o.weights).all(|w| w.is_finite() && *w > 0.0), "a weight nobody can use");
    let written = state.to_bytes().expect("what was read can be written");
    let again = Checkpoint::from_bytes(&written).expect("what was written can be read");
    // By bytes, because beliefs may be "not a number": a sample that has none.
    assert_eq!(again.to_bytes().expect("and written again"), written);
}

fuzz_target!(init: lossfeed_fuzz::start(lossfeed_fuzz::states), |bytes: &[u8]| {
    check(bytes);
    let body = bytes.split_last_chunk::<8>().map_or(bytes, |(body, _)| body);
    check(&sealed(body));
});
