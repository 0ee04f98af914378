//! How a pass ends early: between two samples, without a trace in the cache, and without a wait for a read that hangs.

use super::stat;
use super::support::{SAMPLE_BYTES, check, pattern, settings};
use lossfeed::engine::Dataset;
use lossfeed::error::{Error, ErrorKind, Result};
use lossfeed::loader::Next;
use lossfeed::settings::OnError;
use lossfeed::source::{Facts, Form, ImageMode, Payload, Size, Source, Traffic};
use lossfeed::{Dtype, Engine, SampleId, Settings, TensorSpec};
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const SAMPLES: usize = 16;

/// Reads a sample only when it is let.
pub(crate) struct Gate {
    /// (samples that may be read, samples that were asked for)
    state: Mutex<(usize, usize)>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn open_to(&self, samples: usize) {
        self.state.lock().unwrap().0 = samples;
        self.changed.notify_all();
    }
    /// Waits until `samples` have been asked for.
    fn asked(&self, samples: usize) {
        let state = self.state.lock().unwrap();
        let limit = Duration::from_secs(60);
        let (_state, late) = self.changed.wait_timeout_while(state, limit, |s| s.1 < samples).unwrap();
        assert!(!late.timed_out(), "nobody asked for sample number {samples}");
    }
    fn count(&self) -> usize {
        self.state.lock().unwrap().1
    }
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        let mine = state.1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |s| s.0 < mine).unwrap());
    }
}

struct Gated {
    gate: Arc<Gate>,
    facts: Facts,
    /// Reading this one asks for the end of everything.
    interrupts: Option<SampleId>,
}

impl Source for Gated {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn name(&self, id: SampleId) -> String {
        format!("gated-{id}")
    }
    fn size(&self, _: SampleId) -> Size {
        Size::known(SAMPLE_BYTES as u64)
    }
    fn fetch_by(
        &self,
        _: u64,
        _: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        for (k, &id) in ids.iter().enumerate() {
            self.gate.pass();
            let target = i64::from(id % 10).to_ne_bytes();
            let bytes = pattern(id);
            let answer = match self.interrupts == Some(id) {
                true => Err(Error::new(ErrorKind::Interrupted, "somebody pressed a key")),
                false => Ok(Payload::new(&bytes, &target)),
            };
            if sink(k, answer).is_break() {
                return Traffic::default();
            }
        }
        Traffic::default()
    }
}

pub(crate) fn gated(settings: Settings, interrupts: Option<SampleId>) -> (Arc<Gate>, Engine) {
    let gate = Arc::new(Gate { state: Mutex::new((0, 0)), changed: Condvar::new() });
    let source = Gated {
        gate: Arc::clone(&gate),
        facts: Facts::new(
            SAMPLES,
            "gated",
            Form::Rows(TensorSpec::new(Dtype::U8, [SAMPLE_BYTES])),
            TensorSpec::class_index(),
        ),
        interrupts,
    };
    let dataset = Dataset::new(Arc::new(source), ImageMode::Auto, None).unwrap();
    (gate, Engine::new(dataset, settings).unwrap())
}

fn one_batch(workers: usize) -> Settings {
    Settings { workers: Some(workers), cache_bytes: 64 << 10, policy: Some("lru".into()), ..settings(SAMPLES) }
}

#[test]
fn a_pass_that_is_over_reads_no_further_sample_and_leaves_none_behind_in_the_books() {
    let (gate, engine) = gated(one_batch(1), None);
    let iteration = engine.start_epoch().unwrap();
    gate.asked(1);
    gate.open_to(4);
    gate.asked(5);
    engine.abandon(iteration);
    gate.open_to(SAMPLES);
    engine.close();
    assert_eq!(gate.count(), 5, "the sample under way is read, and no other");
    assert_eq!(stat(&engine, "fetched_samples_total"), 5.0);
    assert_eq!(stat(&engine, "residents"), 5.0, "what was read is kept, what was admitted and not read is not");
    assert_eq!(stat(&engine, "bad_samples_total"), 0.0);
}

#[test]
fn what_a_later_pass_waits_for_is_read_although_the_earlier_one_is_over() {
    // Without a cache: what is in the air is in nobody's books, so joining it is counted. Two have been read by then,
    // are kept nowhere, and are read again.
    let (gate, engine) = gated(Settings { cache_bytes: 0, ..one_batch(1) }, None);
    engine.start_epoch().unwrap();
    gate.open_to(2);
    gate.asked(3);
    let iteration = engine.start_epoch().unwrap();
    let joined = || stat(&engine, "coalesced_total") == (SAMPLES - 2) as f64;
    for _ in 0..60_000 {
        if joined() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(joined(), "the second pass reads for itself");
    gate.open_to(2 * SAMPLES);
    let batch = match engine.next_batch(iteration, Duration::from_secs(60)).unwrap() {
        Next::Batch(batch) => batch,
        Next::Pending => panic!("the batch of the second pass did not come"),
        Next::End => panic!("the second pass has one batch"),
    };
    assert_eq!(batch.rows, SAMPLES);
    check(&engine, &batch);
    assert_eq!(gate.count(), SAMPLES + 2, "what both want was read once, for both");
    drop(batch);
    engine.close();
}

#[test]
fn a_read_that_hangs_is_left_behind_by_name_and_may_end_later() {
    let (gate, engine) = gated(one_batch(2), None);
    engine.start_epoch().unwrap();
    gate.asked(1);
    let left = engine.close_within(Duration::from_millis(20));
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(left[0].starts_with("lossfeed-") && left[0].ends_with("batch 0 of epoch 0"), "{left:?}");
    assert_eq!(engine.close_within(Duration::ZERO), left, "it is still there");
    // It writes into its slot now, long after the pool and the cache were closed.
    gate.open_to(SAMPLES);
    engine.close();
    assert_eq!(gate.count(), 1);
}

#[test]
fn an_interruption_is_no_bad_sample_and_ends_the_pass_whatever_is_done_with_bad_ones() {
    for workers in [0, 2] {
        for on_error in [OnError::Raise, OnError::Skip, OnError::Substitute] {
            let settings = Settings { on_error, workers: Some(workers), ..settings(SAMPLES) };
            let (gate, engine) = gated(settings, Some(3));
            gate.open_to(SAMPLES);
            let iteration = engine.start_epoch().unwrap();
            let error = match engine.next_batch(iteration, Duration::from_secs(60)) {
                Ok(Next::Pending) => panic!("nothing came"),
                Ok(next) => panic!("{next:?}"),
                Err(error) => error,
            };
            assert_eq!(error.kind(), ErrorKind::Interrupted);
            assert_eq!(stat(&engine, "bad_samples_total"), 0.0);
            engine.close();
        }
    }
}
