//! The locks and flags of the product with `lossfeed-sync`'s signatures, on shuttle's; a clock that stands or runs; and
//! mistakes on request.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::Instant;

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, Runner};

pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicUsize};

/// Random schedules are the same in every run, unless `SHUTTLE_RANDOM_SEED` says otherwise.
const SEED: u64 = 20_260_727;
/// Moments at which PCT changes priorities: what goes wrong needs fewer than that.
const PCT_DEPTH: usize = 4;

/// What deadlines do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    /// None is ever reached: who is not woken waits for ever, and that is a deadlock which the scheduler reports.
    Stands,
    /// Every wait ends at any moment: woken, too late, or for no reason.
    Runs,
}

/// Mistakes in the use of a condition variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    None,
    NobodyIsNotified,
    NotAllAreNotified,
    /// The lock is let go of before the thread is among those who wait.
    SleepsTooLate,
}

// One test has one thread of the system, and all threads of its scenarios run on it.
std::thread_local! {
    static CLOCK: Cell<Clock> = const { Cell::new(Clock::Stands) };
    static FAULT: Cell<Fault> = const { Cell::new(Fault::None) };
}

/// Runs `scenario` under `schedules` schedules of each scheduler.
pub(crate) fn explore(clock: Clock, schedules: usize, scenario: impl Fn() + Send + Sync + Copy + 'static) {
    CLOCK.set(clock);
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    config.silence_warnings = true;
    if FAULT.get() != Fault::None {
        config.failure_persistence = FailurePersistence::None;
    }
    Runner::new(RandomScheduler::new_from_seed(SEED, schedules), config.clone()).run(scenario);
    Runner::new(PctScheduler::new_from_seed(SEED, PCT_DEPTH, schedules), config).run(scenario);
}

/// Some schedule of `scenario` ends in a deadlock when `fault` is made.
pub(crate) fn deadlocks(fault: Fault, schedules: usize, scenario: impl Fn() + Send + Sync + Copy + 'static) {
    FAULT.set(fault);
    let found = catch_unwind(AssertUnwindSafe(|| explore(Clock::Stands, schedules, scenario)));
    FAULT.set(Fault::None);
    let panic = found.expect_err(&format!("{fault:?} was not found"));
    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(text.contains("deadlock"), "{fault:?}: {text}");
}

pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, guard: Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)) }
    }
}

pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` only inside a wait.
    guard: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> MutexGuard<'_, T> {
    /// Lets others have the lock for a while.
    fn step_aside(&mut self) {
        self.guard = None;
        shuttle::thread::yield_now();
        self.guard = self.mutex.lock().guard;
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.guard.as_ref().unwrap()
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().unwrap()
    }
}

pub(crate) struct Condvar(shuttle::sync::Condvar);

pub(crate) struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub(crate) fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(shuttle::sync::Condvar::new())
    }

    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _: Instant) -> WaitTimeoutResult {
        if CLOCK.get() == Clock::Runs {
            guard.step_aside();
            return WaitTimeoutResult(thread_rng().gen_bool(0.5));
        }
        if FAULT.get() == Fault::SleepsTooLate {
            guard.step_aside();
        }
        let held = guard.guard.take().unwrap();
        guard.guard = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        WaitTimeoutResult(false)
    }

    /// Without a deadline.
    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_until(guard, Instant::now());
    }

    pub(crate) fn notify_one(&self) {
        if FAULT.get() != Fault::NobodyIsNotified {
            self.0.notify_one();
        }
    }

    pub(crate) fn notify_all(&self) {
        if FAULT.get() != Fault::NotAllAreNotified {
            self.0.notify_all();
        } else {
            self.0.notify_one();
        }
    }
}
