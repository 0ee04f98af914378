//! Every way to the GPU: the same bytes, whoever reads them and from wherever, while the cache goes on changing behind
//! them.

use std::sync::Arc;
use std::time::Duration;

use lossfeed::engine::{Courier, Dataset, Engine};
use lossfeed::error::ErrorKind;
use lossfeed::loader::{Batch, Next};
use lossfeed::settings::{CopyPath, OnError, TransformSettings};
use lossfeed::source::{Arrays, ImageMode};
use lossfeed::{Dtype, Settings, TensorSpec};

use crate::double::Double;
use crate::planted::{alone, is_alone};
use crate::support::{Patterned, SAMPLE_BYTES, engine, pattern, settings};

const SAMPLES: usize = 200;
const ROWS: usize = 16;
/// What a record of ours takes in the cache.
const RECORD_BYTES: u64 = (SAMPLE_BYTES as u64 + 8 + 6).next_multiple_of(64);

fn on_path(path: Option<CopyPath>) -> Settings {
    Settings { device: "cuda:0".into(), copy_path: path, cache_bytes: 90 * RECORD_BYTES, ..settings(ROWS) }
}

fn stat(engine: &Engine, name: &str) -> f64 {
    engine.stats().into_iter().find(|(n, _)| n == name).unwrap().1
}

fn take(engine: &Engine, iteration: u64) -> Option<Batch> {
    for _ in 0..600 {
        match engine.next_batch(iteration, Duration::from_millis(100)).unwrap() {
            Next::Batch(batch) => return Some(batch),
            Next::End => return None,
            Next::Pending => {}
        }
    }
    panic!("no batch within a minute");
}

/// The samples of a batch, as its ids name them.
fn samples(batch: &Batch) -> Vec<u8> {
    batch.ticket.ids.iter().flat_map(|&id| pattern(id)).collect()
}

/// Epochs to places that are used again as soon as the consumer's stream has been given the check of what lies there.
fn through(double: &Double, engine: &Engine, epochs: usize) {
    let courier = Courier::of(engine).unwrap();
    let (layout, consumer) = (engine.layout().clone(), double.stream());
    let places: Vec<u64> = (0..3).map(|_| double.allocate(layout.total_bytes())).collect();
    let mut number = 0;
    for _ in 0..epochs {
        let iteration = engine.start_epoch().unwrap();
        while let Some(batch) = take(engine, iteration) {
            let place = places[number % places.len()];
            number += 1;
            let data = samples(&batch);
            let rest_at = layout.target_offset();
            let rest = batch.slot.bytes()[rest_at..].to_vec();
            let event = double.send(&courier, Arc::new(batch.slot), place, consumer).unwrap();
            double.courier_wait(&courier, consumer, &event);
            double.check(consumer, place, data.len(), double.digest(&data));
            double.check(consumer, place + rest_at as u64, rest.len(), double.digest(&rest));
        }
    }
    double.synchronize(consumer);
    double.is_clean();
    drop(courier);
    places.into_iter().for_each(|place| double.free(place));
    double.close_stream(consumer);
}

#[test]
fn every_path_brings_the_same_bytes_while_the_cache_fills_and_turns_over() {
    let Some(double) = Double::with_kernels() else { return };
    for path in CopyPath::ALL {
        // A cache that keeps what it has, one that always evicts, and one that everything fits into.
        for (policy, cached) in [("minio", 90), ("lru", 90), ("minio", SAMPLES as u64)] {
            for (workers, delay_us) in [(0, 200), (2, 0), (2, 1000)] {
                double.set("delay_us", delay_us);
                let settings = Settings {
                    policy: Some(policy.into()),
                    cache_bytes: cached * RECORD_BYTES,
                    workers: Some(workers),
                    ..on_path(Some(path))
                };
                let engine = engine(Patterned::new(SAMPLES), settings);
                assert_eq!((engine.copy_choice().path, engine.copy_choice().measured.len()), (path, 0));
                let before = double.get("batched_rows");
                through(&double, &engine, 4);
                let in_place = stat(&engine, "in_place_samples_total");
                let (hits, batched) = (stat(&engine, "hits_total"), double.get("batched_rows") - before);
                assert!(hits > 0.0, "{policy} {cached}");
                if path == CopyPath::Gathered {
                    assert_eq!((in_place, batched), (0.0, 0));
                } else {
                    // A hit whose fetch was still under way came by another road.
                    assert!(in_place > 0.0 && in_place <= hits, "{in_place} of {hits} hits, {policy} {cached}");
                    assert_eq!(batched > 0, path == CopyPath::Batched);
                }
                engine.close();
                drop(engine);
                double.nothing_is_left();
            }
        }
    }
}

#[test]
fn a_batch_with_bad_samples_is_whole_on_every_path() {
    let Some(double) = Double::load() else { return };
    for path in CopyPath::ALL {
        for on_error in [OnError::Skip, OnError::Substitute] {
            let mut source = Patterned::new(SAMPLES);
            source.bad = (0..SAMPLES as u32).filter(|id| id % 9 == 4).collect();
            let engine = engine(source, Settings { on_error, ..on_path(Some(path)) });
            through(&double, &engine, 3);
            assert!(stat(&engine, "bad_samples_total") > 0.0);
            engine.close();
        }
    }
}

#[test]
fn a_batch_that_was_left_in_place_can_be_gathered_after_all() {
    let Some(_double) = Double::load() else { return };
    let settings = Settings { cache_bytes: SAMPLES as u64 * RECORD_BYTES, ..on_path(Some(CopyPath::Batched)) };
    let engine = engine(Patterned::new(SAMPLES), settings);
    let mut left = 0;
    for _ in 0..2 {
        let iteration = engine.start_epoch().unwrap();
        while let Some(mut batch) = take(&engine, iteration) {
            left += batch.slot.in_place().map_or(0, |rows| rows.iter().len());
            assert_eq!(batch.slot.samples().concat(), samples(&batch));
            if let Some(rows) = batch.slot.in_place().map(|rows| rows.iter().len()) {
                let refused = batch.slot.data().unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Usage, "an earlier batch's bytes are nobody's");
                assert!(
                    refused.to_string().contains(&format!("{rows} of this batch's {} samples", batch.rows)),
                    "{refused}"
                );
            }
            batch.slot.gather();
            assert!(batch.slot.in_place().is_none());
            assert_eq!(batch.slot.data().unwrap(), samples(&batch));
        }
    }
    assert!(left >= SAMPLES - ROWS, "{left} samples of the second epoch were left in place");
    engine.close();
}

#[test]
fn a_path_is_measured_at_the_start_and_leaves_nothing_behind() {
    let Some(double) = Double::with_kernels() else { return };
    let before = ["device_bytes", "events"].map(|key| double.get(key));
    let engine_of = |settings| engine(Patterned::new(SAMPLES), settings);
    let engine = engine_of(on_path(None));
    let choice = engine.copy_choice().clone();
    let measured: Vec<CopyPath> = choice.measured.iter().map(|cost| cost.path).collect();
    assert_eq!(measured, CopyPath::ALL);
    for cost in &choice.measured {
        assert!(cost.copy_us > 0.0 && (cost.gather_us > 0.0) == (cost.path == CopyPath::Gathered), "{cost:?}");
    }
    assert_eq!(stat(&engine, "slots_free"), stat(&engine, "slots_total"));
    // Threads may need a moment to let go of events.
    let settled = || ["device_bytes", "events"].iter().zip(before).all(|(key, before)| double.get(key) <= before);
    assert!(
        (0..500).any(|_| settled() || {
            std::thread::sleep(Duration::from_millis(10));
            false
        }),
        "something was left"
    );
    through(&double, &engine, 2);
    engine.close();
    drop(engine);
    // Where nothing could lie in place, nothing is measured.
    let none = |settings| {
        let engine = engine_of(settings);
        assert_eq!((engine.copy_choice().path, engine.copy_choice().measured.len()), (CopyPath::Gathered, 0));
        engine.close();
    };
    none(Settings { cache_bytes: 0, ..on_path(None) });
    none(Settings { device: "cpu".into(), ..on_path(None) });
    // What the GPU cannot do, or has no memory for, is left out.
    double.set("host_addresses", 0);
    let engine = engine_of(on_path(None));
    double.is_clean();
    assert_eq!(engine.copy_choice().measured.iter().map(|c| c.path).collect::<Vec<_>>(), [CopyPath::Gathered]);
    through(&double, &engine, 1);
    drop(engine);
    double.set("host_addresses", 1);
    for call in ["cuMemcpyBatchAsync", "cuLaunchKernel"] {
        double.fail(call, 3, 2);
        let engine = engine_of(on_path(None));
        assert_eq!(engine.copy_choice().measured.len(), 2, "{call}");
        through(&double, &engine, 1);
    }
    double.set("device_bytes", double.get("device_bytes"));
    let engine = engine_of(on_path(None));
    assert_eq!(*engine.copy_choice(), lossfeed::engine::CopyChoice { path: CopyPath::Gathered, measured: vec![] });
    drop(engine);
}

#[test]
fn a_path_that_cannot_be_taken_is_refused_with_what_to_do() {
    let Some(double) = Double::load() else { return };
    let image = TensorSpec::new(Dtype::U8, [8, 8, 3]);
    let dataset = || {
        let (pixels, labels) = (vec![1u8; SAMPLES * image.bytes()], vec![0u8; SAMPLES * 8]);
        let rows = Arrays::new(pixels, image.clone(), labels, TensorSpec::class_index(), SAMPLES).unwrap();
        Dataset::new(Arc::new(rows), ImageMode::Auto, None).unwrap()
    };
    let transform = TransformSettings {
        dtype: Dtype::F32,
        channels_first: true,
        crop: None,
        padding: 0,
        random_crop: false,
        flip: 0.0,
        mean: vec![],
        std: vec![],
        erase: 0.0,
        mix: None,
    };
    for path in [CopyPath::Mapped, CopyPath::Batched] {
        let refused = |settings, kind, word: &str| {
            let error = Engine::new(dataset(), settings).map(drop).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(word), "{word}: {error}");
        };
        let on_cpu = Settings { device: "cpu".into(), ..on_path(Some(path)) };
        refused(on_cpu, ErrorKind::Settings, "set device=");
        let by_threads = Settings { transform: Some(transform.clone()), ..on_path(Some(path)) };
        refused(by_threads, ErrorKind::Settings, "transform them");
        double.set("host_addresses", 0);
        refused(on_path(Some(path)), ErrorKind::Device, "use copy_path \"gathered\"");
        double.set("host_addresses", 1);
    }
}

#[test]
fn a_driver_without_batched_copies_goes_another_way_unless_told_to() {
    let Some(double) = Double::load() else { return };
    if !is_alone() {
        // What the driver has is remembered for the process.
        let (code, said) = alone("paths::a_driver_without_batched_copies_goes_another_way_unless_told_to");
        assert_eq!(code, Some(0), "{said}");
        return;
    }
    let engine_of = |path| {
        double.fail("cuGetProcAddress_v2", 0, 500);
        let dataset = Dataset::new(Arc::new(Patterned::new(SAMPLES)), ImageMode::Auto, None).unwrap();
        Engine::new(dataset, on_path(path))
    };
    let error = engine_of(Some(CopyPath::Batched)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(error.to_string().contains("570"), "{error}");
    let choice = engine_of(None).unwrap().copy_choice().clone();
    assert!(choice.measured.len() == 2 && choice.measured.iter().all(|cost| cost.path != CopyPath::Batched));
}

#[test]
fn a_batch_that_the_driver_refuses_gives_its_slot_and_its_samples_back() {
    let Some(double) = Double::load() else { return };
    for (path, call) in [(CopyPath::Batched, "cuMemcpyBatchAsync"), (CopyPath::Mapped, "cuLaunchKernel")] {
        double.set("delay_us", 1000);
        let engine = engine(Patterned::new(SAMPLES), on_path(Some(path)));
        through(&double, &engine, 1);
        let courier = Courier::of(&engine).unwrap();
        let (place, consumer) = (double.allocate(engine.layout().total_bytes()), double.stream());
        let iteration = engine.start_epoch().unwrap();
        let mut refused = 0;
        while let Some(batch) = take(&engine, iteration) {
            if batch.slot.in_place().is_some() {
                double.fail(call, 0, 2);
                let error = double.send(&courier, Arc::new(batch.slot), place, consumer).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Device);
                assert_eq!(stat(&engine, "slots_copying"), 0.0, "the slot is free as soon as the error is out");
                refused += 1;
            }
        }
        assert!(refused > 3);
        through(&double, &engine, 1);
        engine.close();
        drop((courier, engine));
        double.free(place);
        double.close_stream(consumer);
    }
}

/// The mistake: nobody asked the device whether it reads the host's addresses of registered memory.
#[test]
fn addresses_of_the_host_given_to_a_device_that_does_not_read_them_show() {
    for (path, call) in [(CopyPath::Batched, "cuMemcpyBatchAsync"), (CopyPath::Mapped, "lossfeed_gather")] {
        let Some(double) = Double::with_kernels() else { return };
        let engine = engine(Patterned::new(SAMPLES), on_path(Some(path)));
        through(&double, &engine, 1);
        let (place, consumer) = (double.allocate(engine.layout().total_bytes()), double.stream());
        let iteration = engine.start_epoch().unwrap();
        let mut batch = take(&engine, iteration).unwrap();
        while batch.slot.in_place().is_none() {
            batch = take(&engine, iteration).unwrap();
        }
        double.set("host_addresses", 0);
        // A copy of the same batch may be refused already: the first was faster.
        if let Ok(event) = double.bring_unowned(&engine, &batch.slot, path, place, consumer) {
            let _ = event.wait();
            assert!(event.is_done().is_err(), "{path:?}: the context is lost");
        }
        assert!(double.violations().contains(call), "{path:?}: {}", double.violations());
        double.set("lost", 0);
        double.set("host_addresses", 1);
        double.free(place);
        double.close_stream(consumer);
    }
}

/// The mistake: nobody keeps the records while they are being read, and the cache gives their memory to others.
#[test]
fn samples_let_go_of_before_they_were_read_show() {
    for path in [CopyPath::Batched, CopyPath::Mapped] {
        let Some(double) = Double::load() else { return };
        let lru = Settings { policy: Some("lru".into()), workers: Some(0), ..on_path(Some(path)) };
        let engine = engine(Patterned::new(SAMPLES), lru);
        through(&double, &engine, 1);
        let (place, consumer) = (double.allocate(engine.layout().total_bytes()), double.stream());
        double.set("delay_us", 50_000);
        // Something slow in front of the copy.
        (0..20).for_each(|_| double.check(consumer, place, 0, double.digest(&[])));
        let iteration = engine.start_epoch().unwrap();
        let mut batch = take(&engine, iteration).unwrap();
        while batch.slot.in_place().is_none() {
            batch = take(&engine, iteration).unwrap();
        }
        let left: Vec<(usize, Vec<u8>)> = batch
            .slot
            .in_place()
            .unwrap()
            .iter()
            .map(|(row, _)| (row, pattern(batch.ticket.ids[row]).to_vec()))
            .collect();
        let event = double.bring_unowned(&engine, &batch.slot, path, place, consumer).unwrap();
        drop(batch);
        for _ in 0..2 {
            let iteration = engine.start_epoch().unwrap();
            while take(&engine, iteration).is_some() {}
        }
        event.wait().unwrap();
        for (row, expected) in left {
            double.check(consumer, place + (row * SAMPLE_BYTES) as u64, SAMPLE_BYTES, double.digest(&expected));
        }
        double.synchronize(consumer);
        let seen = double.violations().contains("its source changed") || double.get("mismatches") > 0;
        assert!(seen, "{path:?}: {}", double.violations());
        double.set("delay_us", 0);
        engine.close();
        double.free(place);
        double.close_stream(consumer);
    }
}
