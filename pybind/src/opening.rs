//! Work that opens a dataset: on a thread of its own, so that the calling one looks for signals meanwhile. A handler
//! that raises (Ctrl-C, SIGTERM, a deadline) ends it, wherever it is.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use lossfeed::source::Stop;
use lossfeed::{Error, Result};
use lossfeed_sync::Mutex;
use pyo3::prelude::*;

use crate::errors::{caught, outside, raise};
use crate::progress::Progress;

/// Longest wait before signals are looked at.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long work that was stopped is waited for. Then it is left to end by itself: a file system may hang.
const LEAVE: Duration = Duration::from_secs(1);

/// Runs `work`, which ends soon after `stop` was asked for. Without a second thread it runs on the calling one.
pub(crate) fn interruptibly<T: Send + 'static>(
    py: Python<'_>,
    stop: &Stop,
    mut progress: Progress,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let (done, mut result) = sync_channel(1);
    let work = Arc::new(Mutex::new(Some(work)));
    let lent = Arc::clone(&work);
    let started = std::thread::Builder::new().name("lossfeed-open".to_owned()).spawn(move || {
        let work = lent.lock().take();
        // Nobody may wait for it by now.
        drop(work.map(|work| done.send(caught(work))));
    });
    if started.is_err() {
        let work = work.lock().take();
        let work = work.ok_or_else(|| raise(Error::internal("work of a thread that was never started is gone")))?;
        return outside(py, work);
    }
    loop {
        let waited = &mut result;
        match outside(py, move || Ok(waited.recv_timeout(PATIENCE)))? {
            Ok(opened) => return opened.map_err(raise),
            Err(RecvTimeoutError::Disconnected) => return Err(raise(Error::internal("a thread was lost"))),
            // A terminal may be paused.
            Err(RecvTimeoutError::Timeout) => outside(py, || {
                progress.show();
                Ok(())
            })?,
        }
        if let Err(raised) = py.check_signals() {
            stop.ask();
            outside(py, move || {
                drop(result.recv_timeout(LEAVE));
                Ok(())
            })?;
            return Err(raised);
        }
    }
}
