//! A cache that becomes smaller and larger while batches are made from it.

use super::support::{Patterned, SAMPLE_BYTES, engine, epoch, settings};
use lossfeed::arena::Arena;
use lossfeed::policy::{self, Needs};
use lossfeed::sampler::SamplerSettings;
use lossfeed::{Engine, ErrorKind, Settings};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const SAMPLES: usize = 2000;

fn stat(engine: &Engine, name: &str) -> u64 {
    engine.stats().into_iter().find(|(known, _)| known == name).unwrap().1 as u64
}

fn most() -> u64 {
    SAMPLES as u64 * Arena::footprint(SAMPLE_BYTES)
}

/// Every batch is held to its bytes by `epoch`.
#[test]
fn batches_are_whole_while_the_cache_changes_under_every_policy() {
    for entry in &policy::ALL {
        let samplers: &[&str] = if entry.name == "fifo" { &["uniform", "replay", "echo"] } else { &["uniform"] };
        for sampler in samplers {
            let made = Settings {
                cache_bytes: most(),
                policy: Some(entry.name.to_owned()),
                sampler: SamplerSettings::from_name(sampler).unwrap(),
                ..settings(50)
            };
            let engine = engine(Patterned::new(SAMPLES), made);
            let ends = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for number in 0.. {
                        if ends.load(Relaxed) {
                            break;
                        }
                        engine.resize_cache(most() / 16 * [16, 3, 9, 0, 1, 12][number % 6]).unwrap();
                    }
                });
                for number in 0..6 {
                    let mut ids = epoch(&engine, |batch| {
                        let losses: Vec<f32> = batch.ticket.ids.iter().map(|&id| (id % 97) as f32).collect();
                        engine.apply_losses(&batch.ticket, &losses).unwrap();
                    });
                    if *sampler == "uniform" && !entry.needs.contains(Needs::SUBSTITUTES) {
                        ids.sort_unstable();
                        assert_eq!(ids, (0..SAMPLES as u32).collect::<Vec<_>>(), "{} epoch {number}", entry.name);
                    }
                }
                ends.store(true, Relaxed);
            });
            // At rest the limit holds, for the books and for the memory.
            for part in [0, 5, 16, 2] {
                let limit = most() / 16 * part;
                engine.resize_cache(limit).unwrap();
                assert_eq!(stat(&engine, "cache_capacity_bytes"), limit / 64 * 64, "{}", entry.name);
                let (books, memory) = (stat(&engine, "cache_bytes"), stat(&engine, "arena_used_bytes"));
                assert!(books <= limit && memory <= limit, "{}: {books} and {memory} of {limit}", entry.name);
                epoch(&engine, |_| ());
            }
            assert!(part_of_hits(&engine) > 0.0);
        }
    }
}

fn part_of_hits(engine: &Engine) -> f64 {
    stat(engine, "hits_total") as f64 / stat(engine, "requests_total") as f64
}

/// What was resident stays so, as far as there is room, and hits go on.
#[test]
fn half_a_cache_hits_half_and_the_whole_one_everything_again() {
    let made = Settings {
        cache_bytes: most(),
        policy: Some("minio".to_owned()),
        sampler: SamplerSettings::from_name("uniform").unwrap(),
        ..settings(50)
    };
    let engine = engine(Patterned::new(SAMPLES), made);
    let mut hits = 0;
    let mut hits_of_an_epoch = || {
        epoch(&engine, |_| ());
        let all = stat(&engine, "hits_total");
        all - std::mem::replace(&mut hits, all)
    };
    assert_eq!([hits_of_an_epoch(), hits_of_an_epoch()], [0, SAMPLES as u64]);
    engine.resize_cache(most() / 2).unwrap();
    assert_eq!(hits_of_an_epoch(), SAMPLES as u64 / 2);
    engine.resize_cache(most()).unwrap();
    assert_eq!([hits_of_an_epoch(), hits_of_an_epoch()], [SAMPLES as u64 / 2, SAMPLES as u64]);
}

#[test]
fn what_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let made = || Settings { cache_bytes: 4096, ..settings(50) };
    let plain = engine(Patterned::new(SAMPLES), made());
    let error = plain.resize_cache(4097).unwrap_err();
    assert!(error.kind() == ErrorKind::Settings && error.to_string().contains("exceeds the 4096"), "{error}");
    plain.close();
    assert_eq!(plain.resize_cache(0).unwrap_err().kind(), ErrorKind::Usage);
    let recorded = engine(Patterned::new(SAMPLES), Settings { journal: Some(folder.path().join("run.csv")), ..made() });
    let error = recorded.resize_cache(0).unwrap_err();
    assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("journal"), "{error}");
}
