//! The loader threads of an engine: started with a pass, waited for at the end, and left behind if they hang.

use crate::error::{Error, Result};
use crate::loader::Iteration;
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a wait for threads sleeps before it looks again.
const TICK: Duration = Duration::from_millis(1);

/// A thread, and what it works for. The pass owns all memory that the thread writes to.
struct Running {
    handle: JoinHandle<()>,
    pass: Arc<Iteration>,
    worker: usize,
}

/// All that were started and may still run.
#[derive(Default)]
pub(super) struct Threads(Mutex<Vec<Running>>);

impl Threads {
    /// Starts the `workers` threads of a pass. If one cannot be had, those that were started run until the pass is
    /// stopped.
    pub(super) fn start(&self, pass: &Arc<Iteration>, workers: usize) -> Result<()> {
        let mut running = self.0.lock();
        running.retain(|thread| !thread.handle.is_finished());
        for worker in 0..workers {
            let shared = Arc::clone(pass);
            let handle = std::thread::Builder::new()
                .name(format!("lossfeed-{worker}"))
                .spawn(move || shared.work(worker))
                .map_err(|e| Error::memory("a loader thread could not be started: lower num_workers").because(e))?;
            running.push(Running { handle, pass: Arc::clone(pass), worker });
        }
        Ok(())
    }

    /// Waits until all have ended, or `patience` is over. Returns those that have not: their names, and what they have
    /// in hand.
    pub(super) fn wait(&self, patience: Duration) -> Vec<String> {
        let entered = Instant::now();
        loop {
            let mut left = Vec::new();
            {
                let mut running = self.0.lock();
                let (ended, still): (Vec<_>, Vec<_>) =
                    std::mem::take(&mut *running).into_iter().partition(|thread| thread.handle.is_finished());
                *running = still;
                left.extend(
                    running.iter().map(|t| format!("lossfeed-{}: {}", t.worker, t.pass.work_in_hand(t.worker))),
                );
                // Ended already: joining them waits for nothing.
                ended.into_iter().for_each(|thread| drop(thread.handle.join()));
            }
            let over = entered.elapsed();
            if left.is_empty() || over >= patience {
                return left;
            }
            std::thread::sleep(TICK.min(patience - over));
        }
    }
}
