//! The one asynchronous runtime of the process, for stores. Two threads drive sockets and timers; the work per sample
//! happens on the threads that fetch.

use std::sync::Arc;

use lossfeed_sync::{Mutex, PerProcess};
use tokio::runtime::{Builder, Runtime};

use crate::error::{Error, Result};
use crate::process::{LIMIT_REMEDY, no_thread, pid};

static SHARED: PerProcess<Mutex<Option<Arc<Runtime>>>> = PerProcess::new();

/// The runtime of this process. After a fork the child has the parent's runtime without its threads: it is left alone
/// (its destructor would wait for them for ever) and a new one is started.
pub(crate) fn shared() -> Result<Arc<Runtime>> {
    let mut shared = SHARED.of(pid()).lock();
    if let Some(runtime) = &*shared {
        return Ok(runtime.clone());
    }
    let refused = |e| Error::unreadable(no_thread("reading from the store", LIMIT_REMEDY, &e)).because(e);
    // Where no thread may be started the builder panics.
    drop(std::thread::Builder::new().spawn(|| ()).map_err(refused)?);
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        // Reads of local files behind a throttle block; requests in flight are bounded elsewhere.
        .max_blocking_threads(64)
        .thread_name("lossfeed-io")
        .enable_all()
        .build()
        .map_err(refused)?;
    Ok(shared.insert(Arc::new(runtime)).clone())
}
