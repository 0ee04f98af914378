//! A training run without a GPU: engine, pinned cache and slots, copies, kernels on the batch where it lies, scores in
//! the mail.

use std::sync::Arc;
use std::time::Duration;

use lossfeed::Settings;
use lossfeed::engine::ScoreMailbox;
use lossfeed::error::ErrorKind;
use lossfeed::loader::Next;
use lossfeed::settings::ScoreKind;
use lossfeed_kernels::launch::{Home, Score};

use crate::double::Double;
use crate::support::{Patterned, engine, settings};

const SAMPLES: usize = 512;
const CLASSES: usize = 10;

/// How wrong the model is about a sample: its target's logit lies this far below the others.
fn gap(id: i64) -> f32 {
    (id % 97) as f32 / 20.0
}

fn loss(id: i64) -> f32 {
    ((CLASSES - 1) as f32 + (-gap(id)).exp()).ln() + gap(id)
}

#[test]
fn every_score_comes_home_to_its_sample_while_streams_run_past_each_other() {
    let Some(double) = Double::load() else { return };
    for (delay_us, by_ids) in [(0, false), (3000, false), (1000, true)] {
        double.set("delay_us", delay_us);
        let settings =
            Settings { device: "cuda:0".into(), cache_bytes: 128 * 64, score: Some(ScoreKind::Loss), ..settings(32) };
        let engine = Arc::new(engine(Patterned::new(SAMPLES), settings));
        let cuda = engine.gpu().expect("the settings said so").clone();
        let kernels = cuda.kernels().unwrap();
        assert!(double.get("pinned_bytes") > 0, "cache and slots are page-locked");
        let mailbox = ScoreMailbox::open(&engine, 0, 32, 16).unwrap();
        let (consumer, bytes) = (double.stream(), engine.layout().total_bytes());
        let places: Vec<u64> = (0..2).map(|_| double.allocate(bytes)).collect();
        let [logits, losses] = [4 * 32 * CLASSES, 4 * 32].map(|bytes| double.allocate(bytes));
        let iteration = engine.start_epoch().unwrap();
        let mut number = 0;
        loop {
            let batch = match engine.next_batch(iteration, Duration::from_secs(30)).unwrap() {
                Next::Batch(batch) => batch,
                Next::End => break,
                Next::Pending => panic!("no batch within half a minute"),
            };
            let (place, layout) = (places[number % 2], engine.layout());
            let digest = double.digest(batch.slot.bytes());
            let ids = batch.slot.ids().to_vec();
            batch.slot.copying().unwrap();
            let event = double.copy(&cuda, batch.slot, place, consumer).unwrap();
            double.wait(&cuda, consumer, &event).unwrap();
            double.check(consumer, place, bytes, digest);
            // The model: its logits are made on the consumer's stream.
            let mut z = vec![0f32; ids.len() * CLASSES];
            for (row, id) in ids.iter().enumerate() {
                z[row * CLASSES + (id % 10) as usize] = -gap(*id);
            }
            double.write(consumer, logits, bytemuck::cast_slice(&z));
            // A replayed graph knows no tags: its scores go to the ids that lie in the batch.
            let tag = if by_ids { u64::MAX } else { mailbox.credits().register(batch.ticket) };
            let home =
                Home { mail: mailbox.address(), tag, ids: place + layout.ids_offset() as u64, ..Home::default() };
            let score = Score {
                logits,
                targets: place + layout.target_offset() as u64,
                rows: ids.len(),
                classes: CLASSES,
                row_stride: CLASSES as i64,
                ignore_index: -100,
                loss: losses,
                home,
                ..Score::default()
            };
            double.forward(&kernels, consumer, &score).unwrap();
            number += 1;
            if number % 8 == 0 {
                mailbox.settle().unwrap();
            }
        }
        mailbox.settle().unwrap();
        assert_eq!(mailbox.delivered_total() as usize, SAMPLES / 32);
        assert!(mailbox.credits().take_problem().is_none());
        for (id, belief) in (0i64..).zip(engine.importance()) {
            assert!((belief - loss(id)).abs() < 1e-4, "sample {id}: {belief} for {}", loss(id));
        }
        double.is_clean();
        assert!(mailbox.close());
        engine.close();
        double.close_stream(consumer);
    }
}

/// A consumer that queues the copy of every batch at once and never waits for the device, which is slow; `says_so`
/// tells the slots that they are being copied. Gives the error that ends it, if one does.
fn runs_ahead_of_the_device(double: &Double, workers: usize, says_so: bool) -> Option<ErrorKind> {
    double.set("delay_us", 4000);
    let with = Settings { device: "cuda:0".into(), workers: Some(workers), prefetch_factor: 1, ..settings(8) };
    let engine = engine(Patterned::new(SAMPLES), Settings { max_slots: Some(with.depth()), ..with });
    let cuda = engine.gpu().expect("the settings said so").clone();
    let (consumer, bytes) = (double.stream(), engine.layout().total_bytes());
    let place = double.allocate(bytes);
    let iteration = engine.start_epoch().unwrap();
    let (mut batches, mut failure) = (0, None);
    loop {
        match engine.next_batch(iteration, Duration::from_micros(100)) {
            Ok(Next::Batch(batch)) => {
                batches += 1;
                if says_so {
                    batch.slot.copying().unwrap();
                }
                let digest = double.digest(batch.slot.bytes());
                let event = double.copy(&cuda, batch.slot, place, consumer).unwrap();
                double.wait(&cuda, consumer, &event).unwrap();
                double.check(consumer, place, bytes, digest);
            }
            Ok(Next::Pending) => {}
            Ok(Next::End) => break assert_eq!(batches, SAMPLES / 8),
            Err(error) => break failure = Some(error.kind()),
        }
    }
    double.synchronize(consumer);
    double.is_clean();
    engine.close();
    drop((engine, cuda));
    double.free(place);
    double.close_stream(consumer);
    double.nothing_is_left();
    failure
}

#[test]
fn slots_under_a_copy_are_waited_for_and_only_those_that_are_held_are_an_error() {
    let Some(double) = Double::load() else { return };
    for workers in [0, 1] {
        assert_eq!(runs_ahead_of_the_device(&double, workers, true), None, "{workers} workers");
    }
    assert_eq!(runs_ahead_of_the_device(&double, 0, false), Some(ErrorKind::Memory), "copies that nobody told of");
}
