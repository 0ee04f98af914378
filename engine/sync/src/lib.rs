//! Locks that a forked process can use: the standard library's, with parking_lot's signatures, and no poisoning.
//!
//! parking_lot keeps the sleeping threads of a process in one global table. A fork inherits the table with the parent's
//! threads in it, and wakes those in place of its own, or writes to stacks that are its own threads' by now. The
//! standard library's locks are words that the kernel waits on: a lock that is made after the fork works.
//!
//! A lock that another thread held at the fork stays locked in the child for ever. So a `static` that is locked is a
//! [`PerProcess`] or is only tried; everything else belongs to an object that refuses to be used in a child.

pub mod process;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::process::abort;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{self, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Times that [`MutexGuard::bump`] lets other threads run before it takes the lock back.
const YIELDS: usize = 1000;

/// Mutual exclusion. A panic while it is held does not poison it.
#[derive(Default)]
pub struct Mutex<T> {
    /// Threads that wait for it.
    waiting: AtomicU32,
    /// Waits that have ended.
    entered: AtomicU32,
    inner: sync::Mutex<T>,
}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self { waiting: AtomicU32::new(0), entered: AtomicU32::new(0), inner: sync::Mutex::new(value) }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, held: Some(self.held()) }
    }

    fn held(&self) -> sync::MutexGuard<'_, T> {
        match self.inner.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.waiting.fetch_add(1, Relaxed);
                let held = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
                self.waiting.fetch_sub(1, Relaxed);
                self.entered.fetch_add(1, Relaxed);
                held
            }
        }
    }

    /// The lock, unless another thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = match self.inner.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { mutex: self, held: Some(held) })
    }

    /// The value, which nobody else can see.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A held [`Mutex`].
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// Empty only while `self` is borrowed by a wait or by [`Self::unlocked`].
    held: Option<sync::MutexGuard<'a, T>>,
}

impl<T> MutexGuard<'_, T> {
    /// Calls `f` without the lock, and waits for the lock again.
    pub fn unlocked<R>(held: &mut Self, f: impl FnOnce() -> R) -> R {
        held.held = None;
        let result = f();
        held.held = Some(held.mutex.held());
        result
    }

    /// Lets one waiting thread have the lock in between, if there is one.
    pub fn bump(held: &mut Self) {
        let mutex = held.mutex;
        if mutex.waiting.load(Relaxed) == 0 {
            return;
        }
        let before = mutex.entered.load(Relaxed);
        Self::unlocked(held, || {
            let waits = || mutex.waiting.load(Relaxed) > 0 && mutex.entered.load(Relaxed) == before;
            for _ in (0..YIELDS).take_while(|_| waits()) {
                std::thread::yield_now();
            }
        });
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        match &self.held {
            Some(held) => held,
            None => abort(), // nothing can borrow a guard that is borrowed mutably
        }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.held {
            Some(held) => held,
            None => abort(), // as above
        }
    }
}

/// Why a wait with a deadline ended.
#[derive(Debug, Clone, Copy)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the deadline ended it.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

/// A condition variable. A notification that nobody waits for makes no call to the system, so what is waited for must
/// change under the lock.
#[derive(Debug, Default)]
pub struct Condvar {
    /// Threads that wait, counted under the lock.
    waiting: AtomicU32,
    inner: sync::Condvar,
}

impl Condvar {
    /// A condition variable that nobody waits for.
    pub const fn new() -> Self {
        Self { waiting: AtomicU32::new(0), inner: sync::Condvar::new() }
    }

    /// Waits for a notification, without the lock meanwhile.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.waiting.fetch_add(1, Relaxed);
        guard.held = guard.held.take().map(|held| self.inner.wait(held).unwrap_or_else(PoisonError::into_inner));
        self.waiting.fetch_sub(1, Relaxed);
    }

    /// Waits for a notification for at most `limit`.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) -> WaitTimeoutResult {
        let mut late = false;
        self.waiting.fetch_add(1, Relaxed);
        guard.held = guard.held.take().map(|held| {
            let (held, result) = self.inner.wait_timeout(held, limit).unwrap_or_else(PoisonError::into_inner);
            late = result.timed_out();
            held
        });
        self.waiting.fetch_sub(1, Relaxed);
        WaitTimeoutResult(late)
    }

    /// Waits for a notification until `deadline` at most.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, deadline: Instant) -> WaitTimeoutResult {
        self.wait_for(guard, deadline.saturating_duration_since(Instant::now()))
    }

    /// Waits while `condition` holds.
    pub fn wait_while<T>(&self, guard: &mut MutexGuard<'_, T>, mut condition: impl FnMut(&mut T) -> bool) {
        while condition(&mut **guard) {
            self.wait(guard);
        }
    }

    /// Waits while `condition` holds, for at most `limit`. Late only if it still holds then.
    pub fn wait_while_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
        limit: Duration,
    ) -> WaitTimeoutResult {
        let deadline = Instant::now() + limit;
        while condition(&mut **guard) {
            if self.wait_until(guard, deadline).timed_out() {
                return WaitTimeoutResult(condition(&mut **guard));
            }
        }
        WaitTimeoutResult(false)
    }

    /// Wakes one thread that waits.
    pub fn notify_one(&self) {
        if self.waiting.load(Relaxed) > 0 {
            self.inner.notify_one();
        }
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        if self.waiting.load(Relaxed) > 0 {
            self.inner.notify_all();
        }
    }
}

/// A lock of many readers or one writer. A panic while it is held does not poison it.
#[derive(Debug, Default)]
pub struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    /// Waits to read.
    pub fn read(&self) -> sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits to write.
    pub fn write(&self) -> sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads, unless somebody writes.
    pub fn try_read(&self) -> Option<sync::RwLockReadGuard<'_, T>> {
        match self.0.try_read() {
            Ok(held) => Some(held),
            Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Writes, unless somebody reads or writes.
    pub fn try_write(&self) -> Option<sync::RwLockWriteGuard<'_, T>> {
        match self.0.try_write() {
            Ok(held) => Some(held),
            Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// A value for a `static`: each process has its own. A forked child begins with a new one, whatever its parent's other
/// threads were doing with theirs; the parent's is never dropped there.
pub struct PerProcess<T>(OnceLock<Box<Of<T>>>);

struct Of<T> {
    process: u32,
    value: T,
    /// Those of its forks.
    next: PerProcess<T>,
}

impl<T: Default> PerProcess<T> {
    /// Without any value yet.
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// The value of the calling process, whose id the caller knows.
    pub fn of(&self, process: u32) -> &T {
        let mut at = self;
        loop {
            let of = at.0.get_or_init(|| Box::new(Of { process, value: T::default(), next: Self::new() }));
            if of.process == process {
                return &of.value;
            }
            at = &of.next;
        }
    }
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PerProcess")
    }
}

impl<T: Default> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_bump_hands_the_lock_to_a_thread_that_waits() {
        let shared = Arc::new(Mutex::new(0));
        let mut held = shared.lock();
        let other = {
            let shared = shared.clone();
            std::thread::spawn(move || *shared.lock() += 1)
        };
        while shared.waiting.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        // Each of them may miss a thread that the system does not let run.
        for _ in 0..1000 {
            MutexGuard::bump(&mut held);
            if *held == 1 {
                break;
            }
        }
        assert_eq!(*held, 1, "the other waited for the end");
        drop(held);
        other.join().unwrap();
    }

    #[test]
    fn a_panic_leaves_a_lock_usable_and_waits_end_as_they_should() {
        let shared = Arc::new((Mutex::new(0), Condvar::new(), RwLock::new(0)));
        let its = shared.clone();
        std::thread::spawn(move || {
            let (_held, _written) = (its.0.lock(), its.2.write());
            panic!("while it is held");
        })
        .join()
        .unwrap_err();
        let (mutex, condvar, lock) = &*shared;
        assert_eq!(*mutex.lock(), 0);
        assert!(mutex.try_lock().is_some());
        assert_eq!(*lock.read(), 0);
        assert!(lock.try_write().is_some());
        let mut held = mutex.lock();
        assert!(mutex.try_lock().is_none());
        assert!(condvar.wait_for(&mut held, Duration::from_millis(1)).timed_out());
        assert!(condvar.wait_while_for(&mut held, |value| *value == 0, Duration::from_millis(1)).timed_out());
        let its = shared.clone();
        let other = std::thread::spawn(move || {
            *its.0.lock() = 7;
            its.1.notify_all();
        });
        condvar.wait_while(&mut held, |value| *value == 0);
        assert_eq!(*held, 7);
        drop(held);
        other.join().unwrap();
    }

    #[test]
    fn every_process_has_a_value_of_its_own_and_keeps_it() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new();
        let parents = VALUE.of(1).lock();
        *VALUE.of(2).lock() = 2;
        *VALUE.of(3).lock() = 3;
        drop(parents);
        assert_eq!([1, 2, 3, 4].map(|process| *VALUE.of(process).lock()), [0, 2, 3, 0]);
    }
}
