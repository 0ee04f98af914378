//! Files that are slow are read ahead, by threads beside each other: it brings samples sooner and changes nothing else.

use super::{Dataset, Engine};
use crate::journal::{Event, Limits, Recording};
use crate::loader::Next;
use crate::settings::{OnError, Settings};
use crate::source::{
    Concat, Facts, ImageMode, News, OpenOptions, Payload, Place, Records, Size, Source, Subset, Traffic, open,
};
use crate::tune::decided::Requests;
use crate::types::{Dtype, SampleId, TensorSpec};
use lossfeed_sync::{Condvar, Mutex};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

const SAMPLES: u32 = 96;
const BATCH: usize = 12;
/// What one test may take where it waits for something.
const PATIENCE: Duration = Duration::from_secs(120);
/// What the cache keeps: more than three threads have in hand at once. A sample that gives way while it is in hand
/// holds on to its memory, and if that is all, who keeps its place (and who not) is a matter of time, read ahead or
/// not.
const KEPT: u64 = 60;

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

/// The same samples as a folder, as a shard, as rows of a file, and as parts of these.
fn sources(root: &Path) -> Vec<(&'static str, Arc<dyn Source>)> {
    let folder = root.join("folder");
    std::fs::create_dir_all(folder.join("class")).unwrap();
    let mut shard = tar::Builder::new(Vec::new());
    for id in 0..SAMPLES {
        let (name, bytes) = (format!("class/{id:03}.png"), picture(id));
        std::fs::write(folder.join(&name), &bytes).unwrap();
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        shard.append_data(&mut header, name, &bytes[..]).unwrap();
    }
    std::fs::write(root.join("shard.tar"), shard.into_inner().unwrap()).unwrap();
    std::fs::write(root.join("rows"), (0..SAMPLES).flat_map(pixels).collect::<Vec<u8>>()).unwrap();
    let opened = |name: &str| open(root.join(name).to_str().unwrap(), &OpenOptions::default()).unwrap();
    let place = Place { path: root.join("rows"), offset: 0, stride: None, spec: TensorSpec::new(Dtype::U8, [6]) };
    let rows = Records::open(vec![place], None, SAMPLES as usize).unwrap();
    let half = |from, to| Arc::new(Subset::new(opened("folder"), (from..to).collect()).unwrap()) as Arc<dyn Source>;
    let parts = Concat::new(vec![half(0, 31), half(31, SAMPLES)]).unwrap();
    vec![
        ("folder", opened("folder")),
        ("shard", opened("shard.tar")),
        ("rows", Arc::new(rows)),
        ("parts", Arc::new(parts)),
    ]
}

/// A source whose reads take `delay` each, panic in threads named so, or wait until so many are under way.
struct Slow {
    inner: Arc<dyn Source>,
    delay_us: Arc<AtomicU64>,
    panics_in: &'static str,
    panics: AtomicUsize,
    /// The first reads are made alone; of the others at least so many must be under way before any goes on.
    together: usize,
    alone: AtomicUsize,
    under_way: Arc<(Mutex<usize>, Condvar)>,
    shut: Arc<(Mutex<bool>, Condvar)>,
    /// Reads that have found it shut.
    hang: Arc<AtomicUsize>,
    failed: AtomicBool,
}

impl Slow {
    fn new(inner: Arc<dyn Source>, delay: Duration) -> Self {
        Self {
            inner,
            delay_us: Arc::new((delay.as_micros() as u64).into()),
            panics_in: "nowhere",
            panics: AtomicUsize::new(0),
            together: 0,
            alone: AtomicUsize::new(0),
            under_way: Arc::default(),
            shut: Arc::default(),
            hang: Arc::default(),
            failed: AtomicBool::new(false),
        }
    }

    fn before_read(&self) {
        let here = std::thread::current().name().unwrap_or_default().starts_with(self.panics_in);
        if here && self.panics.fetch_add(1, Relaxed).is_multiple_of(3) {
            panic!("it panics on purpose");
        }
        std::thread::sleep(Duration::from_micros(self.delay_us.load(Relaxed)));
        let (shut, opened) = &*self.shut;
        let mut shut = shut.lock();
        self.hang.fetch_add(usize::from(*shut), Relaxed);
        opened.wait_while(&mut shut, |shut| *shut);
        drop(shut);
        let alone = self.alone.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        if self.together == 0 || alone {
            return;
        }
        let (count, more) = &*self.under_way;
        let mut count = count.lock();
        *count += 1;
        more.notify_all();
        // Once so many have been there together nobody waits any more.
        let late = more.wait_while_for(&mut count, |count| *count < self.together, PATIENCE).timed_out();
        self.failed.fetch_or(late, Relaxed);
    }
}

impl Source for Slow {
    fn facts(&self) -> &Facts {
        self.inner.facts()
    }
    fn name(&self, id: SampleId) -> String {
        self.inner.name(id)
    }
    fn size(&self, id: SampleId) -> Size {
        self.inner.size(id)
    }
    fn labels(&self) -> Option<&[i64]> {
        self.inner.labels()
    }
    fn fetch_by(
        &self,
        request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, crate::error::Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        let slowly = || {
            let stopped = stopped();
            if !stopped {
                self.before_read();
            }
            stopped
        };
        self.inner.fetch_by(request_bytes, &slowly, ids, sink)
    }
    fn tell(&self, news: News<'_>) {
        self.inner.tell(news);
    }
}

fn settings(read_ahead: Option<u64>, workers: usize) -> Settings {
    Settings { batch_size: BATCH, stats: false, workers: Some(workers), read_ahead, ..Settings::default() }
}

fn engine(source: Slow, settings: Settings) -> Engine {
    Engine::new(Dataset::new(Arc::new(source), ImageMode::Auto, None).unwrap(), settings).unwrap()
}

fn stat(engine: &Engine, name: &str) -> u64 {
    engine.stats().into_iter().find(|(n, _)| n == name).unwrap().1 as u64
}

/// The ids of an epoch, each with the bytes that it must have.
fn epoch(engine: &Engine, most: usize) -> Vec<SampleId> {
    let pass = engine.start_epoch().unwrap();
    let (mut ids, begun) = (Vec::new(), Instant::now());
    for _ in 0..most {
        let batch = loop {
            match engine.next_batch(pass, Duration::from_secs(1)).unwrap() {
                Next::Pending => assert!(begun.elapsed() < PATIENCE, "no batch comes: {:?}", engine.stats()),
                Next::End => return ids,
                Next::Batch(batch) => break batch,
            }
        };
        for (row, &id) in batch.slot.data().unwrap().chunks_exact(6).zip(batch.ticket.ids.iter()) {
            assert_eq!(row, pixels(id), "sample {id}");
        }
        ids.extend_from_slice(&batch.ticket.ids);
    }
    engine.abandon(pass);
    ids
}

/// Three epochs, and what of them is no matter of time: the order, hits, and what the journal says of samples.
fn run(engine: &Engine, journal: &Path) -> (Vec<SampleId>, Vec<u64>, Vec<String>) {
    let ids = (0..3).flat_map(|_| epoch(engine, usize::MAX)).collect();
    engine.close();
    let counted = ["hits_total", "misses_total", "admitted_total", "evicted_total", "bad_samples_total"];
    let counted = counted.map(|name| stat(engine, name)).to_vec();
    let recorded = Recording::read(std::fs::File::open(journal).unwrap(), Limits::default()).unwrap();
    // What was read, and what was decided about reading, is written down when it was.
    let decided = recorded.events.iter().filter(|event| matches!(event, Event::Decide { .. }));
    (ids, counted, decided.map(|event| format!("{event:?}")).collect())
}

#[test]
fn batches_hits_and_journals_are_the_same_however_files_are_read() {
    let root = tempfile::tempdir().unwrap();
    for (kind, source) in sources(root.path()) {
        let with = |read_ahead, workers, delay_ms, number: usize| {
            let journal = root.path().join(format!("{kind}-{number}.csv"));
            let dataset = Slow::new(Arc::clone(&source), Duration::from_millis(delay_ms));
            let cache_bytes = KEPT
                * Dataset::new(Arc::clone(&source), ImageMode::Auto, None)
                    .unwrap()
                    .records(crate::settings::CacheForm::Encoded)
                    .footprint(0);
            let policy = Some("lru".into());
            let settings =
                Settings { cache_bytes, policy, journal: Some(journal.clone()), ..settings(read_ahead, workers) };
            let engine = engine(dataset, settings);
            let seen = run(&engine, &journal);
            (engine, seen)
        };
        let (_, expected) = with(Some(0), 1, 0, 0);
        assert!(expected.1[0] > 0 && expected.1[3] > 0, "hits and evictions: {:?}", expected.1);
        let mut number = 0;
        for (read_ahead, workers, delay_ms) in [
            (Some(0), 2, 2),
            (Some(100), 1, 0),
            (Some(1000), 2, 2),
            (Some(1 << 20), 0, 2),
            (Some(1 << 20), 1, 0),
            (None, 1, 0),
            (None, 1, 2),
            (None, 3, 2),
        ] {
            number += 1;
            let (engine, seen) = with(read_ahead, workers, delay_ms, number);
            let told = format!("{kind}, {read_ahead:?}, {workers} threads, {delay_ms} ms: {:?}", engine.stats());
            assert_eq!(seen, expected, "{told}");
            let ahead = stat(&engine, "read_ahead_samples_total") + stat(&engine, "read_ahead_late_total");
            let changes = stat(&engine, "read_ahead_changes_total");
            match (read_ahead, delay_ms) {
                (Some(0), _) => assert_eq!((ahead, changes), (0, 0), "{told}"),
                (Some(1000..), 1..) => assert!(ahead > 0, "{told}"),
                (None, 2) => assert!(ahead > 0 && changes > 0, "{told}"),
                // However busy the machine is: who reads nothing ahead has not decided to.
                (None, _) => assert!(ahead == 0 || changes > 0, "{told}"),
                // Where reads take no time, batches may be filled before anybody comes to read ahead of them.
                (Some(_), _) => {}
            }
            assert_eq!(stat(&engine, "read_ahead_bytes"), 0, "{told}");
        }
    }
}

#[test]
fn a_slow_folder_is_read_by_many_within_its_first_batch() {
    let root = tempfile::tempdir().unwrap();
    for (kind, source) in sources(root.path()) {
        let mut slow = Slow::new(source, Duration::from_millis(3));
        // After a few no read ends before as many are under way as read at the beginning.
        (slow.together, slow.alone) = (8, AtomicUsize::new(12));
        let settings = Settings { batch_size: SAMPLES as usize, ..settings(None, 1) };
        let slow = Arc::new(slow);
        let dataset = Dataset::new(Arc::clone(&slow) as Arc<dyn Source>, ImageMode::Auto, None).unwrap();
        let engine = Engine::new(dataset, settings).unwrap();
        assert_eq!(epoch(&engine, usize::MAX).len(), SAMPLES as usize);
        assert!(!slow.failed.load(Relaxed), "{kind}: {:?}", engine.stats());
        assert!(stat(&engine, "read_ahead_changes_total") > 0, "{kind}");
        assert!(stat(&engine, "read_ahead_requests") >= 8, "{kind}");
        engine.close();
    }
}

#[test]
fn what_has_become_quick_is_read_by_the_loader_again() {
    let root = tempfile::tempdir().unwrap();
    let [(_, source), ..] = &sources(root.path())[..] else { panic!("no sources") };
    let slow = Slow::new(Arc::clone(source), Duration::from_millis(3));
    let delay_us = Arc::clone(&slow.delay_us);
    // Too little for all: each epoch reads.
    let engine = engine(slow, Settings { cache_bytes: 0, ..settings(None, 1) });
    epoch(&engine, usize::MAX);
    assert!(stat(&engine, "read_ahead_requests") > 0, "{:?}", engine.stats());
    delay_us.store(0, Relaxed);
    let begun = Instant::now();
    // What fits in memory is read once: orders by another seed are read anew.
    let mut number = 10;
    while stat(&engine, "read_ahead_requests") > 0 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", engine.stats());
        number += 10;
        engine.set_epoch(number).unwrap();
        let mut ids = epoch(&engine, usize::MAX);
        ids.sort_unstable();
        assert_eq!(ids, (0..SAMPLES).collect::<Vec<_>>());
    }
    epoch(&engine, usize::MAX);
    epoch(&engine, 1);
    assert!([Requests::Quick.code(), Requests::Slow.code()].contains(&stat(&engine, "read_ahead_reason")));
    engine.close();
}

#[test]
fn a_sample_that_is_bad_is_named_as_if_its_batch_had_read_it() {
    let root = tempfile::tempdir().unwrap();
    let [(_, source), ..] = &sources(root.path())[..] else { panic!("no sources") };
    std::fs::remove_file(root.path().join("folder/class/007.png")).unwrap();
    std::fs::write(root.path().join("folder/class/050.png"), b"no picture").unwrap();
    let bad = |read_ahead, delay_ms| {
        let slow = Slow::new(Arc::clone(source), Duration::from_millis(delay_ms));
        let engine = engine(slow, Settings { on_error: OnError::Skip, ..settings(read_ahead, 2) });
        let pass = engine.start_epoch().unwrap();
        let mut rows = 0;
        loop {
            match engine.next_batch(pass, PATIENCE).unwrap() {
                Next::Batch(batch) => rows += batch.rows,
                Next::Pending => {}
                Next::End => break,
            }
        }
        assert_eq!(rows, SAMPLES as usize - 2);
        engine.close();
        let mut bad: Vec<(SampleId, String)> =
            engine.bad_samples().into_iter().map(|bad| (bad.id, bad.reason)).collect();
        bad.sort();
        bad
    };
    let expected = bad(Some(0), 0);
    assert_eq!(expected.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [7, 50]);
    assert_eq!(bad(None, 3), expected);
    assert_eq!(bad(Some(1 << 20), 0), expected);
}

#[test]
fn reads_that_panic_cost_nobody_a_batch_and_passes_that_end_early_leave_nothing() {
    let root = tempfile::tempdir().unwrap();
    for (kind, source) in sources(root.path()) {
        let mut slow = Slow::new(Arc::clone(&source), Duration::from_millis(2));
        slow.panics_in = "lossfeed-read";
        let engine = engine(slow, settings(None, 2));
        for round in 0..12 {
            epoch(&engine, round % 5);
        }
        let mut ids = epoch(&engine, usize::MAX);
        ids.sort_unstable();
        assert_eq!(ids, (0..SAMPLES).collect::<Vec<_>>(), "{kind}");
        engine.close();
        assert_eq!(stat(&engine, "read_ahead_bytes"), 0, "{kind}");
        drop(engine);
        // This test's own, and that of the parts: nobody else holds on to it.
        assert_eq!(Arc::strong_count(&source), 1, "{kind}");
    }
}

#[test]
fn reads_that_hang_are_named_at_the_end_and_go_when_they_can() {
    let root = tempfile::tempdir().unwrap();
    let [(_, source), ..] = &sources(root.path())[..] else { panic!("no sources") };
    let slow = Slow::new(Arc::clone(source), Duration::from_millis(3));
    let (shut, hang, begun) = (Arc::clone(&slow.shut), Arc::clone(&slow.hang), Instant::now());
    let engine = engine(slow, settings(None, 1));
    epoch(&engine, 4);
    *shut.0.lock() = true;
    let pass = engine.start_epoch().unwrap();
    while hang.load(Relaxed) == 0 {
        assert!(begun.elapsed() < PATIENCE, "nothing is read: {:?}", engine.stats());
        assert!(matches!(engine.next_batch(pass, Duration::from_millis(1)), Ok(Next::Pending | Next::Batch(_))));
    }
    let late = engine.close_within(Duration::from_millis(300));
    assert!(late.iter().any(|who| who.contains("lossfeed-read-")), "{late:?}");
    *shut.0.lock() = false;
    shut.1.notify_all();
    engine.close();
    assert_eq!(stat(&engine, "read_ahead_bytes"), 0);
}
