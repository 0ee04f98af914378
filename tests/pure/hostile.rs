//! Scores that try to take a run over: whatever comes, beliefs stay finite, no sample takes an epoch, and weights can
//! be used.

use lossfeed::index::{ScoreTable, Standing};
use lossfeed::sampler::{CostAware, Importance, MAX_GAIN, Outlook, Pads, SamplerSettings};
use proptest::prelude::*;

const SAMPLES: usize = 240;

/// What losses have been seen to be, and what they could be.
fn score() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => 0.0f32..4.0,
        1 => prop::sample::select(vec![
            f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e30, -1e30, 1e6, 0.0, -0.0, 1e-40, f32::MIN_POSITIVE,
        ]),
        1 => any::<u32>().prop_map(f32::from_bits),
    ]
}

#[derive(Debug, Clone)]
enum Event {
    Score(u32, f32),
    Tried(u32),
    Fail(u32),
    Recover(u32),
    /// The whole table by way of a state.
    Restore,
}

fn event() -> impl Strategy<Value = Event> {
    let id = 0..SAMPLES as u32;
    prop_oneof![
        20 => (id.clone(), score()).prop_map(|(id, score)| Event::Score(id, score)),
        2 => id.clone().prop_map(Event::Tried),
        1 => id.clone().prop_map(Event::Fail),
        1 => id.prop_map(Event::Recover),
        1 => Just(Event::Restore),
    ]
}

/// The plain twin: standings in a list, sums made anew.
fn happen(events: &[Event], smoothing: f32) -> ScoreTable {
    let mut table = ScoreTable::new(SAMPLES, smoothing);
    let mut twin = vec![Standing::Unseen; SAMPLES];
    for (step, event) in events.iter().enumerate() {
        match *event {
            Event::Score(id, score) => {
                let new = table.record(id, score, step as u32);
                assert_eq!(new.is_some(), score.is_finite());
                let Some(new) = new else { continue };
                let old = match twin[id as usize] {
                    Standing::Scored(old) => old,
                    _ => score,
                };
                let (low, high) = (score.min(old), score.max(old));
                assert!(new.is_finite() && low <= new && new <= high, "{new} is not between {low} and {high}");
                twin[id as usize] = Standing::Scored(new);
            }
            Event::Tried(id) => {
                let unseen = twin[id as usize] == Standing::Unseen;
                assert_eq!(table.tried(id), unseen);
                if unseen {
                    twin[id as usize] = Standing::Tried;
                }
            }
            Event::Fail(id) => {
                table.fail(id);
                twin[id as usize] = Standing::Failed;
            }
            Event::Recover(id) => {
                table.recover(id);
                if twin[id as usize] == Standing::Failed {
                    twin[id as usize] = Standing::Tried;
                }
            }
            Event::Restore => {
                let (beliefs, stamps) = (table.as_slice().to_vec(), table.stamps().to_vec());
                table = ScoreTable::new(SAMPLES, smoothing);
                table.restore(&beliefs, &stamps).unwrap();
            }
        }
    }
    let beliefs: Vec<f64> =
        twin.iter().filter_map(|s| if let Standing::Scored(b) = s { Some(f64::from(*b)) } else { None }).collect();
    let failed = twin.iter().filter(|s| **s == Standing::Failed).count();
    assert_eq!((table.seen(), table.failed()), (beliefs.len(), failed));
    assert!((0..SAMPLES).all(|id| table.standing(id as u32) == twin[id]));
    let mean = (!beliefs.is_empty()).then(|| beliefs.iter().sum::<f64>() / beliefs.len() as f64);
    let size: f64 = beliefs.iter().map(|b| b.abs()).sum::<f64>() + f64::from(f32::MAX) * 1e-9;
    assert_eq!(table.mean().is_some(), mean.is_some());
    assert!((table.mean().unwrap_or(0.0) - mean.unwrap_or(0.0)).abs() <= size);
    table
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn no_sequence_of_scores_gives_a_share_above_the_cap_or_a_weight_that_is_not_finite(
        events in prop::collection::vec(event(), 0..600),
        all in any::<bool>(),
        outlier in score(),
        smoothing in prop::sample::select(vec![0.0f32, 0.5, 0.99]),
        epoch in 0u64..1000,
        period in 1u32..7,
    ) {
        let mut table = happen(&events, smoothing);
        if all {
            (0..SAMPLES as u32).for_each(|id| _ = table.record(id, if id == 3 { outlier } else { 1.0 + (id % 5) as f32 }, 0));
        }
        let owned: Vec<u32> = (0..SAMPLES as u32).collect();
        let resident = |id: u32| id.is_multiple_of(period);
        let outlook = Outlook {
            owned: &owned, samples: SAMPLES as u32, epoch, seed: 5, rank: 0, world_size: 1, scores: &table, resident: &resident,
        };
        // By systematic resampling a sample comes at most once more than its mean; PADS draws with replacement, and in
        // the hundreds of cases of a run nobody is eight standard deviations off by chance.
        let chance = |most: f64| most + 8.0 * most.sqrt();
        let samplers = [
            (SamplerSettings::Importance(Importance::default()), MAX_GAIN + 1.0),
            (SamplerSettings::Importance(Importance { floor: 0.01 }), MAX_GAIN + 1.0),
            (SamplerSettings::CostAware(CostAware { kappa: 16.0, ..CostAware::default() }), 4.0 * MAX_GAIN + 1.0),
            (SamplerSettings::CostAware(CostAware::default()), 10.0 * MAX_GAIN + 1.0),
            (SamplerSettings::Pads(Pads { repeats: 1.0, ..Pads::default() }), chance(MAX_GAIN)),
            (SamplerSettings::Pads(Pads { repeats: 1.0, corrected: true, ..Pads::default() }), chance(MAX_GAIN)),
            (SamplerSettings::Pads(Pads::as_coded(1.0)), chance(MAX_GAIN)),
        ];
        for (settings, most) in samplers {
            let order = settings.build().unwrap().draw(&outlook).unwrap();
            prop_assert_eq!(order.ids.len(), SAMPLES);
            prop_assert!(order.weights.iter().all(|w| w.is_finite() && *w > 0.0), "{:?}", settings);
            let mut draws = vec![0usize; SAMPLES];
            order.ids.iter().for_each(|&id| draws[id as usize] += 1);
            let drawn = draws.iter().max().copied().unwrap_or(0);
            prop_assert!(drawn as f64 <= most, "{:?}: one sample has {} of {} draws", settings, drawn, SAMPLES);
        }
    }
}

/// A difference of two large scores overflows where the belief between them does not.
#[test]
fn beliefs_stay_finite_between_the_largest_scores_of_either_sign() {
    for smoothing in [0.1, 0.5, 0.9] {
        let mut table = ScoreTable::new(1, smoothing);
        for score in [f32::MAX, f32::MIN, f32::MAX, f32::MIN, f32::MIN, f32::MAX] {
            assert!(table.record(0, score, 0).is_some_and(f32::is_finite));
        }
    }
}

#[test]
fn a_damaged_table_is_refused_and_changes_nothing() {
    let mut table = ScoreTable::new(3, 0.5);
    table.record(1, 2.0, 7);
    for (beliefs, stamps) in [
        (vec![1.0, f32::INFINITY, 1.0], vec![0; 3]),
        (vec![1.0, f32::NEG_INFINITY, 1.0], vec![0; 3]),
        (vec![1.0, f32::NAN, 1.0], vec![0, 3, 0]),
        (vec![1.0; 2], vec![0; 2]),
        (vec![1.0; 3], vec![0; 2]),
    ] {
        assert!(table.restore(&beliefs, &stamps).is_err());
        assert_eq!((table.importance(1), table.seen()), (Some(2.0), 1));
    }
}
