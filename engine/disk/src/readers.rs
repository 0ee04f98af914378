//! Threads that wait for the disk in place of those who ask for its records.
//!
//! A positioned read cannot be called off: whoever waits for a disk that hangs waits as long as that. So what memory
//! has not is read by threads of the tier, and its callers wait for these no longer than they like. A thread that hangs
//! stays behind, with the memory that it reads into and the file; there are at most [`THREADS`] of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lossfeed_sync::{Condvar, Mutex, MutexGuard};

/// At most so many; each serves one call at a time.
pub(crate) const THREADS: usize = 16;
/// One that was not needed for so long ends.
const IDLE: Duration = Duration::from_secs(30);

type Job = Box<dyn FnOnce() + Send>;

/// The threads; none until they are needed.
#[derive(Default)]
pub(crate) struct Readers(Arc<Pool>);

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// Threads were started so often: they are numbered.
    started: usize,
    over: bool,
}

impl Readers {
    /// Ends those that do not hang. Not in a fork, where somebody may hold the lock for ever.
    pub(crate) fn close(&self) {
        self.0.state.lock().over = true;
        self.0.news.notify_all();
    }

    /// Has a thread do `job`, as soon as one has time. Where no thread can be had it is dropped.
    pub(crate) fn submit(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle < state.jobs.len() && state.threads < THREADS {
            let (pool, name) = (Arc::clone(&self.0), format!("lossfeed-disk-{}", state.started));
            match std::thread::Builder::new().name(name).spawn(move || pool.serve()) {
                Ok(_) => (state.threads, state.started) = (state.threads + 1, state.started + 1),
                Err(error) if state.threads == 0 => {
                    tracing::debug!(target: "lossfeed::disk", %error, "no thread to read with");
                    state.jobs.clear();
                }
                Err(_) => {}
            }
        }
        drop(state);
        self.0.news.notify_one();
    }
}

impl Pool {
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                MutexGuard::unlocked(&mut state, job);
                continue;
            }
            if state.over {
                break;
            }
            state.idle += 1;
            let timed_out = self.news.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.jobs.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }
}
