//! What waits to be read by threads beside each other, and how many of them may read. Without locks; `readers.rs` puts
//! one around it.

use crate::source::Flow;
use crate::tune::decided::{Decided, Knob, Requests};
use crate::tune::slow::Judge;
use crate::types::SampleId;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Threads that read when files turn out to be slow, and at most.
const READERS_MIN: usize = 8;
const READERS_MAX: usize = 64;

/// A thread takes as many samples at a time as it reads in about this time, and no more than that many: where reads are
/// quick, handing them over would cost as much as they do.
const TAKEN_S: f64 = 1e-3;
const TAKEN_MAX: usize = 32;
/// Share of a new measurement in what reads are believed to cost.
const NEWS: f64 = 1.0 / 8.0;

/// What a thread is to read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Job<A> {
    /// A sample that a batch waits for, and what it asked for it with.
    Asked(SampleId, A),
    /// Samples for batches to come, of this stretch.
    Ahead(u64, Vec<SampleId>),
}

/// See the module's head. `A` is what a batch asks with.
pub(super) struct Desk<A> {
    flow: Flow,
    /// `None`: reading ahead was asked for, whatever reads cost.
    judge: Option<Judge>,
    asked: VecDeque<(SampleId, A)>,
    ahead: VecDeque<(u64, SampleId)>,
    /// Threads that were started, and that there may be.
    threads: usize,
    threads_max: usize,
    read_s: f64,
    closed: bool,
}

impl<A> Desk<A> {
    /// `always`: not only while reads are slow.
    pub(super) fn new(always: bool, now: Instant) -> Self {
        Self {
            flow: Flow::new(READERS_MIN, READERS_MAX, now),
            judge: (!always).then(Judge::default),
            asked: VecDeque::new(),
            ahead: VecDeque::new(),
            threads: 0,
            threads_max: READERS_MAX,
            read_s: TAKEN_S,
            closed: false,
        }
    }

    /// Ends it. What waits for batches to come and will not be read.
    pub(super) fn close(&mut self) -> Vec<SampleId> {
        self.closed = true;
        self.ahead.drain(..).map(|(_, id)| id).collect()
    }
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Threads that may read at once.
    pub(super) fn target(&self) -> usize {
        self.flow.target()
    }

    /// Samples that wait to be read for batches to come.
    pub(super) fn waiting(&self) -> usize {
        self.ahead.len()
    }

    /// A batch waits for a sample.
    pub(super) fn ask(&mut self, id: SampleId, with: A) {
        self.asked.push_back((id, with));
    }

    /// Samples are wanted by batches to come, in this order. False at the end: they will not be read.
    pub(super) fn put(&mut self, stretch: u64, ids: &[SampleId]) -> bool {
        if !self.closed {
            self.ahead.extend(ids.iter().map(|&id| (stretch, id)));
        }
        !self.closed
    }

    /// Takes back what batches ask for and nobody reads yet, where `is_mine` says so.
    pub(super) fn withdraw(&mut self, is_mine: impl Fn(&A) -> bool) -> Vec<(SampleId, A)> {
        let (mine, others) = std::mem::take(&mut self.asked).into_iter().partition(|(_, with)| is_mine(with));
        self.asked = others;
        Vec::from(mine)
    }

    /// Whether another thread is wanted, which counts from now on; and its number.
    pub(super) fn hire(&mut self) -> Option<usize> {
        let idle = self.threads.saturating_sub(self.flow.in_flight());
        let wanted = self.asked.len() + self.ahead.len() > idle;
        if self.closed || !wanted || self.threads >= self.flow.target().min(self.threads_max) {
            return None;
        }
        self.threads += 1;
        Some(self.threads - 1)
    }

    /// The first thread, whether anything waits or not; `None` if it was started.
    pub(super) fn hire_first(&mut self) -> Option<usize> {
        let first = self.threads == 0 && !self.closed;
        self.threads += usize::from(first);
        first.then_some(0)
    }

    /// A thread that was to be started cannot be had: those that there are must do.
    pub(super) fn not_hired(&mut self) {
        self.threads = self.threads.saturating_sub(1);
        self.threads_max = self.threads;
    }

    /// Whether a thread that waits for something to read loses less by reading it itself.
    pub(super) fn is_quick(&self) -> bool {
        self.read_s < TAKEN_S / 4.0
    }

    /// Whether reads are slow, or it is read ahead whatever they cost.
    pub(super) fn reads(&self) -> bool {
        self.judge.as_ref().is_none_or(Judge::slow)
    }

    /// Work for a thread, unless as many read as may.
    pub(super) fn take(&mut self, now: Instant) -> Option<Job<A>> {
        if self.closed || self.flow.in_flight() >= self.flow.target() {
            return None;
        }
        let job = match self.asked.pop_front() {
            Some((id, with)) => Job::Asked(id, with),
            None => {
                let (stretch, first) = self.ahead.pop_front()?;
                let most = (TAKEN_S / self.read_s.max(1e-9)).clamp(1.0, TAKEN_MAX as f64) as usize;
                let mut ids = vec![first];
                while ids.len() < most && self.ahead.front().is_some_and(|(other, _)| *other == stretch) {
                    ids.extend(self.ahead.pop_front().map(|(_, id)| id));
                }
                Job::Ahead(stretch, ids)
            }
        };
        self.flow.begin(now);
        Some(job)
    }

    /// A thread has read `reads` samples of `bytes` together in `took`; 0: they were not wanted any more. What was
    /// decided, and whether reads have turned slow or quick.
    pub(super) fn done(&mut self, now: Instant, reads: u32, bytes: u64, took: Duration) -> [Option<Decided>; 2] {
        let mut turned = None;
        if reads > 0 {
            let each = took / reads;
            (0..reads).for_each(|_| self.flow.answered(each, bytes / u64::from(reads)));
            self.read_s += NEWS * (each.as_secs_f64() - self.read_s);
            turned = self.judged(reads, Judge::cost_s(each.as_secs_f64(), bytes / u64::from(reads)));
        }
        [self.flow.end(now), turned]
    }

    /// Reads were made that cost so much each: if that makes them slow, or quick, what follows from it.
    pub(super) fn judged(&mut self, reads: u32, cost_s: f64) -> Option<Decided> {
        let why = self.judge.as_mut()?.read(reads, cost_s)?;
        let target = self.flow.target() as u64;
        let (before, now) = if why == Requests::Slow { (0, target) } else { (target, 0) };
        Some(Decided { knob: Knob::Requests, before, now, code: why.code(), why: why.words() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn desk(always: bool) -> (Desk<u8>, Instant) {
        let now = Instant::now();
        (Desk::new(always, now), now)
    }

    #[test]
    fn what_a_batch_waits_for_comes_first_and_stretches_are_kept_apart() {
        let (mut desk, now) = desk(true);
        _ = desk.put(3, &[5, 6]);
        _ = desk.put(4, &[7]);
        desk.ask(1, 10);
        desk.ask(2, 20);
        desk.ask(3, 10);
        assert_eq!(desk.withdraw(|with| *with == 20), [(2, 20)]);
        assert_eq!(desk.take(now), Some(Job::Asked(1, 10)));
        assert_eq!(desk.take(now), Some(Job::Asked(3, 10)));
        // A read takes a millisecond as far as is known: one at a time.
        assert_eq!((desk.take(now), desk.waiting()), (Some(Job::Ahead(3, vec![5])), 2));
        // Quick ones are taken several at a time, and never of two stretches.
        (0..50).for_each(|_| _ = desk.done(now, 1, 10, MS / 100));
        _ = desk.put(4, &(100..200).collect::<Vec<_>>());
        assert_eq!(desk.take(now), Some(Job::Ahead(3, vec![6])));
        let Some(Job::Ahead(4, ids)) = desk.take(now) else { panic!("nothing") };
        assert_eq!(ids, [7].into_iter().chain(100..131).collect::<Vec<_>>());
        assert!(!desk.close().is_empty() && !desk.put(4, &[1]));
        assert_eq!((desk.take(now), desk.hire()), (None, None));
    }

    #[test]
    fn threads_are_hired_for_what_waits_and_not_more_read_than_may() {
        let (mut desk, now) = desk(true);
        assert_eq!(desk.hire(), None, "nothing waits");
        _ = desk.put(1, &(0..100).collect::<Vec<_>>());
        let hired: Vec<usize> = std::iter::from_fn(|| desk.hire()).collect();
        assert_eq!(hired, (0..READERS_MIN).collect::<Vec<_>>());
        (0..READERS_MIN).for_each(|_| assert!(desk.take(now).is_some()));
        assert_eq!(desk.take(now), None, "as many read as may");
        assert_eq!(desk.done(now, 1, 10, MS), [None, None]);
        assert!(desk.take(now).is_some());
        // Of a machine that has no thread more.
        let (mut poor, _) = self::desk(true);
        _ = poor.put(1, &[1, 2, 3]);
        assert_eq!((poor.hire(), poor.hire()), (Some(0), Some(1)));
        poor.not_hired();
        assert_eq!((poor.hire(), poor.hire_first()), (None, None));
        let (mut empty, _) = self::desk(false);
        assert_eq!((empty.hire(), empty.hire_first(), empty.hire_first()), (None, Some(0), None));
    }

    #[test]
    fn slow_reads_are_told_once_and_quick_ones_end_it() {
        let (mut desk, now) = desk(false);
        assert!(!desk.reads() && self::desk(true).0.reads());
        let slow = (0..4).find_map(|_| desk.judged(1, 0.04)).unwrap();
        assert_eq!((slow.knob, slow.before, slow.now), (Knob::Requests, 0, READERS_MIN as u64));
        assert_eq!(slow.code, Requests::Slow.code());
        assert!(desk.reads() && !desk.is_quick());
        assert_eq!(desk.judged(100, 0.04), None);
        _ = desk.put(1, &[0]);
        let quick = (0..1000).find_map(|_| desk.done(now, 32, 3200, MS)[1]).unwrap();
        assert_eq!((quick.before, quick.now, quick.code), (READERS_MIN as u64, 0, Requests::Quick.code()));
        // What was asked for by name is never left.
        let (mut always, _) = self::desk(true);
        assert!((0..1000).all(|_| always.judged(32, 0.0).is_none() && always.judged(32, 1.0).is_none()));
    }
}
