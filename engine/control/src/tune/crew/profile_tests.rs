//! The crew in whole runs, on a clock turned by hand: against the best fixed number, tf.data's hill climb and DLCache's
//! rule.

use super::model_tests::{Fixed, Model, Profile, Tuner};
use super::rivals_tests::{DlCache, HillClimb};
use super::{Change, Crew, Seen};

const CHEAP: Profile = Profile {
    name: "cheap samples, slow step",
    cores: 8,
    step_s: 0.04,
    step_cores: 0.0,
    latency_s: 0.0,
    transfer_s: 0.0,
    decode_s: 0.01,
    crowd: 0.0,
    slow: 1.0,
};
const EXPENSIVE: Profile = Profile { name: "expensive decode", step_s: 0.05, decode_s: 0.27, ..CHEAP };
const FEW_CORES: Profile =
    Profile { name: "expensive decode, two processors", cores: 2, step_s: 0.02, decode_s: 0.1, ..CHEAP };
const WAITING: Profile =
    Profile { name: "waits for a store", step_s: 0.02, latency_s: 0.2, transfer_s: 0.012, decode_s: 0.02, ..CHEAP };
const CROWDED: Profile =
    Profile { name: "threads in each other's way", step_s: 0.01, decode_s: 0.05, crowd: 0.1, ..CHEAP };
const SKEWED: Profile =
    Profile { name: "1 % of samples 100 times slower", step_s: 0.032, decode_s: 0.1, slow: 100.0, ..CHEAP };
/// On the processors that threads decode on.
const ON_CPU: Profile =
    Profile { name: "a step on the processors", step_s: 0.1, step_cores: 8.0, decode_s: 0.2, ..CHEAP };
const SIX: [Profile; 6] = [CHEAP, EXPENSIVE, FEW_CORES, WAITING, CROWDED, SKEWED];

/// As the engine has it: one a processor to begin with, four at most.
fn most(cores: usize) -> usize {
    4 * cores
}

struct Auto {
    crew: Crew,
    changes: Vec<(f64, Change)>,
}

impl Auto {
    fn new(cores: usize) -> Self {
        Self { crew: Crew::new(cores, most(cores)), changes: Vec::new() }
    }
}

impl Tuner for Auto {
    fn threads(&self) -> usize {
        self.crew.threads()
    }
    fn took(&mut self, now: f64, _: f64, seen: Seen) {
        self.changes.extend(self.crew.follow(seen).map(|change| (now, change)));
    }
}

/// Seconds of a profile, of which the first may be used to find the number.
const LONG_S: f64 = 30.0;
const SOON_S: f64 = 5.0;

/// Batches after the first seconds, and the best fixed number.
fn best(profile: Profile) -> (usize, usize) {
    let of = |threads| {
        let (mut model, mut fixed) = (Model::new(1), Fixed(threads));
        model.run(profile, SOON_S, &mut fixed);
        (model.run(profile, LONG_S - SOON_S, &mut fixed), threads)
    };
    (1..=most(profile.cores)).map(of).max_by_key(|&(batches, threads)| (batches, std::cmp::Reverse(threads))).unwrap()
}

/// A whole run: batches before and after the time that may be used.
fn whole(profile: Profile, tuner: &mut dyn Tuner) -> (usize, usize) {
    let mut model = Model::new(1);
    (model.run(profile, SOON_S, tuner), model.run(profile, LONG_S - SOON_S, tuner))
}

#[test]
fn it_is_as_good_as_the_best_fixed_number_on_six_profiles_and_no_rival_is_faster() {
    println!("profile | best fixed number | crew | tf.data | DLCache (batches in 30 s; share of the best after 5 s)");
    for profile in SIX {
        let (most, threads) = best(profile);
        let mut auto = Auto::new(profile.cores);
        let ours = whole(profile, &mut auto);
        let climb = whole(profile, &mut HillClimb::new(profile.cores));
        let rule = whole(profile, &mut DlCache::new(profile.cores));
        let share = |(_, late): (usize, usize)| late as f64 / most as f64;
        let sum = |(soon, late): (usize, usize)| soon + late;
        let shown = |run| format!("{} ({:.2})", sum(run), share(run));
        let row = [shown(ours), shown(climb), shown(rule)].join(" | ");
        println!("{} | {threads} | {row} | {} threads", profile.name, auto.threads());
        let changes = &auto.changes;
        assert!(share(ours) >= 0.95, "{profile:?}: {} of the best\n{changes:?}", share(ours));
        assert!(
            sum(ours) >= sum(climb) && sum(ours) >= sum(rule),
            "{profile:?}: {ours:?}, {climb:?}, {rule:?}\n{changes:?}"
        );
        assert!(ours.1 >= climb.1 && ours.1 >= rule.1, "{profile:?}: {ours:?}, {climb:?}, {rule:?}\n{changes:?}");
    }
}

/// Every profile behind every other, twice: what each brings from five seconds after the change on, and how often the
/// number changes from ten seconds after it on.
#[test]
fn it_is_so_within_five_seconds_of_a_change_and_then_rests() {
    let eight = [CHEAP, EXPENSIVE, WAITING, CROWDED, SKEWED, ON_CPU];
    let best: Vec<usize> = eight.iter().map(|&profile| best(profile).0).collect();
    for (seed, (a, b)) in (0..).zip((0..6).flat_map(|a| (0..6).map(move |b| (a, b))).filter(|(a, b)| a != b)) {
        let (mut model, mut auto) = (Model::new(seed), Auto::new(8));
        for at in [a, b, a] {
            model.run(eight[at], SOON_S, &mut auto);
            let mut batches = model.run(eight[at], SOON_S, &mut auto);
            let before = auto.changes.len();
            batches += model.run(eight[at], LONG_S - 2.0 * SOON_S, &mut auto);
            let (share, late) = (batches as f64 / best[at] as f64, auto.changes.len() - before);
            let run = [eight[a].name, eight[b].name, eight[at].name];
            assert!(share >= 0.95, "{share} of the best\n{run:?} {:?}", auto.changes);
            let apart = auto.changes.windows(2).map(|two| two[1].0 - two[0].0).fold(f64::INFINITY, f64::min);
            assert!(apart >= 0.25, "two changes within {apart} s\n{run:?} {:?}", auto.changes);
            assert!(late <= 2, "{late} changes in twenty seconds\n{run:?} {:?}", auto.changes);
        }
    }
}

/// A pause of the consumer (it evaluates, or writes a checkpoint) is no other demand.
#[test]
fn a_pause_changes_nothing() {
    let (mut model, mut auto) = (Model::new(3), Auto::new(8));
    model.run(EXPENSIVE, LONG_S, &mut auto);
    let before = auto.changes.len();
    for _ in 0..5 {
        model.run(Profile { step_s: 20.0, ..EXPENSIVE }, 0.1, &mut auto);
        model.run(EXPENSIVE, LONG_S, &mut auto);
    }
    assert_eq!(auto.changes.len(), before, "{:?}", auto.changes);
}
