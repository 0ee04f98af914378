//! Truths about the circuit before a tier: what it leaves out, what it tells, and that nothing is missing.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use lossfeed_disk::Numbers;
use lossfeed_sync::Mutex;

use crate::tests::conformance::{Faulty, bytes_of, kept, stored};
use crate::tune::circuit::{LOSS_US, Outcome, PAUSE_MAX_US, PROBE_SAMPLES, State, Why};
use crate::tune::decided::Knob;
use crate::types::SampleId;
use crate::wrap::on_disk::OnDisk;
use crate::wrap::tier::{Tier, TierNumbers};
use crate::wrap::tiered::Tiered;
use crate::*;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Gives everything, and says of it what it is told to say.
struct Says {
    outcome: Mutex<Outcome>,
    asked: AtomicU64,
    offered: AtomicU64,
}

impl Tier for &Says {
    type Flight = ();
    fn name(&self) -> &'static str {
        "a tier"
    }
    fn counted(&self) -> TierNumbers {
        TierNumbers::Disk(Numbers::default())
    }
    fn has(&self, id: SampleId) -> bool {
        id.is_multiple_of(2)
    }
    fn read(
        &self,
        ids: &[SampleId],
        _: &dyn Fn(usize) -> Duration,
        _: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(usize, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        self.asked.fetch_add(ids.len() as u64, Relaxed);
        let mut answers = 0;
        for (k, &id) in ids.iter().enumerate().filter(|(_, id)| self.has(**id)) {
            answers += 1;
            if sink(k, &bytes_of(id)).is_break() {
                break;
            }
        }
        Outcome { answers, ..*self.outcome.lock() }
    }
    fn offer(&self, _: Option<&mut ()>, _: SampleId, _: Duration, _: &[u8]) {
        self.offered.fetch_add(1, Relaxed);
    }
    fn forget(&self, _: &[SampleId]) {}
}

/// Ids 0 to 9 in one call: which of them came from the tier.
fn near(source: &dyn Source) -> Vec<SampleId> {
    let mut near = Vec::new();
    let mut answers = 0;
    source.fetch_by(u64::MAX, &|| false, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], &mut |k, payload| {
        let payload = payload.unwrap();
        assert_eq!(payload.data, bytes_of(k as SampleId));
        answers += 1;
        if payload.near {
            near.push(k as SampleId);
        }
        ControlFlow::Continue(())
    });
    assert_eq!(answers, 10);
    near
}

#[test]
fn what_costs_more_than_it_brings_is_left_out_tried_and_asked_again() {
    let says = Says { outcome: Mutex::default(), asked: AtomicU64::new(0), offered: AtomicU64::new(0) };
    let root = tempfile::tempdir().unwrap();
    let [_, path] = stored(root.path());
    let inner = open(&path, &OpenOptions::default()).unwrap();
    let source = Tiered::new(inner, &says, Some(1.0));
    let decisions = Arc::new(Decisions::default());
    source.tell(News::Listener(&decisions));
    let circuit = || source.counted().disk.unwrap().1;
    let asked = || says.asked.swap(0, Relaxed);
    let offered = || says.offered.swap(0, Relaxed);

    assert_eq!((near(&source), asked(), offered()), (vec![0, 2, 4, 6, 8], 10, 5));
    says.outcome.lock().took_us = 2 * LOSS_US;
    assert_eq!(near(&source).len(), 5, "what came is used");
    assert_eq!((circuit().state, circuit().why, circuit().skipped), (State::Open, Why::Late.code(), 0));
    let told = decisions.take();
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].knob, told[0].before, told[0].now), (Knob::Disk, State::Closed.code(), State::Open.code()));
    asked();
    offered();

    // It is not asked, nothing is offered, and nothing is missing.
    assert!(near(&source).is_empty());
    assert_eq!((asked(), offered(), circuit().skipped), (0, 0, 10));

    // Tried with a few of those that it has, and no better.
    source.turn(PAUSE_MAX_US);
    assert_eq!(circuit().state, State::HalfOpen);
    assert_eq!((near(&source), asked()), (vec![0, 2, 4, 6], PROBE_SAMPLES as u64));
    assert_eq!((circuit().state, circuit().opened, circuit().why), (State::Open, 2, Why::NoBetter.code()));

    // What it lost does not count for ever.
    *says.outcome.lock() = Outcome::default();
    source.turn(PAUSE_MAX_US);
    assert_eq!(near(&source), [0, 2, 4, 6]);
    assert_eq!((circuit().state, circuit().why), (State::Closed, Why::Serves.code()));
    assert_eq!(near(&source), [0, 2, 4, 6, 8]);
    assert_eq!(decisions.take().iter().map(|told| told.now).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn half_open_with_nothing_to_try_it_goes_on_and_keeps_what_comes() {
    let root = tempfile::tempdir().unwrap();
    let [_, path] = stored(root.path());
    let tier = DiskTier { folder: root.path().join("tier"), bytes: 64 << 20 };
    let far = Some(Throttle { latency: Duration::from_millis(1), bandwidth_bytes_per_s: None });
    let inner = open(&path, &OpenOptions { throttle: far, ..OpenOptions::default() }).unwrap();
    let faulty = Faulty::new([100, 0, 0]);
    let source = OnDisk::before(inner, "a store", &tier, Some(faulty.clone())).unwrap();
    near(&source);
    while source.counted().disk.unwrap().0.written < 10 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(near(&source).is_empty());
    assert_eq!((source.counted().disk.unwrap().1.state, source.counted().disk.unwrap().0.failed), (State::Open, 10));
    assert_eq!(source.counted().disk.unwrap().1.why, Why::Fails.code());
    // All of it was forgotten. Without offers there would never be anything to try it with.
    *faulty.shares.lock() = [0; 3];
    source.turn(PAUSE_MAX_US);
    assert!(near(&source).is_empty());
    while source.counted().disk.unwrap().0.written < 20 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // On a busy machine a probe may be late.
    while source.counted().disk.unwrap().1.state != State::Closed {
        assert!([0, PROBE_SAMPLES].contains(&near(&source).len()));
        source.turn(PAUSE_MAX_US);
    }
    assert_eq!(near(&source).len(), 10);
}

#[test]
fn a_disk_that_hangs_costs_its_patience_once_and_no_sample() {
    let root = tempfile::tempdir().unwrap();
    let [path, _] = stored(root.path());
    let tier = DiskTier { folder: root.path().join("tier"), bytes: 64 << 20 };
    let far = Some(Throttle { latency: Duration::from_micros(100), bandwidth_bytes_per_s: None });
    let inner = open(&path, &OpenOptions { throttle: far, ..OpenOptions::default() }).unwrap();
    let faulty = Faulty::new([0; 3]);
    let source = OnDisk::before(inner, "a store", &tier, Some(faulty.clone())).unwrap();
    let all: Vec<SampleId> = (0..source.facts().samples as SampleId).collect();
    source.fetch_by(u64::MAX, &|| false, &all, &mut |_, payload| {
        assert!(payload.is_ok());
        ControlFlow::Continue(())
    });
    kept(&source);
    assert_eq!(near(&source).len(), 10);
    *faulty.shares.lock() = [0, 0, 100];
    let before = faulty.reads.load(Relaxed);
    for _ in 0..10 {
        assert!(near(&source).is_empty());
    }
    // One call waited, for one read.
    assert_eq!(faulty.reads.load(Relaxed), before + 1);
    let circuit = source.counted().disk.unwrap().1;
    assert_eq!((circuit.state, circuit.why, circuit.opened), (State::Open, Why::Hangs.code(), 1));
    assert_eq!((circuit.skipped, source.counted().disk.unwrap().0.late), (90, 10));
    // Nor does whoever lets go of it.
    drop(source);
    faulty.let_go();
    fs::remove_dir_all(root.path().join("tier")).unwrap();
}
