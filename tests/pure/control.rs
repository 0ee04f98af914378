//! The state machine against the rooms it is made of, and what its verbs promise to whoever holds a lock around it.

use std::sync::Arc;

use lossfeed::control::{Control, Cut, Decision, PIECE, Plan, Turn, Verdict};
use lossfeed::index::ScoreTable;
use lossfeed::ledger::{Access, Ledger};
use lossfeed::sampler::Order;
use lossfeed_lab::policies;
use lossfeed_tests::policy_names;
use proptest::prelude::*;

fn bytes(id: u32) -> u64 {
    3 + u64::from(id % 5)
}

fn ledger(name: &str, samples: usize, capacity: u64) -> Ledger {
    Ledger::new(capacity, samples, policies::from_name(name, samples).unwrap())
}

fn control(name: &str, samples: usize, capacity: u64) -> Control {
    Control::new(ScoreTable::new(samples, 0.5), ledger(name, samples, capacity))
}

fn plan(epoch: u64, ids: Vec<u32>, rows: usize) -> Plan {
    let ends = (rows..ids.len() + rows).step_by(rows).map(|end| end.min(ids.len())).collect();
    let weights = (0..ids.len()).map(|k| 1.0 + k as f32).collect();
    Plan { epoch, order: Arc::new(Order { ids, weights }), cut: Cut::At(ends), behind: Vec::new() }
}

fn decided(turn: Turn) -> Decision {
    match turn {
        Turn::Decided(decision) => decision,
        other => panic!("{other:?}"),
    }
}

proptest! {
    /// The machine is its rooms called in their order, and nothing else.
    #[test]
    fn it_decides_what_the_ledger_decides(
        name in prop::sample::select(policy_names().collect::<Vec<_>>()),
        epochs in prop::collection::vec(prop::collection::vec(0u32..24, 1..60), 1..4),
        capacity in 0u64..90,
        rows in 1usize..9,
    ) {
        let mut machine = control(name, 24, capacity);
        let (mut scores, mut ledger) = (ScoreTable::new(24, 0.5), ledger(name, 24, capacity));
        let mut step = 0;
        for (epoch, ids) in epochs.into_iter().enumerate() {
            let pass = machine.plan_and_begin(plan(epoch as u64, ids.clone(), rows), 0);
            ledger.plan(&ids);
            ledger.begin(ids.len());
            for (number, batch) in ids.chunks(rows).enumerate() {
                let decision = decided(machine.decide(pass, &bytes));
                prop_assert_eq!(decision.number, number);
                prop_assert_eq!(decision.rows.iter().map(|row| row.drawn).collect::<Vec<_>>(), batch);
                let mut evicted = Vec::new();
                let mut gone = Vec::new();
                let mut delivered = Vec::new();
                let accesses: Vec<Access> = batch.iter().enumerate().map(|(row, &drawn)| {
                    let id = ledger.instead(drawn, &scores).unwrap_or(drawn);
                    delivered.push(id);
                    let access = ledger.access(id, &bytes, &scores, &mut evicted);
                    gone.extend(evicted.drain(..).map(|id| (row as u32, id)));
                    access
                }).collect();
                for (row, (&id, access)) in decision.rows.iter().zip(delivered.iter().zip(accesses)) {
                    prop_assert_eq!(row.delivered, id);
                    let expected = match access {
                        Access::Hit => Verdict::Hit,
                        Access::Bypassed => Verdict::Pass,
                        Access::Admitted if ledger.contains(id) => Verdict::Keep,
                        Access::Admitted => Verdict::Displaced,
                    };
                    prop_assert_eq!(row.verdict, expected);
                }
                prop_assert_eq!(decision.evicted.iter().map(|e| (e.row, e.id)).collect::<Vec<_>>(), gone);
                let first = decision.rows[0].weight;
                prop_assert_eq!(first, 1.0 + (number * rows) as f32);
                machine.learn(None, batch.iter().map(|&id| (id, (id % 7) as f32)));
                for &id in batch {
                    let belief = scores.record(id, (id % 7) as f32, step).unwrap();
                    ledger.rescore(id, belief);
                }
                step += 1;
            }
            prop_assert_eq!(machine.decide(pass, &bytes), Turn::Over);
            prop_assert_eq!(machine.counts(), ledger.counts());
            machine.end(pass);
            prop_assert_eq!(machine.decide(pass, &bytes), Turn::Over);
        }
    }
}

/// Beliefs by id, as bits: most are NaN.
fn beliefs(scores: &ScoreTable) -> Vec<(u32, u32)> {
    scores.as_slice().iter().map(|b| b.to_bits()).zip(scores.stamps().iter().copied()).collect()
}

#[test]
fn a_snapshot_is_of_the_moment_it_began_whatever_happens_meanwhile() {
    let samples = 3 * PIECE + 77;
    let spread = |k: usize| (k * 40_503 % samples) as u32;
    let mut machine = control("lru", samples, samples as u64 / 2);
    let pass = machine.plan_and_begin(plan(0, (0..40_000).map(spread).collect(), 500), 0);
    let mut number = 0;
    let mut batch = |machine: &mut Control| {
        let decision = decided(machine.decide(pass, &bytes));
        machine.learn(None, decision.rows.iter().map(|row| (row.delivered, row.delivered as f32 + number as f32)));
        machine.read(0, &[decision.rows[0].delivered, decision.rows[1].delivered], &|row| row == 0);
        machine.cancel(decision.rows[2].delivered);
        number += 1;
    };
    (0..40).for_each(|_| batch(&mut machine));
    let (then, step) = (machine.scores().clone(), machine.step());
    let residents: Vec<bool> = (0..samples as u32).map(|id| machine.contains(id)).collect();
    let mut copy = machine.copy_begin();
    let mut pieces = 0;
    loop {
        pieces += 1;
        if machine.copy_more(&mut copy) == Some(true) {
            break;
        }
        assert!(!copy.is_whole());
        (0..10).for_each(|_| batch(&mut machine));
        machine.met(pass, 0..10_000);
    }
    copy.settle();
    assert_eq!(pieces, 4);
    assert!(copy.is_whole());
    assert!(beliefs(machine.scores()) != beliefs(&then), "nothing happened meanwhile");
    assert_eq!(beliefs(copy.scores()), beliefs(&then));
    assert_eq!((copy.scores().mean(), copy.scores().seen()), (then.mean(), then.seen()));
    assert_eq!((copy.scores().failed(), copy.step()), (then.failed(), step));
    let copied: Vec<bool> = (0..samples as u32).map(|id| copy.contains(id)).collect();
    assert!(copied == residents, "residents are not those of that moment");
    // One that a newer one replaced is given up, and says so.
    let mut first = machine.copy_begin();
    let mut second = machine.copy_begin();
    assert_eq!(machine.copy_more(&mut first), Some(true));
    assert!(!first.is_whole());
    assert_eq!(machine.copy_more(&mut second), Some(false));
}

#[test]
fn no_verb_looks_at_more_than_a_batch_and_a_piece() {
    let samples = 5 * PIECE;
    let rows = 64;
    let mut machine = control("importance", samples, samples as u64 * 4);
    let order: Vec<u32> = (0..samples as u32).collect();
    let pass = machine.begin(plan(0, order.clone(), rows), 0);
    let mut before = 0;
    let mut most = 0;
    let mut verb = |machine: &Control| {
        let touched = machine.touched() - before;
        before = machine.touched();
        most = most.max(touched);
        assert!(touched <= (rows + PIECE) as u64, "{touched} samples in one verb");
        touched
    };
    while let Turn::Decided(decision) = machine.decide(pass, &bytes) {
        assert!(verb(&machine) >= rows as u64);
        machine.learn(None, decision.rows.iter().map(|row| (row.delivered, 1.0)));
        assert_eq!(verb(&machine), rows as u64);
        if decision.number == 100 {
            break;
        }
    }
    machine.met(pass, 0..samples);
    assert_eq!(verb(&machine), PIECE as u64);
    let mut copy = machine.copy_begin();
    while machine.copy_more(&mut copy) == Some(false) {
        assert_eq!(verb(&machine), PIECE as u64);
    }
    verb(&machine);
    // Scores that come while the books are lent are told to the policy in pieces as well.
    let mut lent = machine.lend();
    assert!(machine.lend().is_none());
    assert_eq!(machine.decide(pass, &bytes), Turn::Lent);
    for batch in order.chunks(PIECE / 2).take(5) {
        machine.learn(None, batch.iter().map(|&id| (id, 2.0)));
        verb(&machine);
    }
    let mut turns = 0;
    while let Some(ledger) = lent.take() {
        turns += 1;
        lent = machine.take_back(ledger).err();
        assert!(verb(&machine) <= PIECE as u64);
    }
    assert_eq!(turns, 3);
    machine.ledger().unwrap().check(machine.scores()).unwrap();
    let mut capacity = machine.ledger().unwrap().used_bytes() / 20;
    while !machine.resize(capacity).is_empty() {
        verb(&machine);
        capacity = capacity.max(1);
    }
    assert_eq!(machine.ledger().unwrap().capacity_bytes(), capacity);
    assert_eq!(most, PIECE as u64);
}

#[test]
fn scores_that_come_while_the_books_are_lent_reach_the_policy() {
    let mut machine = control("shade", 4, 10_000);
    let pass = machine.plan_and_begin(plan(0, vec![0, 1, 2, 3], 4), 0);
    decided(machine.decide(pass, &|_| 1));
    let ledger = machine.lend().unwrap();
    machine.learn(None, [(0, 5.0), (1, 1.0), (2, 7.0), (3, 3.0)].into_iter());
    assert!(machine.take_back(ledger).is_ok());
    // `check` recounts the queue; the order in which they leave is that of the scores.
    assert_eq!(machine.resize(3), [1]);
    assert_eq!(machine.resize(1), [3, 0]);
    assert_eq!(machine.ledger().unwrap().counts().shrunk, 3);
}

#[test]
fn a_worker_of_an_earlier_pass_is_told_that_it_is_over() {
    let mut machine = control("lru", 4, 10);
    let first = machine.plan_and_begin(plan(0, vec![0, 1], 1), 0);
    let second = machine.plan_and_begin(plan(1, vec![2, 3], 1), 1);
    assert_eq!(machine.decide(first, &bytes), Turn::Over);
    assert_eq!(machine.decide_again(first, 0, &bytes), Turn::Over);
    assert!(machine.end(first).is_none());
    let decision = decided(machine.decide(second, &bytes));
    assert_eq!((decision.number, decision.rows[0].delivered), (1, 3));
    let again = decided(machine.decide_again(second, 0, &bytes));
    assert_eq!((again.number, again.rows[0].delivered), (0, 2));
    assert_eq!(machine.decide(second, &bytes), Turn::Over);
}
