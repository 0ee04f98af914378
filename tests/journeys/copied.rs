//! Batches of samples that lie in memory and are not kept take a path of their own. It must give what the other path
//! gives.

use super::support::{SAMPLE_BYTES, check, pattern, settings};
use lossfeed::engine::Dataset;
use lossfeed::error::{Error, ErrorKind, Result};
use lossfeed::loader::Next;
use lossfeed::settings::OnError;
use lossfeed::source::{Facts, Form, ImageMode, Payload, Size, Source, Traffic};
use lossfeed::{Dtype, Engine, SampleId, Settings, TensorSpec};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

const SAMPLES: usize = 200;

/// What a source does with one sample of seven.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    None,
    Refuses,
    TooShort,
    TooLong,
    WrongTarget,
    SaysNothing,
}

struct Rows {
    fault: Fault,
    facts: Facts,
    asked: Arc<AtomicUsize>,
    /// Set by the source itself once it was asked for the 20th sample of a batch.
    seen_twenty: Arc<AtomicBool>,
    go_on: Arc<AtomicBool>,
}

impl Source for Rows {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn name(&self, id: SampleId) -> String {
        format!("row {id}")
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
            self.asked.fetch_add(1, SeqCst);
            if k == 20 {
                self.seen_twenty.store(true, SeqCst);
                while !self.go_on.load(SeqCst) {
                    std::thread::yield_now();
                }
            }
            let (bytes, target) = (pattern(id), i64::from(id % 10).to_ne_bytes());
            let fault = if id % 7 == 0 { self.fault } else { Fault::None };
            let long = [&bytes[..], &[0]].concat();
            let answer = match fault {
                Fault::None => Ok(Payload::new(&bytes, &target)),
                Fault::Refuses => Err(Error::sample("it is bad on purpose")),
                Fault::TooShort => Ok(Payload::new(&bytes[1..], &target)),
                Fault::TooLong => Ok(Payload::new(&long, &target)),
                Fault::WrongTarget => Ok(Payload::new(&bytes, &target[1..])),
                Fault::SaysNothing => continue,
            };
            if sink(k, answer).is_break() {
                return Traffic::default();
            }
        }
        Traffic::default()
    }
}

struct Run {
    engine: Engine,
    asked: Arc<AtomicUsize>,
    seen_twenty: Arc<AtomicBool>,
    go_on: Arc<AtomicBool>,
}

fn run(in_memory: bool, fault: Fault, settings: Settings, waits: bool) -> Run {
    let (asked, seen_twenty) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let go_on = Arc::new(AtomicBool::new(!waits));
    let source = Rows {
        fault,
        facts: Facts {
            in_memory,
            ..Facts::new(
                SAMPLES,
                "rows",
                Form::Rows(TensorSpec::new(Dtype::U8, [SAMPLE_BYTES])),
                TensorSpec::class_index(),
            )
        },
        asked: Arc::clone(&asked),
        seen_twenty: Arc::clone(&seen_twenty),
        go_on: Arc::clone(&go_on),
    };
    let dataset = Dataset::new(Arc::new(source), ImageMode::Auto, None).unwrap();
    Run { engine: Engine::new(dataset, settings).unwrap(), asked, seen_twenty, go_on }
}

/// An epoch's ids batch by batch, every byte checked, and how it ended.
fn epoch(engine: &Engine) -> (Vec<Vec<SampleId>>, Option<(ErrorKind, String)>) {
    let iteration = engine.start_epoch().unwrap();
    let mut batches = Vec::new();
    loop {
        match engine.next_batch(iteration, Duration::from_secs(60)) {
            Ok(Next::Batch(batch)) => {
                check(engine, &batch);
                batches.push(batch.ticket.ids.to_vec());
            }
            Ok(Next::End) => return (batches, None),
            Ok(Next::Pending) => panic!("no batch within a minute"),
            Err(e) => return (batches, Some((e.kind(), e.to_string()))),
        }
    }
}

#[test]
fn copied_batches_are_the_same_as_fetched_ones_whatever_the_samples_are() {
    for fault in [Fault::None, Fault::Refuses, Fault::TooShort, Fault::TooLong, Fault::WrongTarget] {
        for on_error in [OnError::Raise, OnError::Skip, OnError::Substitute] {
            for workers in [0, 2] {
                let settings = || Settings { workers: Some(workers), on_error, ..settings(32) };
                let copied = run(true, fault, settings(), false).engine;
                let fetched = run(false, fault, settings(), false).engine;
                let case = format!("{fault:?} {on_error:?} {workers}");
                for _ in 0..2 {
                    let (mine, theirs) = (epoch(&copied), epoch(&fetched));
                    assert_eq!(mine.0, theirs.0, "{case}");
                    assert_eq!(mine.1.as_ref().map(|e| e.0), theirs.1.as_ref().map(|e| e.0), "{case}");
                    let raised = fault != Fault::None && on_error == OnError::Raise;
                    assert_eq!(mine.1.is_some(), raised, "{case}: {:?}", mine.1);
                    assert!(mine.1.is_none_or(|(_, text)| text.contains("row ")), "{case}: the sample is not named");
                }
                let names = |engine: &Engine| {
                    let mut names: Vec<String> = engine.bad_samples().into_iter().map(|bad| bad.name).collect();
                    names.sort();
                    names
                };
                if on_error != OnError::Raise {
                    assert_eq!(names(&copied), names(&fetched), "{case}");
                }
            }
        }
    }
}

#[test]
fn a_source_that_says_nothing_about_a_sample_is_told_of() {
    let run = run(true, Fault::SaysNothing, Settings { workers: Some(0), ..settings(SAMPLES) }, false);
    let (batches, ended) = epoch(&run.engine);
    let (kind, text) = ended.unwrap();
    assert!(batches.is_empty() && kind == ErrorKind::Internal, "{kind:?}");
    assert!(text.contains("171 of 200"), "{text}");
}

#[test]
fn a_pass_that_is_over_copies_no_further_than_a_few_rows() {
    let run = run(true, Fault::None, Settings { workers: Some(1), ..settings(SAMPLES) }, true);
    let iteration = run.engine.start_epoch().unwrap();
    while !run.seen_twenty.load(SeqCst) {
        std::thread::yield_now();
    }
    run.engine.abandon(iteration);
    run.go_on.store(true, SeqCst);
    run.engine.close();
    let asked = run.asked.load(SeqCst);
    assert!((21..=48).contains(&asked), "{asked} rows were copied of a batch that nobody wants");
}
