//! What is set between epochs, alive: what is fetched follows what was waited, a budget lasts, blocks follow what
//! requests cost, and a state has what all that came to.

use super::buffer_tests::{Seen, dataset, deliver, settings, stored};
use super::{Dataset, Engine};
use crate::error::ErrorKind;
use crate::sampler::{Auto, Block, Echo, Replay, SamplerSettings};
use crate::types::SampleId;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

fn waiting_little(augmented: bool, stall: f32, fetches: Option<f32>) -> SamplerSettings {
    SamplerSettings::Auto(Auto { augmented: Some(augmented), stall: Some(stall), fetches, ..Auto::default() })
}

/// A source that takes a millisecond for every sample if it is slow, and whose requests cost so many bytes.
fn costly(slow: bool, request_bytes: &Arc<AtomicU64>) -> Dataset {
    stored(false, request_bytes, move || std::thread::sleep(Duration::from_millis(slow.into())))
}

/// Without threads of its own: what the source takes is waited for.
fn engine(sampler: SamplerSettings, slow: bool) -> Engine {
    Engine::new(costly(slow, &Arc::default()), settings(sampler, 0)).unwrap()
}

fn epochs(engine: &Engine, count: usize) -> Seen {
    let mut seen = Seen::new();
    for _ in 0..count {
        deliver(engine, usize::MAX, &mut seen);
        engine.weights_are_read();
    }
    seen
}

fn stat(engine: &Engine, name: &str) -> f64 {
    engine.stats().into_iter().find(|(stat, _)| stat == name).unwrap().1
}

#[test]
fn a_slow_source_is_asked_for_less() {
    for augmented in [true, false] {
        let engine = engine(waiting_little(augmented, 0.02, None), true);
        epochs(&engine, 2);
        assert_eq!(engine.settings().sampler.name(), if augmented { "replay" } else { "cost-aware" });
        assert!(stat(&engine, "fetches_ppm") < 250_000.0, "{}", stat(&engine, "fetches_ppm"));
        let before = stat(&engine, "fetched_samples_total");
        epochs(&engine, 6);
        let each = (stat(&engine, "fetched_samples_total") - before) / 6.0;
        assert!(each < 40.0, "{each} of 200 samples fetched an epoch, augmented {augmented}");
    }
}

#[test]
fn a_fast_source_is_used_until_nothing_comes_twice() {
    let engine = engine(waiting_little(true, 0.9, None), false);
    for _ in 0..8 {
        let pass = engine.start_epoch().unwrap();
        while let crate::loader::Next::Batch(_) = engine.next_batch(pass, Duration::from_secs(60)).unwrap() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    assert_eq!(stat(&engine, "fetches_ppm"), 1e6);
    let before = stat(&engine, "fetched_samples_total");
    epochs(&engine, 1);
    // Every row is new to the buffer; the few that came again within a cache's length are still there.
    let fetched = stat(&engine, "fetched_samples_total") - before;
    assert!(fetched > 160.0, "{fetched} of 200");
}

#[test]
fn a_bound_on_fetches_holds_whatever_the_source_can_do() {
    let engine = engine(waiting_little(true, 0.9, Some(0.125)), false);
    for _ in 0..6 {
        epochs(&engine, 1);
        assert!(stat(&engine, "fetches_ppm") <= 125_000.0);
    }
}

#[test]
fn a_resumed_run_goes_on_at_the_pace_it_had() {
    for taken in [0, 5] {
        let first = engine(waiting_little(true, 0.02, None), true);
        let mut seen = epochs(&first, 3);
        if taken > 0 {
            deliver(&first, taken, &mut seen);
        }
        let state = first.state().unwrap();
        let second = engine(waiting_little(true, 0.02, None), true);
        second.load_state(&state).unwrap();
        let (mut on, mut resumed) = (Seen::new(), Seen::new());
        deliver(&second, usize::MAX, &mut resumed);
        if taken == 0 {
            deliver(&first, usize::MAX, &mut on);
            assert_eq!(resumed, on);
            assert_eq!(stat(&first, "fetches_ppm"), stat(&second, "fetches_ppm"));
        } else {
            assert_eq!((resumed[0].0, resumed[0].1), (3, 5));
        }
        let other = engine(waiting_little(true, 0.1, None), true).load_state(&state).unwrap_err();
        assert!(other.to_string().contains("sampler.pace stall 0.0200"), "{other}");
        let plain = SamplerSettings::Auto(Auto { augmented: Some(true), ..Auto::default() });
        assert!(engine(plain, true).load_state(&state).unwrap_err().to_string().contains("sampler.pace"));
    }
}

#[test]
fn a_target_that_is_none_is_refused() {
    let refused = Engine::new(dataset(), settings(waiting_little(true, 1.0, None), 0)).err().unwrap();
    assert!(refused.kind() == ErrorKind::Settings && refused.to_string().contains("stall is 1"), "{refused}");
}

/// An element of [`Seen`].
type Batch = (u64, usize, Vec<SampleId>, Vec<u32>);

/// Names the first batch that differs.
fn same(one: &[Batch], other: &[Batch]) {
    assert_eq!(one.iter().zip(other).find(|(one, other)| one != other), None);
    assert_eq!(one.len(), other.len());
}

fn budgeted(augmented: bool, bytes: u64, epochs: u32) -> SamplerSettings {
    SamplerSettings::Auto(Auto {
        augmented: Some(augmented),
        bytes: Some(bytes),
        epochs: Some(epochs),
        ..Auto::default()
    })
}

/// Bytes of everything, once: four a sample.
const ALL: u64 = 4 * super::buffer_tests::SAMPLES as u64;

#[test]
fn a_budget_of_bytes_lasts_for_the_run() {
    for (augmented, part) in [(true, 4), (true, 2), (false, 3)] {
        let bytes = 20 * ALL / part;
        let engine = engine(budgeted(augmented, bytes, 20), false);
        epochs(&engine, 20);
        let read = stat(&engine, "fetched_bytes_total");
        assert!(read <= 1.05 * bytes as f64 && read >= 0.8 * bytes as f64, "{read} of {bytes}, augmented {augmented}");
    }
}

#[test]
fn a_budget_goes_on_where_a_state_was_taken() {
    for taken in [0, 5] {
        let bytes = 20 * ALL / 3;
        let make = || engine(budgeted(true, bytes, 20), false);
        let first = make();
        let mut seen = epochs(&first, 3);
        if taken > 0 {
            deliver(&first, taken, &mut seen);
        }
        let before = stat(&first, "fetched_bytes_total");
        let second = make();
        second.load_state(&first.state().unwrap()).unwrap();
        // Asked for again before anything was delivered, it is the same.
        let again = make();
        again.load_state(&second.state().unwrap()).unwrap();
        let rest = 20 - 3;
        let (on, more) = (epochs(&second, rest), epochs(&again, rest));
        same(&on, &more);
        if taken == 0 {
            // What was cached is read again by the run that goes on, so later epochs have less to read.
            let next = epochs(&first, 1);
            same(&next, &on[..next.len()]);
        }
        let read = before + stat(&second, "fetched_bytes_total");
        assert!(read <= 1.05 * bytes as f64 && read >= 0.8 * bytes as f64, "{read} of {bytes}");
        let other = engine(budgeted(true, 2 * bytes, 20), false).load_state(&first.state().unwrap()).unwrap_err();
        assert!(other.to_string().contains(&format!("{bytes} bytes in 20 epochs")), "{other}");
    }
}

#[test]
fn a_budget_that_cannot_be_kept_is_refused_at_once() {
    let refused = |sampler| Engine::new(dataset(), settings(sampler, 0)).err().unwrap().to_string();
    assert!(refused(budgeted(false, ALL - 1, 20)).contains("the first reads every sample"));
    let none = settings(budgeted(true, 20 * ALL - 1, 20), 0);
    let none = crate::settings::Settings { cache_bytes: 0, ..none };
    let refusal = Engine::new(dataset(), none).err().unwrap().to_string();
    assert!(refusal.contains("without a cache each reads every sample"), "{refusal}");
    let auto = Auto { augmented: Some(true), ..Auto::default() };
    let half = |auto| refused(SamplerSettings::Auto(auto));
    assert!(half(Auto { bytes: Some(1 << 20), ..auto }).contains("bytes is set without epochs"));
    assert!(half(Auto { epochs: Some(9), ..auto }).contains("epochs is set without bytes"));
}

/// With requests that cost `bytes`; and what that is set by.
fn dear(sampler: SamplerSettings, bytes: u64) -> (Engine, Arc<AtomicU64>) {
    let cost = Arc::new(AtomicU64::new(bytes));
    (Engine::new(costly(false, &cost), settings(sampler, 0)).unwrap(), cost)
}

fn in_blocks(fresh: f64) -> [SamplerSettings; 3] {
    let auto = Auto { augmented: Some(true), fetches: Some(fresh as f32), block: Some(Block::Auto), ..Auto::default() };
    [
        SamplerSettings::Echo(Echo { fresh, lag: 16, block: Block::Auto }),
        SamplerSettings::Replay(Replay { fresh, lag: 16, block: Block::Auto, ..Replay::default() }),
        SamplerSettings::Auto(auto),
    ]
}

/// Of the samples that were new, in the order in which they came: how many follow the one before them.
fn neighbours(seen: &Seen) -> usize {
    let mut before = std::collections::HashSet::new();
    let fresh: Vec<SampleId> =
        seen.iter().flat_map(|batch| &batch.2).copied().filter(|&id| before.insert(id)).collect();
    assert_eq!(fresh.len(), super::buffer_tests::SAMPLES as usize, "everything came");
    fresh.windows(2).filter(|pair| pair[1] == pair[0] + 1).count()
}

#[test]
fn dear_requests_bring_neighbours_and_cheap_ones_do_not() {
    for sampler in in_blocks(0.5) {
        for (bytes, least, most) in [(0, 0, 20), (8, 140, 180), (1000, 190, 199)] {
            let (engine, _) = dear(sampler, bytes);
            let seen = neighbours(&epochs(&engine, 4));
            assert!((least..=most).contains(&seen), "{seen} neighbours where a request costs {bytes}");
            assert_eq!(
                stat(&engine, "block_samples"),
                [1.0, 8.0, 64.0][[0, 8, 1000].iter().position(|&b| b == bytes).unwrap()]
            );
        }
    }
}

#[test]
fn blocks_change_between_passes_and_a_state_knows_them() {
    let sampler = in_blocks(0.5)[0];
    let (engine, cost) = dear(sampler, 1000);
    epochs(&engine, 1);
    cost.store(0, Relaxed);
    // Twice seen before it counts, and then from the next pass on.
    let mut blocks = Vec::new();
    for _ in 0..6 {
        epochs(&engine, 1);
        blocks.push(stat(&engine, "block_samples"));
    }
    assert_eq!(blocks, [64.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    for taken in [0, 3] {
        let (first, cost) = dear(sampler, 1000);
        let mut seen = epochs(&first, 1);
        cost.store(0, Relaxed);
        seen.extend(epochs(&first, 2));
        if taken > 0 {
            deliver(&first, taken, &mut seen);
        }
        let (second, _) = dear(sampler, 0);
        second.load_state(&first.state().unwrap()).unwrap();
        let (on, more) = (epochs(&second, 3), if taken == 0 { epochs(&first, 3) } else { Seen::new() });
        if taken == 0 {
            same(&on, &more);
        }
        assert_eq!(stat(&second, "block_samples"), 1.0);
    }
}

#[test]
fn ranks_share_whole_blocks_of_the_largest_size() {
    let of = |rank, bytes| {
        let dataset = costly(false, &Arc::new(AtomicU64::new(bytes)));
        let settings = crate::settings::Settings { rank, world_size: 2, ..settings(in_blocks(1.0)[0], 0) };
        let mut all: Vec<SampleId> =
            epochs(&Engine::new(dataset, settings).unwrap(), 3).into_iter().flat_map(|b| b.2).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    for rank in 0..2 {
        assert_eq!(of(rank, 0), of(rank, 1000), "what a rank owns does not depend on what requests cost");
        assert!(of(rank, 0).windows(2).filter(|two| two[1] != two[0] + 1).count() <= 3);
    }
    assert_eq!(of(0, 8).len() + of(1, 8).len(), super::buffer_tests::SAMPLES as usize);
}
