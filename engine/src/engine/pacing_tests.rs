//! A stall target alive: what is fetched follows what was waited, and a state has what it came to.

use super::buffer_tests::{Seen, dataset, deliver, settings};
use super::{Dataset, Engine};
use crate::error::{ErrorKind, Result};
use crate::sampler::{Auto, SamplerSettings};
use crate::source::{Form, ImageMode, Payload, Source};
use crate::types::{SampleId, TensorSpec};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// A source that takes a millisecond for every sample.
struct Slow(Arc<dyn Source>);

impl Source for Slow {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn payload_bytes(&self, id: SampleId) -> u64 {
        self.0.payload_bytes(id)
    }
    fn name(&self, id: SampleId) -> String {
        self.0.name(id)
    }
    fn form(&self) -> &Form {
        self.0.form()
    }
    fn target_spec(&self) -> &TensorSpec {
        self.0.target_spec()
    }
    fn classes(&self) -> &[String] {
        self.0.classes()
    }
    fn labels(&self) -> Option<&[i64]> {
        self.0.labels()
    }
    fn fetch(&self, ids: &[SampleId], sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>) {
        std::thread::sleep(Duration::from_millis(ids.len() as u64));
        self.0.fetch(ids, sink);
    }
}

fn waiting_little(augmented: bool, stall: f32, fetches: Option<f32>) -> SamplerSettings {
    SamplerSettings::Auto(Auto { augmented: Some(augmented), stall: Some(stall), fetches })
}

/// Without threads of its own: what the source takes is waited for.
fn engine(sampler: SamplerSettings, slow: bool) -> Engine {
    let plain = dataset();
    let slowed = || Dataset::new(Arc::new(Slow(Arc::clone(&plain.source))), ImageMode::Auto, None).unwrap();
    Engine::new(if slow { slowed() } else { dataset() }, settings(sampler, 0)).unwrap()
}

fn epochs(engine: &Engine, count: usize) -> Seen {
    let mut seen = Seen::new();
    for _ in 0..count {
        deliver(engine, usize::MAX, &mut seen);
        engine.weights_are_read();
    }
    seen
}

fn stat(engine: &Engine, name: &str) -> f64 {
    engine.stats().into_iter().find(|(stat, _)| stat == name).unwrap().1
}

#[test]
fn a_slow_source_is_asked_for_less() {
    for augmented in [true, false] {
        let engine = engine(waiting_little(augmented, 0.02, None), true);
        epochs(&engine, 2);
        assert_eq!(engine.settings().sampler.name(), if augmented { "replay" } else { "cost-aware" });
        assert!(stat(&engine, "fetches_ppm") < 250_000.0, "{}", stat(&engine, "fetches_ppm"));
        let before = stat(&engine, "fetched_samples_total");
        epochs(&engine, 6);
        let each = (stat(&engine, "fetched_samples_total") - before) / 6.0;
        assert!(each < 40.0, "{each} of 200 samples fetched an epoch, augmented {augmented}");
    }
}

#[test]
fn a_fast_source_is_used_until_nothing_comes_twice() {
    let engine = engine(waiting_little(true, 0.9, None), false);
    for _ in 0..8 {
        let pass = engine.start_epoch().unwrap();
        while let crate::loader::Next::Batch(_) = engine.next_batch(pass, Duration::from_secs(60)).unwrap() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    assert_eq!(stat(&engine, "fetches_ppm"), 1e6);
    let before = stat(&engine, "fetched_samples_total");
    epochs(&engine, 1);
    // Every row is new to the buffer; the few that came again within a cache's length are still there.
    let fetched = stat(&engine, "fetched_samples_total") - before;
    assert!(fetched > 160.0, "{fetched} of 200");
}

#[test]
fn a_bound_on_fetches_holds_whatever_the_source_can_do() {
    let engine = engine(waiting_little(true, 0.9, Some(0.125)), false);
    for _ in 0..6 {
        epochs(&engine, 1);
        assert!(stat(&engine, "fetches_ppm") <= 125_000.0);
    }
}

#[test]
fn a_resumed_run_goes_on_at_the_pace_it_had() {
    for taken in [0, 5] {
        let first = engine(waiting_little(true, 0.02, None), true);
        let mut seen = epochs(&first, 3);
        if taken > 0 {
            deliver(&first, taken, &mut seen);
        }
        let state = first.state().unwrap();
        let second = engine(waiting_little(true, 0.02, None), true);
        second.load_state(&state).unwrap();
        let (mut on, mut resumed) = (Seen::new(), Seen::new());
        deliver(&second, usize::MAX, &mut resumed);
        if taken == 0 {
            deliver(&first, usize::MAX, &mut on);
            assert_eq!(resumed, on);
            assert_eq!(stat(&first, "fetches_ppm"), stat(&second, "fetches_ppm"));
        } else {
            assert_eq!((resumed[0].0, resumed[0].1), (3, 5));
        }
        let other = engine(waiting_little(true, 0.1, None), true).load_state(&state).unwrap_err();
        assert!(other.to_string().contains("sampler.pace stall 0.0200"), "{other}");
        let plain = SamplerSettings::Auto(Auto { augmented: Some(true), ..Auto::default() });
        assert!(engine(plain, true).load_state(&state).unwrap_err().to_string().contains("sampler.pace"));
    }
}

#[test]
fn a_target_that_is_none_is_refused() {
    let refused = Engine::new(dataset(), settings(waiting_little(true, 1.0, None), 0)).err().unwrap();
    assert!(refused.kind() == ErrorKind::Settings && refused.to_string().contains("stall is 1"), "{refused}");
}
