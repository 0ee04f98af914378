//! The threads of the OpenMP runtime that torch has brought into this process.
//!
//! torch's idle workers spin for milliseconds after each of its operations, and a second pool would fight with them
//! for the same cores (benches/scenarios/loss_rate.py, `in turn`). So the loss runs on them: as many as
//! `torch.set_num_threads` says. The entry is what GCC's code calls for a parallel region; LLVM's and Intel's
//! runtimes have it too.
#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::{c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, OnceLock, PoisonError};

use pyo3::prelude::*;

/// `void GOMP_parallel(void (*fn)(void *), void *data, unsigned threads, unsigned flags)`: runs `fn(data)` on each
/// thread of a team (0 threads: as many as the caller's setting says), the caller's among them, and returns when all
/// have returned.
type Parallel = unsafe extern "C-unwind" fn(extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);

static PARALLEL: OnceLock<Option<Parallel>> = OnceLock::new();

/// What a team works on.
struct Job<'a> {
    work: &'a (dyn Fn() + Sync),
    /// The first panic: it must not cross the runtime's frames.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

extern "C" fn run(job: *mut c_void) {
    // SAFETY: `team` passes a Job that outlives the parallel region, and shares it only.
    let job = unsafe { &*job.cast::<Job<'_>>() };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(job.work)) {
        job.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
    }
}

fn team(work: &(dyn Fn() + Sync)) {
    let Some(Some(parallel)) = PARALLEL.get() else { return work() };
    let job = Job { work, panic: Mutex::new(None) };
    // SAFETY: the function is the runtime's, of this signature; `job` outlives the call, which returns when every
    // thread has.
    unsafe { parallel(run, (&raw const job).cast_mut().cast(), 0, 0) };
    if let Some(panic) = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
        resume_unwind(panic);
    }
}

#[cfg(unix)]
fn find() -> Option<Parallel> {
    let process = libloading::os::unix::Library::this();
    // SAFETY: if the process has a function of this name, it is an OpenMP runtime's, whose signature GCC's ABI fixes.
    // torch loads its runtime for good.
    unsafe { process.get::<Parallel>(b"GOMP_parallel\0") }.ok().map(|symbol| *symbol)
}

#[cfg(not(unix))]
fn find() -> Option<Parallel> {
    None
}

/// From now on the loss runs on torch's threads, if torch is loaded and its OpenMP runtime can be found; else it
/// stays on a pool of its own. Says which.
#[pyfunction]
pub(crate) fn use_torch_threads() -> bool {
    let found = PARALLEL.get_or_init(find).is_some();
    if found {
        lossfeed_kernels::fast::use_team(team);
    }
    found
}
