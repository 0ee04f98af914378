//! The ledger with every policy: random operations, recounted from scratch and held to a naive twin.

use lossfeed::index::{ScoreTable, Sizes};
use lossfeed::ledger::{Access, LEAVE_MAX, Ledger};
use lossfeed::policy;
use lossfeed::sampler::{SamplerSettings, Uniform};
use proptest::prelude::*;

use crate::twins::Twin;

const SAMPLES: usize = 20;

#[derive(Debug, Clone)]
enum Op {
    Access(u32),
    /// An access to whoever is delivered in place of the id.
    Ask(u32),
    Score(u32, f32),
    Cancel(u32),
    Plan(Vec<u32>),
    Begin(usize),
    Resize(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let id = || 0..SAMPLES as u32;
    let score = prop::sample::select(vec![0.0f32, 0.5, 1.0, 1.5, 2.0, f32::NAN, f32::INFINITY]);
    let op = prop_oneof![
        16 => id().prop_map(Op::Access),
        16 => id().prop_map(Op::Ask),
        12 => (id(), score).prop_map(|(i, s)| Op::Score(i, s)),
        2 => id().prop_map(Op::Cancel),
        2 => prop::collection::vec(id(), 0..30).prop_map(Op::Plan),
        1 => (0..12usize).prop_map(Op::Begin),
        1 => (0..60u64).prop_map(Op::Resize),
    ];
    prop::collection::vec(op, 0..300)
}

fn sizes() -> impl Strategy<Value = Vec<u64>> {
    prop_oneof![Just(vec![3; SAMPLES]), Just(vec![1; SAMPLES]), prop::collection::vec(1..=6u64, SAMPLES)]
}

/// What every policy owes: it decides like its twin (so a refusal changes nothing that a later decision shows), refuses
/// without victims, leaves the books right, and never holds more than the capacity.
fn hold_to_twin(name: &'static str, capacity: u64, bytes: Vec<u64>, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut scores = ScoreTable::new(SAMPLES, 0.0);
    let mut ledger = Ledger::new(capacity, SAMPLES, policy::from_name(name, SAMPLES).unwrap());
    let sizes = bytes.clone();
    let mut twin = Twin::new(name, capacity, bytes);
    let mut evicted = vec![];
    for op in ops {
        match op {
            &Op::Access(id) | &Op::Ask(id) => {
                let id = if matches!(op, Op::Ask(_)) {
                    let delivered = ledger.instead(id, &scores).unwrap_or(id);
                    prop_assert_eq!(delivered, twin.instead(id), "{} asked for {}", name, id);
                    delivered
                } else {
                    id
                };
                let asked = std::cell::Cell::new(vec![]);
                let size = |of: u32| {
                    asked.set([asked.take(), vec![of]].concat());
                    sizes[of as usize]
                };
                evicted.clear();
                let before: Vec<u32> = ledger.residents_iter().collect();
                let answer = ledger.access(id, &size, &scores, &mut evicted);
                prop_assert_eq!((answer, evicted.clone()), twin.access(id), "{} accesses {}", name, id);
                prop_assert_eq!(asked.take(), if answer == Access::Hit { vec![] } else { vec![id] });
                if answer != Access::Admitted {
                    prop_assert_eq!(before, ledger.residents_iter().collect::<Vec<_>>());
                }
            }
            &Op::Score(id, score) => {
                if let Some(belief) = scores.record(id, score, 0) {
                    ledger.rescore(id, belief);
                    twin.belief[id as usize] = Some(belief);
                }
            }
            &Op::Cancel(id) => {
                ledger.cancel(id);
                twin.leave(id);
            }
            Op::Plan(order) => {
                ledger.plan(order);
                twin.plan(order);
            }
            &Op::Begin(accesses) => {
                ledger.begin(accesses);
                twin.begin(accesses);
            }
            &Op::Resize(to) => {
                prop_assert_eq!(ledger.resize(to, &scores), twin.resize(to), "{} to {}", name, to);
                prop_assert_eq!(ledger.capacity_bytes(), to);
            }
        }
        prop_assert_eq!(ledger.check(&scores), Ok(()), "{} after {:?}", name, op);
        prop_assert_eq!(ledger.residents_iter().collect::<Vec<_>>(), twin.all(), "{} after {:?}", name, op);
        prop_assert_eq!(ledger.used_bytes(), twin.used());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]
    #[test]
    fn every_policy_decides_like_its_naive_twin_and_its_books_add_up(
        capacity in 0..40u64, bytes in sizes(), ops in ops()
    ) {
        for name in policy::NAMES {
            hold_to_twin(name, capacity, bytes.clone(), &ops)?;
        }
    }
}

/// A candidate whose first victim would give way and whose second does not: nobody does, and who was asked first is
/// where it was.
#[test]
fn a_refusal_after_a_first_willing_victim_changes_no_resident() {
    let sizes = [1, 1, 2];
    for name in ["importance", "shade", "belady"] {
        let mut scores = ScoreTable::new(3, 0.0);
        let mut ledger = Ledger::new(2, 3, policy::from_name(name, 3).unwrap());
        [(0, 1.0), (1, 9.0), (2, 5.0)].iter().for_each(|&(id, score)| _ = scores.record(id, score, 0));
        // Belady: 0 is never used again, 1 before the candidate.
        ledger.plan(if name == "belady" { &[0, 1, 2, 1, 2] } else { &[] });
        let mut access = |id: u32| {
            let mut evicted = vec![];
            (ledger.access(id, &|id| sizes[id as usize], &scores, &mut evicted), evicted)
        };
        assert_eq!([access(0).0, access(1).0], [Access::Admitted; 2]);
        assert_eq!(access(2), (Access::Bypassed, vec![]), "{name}");
        assert_eq!([access(0).0, access(1).0], [Access::Hit; 2], "{name}");
        ledger.check(&scores).unwrap();
    }
}

#[test]
fn a_cache_that_becomes_much_smaller_does_so_in_steps() {
    let samples = LEAVE_MAX * 2 + 10;
    for name in policy::NAMES {
        let scores = ScoreTable::new(samples, 0.0);
        let mut ledger = Ledger::new(samples as u64, samples, policy::from_name(name, samples).unwrap());
        (0..samples as u32).for_each(|id| _ = ledger.access(id, &|_| 1, &scores, &mut vec![]));
        let mut left = vec![];
        for expected in [LEAVE_MAX, LEAVE_MAX, 5, 0] {
            let leaving = ledger.resize(5, &scores);
            assert_eq!(leaving.len(), expected, "{name}");
            left.extend(leaving);
            assert_eq!(ledger.capacity_bytes(), 5.max((samples - left.len()) as u64), "{name}");
        }
        ledger.check(&scores).unwrap();
        assert_eq!(ledger.counts().shrunk as usize, left.len());
        left.sort();
        left.dedup();
        assert!(left.len() == samples - 5 && left.iter().all(|&id| !ledger.contains(id)), "{name}");
    }
}

#[test]
fn the_registry_says_what_its_policies_say_and_each_sampler_has_one_default() {
    for entry in &policy::ALL {
        let made = (entry.make)(3);
        assert_eq!((made.name(), made.needs()), (entry.name, entry.needs));
        assert!(!entry.help.is_empty() && !entry.help.ends_with('.'));
        assert_eq!(policy::find_live(entry.name).is_ok(), entry.is_live());
        assert!(made.needs().contains(policy::Needs::PLAN) || !made.needs().contains(policy::Needs::NEXT_USE));
        let substitutes = made.needs().contains(policy::Needs::SUBSTITUTES);
        assert_eq!(substitutes, ["icache", "quiver"].contains(&entry.name));
    }
    let default = |sampler| policy::default_for(sampler).name;
    assert_eq!(
        ["uniform", "pads", "importance", "cost-aware", "anything"].map(default),
        ["minio", "shade", "importance", "importance", "importance"]
    );
    let rest = policy::ALL.iter().filter(|e| e.suits == policy::Suits::TheRest).count();
    assert_eq!(rest, 1);
    let of_ranks = |sampler: &str, ranks| SamplerSettings::from_name(sampler).unwrap().default_policy(ranks).name;
    assert_eq!([1, 2].map(|ranks| of_ranks("uniform", ranks)), ["minio", "belady"]);
    assert_eq!(of_ranks("importance", 2), "importance");
    let shares = Uniform { fixed_shares: true, ..Uniform::default() };
    assert_eq!(SamplerSettings::Uniform(shares).default_policy(2).name, "minio");
    let refused = policy::find_live("nopfs").unwrap_err().to_string();
    assert!(refused.contains("replay") && refused.contains("minio") && !refused.contains("of nopfs"), "{refused}");
}

#[test]
fn sizes_cost_nothing_while_they_are_equal() {
    let mut sizes = Sizes::new(1000);
    (0..1000).for_each(|id| sizes.learn(id, 7));
    assert_eq!((sizes.metadata_bytes(), sizes.bytes(3)), (0, 7));
    sizes.learn(5, 0);
    sizes.learn(6, u32::MAX);
    assert_eq!([4, 5, 6].map(|id| sizes.bytes(id)), [7, 0, u64::from(u32::MAX)]);
    sizes.learn(5, 7);
    assert_eq!((sizes.bytes(5), sizes.metadata_bytes()), (7, 4000));
}

#[test]
fn a_resident_the_plan_needs_outlives_any_candidate() {
    let mut scores = ScoreTable::new(4, 0.0);
    let mut ledger = Ledger::new(1, 4, policy::from_name("importance", 4).unwrap());
    let mut evicted = vec![];
    ledger.plan(&[0, 1, 0, 1]);
    scores.record(0, 0.1, 0);
    scores.record(1, 9.0, 0);
    assert_eq!(ledger.access(0, &|_| 1, &scores, &mut evicted), Access::Admitted);
    assert_eq!(ledger.access(1, &|_| 1, &scores, &mut evicted), Access::Bypassed);
    assert_eq!(ledger.access(0, &|_| 1, &scores, &mut evicted), Access::Hit);
    // Its last planned use is over.
    assert_eq!(ledger.access(1, &|_| 1, &scores, &mut evicted), Access::Admitted);
    assert_eq!(evicted, [0]);
}

#[test]
fn a_sample_planned_more_often_than_is_counted_is_needed_until_the_next_plan() {
    let mut scores = ScoreTable::new(2, 0.0);
    let mut ledger = Ledger::new(1, 2, policy::from_name("importance", 2).unwrap());
    let mut evicted = vec![];
    scores.record(0, 0.1, 0);
    scores.record(1, 9.0, 0);
    for (uses, after) in [(254, Access::Admitted), (255, Access::Bypassed), (300, Access::Bypassed)] {
        ledger.plan(&vec![0; uses]);
        for _ in 0..uses {
            ledger.access(0, &|_| 1, &scores, &mut evicted);
        }
        assert_eq!(ledger.access(1, &|_| 1, &scores, &mut evicted), after, "{uses} uses");
        ledger.plan(&[]);
        assert!(after == Access::Admitted || ledger.access(1, &|_| 1, &scores, &mut evicted) == Access::Admitted);
        ledger.cancel(1);
        assert_eq!(ledger.check(&scores), Ok(()));
    }
}

#[test]
fn an_equally_important_candidate_changes_nothing() {
    let mut scores = ScoreTable::new(2, 0.0);
    let mut ledger = Ledger::new(1, 2, policy::from_name("importance", 2).unwrap());
    scores.record(0, 0.5, 0);
    scores.record(1, 0.5, 0);
    ledger.access(1, &|_| 1, &scores, &mut vec![]);
    assert_eq!(ledger.access(0, &|_| 1, &scores, &mut vec![]), Access::Bypassed);
}

#[test]
fn a_sample_larger_than_the_cache_or_than_32_bits_passes_through() {
    let scores = ScoreTable::new(3, 0.0);
    let mut ledger = Ledger::new(100, 3, policy::from_name("lru", 3).unwrap());
    ledger.access(0, &|_| 60, &scores, &mut vec![]);
    assert_eq!(ledger.access(1, &|_| 101, &scores, &mut vec![]), Access::Bypassed);
    assert!(ledger.contains(0), "nobody gave way to a sample that cannot be kept");
    let mut huge = Ledger::new(u64::MAX / 2, 3, policy::from_name("lru", 3).unwrap());
    assert_eq!(huge.access(1, &|_| 1 << 33, &scores, &mut vec![]), Access::Bypassed);
}

#[test]
fn an_unknown_policy_is_refused_with_the_names_there_are() {
    let error = policy::from_name("lruu", 1).err().unwrap();
    assert_eq!(error.kind(), lossfeed::ErrorKind::Settings);
    for name in policy::NAMES {
        assert!(error.to_string().contains(name));
        assert_eq!(policy::from_name(name, 1).unwrap().name(), name);
    }
}

#[test]
fn metadata_is_at_most_32_bytes_a_sample_when_everything_is_resident() {
    let samples = 100_000;
    let order: Vec<u32> = (0..samples as u32).rev().collect();
    for (name, unequal) in policy::NAMES.into_iter().flat_map(|name| [(name, 0), (name, 1)]) {
        let mut scores = ScoreTable::new(samples, 0.5);
        let mut ledger = Ledger::new(2 * samples as u64, samples, policy::from_name(name, samples).unwrap());
        let mut evicted = vec![];
        for _ in 0..2 {
            ledger.plan(&order);
            for &id in &order {
                ledger.access(id, &|id| 1 + u64::from(id % 2 * unequal), &scores, &mut evicted);
                let belief = scores.record(id, id as f32, 0).unwrap();
                ledger.rescore(id, belief);
            }
        }
        assert_eq!(ledger.residents(), samples);
        let each = (scores.metadata_bytes() + ledger.metadata_bytes()) as f64 / samples as f64;
        // Where each record is costs the engine of a live run 10 more.
        let looks_ahead = policy::find(name).unwrap().needs.contains(policy::Needs::NEXT_USE);
        let most = if looks_ahead { 32.0 } else { 22.0 };
        assert!(each <= most, "{name}: {each:.1} bytes a sample");
    }
}

/// CLRFU scales what it keeps every 64 epochs. When it does so depends on how many there were before, and must not
/// show.
#[test]
fn values_that_are_scaled_in_another_epoch_decide_alike() {
    let run = |empty_epochs: usize| {
        let scores = ScoreTable::new(SAMPLES, 0.0);
        let mut ledger = Ledger::new(7, SAMPLES, policy::from_name("clrfu", SAMPLES).unwrap());
        (0..empty_epochs).for_each(|_| ledger.plan(&[]));
        let (mut state, mut seen) = (7u64, vec![]);
        for _ in 0..300 {
            ledger.plan(&[]);
            for _ in 0..12 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let id = ((state >> 33) % SAMPLES as u64) as u32;
                let mut evicted = vec![];
                seen.push((ledger.access(id, &|id| 1 + u64::from(id % 2), &scores, &mut evicted), evicted));
            }
        }
        ledger.check(&scores).unwrap();
        seen
    };
    let never_yet = run(0);
    assert!(never_yet.iter().filter(|(access, _)| *access == Access::Hit).count() > 300);
    for empty_epochs in [1, 17, 63, 64, 1000] {
        assert_eq!(run(empty_epochs), never_yet, "after {empty_epochs} epochs");
    }
}
