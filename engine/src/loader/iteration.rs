//! One pass over one epoch's order: who takes which batch, and how it ends.

use super::delivery::{Delivery, Finished, Turn};
use super::fill::{Filled, Planned};
use super::timesheet::{Spent, Timesheet, Work, processor_time};
use super::{Batch, Feed, Next};
use crate::control::Plan;
use crate::error::{Error, Result};
use crate::interrupt::Wait;
use crate::source::Scratch;
use crate::staging::BatchSlot;
use crate::sync::{AtomicBool, AtomicUsize};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// How long a worker waits for a slot before it looks whether it should stop.
const SLOT_WAIT: Duration = Duration::from_millis(50);

/// One pass over an epoch. Workers share it; it ends when every batch was taken, on the first error, or when stopped.
pub struct Iteration {
    feed: Arc<Feed>,
    /// The pass's number in the cache, which decides its batches in order, whatever the number of workers.
    pass: u64,
    plan: Plan,
    /// The first batch that may not have been decided yet.
    undecided: AtomicUsize,
    delivery: Delivery,
    /// One a loader thread there may be; the consumer's own where there is none.
    sheets: Vec<Timesheet>,
    /// Loader threads that work: those below this number.
    workers: AtomicUsize,
    /// Which batch each of them works on.
    at: Vec<AtomicUsize>,
    stopped: AtomicBool,
    failed: AtomicBool,
    /// The consumer has no batch yet.
    fresh: AtomicBool,
}

impl Iteration {
    /// The pass over `plan` that the cache knows as `pass`, beginning with batch `first` (0, or where a resumed run
    /// goes on), for `workers` loader threads, of which there may be `most` later; with 0 of them the consumer does the
    /// work.
    pub fn new(
        feed: Arc<Feed>,
        pass: u64,
        plan: Plan,
        first: usize,
        window: usize,
        workers: usize,
        most: usize,
    ) -> Self {
        let delivery = Delivery::new(first, plan.len(), window, workers);
        Self {
            feed,
            pass,
            plan,
            undecided: AtomicUsize::new(first),
            delivery,
            sheets: (0..most.max(1)).map(|_| Timesheet::new()).collect(),
            workers: AtomicUsize::new(workers.max(1)),
            at: (0..most.max(1)).map(|_| AtomicUsize::new(first)).collect(),
            stopped: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            fresh: AtomicBool::new(true),
        }
    }

    /// The epoch.
    pub fn epoch(&self) -> u64 {
        self.plan.epoch
    }

    /// The pass's number in the cache.
    pub fn pass(&self) -> u64 {
        self.pass
    }

    /// The epoch's plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Batches in the epoch.
    pub fn len(&self) -> usize {
        self.plan.len()
    }

    /// Whether the epoch has no batch at all.
    pub fn is_empty(&self) -> bool {
        self.plan.is_empty()
    }

    /// Batches that were taken or skipped, counted from the epoch's start.
    pub fn taken(&self) -> usize {
        self.delivery.taken()
    }

    /// The consumer has seen batch `number`, which it had taken.
    pub fn saw(&self, number: usize) {
        self.delivery.saw(number);
    }

    /// Where the consumer stands: the first batch that it has not seen.
    pub fn seen(&self) -> usize {
        self.seen_but(0)
    }

    /// The same if it has not seen the last `held` of those before either.
    pub fn seen_but(&self, held: usize) -> usize {
        self.delivery.seen_but(held)
    }

    /// Whether the consumer has seen every batch.
    pub fn is_over(&self) -> bool {
        self.seen() >= self.len()
    }

    /// Finished batches that wait for the consumer.
    pub fn ready(&self) -> usize {
        self.delivery.ready()
    }

    /// Whether the pass was ended before its last batch, by the consumer or by an error.
    pub fn stopped(&self) -> bool {
        self.stopped.load(Acquire)
    }

    /// Ends the pass: workers stop at their next sample, waiting batches give their slots back.
    pub fn stop(&self) {
        self.stopped.store(true, Release);
        self.delivery.close();
    }

    /// From now on the first `workers` loader threads work, at least one, and `window` batches may be in preparation or
    /// wait. The others rest when they have brought what they have in hand. Who is in a batch, and their order, is the
    /// same: batches are decided in their order, whoever fills them.
    pub fn set_workers(&self, workers: usize, window: usize) {
        let workers = workers.clamp(1, self.sheets.len());
        self.workers.store(workers, Relaxed);
        self.delivery.set_workers(workers, window);
    }

    /// What worker `worker` has in hand, in words.
    pub fn work_in_hand(&self, worker: usize) -> String {
        let number = self.at.get(worker).map_or(0, |at| at.load(Relaxed));
        format!("batch {number} of epoch {}", self.plan.epoch)
    }

    /// The life of worker `worker`, counted from 0: batches until there are none, or the pass is stopped.
    pub fn work(&self, worker: usize) {
        let mut scratch = Scratch::default();
        let sheet = &self.sheets[worker];
        // One thread decides the first batch, and then waits as the others do.
        let mut first = worker == 0;
        while !self.stopped.load(Acquire) && self.undecided.load(Relaxed) < self.plan.len() {
            self.feed.wait_for_start(std::mem::take(&mut first), &|| self.stopped.load(Acquire));
            if !self.delivery.claim(worker, SLOT_WAIT) {
                continue;
            }
            sheet.turn(Work::Slot);
            let slot = self.feed.pool.acquire(SLOT_WAIT);
            sheet.turn(Work::Idle);
            match slot {
                Ok(Some(slot)) => {
                    if !self.produce(slot, &mut scratch, worker, None) {
                        self.delivery.unclaim();
                        return;
                    }
                    self.feed.ask_owner(&|| self.stopped.load(Acquire));
                }
                // All slots are in use; the consumer is told if it holds them all (see `starved`).
                Ok(None) => self.delivery.unclaim(),
                Err(error) => {
                    self.delivery.unclaim();
                    self.delivery.fail(error);
                    return;
                }
            }
        }
    }

    /// Decides and fills the next batch; what ends the `wait` of the calling thread is the batch's error. False when
    /// there is none left.
    fn produce(&self, slot: BatchSlot, scratch: &mut Scratch, worker: usize, wait: Option<Wait>) -> bool {
        let feed = &self.feed;
        let sheet = &self.sheets[worker];
        let (before, computed) = (sheet.spent(), processor_time());
        let queued = feed.queued_time();
        sheet.turn(Work::Decide);
        // After a batch that failed no other is decided.
        let failed = self.failed.load(Acquire);
        let decide = || feed.cache.decide(self.pass, self.delivery.last_seen(), &|id| feed.record_bytes(id));
        let decision = if failed { None } else { decide() };
        let Some(decision) = decision else {
            sheet.turn(Work::Idle);
            return false;
        };
        let number = decision.number;
        self.undecided.fetch_max(number + 1, Relaxed);
        self.at[worker].store(number, Relaxed);
        let planned = Planned { pass: self.pass, number, plan: &self.plan };
        // A panic would leave the consumer waiting for this batch for ever; `Origins` has landed its flights by then.
        let stopped = || self.stopped.load(Acquire) || wait.as_ref().is_some_and(Wait::ends);
        let fill = || feed.fill(&planned, decision, slot, scratch, sheet, &stopped);
        let mut filled = catch_unwind(AssertUnwindSafe(fill))
            .unwrap_or_else(|p| {
                let what = p.downcast_ref::<String>().map(String::as_str).or(p.downcast_ref::<&str>().copied());
                Err(Error::internal(format!("a loader thread panicked: {}; please report this", what.unwrap_or("?"))))
            })
            .and_then(|mut filled| {
                if let Filled::Batch(batch) = &mut filled {
                    batch.slot.ready()?;
                }
                Ok(filled)
            });
        if let Some(error) = wait.and_then(Wait::error) {
            filled = Err(error);
        } else if filled.is_err() && self.stopped.load(Acquire) {
            // Nobody wants it, and why it was left is nobody's error.
            sheet.turn(Work::Idle);
            return false;
        }
        if filled.is_err() {
            self.failed.store(true, Release);
        }
        sheet.turn(Work::Idle);
        let spent = sheet.spent();
        let took = spent.since(&before);
        feed.counters.source_us_total.fetch_add(took.on(Work::Source).as_micros() as u64, Relaxed);
        feed.counters.decode_us_total.fetch_add(took.on(Work::Decode).as_micros() as u64, Relaxed);
        let computed = processor_time().saturating_sub(computed);
        feed.counters.filled_total.fetch_add(1, Relaxed);
        feed.counters.work_us_total.fetch_add(took.total().as_micros() as u64, Relaxed);
        feed.counters.processor_us_total.fetch_add(computed.as_micros() as u64, Relaxed);
        let queued = feed.queued_time().saturating_sub(queued);
        feed.counters.queued_us_total.fetch_add(queued.as_micros() as u64, Relaxed);
        self.delivery.put(number, Finished { filled, worker, spent });
        true
    }

    /// Takes the next batch in order, within `wait`; [`Self::saw`] says when it was seen. `inline`: there are no workers, and the caller fills it now. A caller
    /// that would not wait at all fills nothing: a batch is decided when it is asked for, and not before. What this
    /// takes is counted as waiting, by cause.
    pub fn next(&self, wait: Duration, inline: bool) -> Result<Next> {
        if self.stopped.load(Acquire) {
            return Ok(Next::End);
        }
        let entered = Instant::now();
        let before: Option<Vec<Spent>> = (inline || !self.delivery.is_ready()).then(|| self.spent());
        let (next, brought) = self.take(wait, inline);
        let during = |before: &Vec<Spent>| match &brought {
            Some((worker, spent)) => spent.since(&before[*worker]),
            // Nobody brought anything yet: all are waited for alike.
            None => {
                let workers = self.workers.load(Relaxed);
                let all = self.spent().into_iter().zip(before).map(|(now, then)| now.since(then));
                Spent::mean(&all.take(workers).collect::<Vec<Spent>>())
            }
        };
        let causes = before.as_ref().map(during).unwrap_or_default();
        let waited = entered.elapsed();
        self.blame(waited, &causes);
        if self.fresh.load(Relaxed) {
            self.feed.counters.wait_first_us_total.fetch_add(waited.as_micros() as u64, Relaxed);
            self.fresh.store(!matches!(next, Ok(Next::Batch(_))), Relaxed);
        }
        next
    }

    fn spent(&self) -> Vec<Spent> {
        self.sheets.iter().map(Timesheet::spent).collect()
    }

    /// The next batch, and who brought it.
    fn take(&self, wait: Duration, inline: bool) -> (Result<Next>, Option<(usize, Spent)>) {
        if inline && wait.is_zero() && !self.delivery.is_ready() {
            return (Ok(Next::Pending), None);
        }
        // More than one where a batch without a good sample is passed over.
        while inline && !self.delivery.is_ready() {
            self.sheets[0].turn(Work::Slot);
            let slot = self.feed.pool.acquire(wait);
            self.sheets[0].turn(Work::Idle);
            match slot {
                Ok(Some(slot)) => {
                    if !self.produce(slot, &mut Scratch::default(), 0, Some(Wait::begin())) {
                        break;
                    }
                }
                Ok(None) => return (self.starved(wait), None),
                Err(error) => return (Err(error), None),
            };
        }
        let next = match self.delivery.take(Instant::now() + wait) {
            Turn::Ready(finished, left) => {
                let Finished { filled, worker, spent } = *finished;
                let next = filled.and_then(|filled| match filled {
                    Filled::Batch(mut batch) => {
                        batch.slot.lend()?;
                        self.account(&batch, left);
                        Ok(Next::Batch(batch))
                    }
                    Filled::NothingGood(error) => Err(error), // never: the hand-over passes over these
                });
                return (next.inspect_err(|_| self.stop()), Some((worker, spent)));
            }
            Turn::Failed(error) => {
                self.stop();
                Err(error)
            }
            Turn::End => Ok(Next::End),
            Turn::Timeout => self.starved(wait),
        };
        (next, None)
    }

    /// Nothing came within `wait`. If every slot is in the consumer's hands nothing ever will. A slot that is being
    /// filled will come, and one that is being copied to a device comes back when the copy has ended.
    fn starved(&self, wait: Duration) -> Result<Next> {
        if self.feed.pool.is_lent_out() { Err(self.feed.pool.exhausted(wait)) } else { Ok(Next::Pending) }
    }

    fn blame(&self, waited: Duration, causes: &Spent) {
        let c = &self.feed.counters;
        let waited_us = waited.as_micros() as u64;
        let [source, decode, slot, copy, decide, handover] = causes.divide(waited_us);
        for (counter, us) in [
            (&c.wait_us_total, waited_us),
            (&c.wait_source_us_total, source),
            (&c.wait_decode_us_total, decode),
            (&c.wait_slot_us_total, slot),
            (&c.wait_copy_us_total, copy),
            (&c.wait_decide_us_total, decide),
            (&c.wait_handover_us_total, handover),
        ] {
            counter.fetch_add(us, Relaxed);
        }
    }

    fn account(&self, batch: &Batch, left: usize) {
        let c = &self.feed.counters;
        c.batches_total.fetch_add(1, Relaxed);
        c.samples_total.fetch_add(batch.rows as u64, Relaxed);
        c.on_time_total.fetch_add(batch.punctual.on_time, Relaxed);
        c.late_total.fetch_add(batch.punctual.late, Relaxed);
        c.batch.store(batch.ticket.number as u64 + 1, Relaxed);
        c.slots_ready.store(left as u64, Relaxed);
    }
}
