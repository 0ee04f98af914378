//! How much is read ahead is found where nobody says it, is shown with its reason, and stays for the next epoch.

use super::Engine;
use super::buffer_tests::{settings, stored};
use crate::journal::{Event, Limits, Recording};
use crate::loader::Next;
use crate::sampler::{SamplerSettings, Uniform};
use crate::settings::Settings;
use crate::tune::lead::Why;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const LEAST: u64 = 128 << 20;

fn engine(read_ahead: Option<u64>, journal: Option<std::path::PathBuf>) -> Engine {
    let far = stored(true, &Arc::default(), || {});
    let sampler = SamplerSettings::Uniform(Uniform::default());
    Engine::new(far, Settings { read_ahead, journal, ..settings(sampler, 1) }).unwrap()
}

/// So many seconds of the consumer and of threads, as a run would have them; no clock is asked.
fn spend(engine: &Engine, own_s: u64, waited_s: u64, short_s: u64) {
    let c = &engine.feed.counters;
    c.busy_us_total.fetch_add(own_s * 1_000_000, Relaxed);
    c.wait_us_total.fetch_add(waited_s * 1_000_000, Relaxed);
    engine.feed.read_ahead.as_ref().unwrap().short_us.fetch_add(short_s * 1_000_000, Relaxed);
}

fn rest_of(engine: &Engine, pass: u64) {
    while !matches!(engine.next_batch(pass, Duration::from_secs(60)).unwrap(), Next::End) {}
}

#[test]
fn it_grows_while_answers_come_late_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.csv");
    let engine = engine(None, Some(path.clone()));
    let stat = |name: &str| engine.stats().into_iter().find(|(n, _)| n == name).unwrap().1;
    let shown = || {
        let names = ["read_ahead_limit_bytes", "read_ahead_limit_changes_total", "read_ahead_limit_reason"];
        names.map(|name| stat(name) as u64)
    };
    let most = engine.settings().read_ahead_most();
    let pass = engine.start_epoch().unwrap();
    // What was waited for until the first batch came says nothing.
    spend(&engine, 1, 100, 100);
    engine.lead();
    assert_eq!(shown(), [LEAST, 0, 0]);
    // A link that is short.
    spend(&engine, 1, 100, 10);
    engine.lead();
    assert_eq!(shown(), [LEAST, 0, 0]);
    spend(&engine, 90, 10, 10);
    engine.lead();
    rest_of(&engine, pass);
    let grown = (2 * LEAST).min(most);
    let changes = u64::from(grown > LEAST);
    assert_eq!(shown(), [grown, changes, changes * Why::Late.code()]);
    let pass = engine.start_epoch().unwrap();
    assert_eq!(engine.feed.read_ahead.as_ref().unwrap().limit(), grown, "it stays");
    rest_of(&engine, pass);
    engine.close();
    let recording = Recording::read(File::open(&path).unwrap(), Limits::default()).unwrap();
    let told = recording.events.iter().filter(|event| matches!(event, Event::Io { knob, .. } if knob == "lead"));
    assert_eq!(told.count() as u64, changes);
}

#[test]
fn a_number_pins_it() {
    let engine = engine(Some(1 << 20), None);
    let pass = engine.start_epoch().unwrap();
    for _ in 0..3 {
        spend(&engine, 90, 10, 10);
        engine.lead();
    }
    assert_eq!(engine.feed.read_ahead.as_ref().unwrap().limit(), 1 << 20);
    rest_of(&engine, pass);
}
