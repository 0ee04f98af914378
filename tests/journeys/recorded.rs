//! A run that is recorded: the journal, replayed, makes the same hits, one by one.

use super::support::{Patterned, engine, epoch, next, settings};
use lossfeed::journal::{Ending, Event, Limits, Recording, replay};
use lossfeed::policy::Needs;
use lossfeed::sampler::SamplerSettings;
use lossfeed::settings::OnError;
use lossfeed::{Engine, ErrorKind, Settings, policy};
use std::fs::File;
use std::path::Path;

const SAMPLES: usize = 120;

fn uniform() -> SamplerSettings {
    SamplerSettings::from_name("uniform").unwrap()
}

fn losses(ids: &[u32], epoch: u32) -> Vec<f32> {
    // Some are no numbers: those samples have no score.
    let loss = |&id: &u32| if id % 11 == 0 { f32::NAN } else { (id.wrapping_mul(37) % 101) as f32 + epoch as f32 };
    ids.iter().map(loss).collect()
}

/// Three epochs with scores, one of them left in the middle.
fn train(engine: &Engine) {
    for number in 0..2 {
        epoch(engine, |batch| {
            engine.apply_losses(&batch.ticket, &losses(&batch.ticket.ids, number)).unwrap();
        });
    }
    let iteration = engine.start_epoch().unwrap();
    for _ in 0..3 {
        let batch = next(engine, iteration).unwrap().unwrap();
        engine.apply_losses(&batch.ticket, &losses(&batch.ticket.ids, 2)).unwrap();
    }
    engine.abandon(iteration);
    epoch(engine, |_| ());
}

fn read(path: &Path) -> Recording {
    Recording::read(File::open(path).unwrap(), Limits::default()).unwrap()
}

#[test]
fn a_recorded_run_is_replayed_to_the_last_hit_for_every_policy_and_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    for entry in policy::ALL.iter().filter(|entry| entry.is_live()) {
        for workers in [0, 2] {
            for name in ["run.csv", "run.csv.gz"] {
                let path = folder.path().join(format!("{}-{workers}-{name}", entry.name));
                let mut source = Patterned::new(SAMPLES);
                source.bad.extend([5, 50]);
                // Orders that scores decide are not known ahead.
                let blind = entry.needs.contains(Needs::NEXT_EPOCH);
                let sampler = if blind { uniform() } else { settings(16).sampler };
                let engine = engine(
                    source,
                    Settings {
                        workers: Some(workers),
                        cache_bytes: 4096,
                        policy: Some(entry.name.into()),
                        sampler,
                        on_error: OnError::Skip,
                        journal: Some(path.clone()),
                        ..settings(16)
                    },
                );
                train(&engine);
                let counted = engine.stats();
                engine.close();
                let recording = read(&path);
                let (hits, misses) = recording.counted();
                let case = format!("{} {workers} {name}", entry.name);
                assert_eq!(recording.ending, Ending::Closed, "{case}");
                assert_eq!(
                    (hits as f64, misses as f64),
                    (stat(&counted, "hits_total"), stat(&counted, "misses_total"))
                );
                let again = replay(&recording, &recording.meta.policy, recording.meta.capacity_bytes).unwrap();
                assert_eq!((again.hits, again.misses, again.otherwise), (hits, misses, 0), "{case}");
                assert!(hits > 0 && misses > 0, "{case}: {hits} and {misses}");
            }
        }
    }
}

fn stat(stats: &[(String, f64)], name: &str) -> f64 {
    stats.iter().find(|(known, _)| known == name).map(|(_, value)| *value).unwrap()
}

#[test]
fn buffer_samplers_are_replayed_too() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["echo", "replay"] {
        let path = folder.path().join(name);
        let sampler = SamplerSettings::from_name(name).unwrap();
        let settings = Settings { cache_bytes: 4096, sampler, journal: Some(path.clone()), ..settings(16) };
        let engine = engine(Patterned::new(SAMPLES), settings);
        train(&engine);
        engine.close();
        let recording = read(&path);
        let again = replay(&recording, &recording.meta.policy, recording.meta.capacity_bytes).unwrap();
        assert_eq!((again.hits, again.otherwise), (recording.counted().0, 0), "{name}");
    }
}

#[test]
fn a_resumed_run_tells_what_it_believed_and_a_used_loader_takes_no_state() {
    let folder = tempfile::tempdir().unwrap();
    let made = |journal: Option<&str>| {
        let journal = journal.map(|name| folder.path().join(name));
        let policy = Some("importance".into());
        let settings = Settings { workers: Some(0), cache_bytes: 4096, policy, journal, ..settings(16) };
        engine(Patterned::new(SAMPLES), settings)
    };
    let first = made(None);
    train(&first);
    let state = first.state().unwrap();

    let second = made(Some("resumed.csv"));
    second.load_state(&state).unwrap();
    train(&second);
    let refused = second.load_state(&state).unwrap_err();
    assert!(refused.kind() == ErrorKind::Usage && refused.to_string().contains("journal="), "{refused}");
    second.close();
    let recording = read(&folder.path().join("resumed.csv"));
    let again = replay(&recording, "importance", recording.meta.capacity_bytes).unwrap();
    assert_eq!((again.hits, again.otherwise), (recording.counted().0, 0));
}

#[test]
fn a_journal_that_is_there_already_or_cannot_be_made_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().join("taken.csv");
    std::fs::write(&taken, "mine").unwrap();
    for (path, told) in [(taken.clone(), "file exists"), (folder.path().join("none/run.csv"), "cannot be created")] {
        let dataset =
            lossfeed::Dataset::new(std::sync::Arc::new(Patterned::new(8)), lossfeed::source::ImageMode::Auto, None);
        let error = Engine::new(dataset.unwrap(), Settings { journal: Some(path), ..settings(4) }).err().unwrap();
        assert!(error.kind() == ErrorKind::Settings && error.to_string().contains(told), "{error}");
    }
    assert_eq!(std::fs::read(&taken).unwrap(), b"mine");
}

/// With several ranks a plan reaches over as many epochs as there are ranks, and holds: what comes is what was told.
#[test]
fn a_policy_that_looks_ahead_is_told_what_then_comes() {
    // Without a cache nobody looks.
    let of_two = |cache_bytes| Settings { cache_bytes, world_size: 2, sampler: uniform(), ..settings(7) };
    assert_eq!([0, 4096].map(|bytes| of_two(bytes).policy_name().to_owned()), ["minio", "belady"]);
    let folder = tempfile::tempdir().unwrap();
    for (name, ranks) in [("belady", 1), ("belady", 3), ("lobster", 2), ("default", 4)] {
        let path = folder.path().join(format!("{name}-{ranks}.csv"));
        let settings = Settings {
            workers: Some(2),
            cache_bytes: 4096,
            sampler: uniform(),
            policy: Some(name.to_owned()).filter(|name| name != "default"),
            rank: ranks - 1,
            world_size: ranks,
            drop_last: true,
            ..settings(7)
        };
        let first = engine(Patterned::new(SAMPLES), settings.clone());
        epoch(&first, |_| ());
        let iteration = first.start_epoch().unwrap();
        (0..2).for_each(|_| drop(next(&first, iteration).unwrap().unwrap()));
        let state = first.state().unwrap();
        first.close();
        // The second goes on in the middle of an epoch.
        let second = engine(Patterned::new(SAMPLES), Settings { journal: Some(path.clone()), ..settings });
        second.load_state(&state).unwrap();
        (0..6).for_each(|_| drop(epoch(&second, |_| ())));
        second.close();
        let recording = read(&path);
        assert_eq!(recording.meta.policy, if name == "default" { "belady" } else { name });
        let ids = |event: &Event| match event {
            Event::Decide { rows, .. } => rows.iter().map(|row| row.id).collect(),
            _ => Vec::new(),
        };
        let mut plans = 0;
        for (number, event) in recording.events.iter().enumerate() {
            let Event::Begin { plan, .. } = event else { continue };
            let came: Vec<u32> = recording.events[number..].iter().flat_map(ids).collect();
            let told = plan.len().min(came.len());
            assert_eq!(came[..told], plan[..told], "{name}, {ranks} ranks, plan {plans}");
            let an_epoch = SAMPLES / ranks as usize / 7 * 7;
            let of_this = an_epoch - if plans == 0 { 14 } else { 0 };
            assert_eq!(plan.len(), of_this + ranks as usize * an_epoch, "{name}, {ranks} ranks, plan {plans}");
            plans += 1;
        }
        assert_eq!(plans, 6);
        let again = replay(&recording, &recording.meta.policy, recording.meta.capacity_bytes).unwrap();
        assert_eq!(again.otherwise, 0, "{name}");
        // Another policy is told what a run of its own would tell it: an epoch.
        assert!(replay(&recording, "importance", recording.meta.capacity_bytes).is_ok());
    }
}
