//! One pass over an epoch: its batches, from the moment they are taken until the loop has them.
//!
//! An exception of a signal handler can end Python's code behind any call. So what was taken is held here, and not by the
//! frames of Python: who asks again gets it again, until it was handed out. The run's position is what was handed out.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use lossfeed::engine::Engine as Core;
use lossfeed::loader::{Batch, Iteration, Next};
use lossfeed::{Error, Result};
use pyo3::prelude::*;

use crate::batch::{Slot, Ticket};
use crate::buffer::Input;
use crate::engine::{Engine, PATIENCE};
use crate::errors::{contract, outside, raise};
use crate::process::Process;

/// A batch that was taken and not handed out, or what came in its place.
struct Held {
    /// `None`: it was taken ahead, and belongs to the first thread that asks.
    holder: Option<ThreadId>,
    number: usize,
    what: What,
}

enum What {
    Batch(Box<Batch>),
    Taken(Py<Taken>),
    Lost(Error),
}

/// A batch on its way to the loop.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct Taken {
    /// None once it was sent: the copy keeps the slot as long as it reads it.
    slot: Mutex<Option<Py<Slot>>>,
    #[pyo3(get)]
    ticket: Py<Ticket>,
    number: usize,
    sent: Mutex<Option<Py<PyAny>>>,
}

#[pymethods]
impl Taken {
    #[getter]
    fn slot(&self, py: Python<'_>) -> PyResult<Py<Slot>> {
        let slot = lock(&self.slot).as_ref().map(|slot| slot.clone_ref(py));
        slot.ok_or_else(|| contract("a batch that was sent has no slot"))
    }

    /// What sending it to a device has returned; None before.
    #[getter]
    fn sent(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        lock(&self.sent).as_ref().map(|sent| sent.clone_ref(py))
    }

    #[setter]
    fn set_sent(&self, sent: Py<PyAny>) {
        let before = lock(&self.sent).replace(sent);
        let slot = lock(&self.slot).take();
        drop((before, slot));
    }
}

/// See the module. Threads may share it: each gets batches of its own.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct Pass {
    core: Arc<Core>,
    home: Process,
    /// The engine's number for it, and the pass, once it has begun.
    begun: OnceLock<(u64, Arc<Iteration>)>,
    /// In order. Python's objects are neither made nor let go of under its lock: both may run code of the user's.
    hand: Mutex<VecDeque<Held>>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.home.leak_elsewhere(&self.core);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pymethods]
impl Pass {
    #[new]
    fn new(engine: &Engine) -> Self {
        Self { core: engine.core(), home: Process::this(), begun: OnceLock::new(), hand: Mutex::default() }
    }

    /// Whether it has begun.
    #[getter]
    fn begun(&self) -> bool {
        self.begun.get().is_some()
    }

    /// Starts the next epoch and ends the one under way: in an order of the caller's, int64 ids and the int64 end of each
    /// batch where the caller cuts them too, or in the engine's own. Nothing if it has begun.
    #[pyo3(signature = (ids=None, ends=None))]
    fn begin(&self, py: Python<'_>, ids: Option<Bound<'_, PyAny>>, ends: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        if self.begun() {
            return Ok(());
        }
        let numbers = |given: Option<Bound<'_, PyAny>>| {
            given.map(|given| Ok::<_, PyErr>(Input::get(&given)?.to_vec::<i64>())).transpose()
        };
        let ids = numbers(ids)?;
        // An end below 0 is none: it is refused for what it becomes.
        let ends: Option<Vec<usize>> = numbers(ends)?.map(|ends| ends.into_iter().map(|end| end as usize).collect());
        outside(py, || {
            let number = match &ids {
                Some(ids) => self.core.start_given(ids, ends.as_deref()),
                None => self.core.start_epoch(),
            }?;
            if let Some(iteration) = self.core.iteration(number)? {
                self.begun.get_or_init(|| (number, iteration));
            }
            Ok(())
        })
    }

    /// The next batch, or None at the pass's end: the same again until it was handed out. `timeout_s` 0 waits for ever.
    /// Ctrl-C ends the wait.
    fn take(&self, py: Python<'_>, timeout_s: f64) -> PyResult<Option<Py<Taken>>> {
        let number = self.number()?;
        let me = Some(thread::current().id());
        let mine = |holder: Option<ThreadId>| holder.is_none() || holder == me;
        if find(&lock(&self.hand), 0, mine).is_some() {
            outside(py, || self.core.iteration(number)).inspect_err(|_| self.let_go())?;
            if let Some(held) = self.pick(0, mine) {
                return self.give(py, me, held).map(Some);
            }
        }
        let started = Instant::now();
        let limit = (timeout_s > 0.0).then(|| Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::MAX));
        loop {
            let patience = limit.map_or(PATIENCE, |l| PATIENCE.min(l.saturating_sub(started.elapsed())));
            let pending = outside(py, || self.hold(me, self.core.take_batch(number, patience)?))?;
            if let Some(held) = self.pick(0, mine) {
                return self.give(py, me, held).map(Some);
            }
            if !pending {
                return Ok(None);
            }
            py.check_signals()?;
            if limit.is_some_and(|l| started.elapsed() >= l) {
                return Err(raise(Error::timeout(format!(
                    "no batch came within timeout={timeout_s} s: the source is slower than that; raise timeout, or add num_workers or connections"
                ))));
            }
        }
    }

    /// The batch that is taken after the next `at` ones, if it is ready now, else None: without loader threads it never is.
    /// `wait`: as soon as it is ready, or None at the pass's end. What goes wrong with it is raised when it is taken.
    #[pyo3(signature = (at=0, wait=false))]
    fn look_ahead(&self, py: Python<'_>, at: usize, wait: bool) -> PyResult<Option<Py<Taken>>> {
        let number = self.number()?;
        let ahead = |holder: Option<ThreadId>| holder.is_none();
        loop {
            let mut more = true;
            if find(&lock(&self.hand), at, ahead).is_none() {
                let patience = if wait { PATIENCE } else { Duration::ZERO };
                more = outside(py, || match self.core.take_batch(number, patience) {
                    Ok(next) => self.hold(None, next),
                    Err(error) => {
                        self.put(Held { holder: None, number: usize::MAX, what: What::Lost(error) });
                        Ok(false)
                    }
                })?;
            }
            match self.pick(at, ahead) {
                Some(lost @ Held { what: What::Lost(_), .. }) => self.put(lost),
                Some(held) => return self.give(py, None, held).map(Some),
                None if wait && more => {
                    py.check_signals()?;
                    continue;
                }
                None => {}
            }
            return Ok(None);
        }
    }

    /// The consumer asks for a batch whose items are read elsewhere: what it did since was its own work.
    fn asks(&self, py: Python<'_>) -> PyResult<()> {
        let number = self.number()?;
        outside(py, || self.core.asks(number))
    }

    /// It has its answer, having waited `waited_us` for those items.
    fn answered(&self, py: Python<'_>, waited_us: u64) -> PyResult<()> {
        let number = self.number()?;
        outside(py, || {
            self.core.answered_after(number, Duration::from_micros(waited_us));
            Ok(())
        })
    }

    /// The loop has it. A store in Python, since no signal is looked for between a store and a return.
    #[setter]
    fn set_handed_out(&self, taken: &Taken) {
        if let Some((_, iteration)) = self.begun.get() {
            iteration.saw(taken.number);
        }
        let mut hand = lock(&self.hand);
        let gone = hand.iter().position(|held| held.number == taken.number).and_then(|at| hand.remove(at));
        drop(hand);
        drop(gone);
    }

    /// Ends it where its consumer stands, if it is under way.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        let Some(&(number, _)) = self.begun.get().filter(|_| self.home.is_this()) else { return Ok(()) };
        self.let_go();
        outside(py, || {
            self.core.abandon(number);
            Ok(())
        })
    }
}

impl Pass {
    fn number(&self) -> PyResult<u64> {
        self.begun.get().map(|&(number, _)| number).ok_or_else(|| contract("a pass that has not begun has no batches"))
    }

    /// Puts what was taken where it is found again. Answers whether there may be more.
    fn hold(&self, holder: Option<ThreadId>, next: Next) -> Result<bool> {
        if let Next::End = next {
            return Ok(false);
        }
        if let Next::Batch(batch) = next {
            self.put(Held { holder, number: batch.ticket.number, what: What::Batch(Box::new(batch)) });
        }
        Ok(true)
    }

    fn put(&self, held: Held) {
        let mut hand = lock(&self.hand);
        let at = hand.partition_point(|other| other.number < held.number);
        hand.insert(at, held);
    }

    /// Takes out of the hand the one after `at` others whose holder is meant. [`Self::give`] puts it back.
    fn pick(&self, at: usize, is_meant: impl Fn(Option<ThreadId>) -> bool) -> Option<Held> {
        let mut hand = lock(&self.hand);
        find(&hand, at, is_meant).and_then(|at| hand.remove(at))
    }

    /// It is `holder`'s from now on, and in the hand; what came in place of a batch is raised once.
    fn give(&self, py: Python<'_>, holder: Option<ThreadId>, held: Held) -> PyResult<Py<Taken>> {
        let number = held.number;
        let taken = match held.what {
            What::Taken(taken) => taken,
            What::Lost(error) => return Err(raise(error)),
            What::Batch(batch) => {
                let (ticket, slot) = (Py::new(py, Ticket(batch.ticket))?, Py::new(py, Slot::new(batch.slot))?);
                Py::new(py, Taken { slot: Mutex::new(Some(slot)), ticket, number, sent: Mutex::default() })?
            }
        };
        self.put(Held { holder, number, what: What::Taken(taken.clone_ref(py)) });
        Ok(taken)
    }

    fn let_go(&self) {
        let gone = std::mem::take(&mut *lock(&self.hand));
        drop(gone);
    }
}

/// The place of the one after `at` others whose holder is meant.
fn find(hand: &VecDeque<Held>, at: usize, is_meant: impl Fn(Option<ThreadId>) -> bool) -> Option<usize> {
    let mut meant = hand.iter().enumerate().filter(|(_, held)| is_meant(held.holder));
    meant.nth(at).map(|(place, _)| place)
}
