//! What reads take that a loader thread makes itself, one after the other: a few of them are looked at, so that quick
//! ones cost nothing more.
//!
//! A source that reads in turn asks whether to stop before each read ([`crate::source::Facts::in_turn`]), and hands
//! over what it has read between two reads. So the time from one question to the next, without what the sink took, is
//! one read; or, of a tier before such a source that has answered for several, theirs together.

use crate::tune::slow::Judge;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The first reads of a call are looked at, one in so many of the others, and any behind one that was slow.
const FIRST: u32 = 4;
const ONE_IN: u32 = 16;

/// One call of a source.
pub(super) struct Watch<'a> {
    /// The bytes of the samples that were asked for, by position.
    bytes: &'a dyn Fn(usize) -> u64,
    /// Is told of reads, and what they cost each. Whether reads are slow, so that this thread is to leave them to
    /// others.
    judge: &'a dyn Fn(u32, f64) -> bool,
    clock: &'a dyn Fn() -> Instant,
    asked: Cell<u32>,
    /// When the read under way began, if it is looked at.
    began: Cell<Option<Instant>>,
    answers: Cell<u32>,
    in_sink: Cell<Duration>,
    /// Whether the last read that was looked at was slow.
    was_slow: Cell<bool>,
    /// Whether all are by now, see `judge`.
    slow: Cell<bool>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(
        bytes: &'a dyn Fn(usize) -> u64,
        judge: &'a dyn Fn(u32, f64) -> bool,
        clock: &'a dyn Fn() -> Instant,
    ) -> Self {
        Self {
            bytes,
            judge,
            clock,
            asked: Cell::new(0),
            began: Cell::new(None),
            answers: Cell::new(0),
            in_sink: Cell::new(Duration::ZERO),
            was_slow: Cell::new(false),
            slow: Cell::new(false),
        }
    }

    /// The source is about to read. True if it had better not: reads are slow.
    pub(super) fn before_read(&self) -> bool {
        if self.slow.get() {
            return true;
        }
        self.ended();
        if self.slow.get() {
            return true;
        }
        let number = self.asked.replace(self.asked.get().wrapping_add(1));
        if self.was_slow.get() || number < FIRST || number.is_multiple_of(ONE_IN) {
            self.began.set(Some((self.clock)()));
        }
        false
    }

    /// Whether the source was told not to read.
    pub(super) fn is_slow(&self) -> bool {
        self.slow.get()
    }

    /// The sink took what `handed` returned for.
    pub(super) fn in_sink<R>(&self, handed: impl FnOnce() -> R) -> R {
        if self.began.get().is_none() {
            return handed();
        }
        self.answers.set(self.answers.get() + 1);
        let entered = (self.clock)();
        let answer = handed();
        self.in_sink.set(self.in_sink.get() + (self.clock)().saturating_duration_since(entered));
        answer
    }

    /// A read is over, if one was looked at.
    pub(super) fn ended(&self) {
        let Some(began) = self.began.take() else { return };
        let took = (self.clock)().saturating_duration_since(began).saturating_sub(self.in_sink.take());
        let answers = self.answers.take();
        let reads = answers.max(1);
        let position = self.asked.get().saturating_sub(1) as usize;
        let cost_s = Judge::cost_s(took.as_secs_f64() / f64::from(reads), (self.bytes)(position));
        let slow = Judge::is_slow(cost_s);
        // Nothing came, and soon: whoever was asked first passed the question on, or what was read comes later.
        if answers > 0 || slow {
            self.was_slow.set(slow);
            self.slow.set((self.judge)(reads, cost_s));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const MS: Duration = Duration::from_millis(1);

    /// What is told of a call that reads 100 samples, each of which takes `takes`, and hands each over, which takes
    /// `sink`.
    fn told(takes: Duration, sink: Duration, slow_after: usize) -> (usize, Vec<f64>) {
        let (costs, now) = (RefCell::new(Vec::new()), Cell::new(Instant::now()));
        let pass = |time: Duration| now.set(now.get() + time);
        let judge = |reads: u32, cost_s: f64| {
            assert_eq!(reads, 1);
            costs.borrow_mut().push(cost_s);
            costs.borrow().len() >= slow_after
        };
        let clock = || now.get();
        let watch = Watch::new(&|_| 0, &judge, &clock);
        let mut read = 0;
        for _ in 0..100 {
            if watch.before_read() {
                break;
            }
            pass(takes);
            watch.in_sink(|| pass(sink));
            read += 1;
        }
        watch.ended();
        (read, costs.into_inner())
    }

    #[test]
    fn of_quick_reads_a_few_are_looked_at_and_what_the_sink_takes_is_no_read() {
        let (read, costs) = told(MS / 10, 15 * MS, usize::MAX);
        // 0 to 3, 16, 32, 48, 64, 80 and 96.
        assert_eq!((read, costs.len()), (100, 10));
        assert!(costs.iter().all(|cost| (cost - 1e-4).abs() < 1e-9), "{costs:?}");
    }

    #[test]
    fn slow_reads_are_looked_at_one_after_the_other_and_left_to_others() {
        let (read, costs) = told(3 * MS, MS, 7);
        assert_eq!((read, costs.len()), (7, 7));
        assert!(costs.iter().all(|cost| (cost - 3e-3).abs() < 1e-9), "{costs:?}");
        assert_eq!(told(3 * MS, MS, usize::MAX).1.len(), 100, "whoever cannot leave them goes on");
    }

    #[test]
    fn a_tier_that_answers_for_many_between_two_reads_is_asked_once_for_all_of_them() {
        let (told, now) = (RefCell::new(Vec::new()), Cell::new(Instant::now()));
        let judge = |reads: u32, cost_s: f64| {
            told.borrow_mut().push((reads, cost_s));
            false
        };
        let clock = || now.get();
        let watch = Watch::new(&|_| 0, &judge, &clock);
        assert!(!watch.before_read());
        now.set(now.get() + 5 * MS);
        (0..50).for_each(|_| watch.in_sink(|| ()));
        assert!(!watch.before_read());
        watch.ended();
        let told = told.into_inner();
        assert_eq!((told[0].0, told.len()), (50, 1), "nothing was read behind it");
        assert!((told[0].1 - 1e-4).abs() < 1e-9, "{told:?}");
    }
}
