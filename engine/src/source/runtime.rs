//! The one asynchronous runtime of the process, for stores. Two threads drive sockets and timers; the work per sample
//! happens on the threads that fetch.

use std::mem;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

use crate::error::{Error, Result};
use crate::process::Process;

static SHARED: Mutex<Option<(Process, Arc<Runtime>)>> = Mutex::new(None);

/// The runtime of this process. After a fork the child has the parent's runtime without its threads: it is left alone
/// (its destructor would wait for them for ever) and a new one is started.
pub(super) fn shared() -> Result<Arc<Runtime>> {
    let mut shared = SHARED.lock();
    let process = Process::current();
    if let Some((owner, runtime)) = &*shared
        && *owner == process
    {
        return Ok(runtime.clone());
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        // Reads of local files behind a throttle block; requests in flight are bounded elsewhere.
        .max_blocking_threads(64)
        .thread_name("lossfeed-io")
        .enable_all()
        .build()
        .map_err(|e| {
            Error::unreadable("threads for reading from the store could not be started: raise the process limit")
                .because(e)
        })?;
    let runtime = Arc::new(runtime);
    if let Some(orphan) = shared.replace((process, runtime.clone())) {
        mem::forget(orphan);
    }
    Ok(runtime)
}
