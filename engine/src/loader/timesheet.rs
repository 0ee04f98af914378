//! What a loader thread's time goes into, so that every wait of the consumer has a cause.
//!
//! A wait for batch n is the fault of what the thread that brought it did meanwhile: its own clock is read when the
//! wait begins and when the batch is done. That is the critical path, and not a mean over threads that were busy with
//! other batches.

use lossfeed_sync::Mutex;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// What a loader thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Reading from the source, or waiting for another thread's fetch of the same sample.
    Source = 0,
    /// Decoding.
    Decode = 1,
    /// Waiting for a free batch slot.
    Slot = 2,
    /// Copying rows into the batch and records into the cache.
    Copy = 3,
    /// Deciding what the cache keeps, and waiting for the lock of those decisions, under which scores are folded in
    /// too.
    Decide = 4,
    /// Nothing to do.
    Idle = 5,
}

/// Causes a wait can have; [`Work::Idle`] is none.
pub(super) const CAUSES: usize = 5;

/// Time by kind of work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Spent([Duration; CAUSES]);

impl Spent {
    pub(super) fn on(&self, work: Work) -> Duration {
        self.0.get(work as usize).copied().unwrap_or_default()
    }

    /// What was spent since `earlier`, on the same sheet.
    pub(super) fn since(&self, earlier: &Spent) -> Spent {
        Spent(std::array::from_fn(|k| self.0[k].saturating_sub(earlier.0[k])))
    }

    /// All of it.
    pub(super) fn total(&self) -> Duration {
        self.0.iter().sum()
    }

    /// The mean of several threads.
    pub(super) fn mean(all: &[Spent]) -> Spent {
        let threads = all.len().max(1) as u32;
        Spent(std::array::from_fn(|k| all.iter().map(|spent| spent.0[k]).sum::<Duration>() / threads))
    }

    /// `waited_us` divided among the causes, and what none of them explains (a thread's waking up, the hand-over
    /// itself) last: the parts' sum is `waited_us` exactly.
    pub(super) fn divide(&self, waited_us: u64) -> [u64; CAUSES + 1] {
        let total = self.0.iter().sum::<Duration>().as_micros().max(u128::from(waited_us));
        let mut parts = [0; CAUSES + 1];
        for (part, spent) in parts.iter_mut().zip(self.0) {
            // Never above `waited_us`: `total` is at least the part's own numerator and at least what was waited.
            *part = (spent.as_micros() * u128::from(waited_us)).checked_div(total).unwrap_or(0) as u64;
        }
        parts[CAUSES] = waited_us - parts.iter().sum::<u64>();
        parts
    }
}

/// Processor time of the calling thread since it began.
pub(super) fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(now).unwrap_or_default()
}

/// Time for which the calling thread could have run and had no processor, since it began; zero where the system does
/// not say. A read of `/proc`, a microsecond or two.
pub(super) fn queued_time() -> Duration {
    thread_local! {
        /// The file of the thread that opens it.
        static FILE: Option<File> = File::open("/proc/thread-self/schedstat").ok();
    }
    FILE.with(|file| {
        let mut text = [0; 64];
        let read = file.as_ref()?.read_at(&mut text, 0).ok()?;
        // Nanoseconds on a processor, and without one.
        let words = std::str::from_utf8(text.get(..read)?).ok()?;
        words.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
    })
    .unwrap_or_default()
}

/// One thread's clock. Others may read it at any moment.
#[derive(Debug)]
pub(super) struct Timesheet(Mutex<Sheet>);

#[derive(Debug)]
struct Sheet {
    doing: Work,
    since: Instant,
    spent: Spent,
}

impl Sheet {
    fn book(&mut self, now: Instant) {
        if let Some(spent) = self.spent.0.get_mut(self.doing as usize) {
            *spent += now.saturating_duration_since(self.since);
        }
        self.since = now;
    }
}

impl Timesheet {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Sheet { doing: Work::Idle, since: Instant::now(), spent: Spent::default() }))
    }

    /// The thread turns to other work; returns what it did before.
    pub(super) fn turn(&self, to: Work) -> Work {
        let mut sheet = self.0.lock();
        sheet.book(Instant::now());
        std::mem::replace(&mut sheet.doing, to)
    }

    /// What it has spent so far, the work under way included.
    pub(super) fn spent(&self) -> Spent {
        let mut sheet = self.0.lock();
        sheet.book(Instant::now());
        sheet.spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    fn spent(us: [u64; CAUSES]) -> Spent {
        Spent(us.map(Duration::from_micros))
    }

    #[test]
    fn a_wait_is_divided_as_the_time_was_and_the_rest_is_nobodys() {
        assert_eq!(spent([60, 30, 0, 0, 0]).divide(100), [60, 30, 0, 0, 0, 10]);
        // Clocks disagree a little: scaled down.
        assert_eq!(spent([150, 50, 0, 0, 0]).divide(100), [75, 25, 0, 0, 0, 0]);
        assert_eq!(Spent::default().divide(7), [0, 0, 0, 0, 0, 7]);
        assert_eq!(spent([9, 0, 0, 0, 0]).divide(0), [0; CAUSES + 1]);
    }

    #[test]
    fn processor_time_is_the_threads_own_and_does_not_run_while_it_sleeps() {
        let (began, clock) = (processor_time(), Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        // However busy the machine is, a thread has no more of it than there was.
        assert!(processor_time() - began < clock.elapsed());
        let before = processor_time();
        while processor_time() == before {
            std::hint::black_box((0..1000).sum::<u64>());
        }
        assert!(std::thread::spawn(processor_time).join().unwrap() < processor_time() + Duration::from_secs(1));
    }

    #[test]
    fn a_thread_that_wants_a_processor_is_queued_and_one_that_sleeps_is_not() {
        let (before, clock) = (queued_time(), Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        assert!(queued_time() - before < clock.elapsed());
        if !std::path::Path::new("/proc/thread-self/schedstat").exists() {
            return;
        }
        // More threads than processors, each of which computes until one of them was queued. Where the system keeps no
        // such time all of it is zero.
        let (busy, queued) = (4 * std::thread::available_parallelism().unwrap().get(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..busy {
                scope.spawn(|| {
                    let before = queued_time();
                    while !queued.load(Relaxed) && clock.elapsed() < Duration::from_secs(20) {
                        std::hint::black_box((0..1000).sum::<u64>());
                        if queued_time() > before + Duration::from_millis(2) {
                            queued.store(true, Relaxed);
                        }
                    }
                });
            }
        });
        assert!(queued.load(Relaxed) || queued_time() == Duration::ZERO);
    }

    proptest! {
        #[test]
        fn parts_add_up_exactly(us in proptest::array::uniform5(0u64..1 << 40), waited in 0u64..1 << 40) {
            prop_assert_eq!(spent(us).divide(waited).iter().sum::<u64>(), waited);
        }
    }

    #[test]
    fn a_sheet_counts_the_work_under_way_and_leaves_idle_time_out() {
        let sheet = Timesheet::new();
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(sheet.turn(Work::Decode), Work::Idle);
        std::thread::sleep(Duration::from_millis(5));
        let first = sheet.spent();
        assert!(first.on(Work::Decode) >= Duration::from_millis(5));
        assert_eq!(first.on(Work::Idle), Duration::ZERO);
        assert_eq!(sheet.turn(Work::Copy), Work::Decode);
        let later = sheet.spent();
        assert!(later.on(Work::Decode) >= first.on(Work::Decode));
        assert_eq!(later.since(&later), Spent::default());
        assert_eq!(Spent::mean(&[spent([2, 0, 0, 0, 4]), spent([4, 2, 0, 0, 0])]), spent([3, 1, 0, 0, 2]));
    }
}
