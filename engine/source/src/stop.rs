//! The end of an opening before it is done: looked at by whatever walks files, and waited for beside every request.

use std::future::Future;
use std::io::{self, Read, Seek, SeekFrom};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::{Either, select};
use tokio::sync::Notify;

use crate::error::{Error, ErrorKind, Result};

/// Ends the opening of a dataset, from another thread: its requests are dropped, its threads end at the next file,
/// member or block that they come to, and [`open`](crate::place::open) returns an error of the kind `Interrupted`. Clones are
/// one.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<Asked>);

#[derive(Debug, Default)]
struct Asked {
    asked: AtomicBool,
    changed: Notify,
}

impl Stop {
    /// Asks for the end.
    pub fn ask(&self) {
        self.0.asked.store(true, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }

    /// True once the end was asked for.
    pub fn is_asked(&self) -> bool {
        self.0.asked.load(Ordering::SeqCst)
    }

    /// # Errors
    /// `Interrupted` once the end was asked for.
    pub(crate) fn check(&self) -> Result<()> {
        match self.is_asked() {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::Interrupted, "opening the dataset was stopped before it was done")),
        }
    }

    /// The outcome of `work`, which is dropped when the end is asked for.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) async fn before<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let mut changed = pin!(self.0.changed.notified());
        // From here on no request for the end is missed.
        changed.as_mut().enable();
        self.check()?;
        match select(pin!(work), changed).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right(_) => self.check().and_then(|()| Err(Error::internal("woken to stop, and nobody asked"))),
        }
    }

    /// `file`, whose reads fail once the end was asked for.
    pub(crate) fn reading<R>(&self, file: R) -> Stoppable<'_, R> {
        Stoppable { stop: self, file }
    }
}

/// See [`Stop::reading`].
pub(crate) struct Stoppable<'a, R> {
    stop: &'a Stop,
    file: R,
}

impl<R: Read> Read for Stoppable<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stop.check().map_err(io::Error::other)?;
        self.file.read(buf)
    }
}

impl<R: Seek> Seek for Stoppable<'_, R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}
