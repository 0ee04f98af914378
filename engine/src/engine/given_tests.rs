//! Orders of the caller's own, alive: delivered as handed over, resumed, and refused where they are none.

use super::Engine;
use super::buffer_tests::{SAMPLES, dataset, settings};
use crate::error::ErrorKind;
use crate::loader::Next;
use crate::sampler::{Given, SamplerSettings, Uniform};
use crate::settings::Settings;
use proptest::prelude::*;
use std::hash::Hasher;
use std::time::Duration;

fn engine(batches: bool, more: impl Fn(Settings) -> Settings) -> Engine {
    let sampler = SamplerSettings::Given(Given { batches });
    Engine::new(dataset(), more(settings(sampler, 0))).unwrap()
}

/// Ids of the next `most` batches of iteration `iteration`.
fn take(engine: &Engine, iteration: u64, most: usize) -> Vec<Vec<i64>> {
    let mut seen = Vec::new();
    while seen.len() < most {
        match engine.next_batch(iteration, Duration::from_secs(20)).unwrap() {
            Next::Batch(batch) => seen.push(batch.ticket.ids.iter().map(|&id| i64::from(id)).collect()),
            Next::End => break,
            Next::Pending => panic!("nothing came"),
        }
    }
    seen
}

/// Batches of ids, of 1 to 16 each.
fn cut() -> impl Strategy<Value = Vec<Vec<i64>>> {
    prop::collection::vec(prop::collection::vec(0..i64::from(SAMPLES), 1..=16), 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Handed over, taken up to a place, resumed elsewhere: together it is what was handed over, with and without a
    /// policy that delivers other samples than those drawn.
    #[test]
    fn batches_come_as_they_were_cut_and_a_state_has_the_rest(batches in cut(), stop in 0usize..9, drawn in cut()) {
        let ids = batches.concat();
        let ends: Vec<usize> = batches.iter().scan(0, |end, b| { *end += b.len(); Some(*end) }).collect();
        let first = engine(true, |s| s);
        let iteration = first.start_given(&ids, Some(&ends)).unwrap();
        prop_assert_eq!(first.batches_per_epoch(), batches.len());
        let stop = stop.min(batches.len());
        let mut seen = take(&first, iteration, stop);
        let state = first.state().unwrap();
        let resumed = engine(true, |s| s);
        resumed.load_state(&state).unwrap();
        prop_assert_eq!(resumed.state().unwrap(), state);
        if stop < batches.len() {
            prop_assert!(resumed.has_order().unwrap());
            seen.extend(take(&resumed, resumed.start_epoch().unwrap(), usize::MAX));
        }
        prop_assert_eq!(&seen, &batches);
        // The epoch after it is the caller's again.
        prop_assert!(!resumed.has_order().unwrap());
        prop_assert_eq!(resumed.epoch(), 1);
        prop_assert_eq!(resumed.start_epoch().unwrap_err().kind(), ErrorKind::Usage);
        let ends: Vec<usize> = drawn.iter().scan(0, |end, b| { *end += b.len(); Some(*end) }).collect();
        let iteration = resumed.start_given(&drawn.concat(), Some(&ends)).unwrap();
        prop_assert_eq!(take(&resumed, iteration, usize::MAX), drawn);
    }

    #[test]
    fn ids_are_cut_by_the_batch_size(
        ids in prop::collection::vec(0..i64::from(SAMPLES), 0..90), batch_size in 1usize..30, drop_last: bool, stop in 0usize..9,
    ) {
        let made = || engine(false, |s| Settings { batch_size, drop_last, ..s });
        let mut wanted: Vec<Vec<i64>> = ids.chunks(batch_size).map(<[i64]>::to_vec).collect();
        wanted.retain(|batch| !drop_last || batch.len() == batch_size);
        let first = made();
        let mut seen = take(&first, first.start_given(&ids, None).unwrap(), stop.min(wanted.len()));
        if seen.len() < wanted.len() {
            let resumed = made();
            resumed.load_state(&first.state().unwrap()).unwrap();
            seen.extend(take(&resumed, resumed.start_epoch().unwrap(), usize::MAX));
        }
        prop_assert_eq!(seen, wanted);
    }

    /// A state whose order or cut was changed is refused or obeyed, and ends nothing else.
    #[test]
    fn a_damaged_state_is_refused(batches in cut(), places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let ends: Vec<usize> = batches.iter().scan(0, |end, b| { *end += b.len(); Some(*end) }).collect();
        let first = engine(true, |s| s);
        first.start_given(&batches.concat(), Some(&ends)).unwrap();
        let mut state = first.state().unwrap();
        // Whoever changed it has also mended its checksum.
        let body = state.len() - 8;
        for (place, byte) in places {
            state[place.index(body)] = byte;
        }
        let mut digest = fnv::FnvHasher::default();
        digest.write(&state[..body]);
        let digest = digest.finish().to_le_bytes();
        state[body..].copy_from_slice(&digest);
        let resumed = engine(true, |s| s);
        if resumed.load_state(&state).is_ok() && resumed.has_order().unwrap() {
            take(&resumed, resumed.start_epoch().unwrap(), usize::MAX);
        }
    }
}

#[test]
fn what_is_no_order_is_refused_and_the_pass_under_way_goes_on() {
    let engine = engine(true, |s| s);
    let iteration = engine.start_given(&[3, 1, 2], Some(&[2, 3])).unwrap();
    let refused = |ids: &[i64], ends: &[usize], says: &str| {
        let error = engine.start_given(ids, Some(ends)).unwrap_err();
        assert!(error.kind() == ErrorKind::Settings && error.to_string().contains(says), "{error}");
    };
    refused(&[0, i64::from(SAMPLES)], &[2], "draw 1 of the sampler's epoch is id 200: this dataset's ids are 0 to 199");
    refused(&[0, 1], &[1, 1, 2], "batch 1 of the batch sampler's epoch has no sample");
    refused(&[0; 17], &[17], "has 17 samples, and memory was made for 16: pass batch_size=17");
    refused(&[0; 5], &[4], "batches of 4 samples were cut out of 5");
    assert_eq!(take(&engine, iteration, usize::MAX), [vec![3, 1], vec![2]]);
    let uniform = Engine::new(dataset(), settings(SamplerSettings::Uniform(Uniform::default()), 0)).unwrap();
    assert_eq!(uniform.start_given(&[1], None).unwrap_err().kind(), ErrorKind::Usage);
    assert!(!uniform.has_order().unwrap());
}

#[test]
fn a_seed_that_was_left_open_is_settled_once_and_a_state_brings_its_own() {
    let uniform = || settings(SamplerSettings::Uniform(Uniform::default()), 0);
    let open = || Engine::new(dataset(), Settings { seed: 0, open_seed: true, ..uniform() }).unwrap();
    let all = |engine: &Engine| take(engine, engine.start_epoch().unwrap(), usize::MAX);
    let expected = all(&Engine::new(dataset(), uniform()).unwrap());
    let settled = open();
    assert_eq!(settled.seed(), None);
    settled.settle_seed(uniform().seed).unwrap();
    assert_eq!(settled.seed(), Some(uniform().seed));
    assert_eq!(settled.settle_seed(1).unwrap_err().kind(), ErrorKind::Usage);
    let state = settled.state().unwrap();
    assert_eq!(all(&settled), expected);
    for already in [false, true] {
        let resumed = open();
        if already {
            resumed.settle_seed(5).unwrap();
            assert_ne!(all(&resumed), expected);
        }
        resumed.load_state(&state).unwrap();
        assert_eq!((resumed.seed(), all(&resumed)), (Some(uniform().seed), expected.clone()));
    }
    let other = Engine::new(dataset(), Settings { seed: 5, ..uniform() }).unwrap();
    assert!(other.load_state(&state).unwrap_err().to_string().contains("seed 11 (this loader: 5)"));
    let ranks = Settings { open_seed: true, world_size: 2, ..uniform() };
    assert!(Engine::new(dataset(), ranks).err().unwrap().to_string().contains("ranks need one common seed"));
}
