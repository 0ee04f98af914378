//! Threads that read samples of files beside each other, where one read after the other would wait for each.
//!
//! What a batch waits for comes first, what later batches will want behind it. How many threads read follows what they
//! bring, as the number of requests to a store does (`tune/tuner.rs`). None is started before reads turn out to be
//! slow (`tune/slow.rs`), unless reading ahead was asked for; those that were started stay until the end.
//!
//! Locks: the work queue is held when a read begins or ends, and to queue a few; a batch's result queue for one put or
//! take. Neither is held across I/O.

use super::desk::{Desk, Job};
use super::watch::Watch;
use crate::error::Result;
use crate::source::{Decisions, Payload, Source, Traffic};
use crate::tune::decided::Decided;
use crate::tune::slow::Judge;
use crate::types::SampleId;
use lossfeed_sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long a batch waits for what it has asked for before it looks whether anybody still wants it.
const PATIENCE: Duration = Duration::from_millis(50);

/// A thread that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hand {
    /// One that looks what batches to come will want: [`super::ReadAhead::work`].
    Looks,
    /// One that reads, by its number: [`super::ReadAhead::serve`].
    Reads(usize),
}

/// Starts a thread.
pub type Hire = Box<dyn Fn(Hand) -> Result<()> + Send + Sync>;

/// A sample that was read: its payload with its target behind it, and whether it lay ready (as [`Payload::near`]).
type Read = (Vec<u8>, bool);

/// Where the samples of one batch are put when they were read: by position, and `None` for one that did not come.
#[derive(Default)]
pub(super) struct Tray {
    come: Mutex<VecDeque<(usize, Option<Read>)>>,
    more: Condvar,
}

impl Tray {
    fn put(&self, k: usize, landed: Option<Read>) {
        self.come.lock().push_back((k, landed));
        self.more.notify_one();
    }

    /// What has come, or nothing after a moment.
    fn take(&self) -> VecDeque<(usize, Option<Read>)> {
        let mut come = self.come.lock();
        if come.is_empty() {
            self.more.wait_for(&mut come, PATIENCE);
        }
        std::mem::take(&mut come)
    }
}

/// What time it is. Reads are slow or quick by it.
pub(super) type Clock = Box<dyn Fn() -> Instant + Send + Sync>;

/// A place on a batch's tray.
pub(super) type Place = (usize, Arc<Tray>);

/// See the module's head.
pub(super) struct Readers {
    desk: Mutex<Desk<Place>>,
    /// Something is to be read, or more may read.
    work: Condvar,
    /// Little is left to read for batches to come.
    little: Condvar,
    /// Reads are slow, or it was asked for.
    reads: AtomicBool,
    always: bool,
    hire: OnceLock<Hire>,
    decisions: Arc<Decisions>,
    clock: Clock,
    /// The last call that a loader thread made itself was so quick that the next is not looked at.
    brisk: AtomicBool,
}

impl Readers {
    pub(super) fn new(always: bool, decisions: Arc<Decisions>, clock: Clock) -> Self {
        Self {
            desk: Mutex::new(Desk::new(always, clock())),
            work: Condvar::new(),
            little: Condvar::new(),
            reads: AtomicBool::new(always),
            always,
            hire: OnceLock::new(),
            decisions,
            clock,
            brisk: AtomicBool::new(false),
        }
    }

    pub(super) fn now(&self) -> Instant {
        (self.clock)()
    }

    /// Who starts threads. Only the first is heard.
    pub(super) fn hire_by(&self, hire: Hire) {
        _ = self.hire.set(hire);
    }

    /// Whether they read.
    pub(super) fn read(&self) -> bool {
        self.reads.load(Relaxed)
    }

    /// Reads have turned slow, or quick: what they are now.
    pub(super) fn turn(&self) -> bool {
        let reads = self.desk.lock().reads();
        self.reads.store(reads, Relaxed);
        reads
    }

    /// They are done without, whatever reads cost.
    pub(super) fn give_up(&self) {
        self.reads.store(false, Relaxed);
    }

    /// Whether reading takes less than having it done. Where reading ahead was not asked for, they do not read then.
    pub(super) fn is_quick(&self) -> bool {
        self.always && self.desk.lock().is_quick()
    }

    /// Threads that may read at once; 0 while none do.
    pub(super) fn target(&self) -> usize {
        if self.read() { self.desk.lock().target() } else { 0 }
    }

    /// Ends them. What batches to come have asked for in vain.
    pub(super) fn close(&self) -> Vec<SampleId> {
        let left = self.desk.lock().close();
        self.work.notify_all();
        self.little.notify_all();
        left
    }

    fn start(&self, hand: Hand) -> Result<()> {
        self.hire.get().map_or(Ok(()), |hire| hire(hand))
    }

    /// Starts the first threads, of which there is one to look and one to read. Once.
    pub(super) fn start_first(&self) -> Result<()> {
        let Some(number) = self.desk.lock().hire_first() else { return Ok(()) };
        let started = self.start(Hand::Reads(number)).and_then(|()| self.start(Hand::Looks));
        started.inspect_err(|_| self.desk.lock().not_hired())
    }

    /// Starts the threads that are wanted.
    fn staff(&self) {
        loop {
            let wanted = self.desk.lock().hire();
            let Some(number) = wanted else { return };
            if let Err(error) = self.start(Hand::Reads(number)) {
                tracing::warn!(%error, "a reader thread could not be started: files are read by fewer");
                return self.desk.lock().not_hired();
            }
        }
    }

    /// What a loader thread's own reads cost; what follows from it, if anything does.
    pub(super) fn judged(&self, reads: u32, cost_s: f64) -> Option<Decided> {
        self.desk.lock().judged(reads, cost_s)
    }

    /// It was decided so.
    pub(super) fn tell(&self, decided: Decided) {
        self.decisions.push(decided);
    }

    /// Has samples read that batches to come will want, and waits until little of that is left.
    /// False at the end: they will not be read.
    pub(super) fn put(&self, stretch: u64, ids: &[SampleId]) -> bool {
        if !self.desk.lock().put(stretch, ids) {
            return false;
        }
        self.work.notify_all();
        self.staff();
        let mut desk = self.desk.lock();
        // As many as read now find work when they look next.
        while !desk.is_closed() && desk.waiting() > 2 * desk.target() {
            self.little.wait(&mut desk);
        }
        true
    }

    /// The next thing to read, as soon as there is one; `None` at the end.
    pub(super) fn next(&self) -> Option<Job<Place>> {
        let mut desk = self.desk.lock();
        loop {
            if desk.is_closed() {
                return None;
            }
            if let Some(job) = desk.take(self.now()) {
                if desk.waiting() <= 2 * desk.target() {
                    self.little.notify_all();
                }
                return Some(job);
            }
            self.work.wait(&mut desk);
        }
    }

    /// A thread has read `reads` samples of `bytes` in all. Whether reads have turned slow or quick.
    pub(super) fn done(&self, reads: u32, bytes: u64, began: Instant) -> Option<Decided> {
        let now = self.now();
        let took = now.saturating_duration_since(began);
        let [number, turned] = self.desk.lock().done(now, reads, bytes, took);
        if let Some(decided) = number {
            self.tell(decided);
            self.work.notify_all();
            self.staff();
        }
        turned
    }

    /// Reads a sample for the batch that waits for it. Its bytes; 0 if it did not come.
    pub(super) fn read_one(source: &dyn Source, id: SampleId, (k, tray): Place) -> u64 {
        let mut landed = None;
        let read = AssertUnwindSafe(|| {
            source.fetch_by(u64::MAX, &|| false, &[id], &mut |_, payload| {
                landed = payload.ok().map(|payload| ([payload.data, payload.target].concat(), payload.near));
                ControlFlow::Break(())
            });
        });
        // It happens again on the batch's own thread, which has somebody to tell.
        if catch_unwind(read).is_err() {
            tracing::error!(id, "the source panicked while a batch's sample was read");
        }
        let bytes = landed.as_ref().map_or(0, |(landed, _)| landed.len() as u64);
        tray.put(k, landed);
        bytes
    }

    /// As [`Source::fetch_by`] for the samples of a batch, by as many threads as may read. What does not come is asked
    /// for again on this one, where errors are named.
    pub(super) fn fetch(
        &self,
        source: &dyn Source,
        target_bytes: usize,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        let tray = Arc::new(Tray::default());
        let mine = |(_, other): &Place| Arc::ptr_eq(other, &tray);
        let (mut left, mut asked, mut own) = ((0..ids.len()).collect::<VecDeque<_>>(), 0, Vec::new());
        while asked > 0 || !left.is_empty() {
            {
                let mut desk = self.desk.lock();
                if desk.is_closed() {
                    let withdrawn = desk.withdraw(mine);
                    asked -= withdrawn.len();
                    own.extend(withdrawn.into_iter().map(|(_, (k, _))| k).chain(left.drain(..)));
                } else {
                    // Whoever reads finds the next sample while this thread has the last one in hand.
                    let more = (2 * desk.target()).saturating_sub(asked).min(left.len());
                    asked += more;
                    left.drain(..more).for_each(|k| desk.ask(ids[k], (k, Arc::clone(&tray))));
                }
            }
            self.work.notify_all();
            self.staff();
            if asked == 0 {
                continue;
            }
            for (k, landed) in tray.take() {
                asked -= 1;
                let Some((landed, near)) = landed else {
                    own.push(k);
                    continue;
                };
                let (data, target) = landed.split_at(landed.len().saturating_sub(target_bytes));
                if sink(k, Ok(Payload { data, target, near })).is_break() {
                    self.desk.lock().withdraw(mine);
                    return Traffic::default();
                }
            }
            if stopped() {
                self.desk.lock().withdraw(mine);
                return Traffic::default();
            }
        }
        if own.is_empty() {
            return Traffic::default();
        }
        let wanted: Vec<SampleId> = own.iter().map(|&k| ids[k]).collect();
        source.fetch_by(u64::MAX, stopped, &wanted, &mut |at, payload| sink(own[at], payload))
    }

    /// As [`Source::fetch_by`] for the samples of a batch, on this thread, until `judge` says that reads are slow. The
    /// positions that are left then, if somebody still wants them. Where a whole call takes next to no time a look at
    /// its reads would be felt: behind such a call one is not looked at.
    pub(super) fn fetch_while_quick(
        &self,
        source: &dyn Source,
        judge: &dyn Fn(u32, f64) -> bool,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> (Traffic, Vec<usize>) {
        let (began, was_brisk) = (self.now(), self.brisk.load(Relaxed));
        let fetched = match was_brisk {
            true => (source.fetch_by(u64::MAX, stopped, ids, sink), Vec::new()),
            false => self.fetch_watched(source, judge, stopped, ids, sink),
        };
        let brisk = Judge::is_brisk(self.now().saturating_duration_since(began).as_secs_f64(), ids.len());
        if brisk != was_brisk {
            self.brisk.store(brisk, Relaxed);
        }
        fetched
    }

    fn fetch_watched(
        &self,
        source: &dyn Source,
        judge: &dyn Fn(u32, f64) -> bool,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> (Traffic, Vec<usize>) {
        let bytes = |k: usize| ids.get(k).map_or(0, |&id| source.size(id).expected.unwrap_or(0));
        let watch = Watch::new(&bytes, judge, &self.clock);
        let (mut answered, mut over) = (vec![false; ids.len()], false);
        let traffic = source.fetch_by(u64::MAX, &|| watch.before_read() || stopped(), ids, &mut |k, payload| {
            if let Some(answered) = answered.get_mut(k) {
                *answered = true;
            }
            let going = watch.in_sink(|| sink(k, payload));
            over |= going.is_break();
            going
        });
        let slow = watch.is_slow();
        watch.ended();
        let left = if slow && !over { (0..ids.len()).filter(|&k| !answered[k]).collect() } else { Vec::new() };
        (traffic, left)
    }
}
