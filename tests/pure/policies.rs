//! The ledger with every policy: random operations, recounted from scratch and held to a naive twin.

use lossfeed::index::ScoreTable;
use lossfeed::ledger::{Access, Ledger};
use lossfeed::policy;
use proptest::prelude::*;

use crate::twins::Twin;

const SAMPLES: usize = 20;

#[derive(Debug, Clone)]
enum Op {
    Access(u32),
    Score(u32, f32),
    Cancel(u32),
    Plan(Vec<u32>),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let id = || 0..SAMPLES as u32;
    let score = prop::sample::select(vec![0.0f32, 0.5, 1.0, 1.5, 2.0, f32::NAN, f32::INFINITY]);
    let op = prop_oneof![
        12 => id().prop_map(Op::Access),
        8 => (id(), score).prop_map(|(i, s)| Op::Score(i, s)),
        1 => id().prop_map(Op::Cancel),
        1 => prop::collection::vec(id(), 0..30).prop_map(Op::Plan),
    ];
    prop::collection::vec(op, 0..250)
}

fn sizes() -> impl Strategy<Value = Vec<u64>> {
    prop_oneof![Just(vec![3; SAMPLES]), prop::collection::vec(1..=6u64, SAMPLES)]
}

fn hold_to_twin(name: &'static str, capacity: u64, bytes: Vec<u64>, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut scores = ScoreTable::new(SAMPLES, 0.0);
    let mut ledger = Ledger::new(capacity, SAMPLES, policy::from_name(name, SAMPLES).unwrap());
    let sizes = bytes.clone();
    let size = |id: u32| sizes[id as usize];
    let mut twin =
        Twin { policy: name, capacity, bytes, residents: vec![], belief: vec![None; SAMPLES], future: vec![] };
    let mut evicted = vec![];
    for op in ops {
        match op {
            &Op::Access(id) => {
                evicted.clear();
                let answer = ledger.access(id, &size, &scores, &mut evicted);
                prop_assert_eq!((answer, evicted.clone()), twin.access(id), "{} accesses {}", name, id);
            }
            &Op::Score(id, score) => {
                if let Some(belief) = scores.record(id, score, 0) {
                    ledger.rescore(id, belief);
                    twin.belief[id as usize] = Some(belief);
                }
            }
            &Op::Cancel(id) => {
                ledger.cancel(id);
                twin.residents.retain(|&r| r != id);
            }
            Op::Plan(order) => {
                ledger.plan(order);
                twin.future = order.clone();
            }
        }
        prop_assert_eq!(ledger.check(&scores), Ok(()), "{} after {:?}", name, op);
        let mut residents = twin.residents.clone();
        residents.sort();
        prop_assert_eq!(ledger.residents_iter().collect::<Vec<_>>(), residents);
        prop_assert_eq!(ledger.used_bytes(), twin.used());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn every_policy_decides_like_its_naive_twin_and_its_books_add_up(
        capacity in 0..40u64, bytes in sizes(), ops in ops()
    ) {
        for name in policy::NAMES {
            hold_to_twin(name, capacity, bytes.clone(), &ops)?;
        }
    }
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
    for name in policy::NAMES {
        let mut scores = ScoreTable::new(samples, 0.5);
        let mut ledger = Ledger::new(samples as u64, samples, policy::from_name(name, samples).unwrap());
        let mut evicted = vec![];
        for _ in 0..2 {
            ledger.plan(&order);
            for &id in &order {
                ledger.access(id, &|_| 1, &scores, &mut evicted);
                let belief = scores.record(id, id as f32, 0).unwrap();
                ledger.rescore(id, belief);
            }
        }
        assert_eq!(ledger.residents(), samples);
        let each = (scores.metadata_bytes() + ledger.metadata_bytes()) as f64 / samples as f64;
        assert!(each <= 32.0, "{name}: {each:.1} bytes a sample");
    }
}
