//! The engine's promises, kept under every number of workers.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod ahead;
mod copied;
mod numbers;
mod punctual;
mod recorded;
mod resized;
mod stalls;
mod stops;
mod support;

use lossfeed::device::cuda::Mail;
use lossfeed::engine::Credits;
use lossfeed::error::ErrorKind;
use lossfeed::index::ScoreTable;
use lossfeed::journal::{ROWS_MAX, read_trace};
use lossfeed::ledger::Ledger;
use lossfeed::policy;
use lossfeed::sampler::SamplerSettings;
use lossfeed::scoring::Measured;
use lossfeed::settings::OnError;
use lossfeed::sim::replay;
use lossfeed::{Engine, SampleId, Settings};
use std::collections::HashSet;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use support::{Patterned, SAMPLE_BYTES, engine, epoch, next, settings};

/// A record as the arena keeps it: 48 bytes and an int64 target, in granules of 64.
const RECORD_BYTES: u64 = 64;
const _: () = assert!(SAMPLE_BYTES + 8 <= RECORD_BYTES as usize);

fn loss_of(id: SampleId, epoch: u64) -> f32 {
    (id.wrapping_mul(2_246_822_519) >> 8) as f32 / 1e6 + epoch as f32
}

fn stat(engine: &Engine, name: &str) -> f64 {
    engine.stats().into_iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no stat {name}")).1
}

#[test]
fn live_hits_equal_simulated_hits_to_the_last_one() {
    const SAMPLES: usize = 600;
    for policy in ["lru", "fifo", "minio", "shade"] {
        for fraction in [0.1, 0.2, 0.5] {
            let cache_bytes = (fraction * SAMPLES as f64) as u64 * RECORD_BYTES;
            let settings = Settings { workers: Some(0), policy: Some(policy.into()), cache_bytes, ..settings(32) };
            let live = engine(Patterned::new(SAMPLES), settings);
            let mut csv = String::from("epoch,step,id,loss\n");
            for e in 0..4 {
                epoch(&live, |batch| {
                    let losses: Vec<f32> = batch.ticket.ids.iter().map(|&id| loss_of(id, e)).collect();
                    for (id, loss) in batch.ticket.ids.iter().zip(&losses) {
                        writeln!(csv, "{e},{},{id},{loss}", batch.ticket.number).unwrap();
                    }
                    live.apply_losses(&batch.ticket, &losses).unwrap();
                });
            }
            let trace = read_trace(csv.as_bytes(), ROWS_MAX).unwrap();
            let simulated = replay(&trace, policy::find(policy).unwrap(), fraction).unwrap();
            assert_eq!(stat(&live, "hits_total") as u64, simulated.hits, "{policy} at {fraction}");
            assert!(simulated.hits > 0);
            assert_eq!(stat(&live, "admission_cancelled_total"), 0.0, "alone, an admission always finds its memory");
        }
    }
}

#[test]
fn uniform_delivers_every_id_once_and_resumes_with_exactly_the_rest() {
    const SAMPLES: usize = 61;
    for world_size in [1u32, 2, 3] {
        for workers in [0, 1, 3] {
            for drop_last in [false, true] {
                let make = |rank| {
                    let s = Settings { rank, world_size, drop_last, workers: Some(workers), seed: 7, ..settings(8) };
                    engine(Patterned::new(SAMPLES), s)
                };
                let mut all = Vec::new();
                let mut lengths = HashSet::new();
                for rank in 0..world_size {
                    let whole = make(rank);
                    whole.set_epoch(3).unwrap();
                    let mut batches = Vec::new();
                    epoch(&whole, |b| batches.push(b.ticket.ids.to_vec()));
                    assert_eq!(batches.len(), whole.batches_per_epoch());
                    lengths.insert(batches.len());
                    all.extend(batches.iter().flatten().copied());

                    for stop in 0..=batches.len() {
                        let first = make(rank);
                        first.set_epoch(3).unwrap();
                        let iteration = first.start_epoch().unwrap();
                        for _ in 0..stop {
                            next(&first, iteration).unwrap().unwrap();
                        }
                        let state = first.state().unwrap();
                        first.close();
                        let second = make(rank);
                        second.load_state(&state).unwrap();
                        let resumed_epoch = second.epoch();
                        let mut rest = Vec::new();
                        epoch(&second, |b| rest.push(b.ticket.ids.to_vec()));
                        if stop == batches.len() {
                            assert_eq!(resumed_epoch, 4, "a finished epoch is not resumed into an empty one");
                        } else {
                            assert_eq!(rest, batches[stop..], "rank {rank} of {world_size}, stop {stop}");
                        }
                    }
                }
                assert_eq!(lengths.len(), 1, "every rank has the same number of batches");
                let distinct: HashSet<_> = all.iter().collect();
                assert_eq!(distinct.len(), all.len(), "no id twice");
                let full = SAMPLES / (8 * world_size as usize) * 8 * world_size as usize;
                assert_eq!(all.len(), if drop_last { full } else { SAMPLES });
            }
        }
    }
}

#[test]
fn adaptive_samplers_resume_with_exactly_the_rest() {
    for sampler in ["importance", "cost-aware", "pads"] {
        let make = || {
            let s = Settings {
                sampler: SamplerSettings::from_name(sampler).unwrap(),
                cache_bytes: 40 * RECORD_BYTES,
                ..settings(16)
            };
            engine(Patterned::new(200), s)
        };
        let first = make();
        for e in 0..2 {
            epoch(&first, |b| score(&first, b, e));
        }
        let iteration = first.start_epoch().unwrap();
        for _ in 0..5 {
            score(&first, &next(&first, iteration).unwrap().unwrap(), 2);
        }
        let state = first.state().unwrap();
        let beliefs = first.importance();
        let mut rest = Vec::new();
        while let Some(b) = next(&first, iteration).unwrap() {
            rest.push(b.ticket.ids.to_vec());
        }
        assert!(!rest.is_empty());
        let second = make();
        second.load_state(&state).unwrap();
        assert_eq!(second.importance(), beliefs);
        let mut resumed = Vec::new();
        epoch(&second, |b| resumed.push(b.ticket.ids.to_vec()));
        assert_eq!(resumed, rest, "{sampler}");
    }
}

#[test]
fn a_resumed_epoch_plans_only_what_is_left() {
    const SAMPLES: usize = 200;
    const BATCH: usize = 16;
    let mut told_apart = false;
    for stop in [1, 5, 9] {
        let make = || {
            let s = Settings {
                sampler: SamplerSettings::from_name("importance").unwrap(),
                policy: Some("importance".into()),
                cache_bytes: 12 * RECORD_BYTES,
                workers: Some(0),
                ..settings(BATCH)
            };
            engine(Patterned::new(SAMPLES), s)
        };
        let first = make();
        // A few samples come several times an epoch: those an early batch delivered must not look needed for ever.
        epoch(&first, |b| {
            let loss = |&id: &SampleId| if id % 9 == 0 { 20.0 + id as f32 } else { 1.0 + id as f32 / 100.0 };
            first.apply_losses(&b.ticket, &b.ticket.ids.iter().map(loss).collect::<Vec<_>>()).unwrap();
        });
        let iteration = first.start_epoch().unwrap();
        let delivered: Vec<SampleId> =
            (0..stop).flat_map(|_| next(&first, iteration).unwrap().unwrap().ticket.ids.to_vec()).collect();
        let second = make();
        second.load_state(&first.state().unwrap()).unwrap();
        let rest = epoch(&second, |_| {});

        // The same accesses on the bare ledger, once with the rest for its plan and once with the whole epoch.
        let hits = |plan: &[SampleId]| {
            let mut beliefs = ScoreTable::new(SAMPLES, 0.0);
            for (id, &belief) in second.importance().iter().enumerate() {
                beliefs.record(id as SampleId, belief, 0);
            }
            let mut ledger = Ledger::new(12 * RECORD_BYTES, SAMPLES, policy::from_name("importance", SAMPLES).unwrap());
            ledger.plan(plan);
            rest.iter().for_each(|&id| {
                ledger.access(id, &|_| RECORD_BYTES, &beliefs, &mut Vec::new());
            });
            ledger.counts().hits
        };
        assert_eq!(stat(&second, "hits_total") as u64, hits(&rest), "resumed after {stop} batches");
        let whole = [delivered, rest.clone()].concat();
        told_apart |= hits(&whole) != hits(&rest);
    }
    assert!(told_apart, "none of these traces could tell the two plans apart");
}

fn score(engine: &Engine, batch: &lossfeed::loader::Batch, e: u64) {
    let losses: Vec<f32> = batch.ticket.ids.iter().map(|&id| loss_of(id, e)).collect();
    engine.apply_losses(&batch.ticket, &losses).unwrap();
}

#[test]
fn every_row_is_its_own_sample_under_every_policy_and_sampler() {
    for policy in ["lru", "fifo", "minio", "shade", "importance"] {
        for sampler in ["uniform", "pads", "importance", "cost-aware"] {
            for workers in [0, 1, 4] {
                let s = Settings {
                    policy: Some(policy.into()),
                    sampler: SamplerSettings::from_name(sampler).unwrap(),
                    workers: Some(workers),
                    cache_bytes: 30 * RECORD_BYTES,
                    ..settings(16)
                };
                let e = engine(Patterned::new(150), s);
                for number in 0..4 {
                    let ids = epoch(&e, |b| score(&e, b, number));
                    assert_eq!(ids.len(), 150);
                }
                let requests = stat(&e, "requests_total");
                assert_eq!(requests, stat(&e, "hits_total") + stat(&e, "misses_total"));
                assert_eq!(requests, 600.0);
            }
        }
    }
}

#[test]
fn the_cache_never_exceeds_its_limit() {
    let limit = 20 * RECORD_BYTES;
    let s = Settings { policy: Some("lru".into()), cache_bytes: limit, workers: Some(4), ..settings(16) };
    let e = engine(Patterned::new(300), s);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut highest = 0.0f64;
            loop {
                let last = done.load(Relaxed);
                highest = highest.max(stat(&e, "arena_used_bytes"));
                if last {
                    return highest;
                }
            }
        });
        for _ in 0..20 {
            epoch(&e, |_| {});
        }
        done.store(true, Relaxed);
        let highest = watcher.join().unwrap();
        assert!(highest > 0.0 && highest <= limit as f64, "{highest} of {limit}");
    });
}

#[test]
fn bad_samples_are_raised_skipped_or_substituted_as_asked() {
    let make = |on_error| {
        let mut source = Patterned::new(64);
        source.bad.extend([3, 17, 40]);
        engine(source, Settings { on_error, ..settings(16) })
    };
    let raising = make(OnError::Raise);
    let iteration = raising.start_epoch().unwrap();
    let error = loop {
        match next(&raising, iteration) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the epoch ended without its error"),
            Err(e) => break e,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Sample);
    let text = error.to_string();
    assert!(text.contains("bad on purpose") && text.contains("pattern-"), "{text}");

    let skipping = make(OnError::Skip);
    let ids = epoch(&skipping, |_| {});
    assert_eq!(ids.len(), 61);
    assert!(![3, 17, 40].iter().any(|b| ids.contains(b)));
    let mut listed: Vec<_> = skipping.bad_samples().into_iter().map(|b| b.id).collect();
    listed.sort();
    assert_eq!(listed, [3, 17, 40]);

    let substituting = make(OnError::Substitute);
    let ids = epoch(&substituting, |b| assert_eq!(b.rows, 16));
    assert_eq!(ids.len(), 64);
    assert!(![3, 17, 40].iter().any(|b| ids.contains(b)));
    assert_eq!(stat(&substituting, "substituted_total"), 3.0);
}

#[test]
fn a_panic_inside_a_batch_is_an_error_and_nobody_waits_for_its_samples_for_ever() {
    for workers in [0, 4] {
        let mut source = Patterned::new(64);
        source.delay = Duration::from_millis(5);
        let explosive = source.explosive.clone();
        let s = Settings {
            sampler: SamplerSettings::from_name("importance").unwrap(),
            workers: Some(workers),
            ..settings(8)
        };
        let e = engine(source, s);
        // One sample believed to be all that matters: batches in work at one time wait for one fetch of it.
        epoch(&e, |b| {
            let losses: Vec<f32> = b.ticket.ids.iter().map(|&id| if id == 5 { 1e3 } else { 1.0 }).collect();
            e.apply_losses(&b.ticket, &losses).unwrap();
        });
        for _ in 0..3 {
            explosive.lock().unwrap().insert(5);
            let iteration = e.start_epoch().unwrap();
            let error = std::iter::from_fn(|| next(&e, iteration).transpose()).find_map(Result::err).unwrap();
            assert_eq!(error.kind(), ErrorKind::Internal);
            assert!(error.to_string().contains("it explodes on purpose"), "{error}");
            assert!(epoch(&e, |_| {}).iter().filter(|&&id| id == 5).count() > 8, "it goes on");
        }
        e.close();
    }
}

#[test]
fn a_consumer_that_keeps_every_batch_is_told_so() {
    for workers in [0, 2] {
        let s = Settings { workers: Some(workers), max_slots: Some(9), ..settings(4) };
        let e = engine(Patterned::new(400), s);
        let iteration = e.start_epoch().unwrap();
        let mut held = Vec::new();
        let error = loop {
            match next(&e, iteration) {
                Ok(batch) => held.push(batch.unwrap()),
                Err(e) => break e,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Memory);
        assert!(error.to_string().contains("max_slots"), "{error}");
        assert_eq!(held.len(), 9);
        held.clear();
        assert!(next(&e, iteration).unwrap().is_some(), "it goes on when batches are let go");
    }
}

#[test]
fn leaving_in_mid_epoch_loses_nothing_and_stale_iterators_are_told() {
    let mut source = Patterned::new(200);
    source.delay = Duration::from_millis(5);
    let e = engine(source, settings(8));
    let old = e.start_epoch().unwrap();
    let kept = next(&e, old).unwrap().unwrap();
    let ids = epoch(&e, |_| {});
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 200);
    let error = next(&e, old).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    e.close();
    assert_eq!(e.start_epoch().unwrap_err().kind(), ErrorKind::Usage);
    support::check(&e, &kept);
}

#[test]
fn scores_are_refused_unless_they_belong_to_the_batch() {
    let e = engine(Patterned::new(64), settings(16));
    let other = engine(Patterned::new(64), settings(16));
    let iteration = e.start_epoch().unwrap();
    let batch = next(&e, iteration).unwrap().unwrap();
    let losses = [1.0f32; 16];
    assert_eq!(other.apply_losses(&batch.ticket, &losses).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(e.apply_losses(&batch.ticket, &losses[..5]).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(e.apply_losses(&batch.ticket, &losses).unwrap(), 16);
    assert_eq!(e.apply_losses(&batch.ticket, &losses).unwrap(), 0, "a batch is scored once");
    assert_eq!(stat(&e, "scores_repeated_total"), 16.0, "samples are counted, not batches");
    let batch = next(&e, iteration).unwrap().unwrap();
    let mut losses = [2.0f32; 16];
    losses[3] = f32::NAN;
    losses[4] = f32::INFINITY;
    assert_eq!(e.apply_losses(&batch.ticket, &losses).unwrap(), 14);
    let importance = e.importance();
    assert!(importance[batch.ticket.ids[3] as usize].is_nan());
    assert!(importance[batch.ticket.ids[5] as usize].is_finite());
    let count = [0; 16];
    let short = Measured { loss: &losses, grad_norm: Some(&losses[..2]), entropy: None, count: &count };
    assert!(e.apply_scores(&batch.ticket, &short).is_err());
}

#[test]
fn mail_is_credited_to_its_ticket_or_else_to_its_ids_and_problems_are_kept() {
    const SAMPLES: usize = 40;
    let e = std::sync::Arc::new(engine(Patterned::new(SAMPLES), Settings { workers: Some(0), ..settings(4) }));
    let iteration = e.start_epoch().unwrap();
    let batch = next(&e, iteration).unwrap().unwrap();
    let credits = Credits::new(&e);
    let mail = |tag, ids, loss, bad_row| Mail {
        tag,
        ids,
        loss,
        grad_norm: None,
        entropy: None,
        count: &[0, 1, 2, -1],
        bad_row,
        dropped: 2,
    };
    let tag = credits.register(batch.ticket.clone());
    assert!(tag > 0, "0 is no ticket");
    // The ticket wins: these ids are somebody else's.
    credits.deliver(&mail(tag, Some(&[9999; 4]), &[0.5, 1.0, 2.0, 0.1], None));
    let believed = e.importance();
    assert!((0..3).all(|row| !believed[batch.ticket.ids[row] as usize].is_nan()));
    assert!(believed[batch.ticket.ids[3] as usize].is_nan(), "no rank, no score");
    // A replayed graph brings the same tag again, and the ids of its own step; strangers among them are nobody.
    let others: Vec<i64> = (0..SAMPLES as i64).filter(|&id| !batch.ticket.ids.contains(&(id as SampleId))).collect();
    let ids = [others[0], -1, SAMPLES as i64, others[1]];
    credits.deliver(&mail(tag, Some(&ids), &[3.0, 1.0, 2.0, 0.1], None));
    let believed = e.importance();
    assert!(!believed[others[0] as usize].is_nan() && believed[others[1] as usize].is_nan());
    assert_eq!((stat(&e, "scores_total"), stat(&e, "scores_unranked_total")), (4.0, 4.0));
    assert!(credits.take_problem().is_none());
    // Neither a ticket nor ids: dropped, and counted with those the kernels dropped.
    credits.deliver(&mail(tag, None, &[0.0; 4], None));
    assert_eq!(stat(&e, "scores_dropped_total"), 7.0 * 4.0, "7 batches of 4 samples");
    // Problems wait until somebody asks, the first one.
    let tag = credits.register(batch.ticket.clone());
    credits.deliver(&mail(tag, None, &[0.0; 4], Some(3)));
    credits.deliver(&mail(0, Some(&ids[..2]), &[0.0; 4], None));
    let problem = credits.take_problem().unwrap();
    assert_eq!(problem.kind(), ErrorKind::Sample);
    assert!(problem.to_string().contains("row 3 of batch 0 of epoch 0"), "{problem}");
    assert!(credits.take_problem().is_none());
    drop(e);
    credits.deliver(&mail(0, Some(&ids), &[0.0; 4], None)); // the engine is gone: nothing to do
}

#[test]
fn the_random_control_lets_no_score_through() {
    let mut sampler = SamplerSettings::from_name("cost-aware").unwrap();
    if let SamplerSettings::CostAware(c) = &mut sampler {
        c.random_scores = true;
    }
    let beliefs = |factor: f32| {
        let e = engine(Patterned::new(64), Settings { sampler, ..settings(16) });
        epoch(&e, |b| {
            let losses: Vec<f32> = b.ticket.ids.iter().map(|&id| factor * id as f32).collect();
            e.apply_losses(&b.ticket, &losses).unwrap();
        });
        e.importance()
    };
    assert_eq!(beliefs(1.0), beliefs(-3.0));
    assert!(beliefs(1.0).iter().all(|b| b.is_finite()));
}

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let e = engine(Patterned::new(64), settings(16));
    let state = e.state().unwrap();
    let smaller = engine(Patterned::new(32), settings(16));
    let error = smaller.load_state(&state).unwrap_err();
    assert!(error.to_string().contains("samples 64"), "{error}");
    for cut in 0..state.len() {
        assert!(e.load_state(&state[..cut]).is_err());
    }
    for at in 0..state.len() {
        let mut broken = state.clone();
        broken[at] ^= 0x40;
        assert!(e.load_state(&broken).is_err(), "byte {at} changed unnoticed");
    }
    e.load_state(&state).unwrap();
}

#[test]
fn wrong_settings_are_refused_at_construction() {
    let build = |s: Settings| {
        let source = std::sync::Arc::new(Patterned::new(50));
        let dataset = lossfeed::Dataset::new(source, lossfeed::source::ImageMode::Auto, None).unwrap();
        Engine::new(dataset, s).map(drop)
    };
    build(settings(50)).unwrap();
    let wrong = [
        settings(0),
        settings(51),
        Settings { rank: 2, world_size: 2, ..settings(8) },
        Settings { world_size: 0, ..settings(8) },
        Settings { cache_bytes: 20, ..settings(8) },
        Settings { smoothing: Some(f32::NAN), ..settings(8) },
        Settings { smoothing: Some(-0.1), ..settings(8) },
        Settings { prefetch_factor: 0, ..settings(8) },
        Settings { policy: Some("clairvoyant".into()), ..settings(8) },
        Settings { policy: Some("nopfs".into()), ..settings(8) },
        Settings { policy: Some("belady".into()), ..settings(8) }, // beside a sampler that looks at scores
        Settings { device: "tpu".into(), ..settings(8) },
        Settings { max_slots: Some(1), ..settings(8) },
    ];
    for s in wrong {
        let error = build(s.clone()).expect_err(&format!("accepted: {s:?}"));
        assert_eq!(error.kind(), ErrorKind::Settings, "{error}");
    }
}
