//! Policies that deliver other samples than those asked for: each as often as the plan has it, and no more hits than
//! the order they make allows.

use std::collections::HashMap;
use std::sync::Arc;

use lossfeed::control::{Control, Cut, Plan, Turn, Verdict};
use lossfeed::index::ScoreTable;
use lossfeed::ledger::{Access, Ledger};
use lossfeed::sampler::{Order, Outlook, SamplerSettings, random_belief};
use lossfeed_lab::policies;
use proptest::prelude::*;

const SUBSTITUTE: [&str; 2] = ["icache", "quiver"];

/// Epochs in batches through a policy; samples are scored by a difficulty that is fixed by their id. By epoch the
/// delivered samples, and whether each was a hit.
fn run(policy: &str, samples: usize, capacity: u64, epochs: &[Vec<u32>], rows: usize) -> Vec<Vec<(u32, bool)>> {
    let ledger = Ledger::new(capacity, samples, policies::from_name(policy, samples).unwrap());
    let mut control = Control::new(ScoreTable::new(samples, 0.0), ledger);
    let mut all = Vec::new();
    for (epoch, ids) in epochs.iter().enumerate() {
        let ends = (rows..ids.len() + rows).step_by(rows).map(|end| end.min(ids.len())).collect();
        let order = Arc::new(Order { weights: vec![1.0; ids.len()], ids: ids.clone() });
        let pass =
            control.plan_and_begin(Plan { epoch: epoch as u64, order, cut: Cut::At(ends), behind: Vec::new() }, 0);
        let mut delivered = Vec::new();
        while let Turn::Decided(decision) = control.decide(pass, &|_| 1) {
            control.learn(None, decision.rows.iter().map(|row| (row.delivered, random_belief(1, row.delivered))));
            delivered.extend(decision.rows.iter().map(|row| (row.delivered, row.verdict == Verdict::Hit)));
        }
        control.ledger().unwrap().check(control.scores()).unwrap();
        all.push(delivered);
    }
    all
}

fn hits(epoch: &[(u32, bool)]) -> usize {
    epoch.iter().filter(|(_, hit)| *hit).count()
}

fn times(ids: impl Iterator<Item = u32>) -> HashMap<u32, usize> {
    let mut times = HashMap::new();
    ids.for_each(|id| *times.entry(id).or_default() += 1);
    times
}

fn permutations(samples: u32, epochs: u64) -> Vec<Vec<u32>> {
    let (owned, scores) = ((0..samples).collect::<Vec<_>>(), ScoreTable::new(samples as usize, 0.0));
    let sampler = SamplerSettings::from_name("uniform").unwrap().build().unwrap();
    let (owned, scores, resident) = (&owned, &scores, &|_| false);
    let outlook = |epoch| Outlook { owned, samples, epoch, seed: 3, rank: 0, world_size: 1, scores, resident };
    (0..epochs).map(|epoch| sampler.draw(&outlook(epoch)).unwrap().ids).collect()
}

proptest! {
    /// Whatever was planned, repeats included, an epoch delivers exactly that; and knowing the order that came of it,
    /// nobody would have hit less.
    #[test]
    fn an_epoch_delivers_what_was_planned_and_belady_bounds_its_hits(
        name in prop::sample::select(SUBSTITUTE.to_vec()),
        epochs in prop::collection::vec(prop::collection::vec(0u32..24, 1..80), 1..5),
        capacity in 0u64..30,
        rows in 1usize..9,
    ) {
        let delivered = run(name, 24, capacity, &epochs, rows);
        for (planned, came) in epochs.iter().zip(&delivered) {
            prop_assert_eq!(times(planned.iter().copied()), times(came.iter().map(|row| row.0)));
        }
        let order: Vec<u32> = delivered.iter().flatten().map(|row| row.0).collect();
        let mut belady = Ledger::new(capacity, 24, policies::from_name("belady", 24).unwrap());
        belady.plan(&order);
        let scores = ScoreTable::new(24, 0.0);
        let hit = |&&id: &&u32| belady.access(id, &|_| 1, &scores, &mut vec![]) == Access::Hit;
        let bound = order.iter().filter(hit).count();
        let hit = delivered.iter().map(|epoch| hits(epoch)).sum::<usize>();
        prop_assert!(hit <= bound, "{} hits of {}", hit, bound);
    }
}

proptest! {
    /// An epoch that is left after some batches and gone on with elsewhere, in a cache of its own, delivers what was
    /// planned all the same.
    #[test]
    fn a_resumed_epoch_delivers_who_is_owed_and_nobody_twice(
        name in prop::sample::select(SUBSTITUTE.to_vec()),
        warm in prop::collection::vec(0u32..24, 0..60),
        ids in prop::collection::vec(0u32..24, 1..80),
        stop in 0usize..12,
    ) {
        let rows = 7;
        let made = || {
            let ledger = Ledger::new(9, 24, policies::from_name(name, 24).unwrap());
            Control::new(ScoreTable::new(24, 0.0), ledger)
        };
        let plan = |order: Order| {
            let ends = (rows..order.ids.len() + rows).step_by(rows).map(|end| end.min(order.ids.len())).collect();
            Plan { epoch: 1, order: Arc::new(order), cut: Cut::At(ends), behind: Vec::new() }
        };
        let drawn = |ids: &[u32]| Order { weights: vec![1.0; ids.len()], ids: ids.to_vec() };
        let deliver = |control: &mut Control, pass, most: usize| {
            let mut delivered = Vec::new();
            for _ in 0..most {
                let Turn::Decided(decision) = control.decide(pass, &|_| 1) else { break };
                let score = |row: &lossfeed::control::Row| (row.delivered, random_belief(1, row.delivered));
                control.learn(None, decision.rows.iter().map(score));
                delivered.extend(decision.rows.iter().map(|row| row.delivered));
            }
            delivered
        };
        let mut first = made();
        let pass = first.plan_and_begin(plan(drawn(&warm)), 0);
        deliver(&mut first, pass, usize::MAX);
        let planned = plan(drawn(&ids));
        let pass = first.plan_and_begin(planned.clone(), 0);
        let mut delivered = deliver(&mut first, pass, stop);
        let at = delivered.len();
        // Batches that were decided ahead and never seen do not count.
        deliver(&mut first, pass, 2);
        let rest = plan(planned.settled(at, first.substituted(0)));
        let mut second = made();
        let pass = second.plan_and_begin(rest, stop);
        delivered.extend(deliver(&mut second, pass, usize::MAX));
        prop_assert_eq!(times(delivered.into_iter()), times(ids.into_iter()));
    }
}

#[test]
fn a_sample_planned_more_often_than_is_counted_is_not_delivered_too_often() {
    let mut epoch: Vec<u32> = (0..1200).map(|k| if k % 2 == 0 { 1 } else { k % 7 }).collect();
    epoch.rotate_left(3);
    for name in SUBSTITUTE {
        for came in run(name, 7, 3, &vec![epoch.clone(); 3], 8) {
            assert_eq!(times(came.iter().map(|row| row.0)), times(epoch.iter().copied()), "{name}");
        }
    }
}

/// What was left of the last epoch is used before it is lost: the hits are those of a cache that evicts nobody, while
/// what is not important turns over.
#[test]
fn on_permutations_both_hit_what_a_cache_that_evicts_nobody_hits() {
    let epochs = permutations(2_000, 6);
    for name in SUBSTITUTE {
        let came = run(name, 2_000, 400, &epochs, 50);
        let per_epoch: Vec<usize> = came.iter().map(|epoch| hits(epoch)).collect();
        assert_eq!(per_epoch[0], 0);
        let later = per_epoch[2..].iter().sum::<usize>() as f64 / 4.0;
        // icache's important samples enter and leave as their scores say; a few do so before they are used.
        assert!((later - 400.0).abs() <= if name == "icache" { 40.0 } else { 0.0 }, "{name}: {per_epoch:?}");
        assert!(hits(&came[3][..1000]) as f64 > 0.6 * later, "{name}: hits come early");
    }
}

#[test]
fn quiver_brings_forward_only_what_the_plan_has_within_its_next_tenth() {
    let epochs = permutations(1_000, 3);
    let came = run("quiver", 1_000, 300, &epochs, 25);
    let place: HashMap<u32, usize> = epochs[2].iter().enumerate().map(|(at, &id)| (id, at)).collect();
    let early = |(at, row): (usize, &(u32, bool))| place[&row.0] as i64 - at as i64;
    let most = came[2].iter().enumerate().map(early).max().unwrap();
    assert!(most <= 101 && most > 50, "{most} accesses ahead");
}
