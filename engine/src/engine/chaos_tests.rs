//! A thousand runs over a store that fails on purpose, each from a seed, on a clock that is turned by hand: everything
//! is delivered exactly once, no byte is wrong, nothing is kept, nothing hangs.
//!
//! `LOSSFEED_CHAOS_SEED=17 cargo test -p lossfeed chaos_tests` makes run 17 alone again.

use super::{Dataset, Engine};
use crate::loader::Next;
use crate::random::{Purpose, below, generator};
use crate::settings::{CacheForm, Settings};
use crate::source::{ImageMode, OpenOptions, open_in};
use crate::types::SampleId;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

const RUNS: u64 = 1000;
/// A run takes milliseconds; a machine may be busy.
const PATIENCE: Duration = Duration::from_secs(180);

fn pixels(id: u32) -> [u8; 6] {
    let bytes = id.wrapping_mul(2_654_435_761).to_le_bytes();
    [bytes[0], bytes[1], bytes[2], bytes[3], id as u8, 7]
}

fn picture(id: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 3, 2);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.write_header().unwrap().write_image_data(&pixels(id)).unwrap();
    bytes
}

/// Samples `id` as objects of their own, or as members of one shard.
fn stored(samples: u32, in_shard: bool, runtime: &Runtime) -> (Arc<dyn ObjectStore>, &'static str) {
    let store = InMemory::new();
    let put = |key: String, bytes: Vec<u8>| {
        runtime.block_on(store.put(&Path::parse(key).unwrap(), bytes.into())).unwrap();
    };
    let name = |id: u32| format!("c{}/{id:04}.png", id % 3);
    if !in_shard {
        (0..samples).for_each(|id| put(format!("folder/{}", name(id)), picture(id)));
        return (Arc::new(store), "folder");
    }
    let mut shard = tar::Builder::new(Vec::new());
    for id in 0..samples {
        let (bytes, mut header) = (picture(id), tar::Header::new_gnu());
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        shard.append_data(&mut header, name(id), &*bytes).unwrap();
    }
    put("s.tar".into(), shard.into_inner().unwrap());
    (Arc::new(store), "s.tar")
}

/// Delivers batches of the next pass, at most `most`, and holds every row to its id. The ids.
fn delivered(engine: &Engine, most: usize) -> Vec<SampleId> {
    let pass = engine.start_epoch().unwrap();
    let mut ids = Vec::new();
    for _ in 0..most {
        let batch = loop {
            match engine.next_batch(pass, Duration::from_secs(60)).unwrap() {
                Next::Pending => {}
                Next::End => return ids,
                Next::Batch(batch) => break batch,
            }
        };
        let rows = batch.slot.data().unwrap().chunks_exact(6);
        for (row, &id) in rows.zip(batch.ticket.ids.iter()) {
            // Objects are listed class by class: the name says who it is, and the picture must say the same.
            let name = engine.source().name(id);
            let digits = name.rsplit('/').next().unwrap().trim_end_matches(".png");
            assert_eq!(row, pixels(digits.parse().unwrap()), "{name}");
        }
        ids.extend(batch.ticket.ids.iter());
    }
    ids
}

fn stat(engine: &Engine, name: &str) -> f64 {
    engine.stats().into_iter().find(|(n, _)| n == name).unwrap().1
}

/// A loader thread takes a slot before it learns that no batch is left, and gives it back: perhaps after the consumer
/// has seen the end.
fn all_slots_come_back(engine: &Engine) {
    let begun = Instant::now();
    while stat(engine, "slots_free") < stat(engine, "slots_total") {
        assert!(begun.elapsed() < PATIENCE / 2, "a slot is kept: {:?}", engine.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One run: an epoch that is interrupted, its rest by another engine, and a whole one. Its requests run on `own`, or on
/// the process's runtime.
fn run(seed: u64, workers: usize, timeout: Duration, runtime: &Runtime, own: Option<Arc<Runtime>>) {
    let rng = &mut generator(seed, 0, 0, Purpose::Split);
    let samples = 20 + below(rng, 40);
    let (store, path) = stored(samples, below(rng, 2) == 0, runtime);
    let options = OpenOptions {
        chaos: Some(seed),
        coalesce: below(rng, 2) == 0,
        checksums: below(rng, 2) == 0,
        connections: 1 + below(rng, 8) as usize,
        timeout: Some(timeout),
        runtime: own,
        ..OpenOptions::default()
    };
    let batch_size = 3 + below(rng, 6) as usize;
    let (kept, form) = (below(rng, 3), [CacheForm::Encoded, CacheForm::Decoded][below(rng, 2) as usize]);
    let made = || {
        let source = open_in(store.clone(), path, &options).unwrap();
        let dataset = Dataset::new(source, ImageMode::Auto, None).unwrap();
        let each = dataset.records(form).footprint(0);
        let cache_bytes = u64::from(kept) * u64::from(samples / 2) * each;
        let settings = Settings {
            batch_size,
            stats: false,
            workers: Some(workers),
            seed,
            cache_bytes,
            cache_form: form,
            ..Settings::default()
        };
        Engine::new(dataset, settings).unwrap()
    };
    let all: Vec<SampleId> = (0..samples).collect();
    let once = |mut ids: Vec<SampleId>| {
        ids.sort_unstable();
        assert_eq!(ids, all);
    };
    let first = made();
    let mut ids = delivered(&first, below(rng, samples.div_ceil(batch_size as u32)) as usize);
    let state = first.state().unwrap();
    first.close();
    drop(first);
    let second = made();
    second.load_state(&state).unwrap();
    ids.extend(delivered(&second, usize::MAX));
    once(ids);
    once(delivered(&second, usize::MAX));
    all_slots_come_back(&second);
    assert_eq!(stat(&second, "bad_samples_total"), 0.0);
    let source = Arc::clone(second.source());
    second.close();
    drop(second);
    assert_eq!(Arc::strong_count(&source), 1, "somebody holds on to the source");
}

/// Makes the runs one after the other on a thread of their own, and tells which one hangs or fails.
fn hold(seeds: impl Iterator<Item = u64> + Send + 'static, one: impl Fn(u64) + Send + 'static) {
    let alone: Option<u64> = std::env::var("LOSSFEED_CHAOS_SEED").ok().map(|seed| seed.parse().unwrap());
    let (tell, told) = channel();
    let runs = std::thread::spawn(move || {
        for seed in seeds.filter(|&seed| alone.is_none_or(|alone| alone == seed)) {
            tell.send(seed).unwrap();
            one(seed);
        }
    });
    let mut last = None;
    loop {
        match told.recv_timeout(PATIENCE) {
            Ok(seed) => last = Some(seed),
            Err(RecvTimeoutError::Timeout) => panic!("LOSSFEED_CHAOS_SEED={last:?} hangs"),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    assert!(runs.join().is_ok(), "LOSSFEED_CHAOS_SEED={last:?} failed: its words are above");
}

/// No threads and a clock by hand: what a seed does, it does again.
#[test]
fn a_thousand_runs_deliver_everything_once_on_a_clock_turned_by_hand() {
    hold(0..RUNS, |seed| {
        let clock = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let clock = Arc::new(clock);
        // A store that has never answered gets ten seconds in all.
        run(seed, 0, Duration::from_secs(3), &clock, Some(clock.clone()));
    });
}

/// Loader threads and reading ahead, in real time: which request comes first is chance.
#[test]
fn runs_with_threads_deliver_everything_once() {
    hold(5000..5006, |seed| {
        let helper = Builder::new_current_thread().build().unwrap();
        run(seed, 2, Duration::from_millis(200), &helper, None);
    });
}
