//! Reads beside each other, by a clock that is turned by hand: who is hired and when, what comes, and how it ends.

use super::read_ahead::ReadAhead;
use super::readers::Hand;
use crate::error::{Error, Result};
use crate::source::{Decisions, Facts, Form, Payload, Size, Source, Traffic};
use crate::stats::Counters;
use crate::tune::decided::Requests;
use crate::types::{Dtype, SampleId, TensorSpec};
use lossfeed_sync::{Condvar, Mutex};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const SAMPLES: usize = 200;
const LIMIT: u64 = 1 << 20;
/// What a test may wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Files that are read one after the other. Each read turns the clock, and waits at a gate if that is shut.
struct Files {
    facts: Facts,
    read_us: AtomicU64,
    passed_us: Arc<AtomicU64>,
    gate: (Mutex<bool>, Condvar),
    /// Reads that wait there, and that another does.
    waiting: AtomicUsize,
    come: Condvar,
    bad: SampleId,
}

impl Files {
    fn shut(&self, shut: bool) {
        *self.gate.0.lock() = shut;
        self.gate.1.notify_all();
    }

    /// Until so many reads wait at the gate.
    fn until_waiting(&self, reads: usize) {
        let mut shut = self.gate.0.lock();
        while self.waiting.load(SeqCst) < reads {
            assert!(!self.come.wait_for(&mut shut, PATIENCE).timed_out(), "{:?} of {reads} reads wait", self.waiting);
        }
    }
}

impl Source for Files {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn name(&self, id: SampleId) -> String {
        id.to_string()
    }
    fn size(&self, _: SampleId) -> Size {
        Size::known(4)
    }
    fn fetch_by(
        &self,
        _: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        for (k, &id) in ids.iter().enumerate() {
            if stopped() {
                break;
            }
            {
                let mut shut = self.gate.0.lock();
                self.waiting.fetch_add(1, SeqCst);
                self.come.notify_all();
                self.gate.1.wait_while(&mut shut, |shut| *shut);
                self.waiting.fetch_sub(1, SeqCst);
            }
            self.passed_us.fetch_add(self.read_us.load(SeqCst), SeqCst);
            let (data, target) = (id.to_le_bytes(), [id as u8]);
            let answer = match id == self.bad {
                true => Err(Error::unreadable(format!("sample {id} is bad"))),
                false => Ok(Payload { data: &data, target: &target, near: id.is_multiple_of(2) }),
            };
            if sink(k, answer).is_break() {
                break;
            }
        }
        Traffic::default()
    }
}

/// Files, who reads them, and the threads that were hired for it.
struct Bench {
    files: Arc<Files>,
    ahead: Arc<ReadAhead>,
    decisions: Arc<Decisions>,
    /// Times that somebody asked what time it is.
    asked: Arc<AtomicUsize>,
    hired: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

/// `hands`: as many threads can be had.
fn bench(always: bool, read_us: u64, hands: usize) -> Bench {
    let passed_us = Arc::new(AtomicU64::new(0));
    let (began, passed) = (Instant::now(), Arc::clone(&passed_us));
    let form = Form::Rows(TensorSpec::new(Dtype::U8, [4]));
    let files = Arc::new(Files {
        facts: Facts { in_turn: true, ..Facts::new(SAMPLES, "files", form, TensorSpec::new(Dtype::U8, [1])) },
        read_us: read_us.into(),
        passed_us,
        gate: (Mutex::new(false), Condvar::new()),
        waiting: AtomicUsize::new(0),
        come: Condvar::new(),
        bad: 13,
    });
    let decisions = Arc::new(Decisions::default());
    let asked = Arc::new(AtomicUsize::new(0));
    let times = Arc::clone(&asked);
    let clock = move || {
        times.fetch_add(1, SeqCst);
        began + Duration::from_micros(passed.load(SeqCst))
    };
    let ahead = ReadAhead::new(LIMIT, 1, [1, 1], Arc::new(Counters::default()));
    let ahead = Arc::new(ahead.beside_by(always, Arc::clone(&decisions), Box::new(clock)));
    let hired = Arc::new(Mutex::new(Vec::new()));
    let (lent, from, who) = (Arc::downgrade(&ahead), Arc::clone(&files), Arc::clone(&hired));
    let hire = move |hand| {
        let Some(ahead) = lent.upgrade() else { return Ok(()) };
        let mut hired = who.lock();
        if hired.len() >= hands {
            return Err(Error::memory("no thread is left"));
        }
        let from = Arc::clone(&from);
        hired.push(std::thread::spawn(move || match hand {
            Hand::Reads(_) => ahead.serve(&*from),
            // Nothing is known of batches to come here.
            Hand::Looks => {}
        }));
        Ok(())
    };
    ahead.hire_by(Box::new(hire)).unwrap();
    Bench { files, ahead, decisions, asked, hired }
}

impl Bench {
    /// Positions in the order in which they came, each with what came of it.
    fn batch(
        &self,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
    ) -> Vec<(usize, std::result::Result<SampleId, String>)> {
        let mut come = Vec::new();
        self.ahead.fetch_unless(&*self.files, stopped, ids, &mut |k, answer| {
            come.push((
                k,
                answer.map_err(|error| error.to_string()).map(|payload| {
                    assert_eq!((payload.target, payload.near), (&[ids[k] as u8][..], ids[k].is_multiple_of(2)));
                    bytemuck::pod_read_unaligned(payload.data)
                }),
            ));
            ControlFlow::Continue(())
        });
        come
    }

    /// Until there are one that looks and two that read. Reads take no real time here, so the first thread may have
    /// read all of a batch before another is hired.
    fn until_shared(&self) {
        let began = Instant::now();
        while self.hired.lock().len() < 3 {
            whole(&self.batch(&|| false, &all()));
            assert!(began.elapsed() < PATIENCE, "{} threads were hired", self.hired.lock().len());
        }
        assert!(self.ahead.reads() >= 8, "{} may read", self.ahead.reads());
    }

    fn codes(&self) -> Vec<u64> {
        self.decisions.take().into_iter().map(|decided| decided.code).collect()
    }

    /// Nobody is left in it.
    fn close(self) {
        self.ahead.close();
        std::mem::take(&mut *self.hired.lock()).into_iter().for_each(|thread| thread.join().unwrap());
    }
}

fn all() -> Vec<SampleId> {
    (0..SAMPLES as SampleId).collect()
}

/// Every sample once, and what is wrong with one of them at its own place.
fn whole(come: &[(usize, std::result::Result<SampleId, String>)]) {
    let mut places: Vec<usize> = come.iter().map(|(k, _)| *k).collect();
    places.sort_unstable();
    assert_eq!(places, (0..SAMPLES).collect::<Vec<_>>());
    for (k, answer) in come {
        match (k, answer) {
            (13, answer) => {
                assert!(answer.as_ref().is_err_and(|error| error.contains("sample 13 is bad")), "{answer:?}")
            }
            (k, answer) => assert_eq!(answer, &Ok(*k as SampleId)),
        }
    }
}

#[test]
fn quick_files_are_read_in_turn_by_whoever_asks_and_nobody_is_hired() {
    let bench = bench(false, 900, 100);
    for _ in 0..50 {
        let come = bench.batch(&|| false, &all());
        whole(&come);
        assert!(come.is_sorted_by_key(|(k, _)| *k), "one after the other");
    }
    assert_eq!((bench.hired.lock().len(), bench.ahead.reads(), bench.ahead.bytes()), (0, 0, 0));
    assert!(!bench.ahead.is_on() && bench.codes().is_empty());
    bench.close();
}

#[test]
fn where_a_whole_batch_takes_no_time_no_read_is_looked_at_and_the_one_behind_a_slow_batch_is() {
    let bench = bench(false, 10, 100);
    whole(&bench.batch(&|| false, &all()));
    assert!(bench.asked.load(SeqCst) > 10, "nothing is known before the first");
    bench.asked.store(0, SeqCst);
    (0..50).for_each(|_| whole(&bench.batch(&|| false, &all())));
    assert_eq!(bench.asked.load(SeqCst), 100, "when it began and when it ended");
    bench.files.read_us.store(2000, SeqCst);
    whole(&bench.batch(&|| false, &all()));
    assert_eq!((bench.hired.lock().len(), bench.ahead.reads()), (0, 0));
    whole(&bench.batch(&|| false, &all()));
    bench.until_shared();
    bench.close();
}

#[test]
fn slow_files_are_read_by_others_from_the_fifth_read_on_and_quick_ones_in_turn_again() {
    let bench = bench(false, 2000, 100);
    whole(&bench.batch(&|| false, &all()));
    assert!(bench.ahead.reads() >= 8 && bench.ahead.is_on());
    bench.until_shared();
    assert_eq!(bench.codes()[0], Requests::Slow.code());
    bench.files.read_us.store(10, SeqCst);
    for _ in 0..20 {
        whole(&bench.batch(&|| false, &all()));
    }
    assert_eq!(bench.ahead.reads(), 0);
    assert_eq!(bench.codes().pop(), Some(Requests::Quick.code()));
    bench.close();
}

#[test]
fn a_machine_without_threads_reads_in_turn_and_with_few_of_them_by_those() {
    for hands in 0..4 {
        let bench = bench(false, 2000, hands);
        (0..5).for_each(|_| whole(&bench.batch(&|| false, &all())));
        assert!(bench.hired.lock().len() <= hands);
        // The first of all looks.
        assert_eq!(bench.ahead.reads() > 0, hands >= 2, "{hands}");
        bench.close();
    }
}

#[test]
fn at_the_end_those_who_wait_for_work_go_and_a_batch_reads_what_nobody_else_does() {
    let bench = bench(true, 2000, 100);
    // From here on some wait for work.
    whole(&bench.batch(&|| false, &all()));
    bench.files.shut(true);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| bench.batch(&|| false, &all()));
        bench.files.until_waiting(8);
        bench.ahead.close();
        bench.files.shut(false);
        whole(&waits.join().unwrap());
    });
    // After the end whoever asks reads.
    let come = bench.batch(&|| false, &all());
    whole(&come);
    assert!(come.is_sorted_by_key(|(k, _)| *k));
    bench.close();
}

#[test]
fn a_batch_that_nobody_wants_leaves_those_who_hang_behind_and_so_does_the_end() {
    let bench = bench(true, 2000, 100);
    bench.files.shut(true);
    let given_up = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| bench.batch(&|| given_up.load(SeqCst), &all()));
        bench.files.until_waiting(8);
        given_up.store(true, SeqCst);
        // Nothing has been read: the gate is shut.
        assert_eq!(waits.join().unwrap(), []);
    });
    bench.ahead.close();
    assert_eq!(bench.files.waiting.load(SeqCst), 8);
    bench.files.shut(false);
    bench.close();
}
