//! Truths about the circuit, on a clock turned by hand.

use super::*;
use proptest::prelude::*;

/// What may happen to a circuit.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    /// A call begins.
    Ask,
    /// The oldest call under way ends.
    Tell(Outcome),
    /// Time passes.
    Wait(u64),
    /// The source gave a sample in so long.
    Behind(u64),
}

const fn outcome(answers: u64, failures: u64, took_us: u64, unfinished: bool) -> Outcome {
    Outcome { answers, failures, took_us, unfinished }
}

const STEPS: [Step; 9] = [
    Step::Ask,
    Step::Tell(outcome(10, 0, 100, false)),
    Step::Tell(outcome(10, 0, 700_000, false)),
    Step::Tell(outcome(0, 2, 10, false)),
    Step::Tell(outcome(0, 0, 0, false)),
    Step::Tell(outcome(0, 0, 1_000_000, true)),
    Step::Wait(PAUSE_US - 1),
    Step::Wait(PAUSE_MAX_US),
    Step::Behind(50_000),
];

/// The circuit and the calls under way, and what must hold after every step.
#[derive(Clone)]
struct Watched {
    circuit: Circuit,
    calls: Vec<Leave>,
    now_us: u64,
    opened_us: Option<u64>,
}

impl Watched {
    fn new() -> Self {
        Self { circuit: Circuit::new(Some(1000.0)), calls: Vec::new(), now_us: 7, opened_us: None }
    }

    fn step(&mut self, step: Step) {
        let before = self.circuit.state(self.now_us);
        let mut change = None;
        match step {
            Step::Ask => {
                let leave = self.circuit.ask(self.now_us);
                let probing = self.calls.contains(&Leave::Probe);
                match leave {
                    Leave::All => assert_eq!(before, State::Closed),
                    Leave::Probe => assert!(before == State::HalfOpen && !probing, "one probe at a time"),
                    Leave::Nothing => assert!(before == State::Open || probing, "{before:?} and nobody tries"),
                }
                if leave != Leave::Nothing {
                    self.calls.push(leave);
                }
            }
            Step::Tell(_) if self.calls.is_empty() => {}
            Step::Tell(outcome) => {
                let leave = self.calls.remove(0);
                change = self.circuit.told(leave, outcome, self.now_us);
                if leave == Leave::Probe && outcome.answers + outcome.failures == 0 && !outcome.unfinished {
                    assert_eq!(
                        (change, self.circuit.state(self.now_us)),
                        (None, State::HalfOpen),
                        "nothing was learnt"
                    );
                }
            }
            Step::Wait(us) => self.now_us += us,
            Step::Behind(us) => self.circuit.source_took(1, us),
        }
        let after = self.circuit.state(self.now_us);
        match change {
            Some(change) => {
                assert_eq!((change.before, change.now), (before, after));
                assert_eq!(change.why == Why::Serves, after == State::Closed);
                if after == State::Open {
                    let pause = change.again_us - self.now_us;
                    assert!((PAUSE_US..=PAUSE_MAX_US).contains(&pause), "{pause}");
                    self.opened_us = Some(self.now_us);
                }
            }
            // Without a word it only goes from open to half open, and only by time.
            None if before != after => {
                assert_eq!((before, after), (State::Open, State::HalfOpen));
                assert!(matches!(step, Step::Wait(_)), "{step:?}");
                let opened = self.opened_us.expect("it was opened");
                assert!(self.now_us - opened >= PAUSE_US);
            }
            None => {}
        }
        assert!(self.circuit.patience_us(Leave::All, 0) <= LOSS_US);
    }
}

/// Every sequence of so many steps.
fn walk(watched: &Watched, left: usize, seen: &mut [usize; 3]) {
    seen[watched.circuit.state(watched.now_us).code() as usize] += 1;
    if left == 0 {
        return;
    }
    for step in STEPS {
        let mut next = watched.clone();
        next.step(step);
        walk(&next, left - 1, seen);
    }
}

#[test]
fn every_sequence_of_steps_keeps_to_the_rules() {
    let mut seen = [0; 3];
    walk(&Watched::new(), 6, &mut seen);
    assert!(seen.iter().all(|&times| times > 1000), "{seen:?}");
}

proptest! {
    #[test]
    fn so_does_any_long_one(steps in prop::collection::vec(prop::sample::select(&STEPS[..]), 0..200)) {
        let mut watched = Watched::new();
        steps.into_iter().for_each(|step| watched.step(step));
        // Whatever happened: calls that end well and time that passes close it again.
        while !watched.calls.is_empty() {
            watched.step(Step::Tell(outcome(10, 0, 100, false)));
        }
        watched.step(Step::Wait(PAUSE_MAX_US));
        watched.step(Step::Ask);
        watched.step(Step::Tell(outcome(10, 0, 100, false)));
        prop_assert_eq!(watched.circuit.state(watched.now_us), State::Closed);
    }

    /// The naive twin of what opens it: all that was lost since the last time that nothing was.
    #[test]
    fn what_a_tier_costs_is_bounded(calls in prop::collection::vec((1u64..50, 0u64..400_000), 1..60)) {
        let mut circuit = Circuit::new(Some(1000.0));
        let mut lost = 0i64;
        for (answers, took_us) in calls {
            prop_assert_eq!(circuit.ask(0), Leave::All);
            // A call is left when its patience is over.
            let patience = circuit.patience_us(Leave::All, answers as usize);
            prop_assert_eq!(patience, (LOSS_US as i64 - lost) as u64 + 1000 * answers);
            let (took_us, unfinished) = (took_us.min(patience), took_us > patience);
            let change = circuit.told(Leave::All, outcome(answers, 0, took_us, unfinished), 0);
            lost = (lost + took_us as i64 - 1000 * answers as i64).max(0);
            prop_assert!(lost <= LOSS_US as i64, "it never costs more than it may");
            prop_assert_eq!(change.is_some(), unfinished);
            if change.is_some() {
                return Ok(());
            }
        }
    }
}

#[test]
fn failures_in_a_row_open_it_and_rare_ones_do_not() {
    let one = outcome(0, 1, 10, false);
    let mut circuit = Circuit::new(None);
    for _ in 0..3 {
        assert_eq!(circuit.told(Leave::All, one, 0), None);
    }
    assert_eq!(circuit.told(Leave::All, one, 0).map(|change| change.why), Some(Why::Fails));
    let mut circuit = Circuit::new(Some(1e6));
    for _ in 0..1000 {
        assert_eq!(circuit.told(Leave::All, outcome(20, 1, 10, false), 0), None, "one in twenty");
    }
    let opened = (0..1000).find_map(|_| circuit.told(Leave::All, outcome(5, 1, 10, false), 0));
    assert_eq!(opened.map(|change| change.why), Some(Why::Fails), "one in six");
}

#[test]
fn the_reason_says_what_was_seen() {
    let why = |outcome| Circuit::new(Some(100.0)).told(Leave::All, outcome, 0).map(|change| change.why);
    assert_eq!(why(outcome(0, 0, LOSS_US, true)), Some(Why::Hangs));
    // It answered until its patience was nearly used up.
    assert_eq!(why(outcome(0, 0, LOSS_US / 2 - 1, true)), Some(Why::Late));
    assert_eq!(why(outcome(3, 0, LOSS_US + 300, true)), Some(Why::Late));
    assert_eq!(why(outcome(3, 0, LOSS_US + 301, false)), Some(Why::Late));
    assert_eq!(why(outcome(3, 0, LOSS_US + 300, false)), None);
}

#[test]
fn what_was_recorded_is_believed_until_the_source_was_asked() {
    let mut circuit = Circuit::new(None);
    let alone = |circuit: &Circuit| circuit.patience_us(Leave::All, 3) - LOSS_US;
    circuit.recorded(None);
    assert_eq!(alone(&circuit), 0);
    circuit.recorded(Some(50.0));
    assert_eq!(alone(&circuit), 150);
    circuit.recorded(Some(90.0));
    assert_eq!(alone(&circuit), 270);
    // A few samples of its own count for more than all that was recorded.
    circuit.source_took(1, 20);
    circuit.recorded(Some(90.0));
    assert_eq!(alone(&circuit), 60);
}

#[test]
fn the_source_is_asked_now_and_then_where_only_others_know_its_time() {
    let mut circuit = Circuit::new(None);
    let call = |circuit: &mut Circuit| circuit.told(Leave::All, outcome(10, 0, LOSS_US / 2, false), 0);
    assert_eq!(call(&mut circuit), None);
    // They had it from far away: it seems to be as slow as the tier.
    circuit.recorded(Some(LOSS_US as f64 / 20.0));
    assert!(!circuit.compares());
    assert_eq!(call(&mut circuit), None);
    assert!(circuit.compares() && !circuit.compares(), "one call asks");
    circuit.source_took(PROBE_SAMPLES as u64, 40);
    let opened = (0..3).find_map(|_| call(&mut circuit));
    assert_eq!(opened.map(|change| change.why), Some(Why::Late));
    // A check that took long is not repeated soon.
    let mut circuit = Circuit::new(None);
    circuit.recorded(Some(LOSS_US as f64));
    circuit.source_took(PROBE_SAMPLES as u64, LOSS_US);
    let calls = (1..).find(|_| call(&mut circuit).is_none() && circuit.compares());
    assert_eq!(calls, Some(2 * CHECKS));
    // A tier that has its own measurement never asks for one.
    let mut disk = Circuit::new(Some(LOSS_US as f64));
    assert!((0..100).all(|_| call(&mut disk).is_none() && !disk.compares()));
}

#[test]
fn pauses_grow_until_it_serves_for_long() {
    let mut circuit = Circuit::new(Some(1000.0));
    let hangs = outcome(0, 0, LOSS_US, true);
    let mut now = 0;
    let mut pauses = Vec::new();
    let mut change = circuit.told(Leave::All, hangs, now).expect("it opens");
    for _ in 0..8 {
        pauses.push((change.again_us - now) / 1_000_000);
        assert_eq!(circuit.ask(change.again_us - 1), Leave::Nothing);
        now = change.again_us;
        assert_eq!(circuit.ask(now), Leave::Probe);
        assert_eq!(circuit.ask(now), Leave::Nothing);
        change = circuit.told(Leave::Probe, hangs, now).expect("no better");
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300]);
    let mut reopened = |after: u64| {
        now = change.again_us;
        assert_eq!(circuit.ask(now), Leave::Probe);
        let closed = circuit.told(Leave::Probe, outcome(4, 0, 4000 + PROBE_LOSS_US, false), now);
        assert_eq!(closed.map(|change| change.why), Some(Why::Serves));
        now += after;
        change = circuit.told(Leave::All, hangs, now).expect("it opens");
        (change.again_us - now) / 1_000_000
    };
    assert_eq!(reopened(STEADY_US - 1), 300, "it flaps");
    assert_eq!(reopened(STEADY_US), 5);
}

#[test]
fn a_call_that_began_before_it_opened_changes_nothing() {
    let mut circuit = Circuit::new(Some(1000.0));
    let hangs = outcome(0, 0, LOSS_US, true);
    let first = circuit.told(Leave::All, hangs, 0).expect("it opens");
    assert_eq!(circuit.told(Leave::All, hangs, 3), None);
    assert_eq!(circuit.ask(first.again_us), Leave::Probe);
    assert_eq!(circuit.told(Leave::All, outcome(9, 0, 1, false), first.again_us), None, "the probe tells");
    assert_eq!(circuit.state(first.again_us), State::HalfOpen);
}

#[test]
fn the_source_s_time_follows_what_is_seen() {
    let mut circuit = Circuit::new(None);
    assert_eq!(circuit.patience_us(Leave::All, 1000), LOSS_US);
    circuit.source_took(0, 5);
    assert_eq!(circuit.alone_us, None);
    circuit.source_took(10, 20_000);
    assert_eq!(circuit.alone_us, Some(2000.0));
    for _ in 0..100 {
        circuit.source_took(64, 64 * 500);
    }
    assert!(circuit.alone_us.is_some_and(|us| (499.0..501.0).contains(&us)));
    for strange in [f64::NAN, f64::INFINITY, -1.0] {
        assert_eq!(Circuit::new(Some(strange)).alone_us, None);
    }
}

#[test]
fn codes_stand_for_words() {
    for why in Why::ALL {
        assert_eq!(Why::of_code(why.code()), Some(why));
    }
    for state in [State::Closed, State::Open, State::HalfOpen] {
        assert_eq!(State::of_code(state.code()), Some(state));
    }
    assert_eq!((Why::of_code(0), Why::of_code(6), State::of_code(3)), (None, None, None));
}
