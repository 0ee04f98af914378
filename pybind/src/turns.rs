//! Whose turn it is: datasets that do not say that they bear it are called by one thread at a time.
//!
//! There is one turn for every Python object that must be guarded, wherever it is opened and however often: two loaders
//! over one dataset, or over two subsets of it, share its turn. It is taken without the interpreter lock and held for a
//! whole call, so a thread that holds it may let go of the interpreter lock (to read a file) without another thread's
//! call getting between.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lossfeed::process::pid;
use lossfeed_sync::PerProcess;
use pyo3::prelude::*;

/// How long a thread waits for its turn before it looks whether it should still want it.
const PATIENCE: Duration = Duration::from_millis(20);

/// One object's turn. A fork must not wait for a thread that it does not have.
#[derive(Default)]
struct Turn(PerProcess<Seat>);

#[derive(Default)]
struct Seat {
    taken: Mutex<bool>,
    free: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Turn {
    fn take(&self, give_up: &mut dyn FnMut() -> bool) -> bool {
        let Seat { taken: place, free } = self.0.of(pid());
        let mut taken = lock(place);
        while *taken {
            drop(taken);
            if give_up() {
                return false;
            }
            taken = lock(place);
            if *taken {
                taken = free.wait_timeout(taken, PATIENCE).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        *taken = true;
        true
    }

    fn give_back(&self) {
        let Seat { taken, free } = self.0.of(pid());
        *lock(taken) = false;
        free.notify_one();
    }
}

/// Turns by the address of the object they guard. Locked with the interpreter lock held, as a fork has it too: so a
/// child finds this open. An address that is used again while its turn is in use only makes two
/// datasets wait for each other.
static ALL: Mutex<Option<HashMap<usize, Weak<Turn>>>> = Mutex::new(None);

/// The turns of everything that one dataset touches; with none of them it may be called at any time.
#[pyclass(frozen, module = "lossfeed._native")]
#[derive(Clone)]
pub(crate) struct Turns(Vec<Arc<Turn>>);

/// Turns that are held, until this is dropped, on whichever thread.
pub(crate) struct Held(Vec<Arc<Turn>>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.iter().for_each(|turn| turn.give_back());
    }
}

impl Turns {
    /// Takes all of them; None if `give_up`, asked again and again while it waits, said yes. Everybody takes them in
    /// the order of their addresses, so that no two threads wait for each other.
    pub(crate) fn take(&self, give_up: &mut dyn FnMut() -> bool) -> Option<Held> {
        let mut held = Held(Vec::with_capacity(self.0.len()));
        for turn in &self.0 {
            if !turn.take(give_up) {
                return None;
            }
            held.0.push(Arc::clone(turn));
        }
        Some(held)
    }
}

#[pymethods]
impl Turns {
    /// The turns of the objects with these addresses (`id(object)`); whoever asks keeps the objects alive.
    #[new]
    fn new(mut addresses: Vec<usize>) -> Self {
        addresses.sort_unstable();
        addresses.dedup();
        let mut all = lock(&ALL);
        let all = all.get_or_insert_default();
        all.retain(|_, turn| turn.strong_count() > 0);
        let one = |address| {
            let known = all.get(&address).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let turn = Arc::default();
                all.insert(address, Arc::downgrade(&turn));
                turn
            })
        };
        Self(addresses.into_iter().map(one).collect())
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Calls `work()` when it is its turn. Ctrl-C ends the wait.
    fn call<'py>(&self, py: Python<'py>, work: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let mut raised = None;
        let held = py.detach(|| {
            self.take(&mut || {
                raised = Python::attach(|py| py.check_signals()).err();
                raised.is_some()
            })
        });
        if let Some(raised) = raised {
            return Err(raised);
        }
        let answer = work.call0();
        drop(held);
        answer
    }
}
