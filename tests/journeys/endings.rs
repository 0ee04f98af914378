//! How a pass ends, and what is left of it: positions of passes that ended early, batches without a good sample, states
//! of other runs.

mod support;

use lossfeed::engine::Dataset;
use lossfeed::error::ErrorKind;
use lossfeed::loader::Next;
use lossfeed::sampler::{SamplerSettings, Uniform};
use lossfeed::settings::{OnError, ScoreKind};
use lossfeed::source::{Arrays, ImageMode};
use lossfeed::{Dtype, Engine, SampleId, Settings, TensorSpec};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use support::{Patterned, engine, epoch, next, settings};

const SAMPLERS: [&str; 4] = ["uniform", "cost-aware", "importance", "pads"];

fn sampler(name: &str) -> SamplerSettings {
    SamplerSettings::from_name(name).unwrap()
}

/// Takes `batches` of a new pass, scoring them; returns their ids and the pass's number.
fn some(engine: &Engine, batches: usize) -> (Vec<SampleId>, u64) {
    let iteration = engine.start_epoch().unwrap();
    let mut ids = Vec::new();
    for _ in 0..batches {
        let batch = next(engine, iteration).unwrap().unwrap();
        let losses: Vec<f32> = batch.ticket.ids.iter().map(|&id| 1.0 + (id % 7) as f32).collect();
        engine.apply_losses(&batch.ticket, &losses).unwrap();
        ids.extend_from_slice(&batch.ticket.ids);
    }
    (ids, iteration)
}

fn scored_epoch(engine: &Engine) -> Vec<SampleId> {
    some(engine, engine.batches_per_epoch()).0
}

/// What a run that resumes from `state` delivers first.
fn rest(make: &dyn Fn() -> Engine, state: &[u8]) -> Vec<SampleId> {
    let resumed = make();
    resumed.load_state(state).unwrap();
    epoch(&resumed, |_| {})
}

#[test]
fn the_position_of_a_pass_that_ended_early_stays_however_it_ended() {
    for name in SAMPLERS {
        for workers in [0, 2] {
            let make = || {
                let settings = Settings { sampler: sampler(name), workers: Some(workers), seed: 4, ..settings(4) };
                engine(Patterned::new(30), settings)
            };
            let whole = {
                let whole = make();
                scored_epoch(&whole);
                scored_epoch(&whole)
            };
            let ends: [(&str, &dyn Fn(&Engine, u64)); 4] = [
                ("let go of", &|engine, iteration| engine.abandon(iteration)),
                ("closed", &|engine, _| engine.close()),
                ("under way", &|_, _| {}),
                ("let go of and named again", &|engine, iteration| {
                    engine.abandon(iteration);
                    engine.set_epoch(1).unwrap();
                }),
            ];
            for (how, end) in ends {
                let first = make();
                scored_epoch(&first);
                let (taken, iteration) = some(&first, 3);
                end(&first, iteration);
                let left = rest(&make, &first.state().unwrap());
                if workers == 0 {
                    assert_eq!([taken, left].concat(), whole, "{name}, {how}");
                } else {
                    assert_eq!(taken.len() + left.len(), 30, "{name}, {how}");
                }
            }
        }
    }
}

#[test]
fn a_batch_nobody_saw_is_delivered_again() {
    let make = || engine(Patterned::new(30), Settings { sampler: sampler("uniform"), ..settings(4) });
    let first = make();
    let (taken, iteration) = some(&first, 2);
    let Next::Batch(lost) = first.take_batch(iteration, Duration::from_secs(60)).unwrap() else {
        panic!("a third batch")
    };
    first.abandon(iteration);
    let left = rest(&make, &first.state().unwrap());
    assert_eq!(left[..4], *lost.ticket.ids);
    assert_eq!((taken.len(), left.len()), (8, 30 - 8));
}

#[test]
fn the_batch_that_failed_is_the_first_of_a_resumed_pass() {
    for workers in [0, 2] {
        let make = |bad: Option<SampleId>| {
            let mut source = Patterned::new(30);
            source.bad.extend(bad);
            let settings = Settings { sampler: sampler("uniform"), workers: Some(workers), ..settings(4) };
            engine(source, settings)
        };
        let order = epoch(&make(None), |_| {});
        let failing = make(Some(order[9]));
        let (taken, iteration) = some(&failing, 2);
        assert_eq!(next(&failing, iteration).map(|_| ()).unwrap_err().kind(), ErrorKind::Sample);
        let left = rest(&|| make(None), &failing.state().unwrap());
        assert_eq!([taken, left].concat(), order, "{workers} workers");
    }
}

#[test]
fn another_epoch_asked_for_gives_the_old_position_up() {
    let first = engine(Patterned::new(30), Settings { sampler: sampler("uniform"), ..settings(4) });
    let (_, iteration) = some(&first, 3);
    first.abandon(iteration);
    assert_eq!(first.epoch(), 1, "what starts next");
    first.set_epoch(7).unwrap();
    let second = engine(Patterned::new(30), Settings { sampler: sampler("uniform"), ..settings(4) });
    second.load_state(&first.state().unwrap()).unwrap();
    assert_eq!(second.epoch(), 7);
    assert_eq!(epoch(&second, |_| {}).len(), 30);
}

/// `close` from another thread must not look like the end of the epoch, whenever it comes.
#[test]
fn closing_in_mid_pass_is_told_to_the_waiting_consumer() {
    for delay in [0, 5] {
        let mut source = Patterned::new(400);
        source.delay = Duration::from_millis(delay);
        let loader = Arc::new(engine(source, settings(4)));
        let iteration = loader.start_epoch().unwrap();
        next(&loader, iteration).unwrap();
        let other = Arc::clone(&loader);
        let closing = std::thread::spawn(move || other.close());
        let mut batches = 1;
        let told = loop {
            match loader.next_batch(iteration, Duration::from_secs(60)) {
                Ok(Next::Batch(_)) => batches += 1,
                Ok(Next::Pending) => {}
                Ok(Next::End) => break None,
                Err(error) => break Some(error),
            }
        };
        // On a busy machine the other thread may come when the pass is over: that is its end, and it must be whole.
        match told {
            Some(error) => assert_eq!(error.kind(), ErrorKind::Usage, "{error}"),
            None => assert_eq!(batches, 100, "a closed pass looks like a whole one"),
        }
        closing.join().unwrap();
    }
}

#[test]
fn a_pass_that_was_let_go_of_has_no_normal_end() {
    let loader = engine(Patterned::new(30), settings(4));
    let (_, iteration) = some(&loader, 2);
    loader.abandon(iteration);
    let error = loader.next_batch(iteration, Duration::ZERO).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("ended after 2 of 8 batches"), "{error}");
}

fn with_bad(samples: usize, bad: impl IntoIterator<Item = SampleId>, settings: Settings) -> Engine {
    let mut source = Patterned::new(samples);
    source.bad.extend(bad);
    engine(source, settings)
}

#[test]
fn a_batch_in_which_nothing_is_good_is_passed_over() {
    for workers in [0, 2] {
        for batch_size in [1, 3] {
            let settings = Settings {
                on_error: OnError::Skip,
                workers: Some(workers),
                sampler: SamplerSettings::Uniform(Uniform { in_order: true, ..Uniform::default() }),
                ..settings(batch_size)
            };
            // The first, two in a row, and the last of batches of 3.
            let bad = [0, 1, 2, 9, 10, 11, 12, 13, 14, 28, 27, 29];
            let loader = with_bad(30, bad, settings);
            for _ in 0..3 {
                let mut ids = epoch(&loader, |_| {});
                ids.sort_unstable();
                assert_eq!(ids, (0..30).filter(|id| !bad.contains(id)).collect::<Vec<_>>());
            }
            assert_eq!(loader.bad_samples().len(), bad.len());
        }
    }
}

#[test]
fn ranks_take_as_many_steps_as_each_other_whatever_is_bad() {
    for on_error in [OnError::Skip, OnError::Substitute] {
        for sampler_name in ["uniform", "cost-aware"] {
            for rank in 0..3 {
                let settings = Settings {
                    on_error,
                    rank,
                    world_size: 3,
                    sampler: sampler(sampler_name),
                    cache_bytes: 4096,
                    ..settings(1)
                };
                let loader = with_bad(60, (0..60).step_by(10), settings);
                for _ in 0..3 {
                    let mut batches = 0;
                    epoch(&loader, |batch| {
                        assert_eq!(batch.rows, 1);
                        assert!(batch.ticket.ids[0] % 10 != 0);
                        batches += 1;
                    });
                    assert_eq!(batches, 20, "{on_error:?}, {sampler_name}, rank {rank}");
                }
            }
        }
    }
}

#[test]
fn a_dataset_without_any_good_sample_is_an_error_and_no_empty_epoch() {
    for (on_error, world_size) in [(OnError::Skip, 1), (OnError::Skip, 2), (OnError::Substitute, 1)] {
        for workers in [0, 2] {
            let settings = Settings { on_error, world_size, workers: Some(workers), ..settings(2) };
            let loader = with_bad(20, 0..20, settings);
            let iteration = loader.start_epoch().unwrap();
            let error = next(&loader, iteration).map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Sample, "{error}");
            assert!(error.to_string().contains("bad on purpose"), "{error}");
        }
    }
}

/// The mean of weight × value over what arrives is the mean over the samples that can be read, also where bad ones are
/// drawn at other rates than good ones (residents more often, the unseen first).
#[test]
fn weights_are_right_when_bad_samples_are_passed_over() {
    const SAMPLES: u32 = 120;
    let value = |id: SampleId| 1.0 + f64::from(id % 7);
    let is_bad = |id: SampleId| id % 5 == 1;
    let good: Vec<f64> = (0..SAMPLES).filter(|&id| !is_bad(id)).map(value).collect();
    let truth = good.iter().sum::<f64>() / good.len() as f64;
    for name in ["uniform", "importance", "cost-aware"] {
        for on_error in [OnError::Skip, OnError::Substitute] {
            let settings = Settings {
                on_error,
                sampler: sampler(name),
                workers: Some(0),
                cache_bytes: 3000,
                score: Some(ScoreKind::Loss),
                seed: 9,
                ..settings(8)
            };
            let loader = with_bad(SAMPLES as usize, (0..SAMPLES).filter(|&id| is_bad(id)), settings);
            let mut means = Vec::new();
            for number in 0..600 {
                let (mut sum, mut weights, mut rows) = (0.0, 0.0, 0usize);
                epoch(&loader, |batch| {
                    for (row, &id) in batch.ticket.ids.iter().enumerate() {
                        let at = loader.layout().weight_offset() + 4 * row;
                        let weight = f32::from_ne_bytes(batch.slot.bytes()[at..at + 4].try_into().unwrap());
                        sum += f64::from(weight) * value(id);
                        weights += f64::from(weight);
                        rows += 1;
                    }
                    let losses: Vec<f32> = batch.ticket.ids.iter().map(|&id| (value(id) as f32).powi(2)).collect();
                    loader.apply_losses(&batch.ticket, &losses).unwrap();
                });
                if number >= 3 {
                    means.push((sum / rows as f64, weights / rows as f64));
                }
            }
            let statistics = |of: &dyn Fn(&(f64, f64)) -> f64| {
                let n = means.len() as f64;
                let mean = means.iter().map(of).sum::<f64>() / n;
                let variance = means.iter().map(|m| (of(m) - mean).powi(2)).sum::<f64>() / (n - 1.0);
                (mean, (variance / n).sqrt())
            };
            let (mean, error) = statistics(&|m| m.0);
            let (weight, weight_error) = statistics(&|m| m.1);
            // Batches differ in the number of rows that arrive: a ratio of sums is off by about variance over rows,
            // 1e-3 here.
            assert!((mean - truth).abs() < 4.5 * error + 4e-3, "{name}, {on_error:?}: {mean} ± {error} for {truth}");
            assert!(
                (weight - 1.0).abs() < 4.5 * weight_error + 2e-3,
                "{name}, {on_error:?}: mean weight {weight} ± {weight_error}"
            );
            assert!(error < 0.03, "{name}: a standard error of {error} proves nothing");
        }
    }
}

/// Ignored targets and losses that are not finite: a sample that is delivered and gets no score is drawn as often as
/// the average.
#[test]
fn samples_that_never_get_a_score_are_not_chased() {
    const SAMPLES: usize = 400;
    let ignored = |id: SampleId| id % 50 == 7;
    for (name, odd) in
        [("importance", f32::NAN), ("cost-aware", f32::NAN), ("cost-aware", f32::INFINITY), ("pads", f32::NAN)]
    {
        for outlier in [None, Some(1e6f32), Some(1e30)] {
            let settings = Settings {
                sampler: sampler(name),
                workers: Some(0),
                cache_bytes: 4000,
                score: Some(ScoreKind::Loss),
                ..settings(10)
            };
            let loader = engine(Patterned::new(SAMPLES), settings);
            for number in 0..15 {
                let mut draws: HashMap<SampleId, usize> = HashMap::new();
                epoch(&loader, |batch| {
                    batch.ticket.ids.iter().for_each(|&id| *draws.entry(id).or_default() += 1);
                    let loss = |&id: &SampleId| match id {
                        0 => outlier.unwrap_or(1.0),
                        id if ignored(id) => odd,
                        id => 1.0 + (id % 3) as f32,
                    };
                    loader.apply_losses(&batch.ticket, &batch.ticket.ids.iter().map(loss).collect::<Vec<_>>()).unwrap();
                });
                let unscored: usize = draws.iter().filter(|(id, _)| ignored(**id)).map(|(_, n)| n).sum();
                let most = draws.values().max().copied().unwrap_or(0);
                // 8 samples: 8 draws on average, twice that or more by chance or because residents are preferred.
                assert!(unscored <= 40, "{name}, {odd}, {outlier:?}: {unscored} draws of 8 samples in epoch {number}");
                assert!(
                    most <= 64 + 1,
                    "{name}, {outlier:?}: {most} of {SAMPLES} draws are of one sample in epoch {number}"
                );
            }
        }
    }
}

fn arrays(fill: u8, label: i64) -> Dataset {
    let target: Vec<u8> = (0..64i64).flat_map(|k| (k % 3 + label).to_ne_bytes()).collect();
    let spec = TensorSpec::new(Dtype::U8, [4]);
    let source = Arrays::new(vec![fill; 256], spec, target, TensorSpec::class_index(), 64).unwrap();
    Dataset::new(Arc::new(source), ImageMode::Auto, None).unwrap()
}

#[test]
fn a_state_of_another_run_is_refused_and_what_differs_is_named() {
    let base = || Settings { sampler: sampler("cost-aware"), ..settings(4) };
    let state = Engine::new(arrays(1, 0), base()).unwrap().state().unwrap();
    Engine::new(arrays(1, 0), base()).unwrap().load_state(&state).unwrap();
    // What decides how fast batches come may change.
    let faster = Settings { workers: Some(0), cache_bytes: 8192, on_error: OnError::Skip, ..base() };
    Engine::new(arrays(1, 0), faster).unwrap().load_state(&state).unwrap();
    // So may the number of ranks, and with it the size of a batch: between two epochs under any sampler.
    let two = Settings { world_size: 2, batch_size: 2, ..base() };
    Engine::new(arrays(1, 0), two).unwrap().load_state(&state).unwrap();

    let kappa = serde_json::from_str(r#"{"name": "cost-aware", "kappa": 4.0}"#).unwrap();
    let noise = serde_json::from_str(r#"{"name": "cost-aware", "random_scores": true}"#).unwrap();
    let others: [(&str, Dataset, Settings); 11] = [
        ("dataset", arrays(2, 0), base()),
        ("dataset", arrays(1, 1), base()),
        ("seed 0 (this loader: 1)", arrays(1, 0), Settings { seed: 1, ..base() }),
        ("batch_size 4 (this loader: 8)", arrays(1, 0), Settings { batch_size: 8, ..base() }),
        ("drop_last false (this loader: true)", arrays(1, 0), Settings { drop_last: true, ..base() }),
        (
            "sampler.name \"cost-aware\" (this loader: \"uniform\")",
            arrays(1, 0),
            Settings { sampler: sampler("uniform"), ..base() },
        ),
        ("sampler.kappa 100.0 (this loader: 4.0)", arrays(1, 0), Settings { sampler: kappa, ..base() }),
        ("sampler.random_scores false (this loader: true)", arrays(1, 0), Settings { sampler: noise, ..base() }),
        ("score gradient_norm (this loader: loss)", arrays(1, 0), Settings { score: Some(ScoreKind::Loss), ..base() }),
        ("smoothing 0.5 (this loader: 0.25)", arrays(1, 0), Settings { smoothing: Some(0.25), ..base() }),
        ("policy importance (this loader: lru)", arrays(1, 0), Settings { policy: Some("lru".into()), ..base() }),
    ];
    for (words, dataset, settings) in others {
        let error = Engine::new(dataset, settings).unwrap().load_state(&state).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Settings);
        assert!(error.to_string().contains(words), "{words:?} is missing from: {error}");
    }
    // The order in which ids are walked is an option of the sampler.
    let walk = |in_order| SamplerSettings::Uniform(Uniform { in_order, ..Uniform::default() });
    let walked = Engine::new(arrays(1, 0), Settings { sampler: walk(true), ..base() }).unwrap().state().unwrap();
    let error = Engine::new(arrays(1, 0), Settings { sampler: walk(false), ..base() }).unwrap().load_state(&walked);
    assert!(error.unwrap_err().to_string().contains("sampler.in_order true (this loader: false)"));
}

/// What a loader believed before it was given a state is gone.
#[test]
fn a_state_without_scores_forgets_old_beliefs() {
    let make = || engine(Patterned::new(30), Settings { cache_bytes: 2000, workers: Some(0), ..settings(4) });
    let fresh = make().state().unwrap();
    let used = make();
    scored_epoch(&used);
    used.load_state(&fresh).unwrap();
    assert!(used.importance().iter().all(|belief| belief.is_nan()));
    assert_eq!(used.epoch(), 0);
    assert_eq!(epoch(&used, |_| {}), epoch(&make(), |_| {}));
}
