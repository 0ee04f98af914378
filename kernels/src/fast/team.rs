//! The threads that share a call's rows: rayon's current pool, or a team that the process has already. A fork has the
//! threads of neither, and gets a pool of its own.

use std::sync::{Mutex, OnceLock, PoisonError};

use lossfeed_sync::PerProcess;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Runs a function on several threads at once, the caller's perhaps among them, and returns when every one of them has.
/// It runs the function at least once; a panic of the function reaches the caller.
pub type Team = fn(&(dyn Fn() + Sync));

static TEAM: OnceLock<(u32, Team)> = OnceLock::new();
/// The process whose threads rayon's global pool has.
static GLOBAL: OnceLock<u32> = OnceLock::new();
/// Pools of forks; `None` where the system gives no threads.
static OWN: PerProcess<OnceLock<Option<ThreadPool>>> = PerProcess::new();

/// From now on every call of this process shares its rows over `team` and not over rayon's pool. The first team stays:
/// `false` if there is one already. For hosts with busy threads of their own, beside which a second pool would fight
/// for the cores.
pub fn use_team(team: Team) -> bool {
    TEAM.set((std::process::id(), team)).is_ok()
}

fn rayons(process: u32, work: &(dyn Fn() + Sync)) {
    if rayon::current_thread_index().is_some() || *GLOBAL.get_or_init(|| process) == process {
        rayon::broadcast(|_| work());
    } else {
        in_fork(process, work);
    }
}

fn in_fork(process: u32, work: &(dyn Fn() + Sync)) {
    match OWN.of(process).get_or_init(|| ThreadPoolBuilder::new().build().ok()) {
        Some(pool) => drop(pool.broadcast(|_| work())),
        None => work(),
    }
}

/// Calls `work` with every one of `tasks`, on whichever thread is free.
pub(super) fn each<T: Send>(tasks: impl ExactSizeIterator<Item = T> + Send, work: impl Fn(T) + Sync) {
    if tasks.len() <= 1 {
        return tasks.for_each(work);
    }
    // One short lock a task: a task is 20 µs of work.
    let queue = Mutex::new(tasks);
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some(task) = next() {
            work(task);
        }
    };
    let process = std::process::id();
    match TEAM.get() {
        Some((of, team)) if *of == process => team(&work),
        Some(_) => in_fork(process, &work),
        None => rayons(process, &work),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    #[test]
    fn every_task_is_done_once_with_any_number_of_threads() {
        for threads in [1, 2, 5] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for count in [0usize, 1, 2, 7, 1000] {
                let done: Vec<AtomicU32> = (0..count).map(|_| AtomicU32::new(0)).collect();
                pool.install(|| {
                    each(done.iter(), |task| {
                        task.fetch_add(1, Relaxed);
                    })
                });
                assert!(done.iter().all(|times| times.load(Relaxed) == 1), "{count} tasks, {threads} threads");
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let caught = std::panic::catch_unwind(|| each(0..100, |task| assert_ne!(task, 50)));
        assert!(caught.is_err());
    }
}
