//! The sampler that is chosen, alive: it begins without weights, and draws by score once they are read.

use super::Engine;
use super::buffer_tests::{SAMPLES, Seen, dataset, deliver, settings};
use crate::error::ErrorKind;
use crate::policy;
use crate::sampler::{Auto, CostAware, Echo, SamplerSettings, Uniform};
use crate::settings::Settings;

fn auto(augmented: bool) -> SamplerSettings {
    SamplerSettings::Auto(Auto { augmented: Some(augmented), ..Auto::default() })
}

fn engine(sampler: SamplerSettings) -> Engine {
    Engine::new(dataset(), settings(sampler, 0)).unwrap()
}

/// Whole epochs; weights are read from the end of epoch `read` on.
fn epochs(engine: &Engine, numbers: std::ops::Range<u64>, read: u64) -> Seen {
    let mut seen = Seen::new();
    for number in numbers {
        deliver(engine, usize::MAX, &mut seen);
        if number >= read {
            engine.weights_are_read();
        }
    }
    seen
}

fn of_epoch(batch: &(u64, usize, Vec<u32>, Vec<u32>)) -> u64 {
    batch.0
}

fn is_weighted(seen: &Seen, epoch: u64) -> bool {
    let weights = seen.iter().filter(|batch| batch.0 == epoch).flat_map(|batch| &batch.3);
    weights.into_iter().any(|&weight| weight != 1f32.to_bits())
}

#[test]
fn a_loop_that_reads_no_weights_gets_what_needs_none() {
    let echoed = epochs(&engine(SamplerSettings::Echo(Echo::default())), 0..6, u64::MAX);
    assert!(epochs(&engine(auto(true)), 0..6, u64::MAX) == echoed);
    let even = epochs(&engine(auto(false)), 0..6, u64::MAX);
    for epoch in 0..6 {
        let of_epoch = even.iter().filter(|batch| batch.0 == epoch);
        let mut ids: Vec<_> = of_epoch.flat_map(|batch| batch.2.iter().copied()).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..SAMPLES).collect::<Vec<_>>());
        assert!(!is_weighted(&even, epoch));
    }
}

/// Weights are read in epoch 7, when scores count in either kind of run.
#[test]
fn draws_go_by_score_from_the_epoch_after_weights_were_read() {
    for augmented in [true, false] {
        let unread = epochs(&engine(auto(augmented)), 0..10, u64::MAX);
        let read = epochs(&engine(auto(augmented)), 0..10, 7);
        let of = |seen: &Seen, epochs: std::ops::Range<u64>| -> Seen {
            seen.iter().filter(|batch| epochs.contains(&batch.0)).cloned().collect()
        };
        assert!(of(&read, 0..8) == of(&unread, 0..8) && of(&read, 8..9) != of(&unread, 8..9));
        assert!(is_weighted(&read, 8) && is_weighted(&read, 9) && !is_weighted(&unread, 9));
    }
}

#[test]
fn a_resumed_run_is_the_run_that_went_on() {
    for augmented in [true, false] {
        // Weights are read in epoch 1, and the state is taken in epochs 0 to 3, between batches or between epochs.
        for (epoch, taken) in [(0, 3), (1, 12), (2, 0), (2, 5), (3, 1)] {
            let whole = epochs(&engine(auto(augmented)), 0..5, 1);
            let first = engine(auto(augmented));
            let mut seen = epochs(&first, 0..epoch, 1);
            if taken > 0 {
                deliver(&first, taken, &mut seen);
                if epoch >= 1 {
                    first.weights_are_read();
                }
            }
            let state = first.state().unwrap();
            let second = engine(auto(augmented));
            second.load_state(&state).unwrap();
            seen.extend(epochs(&second, epoch..5, 1));
            // The cache begins empty, and `cost-aware` looks at it: the epoch under way is the same, later ones need
            // not be. A buffer is part of the state.
            let same = |batch: &&_| augmented || of_epoch(batch) < epoch + u64::from(taken > 0);
            assert!(
                seen.iter().filter(same).eq(whole.iter().filter(same)),
                "augmented {augmented}, epoch {epoch}, after {taken} batches"
            );
        }
    }
}

#[test]
fn a_state_names_who_chose_the_sampler() {
    for (asked, chosen) in [(true, SamplerSettings::Echo(Echo::default())), (false, cost_aware())] {
        let state = engine(auto(asked)).state().unwrap();
        let error = engine(chosen).load_state(&state).unwrap_err();
        assert!(error.kind() == ErrorKind::Settings && error.to_string().contains("sampler.chosen_by"), "{error}");
        engine(auto(asked)).load_state(&state).unwrap();
    }
}

fn cost_aware() -> SamplerSettings {
    SamplerSettings::CostAware(CostAware::default())
}

#[test]
fn without_a_cache_or_with_one_that_holds_everything_it_is_uniform() {
    for cache_bytes in [0, 1 << 24] {
        let with = |sampler| Settings { cache_bytes, ..settings(sampler, 0) };
        let chosen = Engine::new(dataset(), with(auto(true))).unwrap();
        assert_eq!((chosen.settings().sampler.name(), chosen.policy_name()), ("uniform", "minio"));
        let plain = Engine::new(dataset(), with(SamplerSettings::Uniform(Uniform::default()))).unwrap();
        plain.load_state(&chosen.state().unwrap()).unwrap();
        assert!(epochs(&chosen, 0..3, 0) == epochs(&plain, 0..3, 0));
    }
}

#[test]
fn what_may_be_fetched_is_handed_on_and_checked() {
    for (augmented, says) in [(true, "fresh is 1.5"), (false, "fetches is 1.5")] {
        let with = |fetches| {
            SamplerSettings::Auto(Auto { augmented: Some(augmented), fetches: Some(fetches), ..Auto::default() })
        };
        let error = Engine::new(dataset(), settings(with(1.5), 0)).err().unwrap();
        assert!(error.kind() == ErrorKind::Settings && error.to_string().contains(says), "{error}");
        let fetched = |fetches| {
            let engine = engine(with(fetches));
            epochs(&engine, 0..12, 0);
            engine.stats().into_iter().find(|(name, _)| name == "fetched_samples_total").unwrap().1
        };
        assert!(fetched(0.1) < 0.6 * fetched(0.5), "augmented {augmented}");
    }
}

#[test]
fn it_takes_no_policy_beside_it() {
    let named = Settings { policy: Some("lru".into()), ..settings(auto(true), 0) };
    let error = Engine::new(dataset(), named).err().unwrap();
    assert!(error.kind() == ErrorKind::Settings && error.to_string().contains("policy=\"lru\""), "{error}");
    let mine = policy::from_name("lru", SAMPLES as usize).unwrap();
    let error = Engine::with_policy(dataset(), settings(auto(true), 0), mine).err().unwrap();
    assert!(error.kind() == ErrorKind::Settings && error.to_string().contains("your own policy"), "{error}");
}
