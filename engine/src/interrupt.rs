//! Ends waits of the calling thread: a store that never answers must not keep Ctrl-C waiting.

use std::cell::{Cell, OnceCell};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::error::Error;

/// Asked on a thread that waits for a source itself: the error that ends its wait, as of a signal.
pub type Interrupted = fn() -> Option<Error>;

static INTERRUPTED: OnceLock<Interrupted> = OnceLock::new();

/// Has `interrupted` asked from now on. The first call counts.
pub fn interrupted_by(interrupted: Interrupted) {
    let _ = INTERRUPTED.set(interrupted);
}

/// A wait on the calling thread that [`interrupted_by`] may end.
#[derive(Debug)]
pub struct Wait {
    asked: Cell<Instant>,
    ended: OnceCell<Error>,
}

/// Time between two questions whether a wait ends.
const ASKED_EVERY: Duration = Duration::from_millis(50);

impl Wait {
    /// One that begins now.
    pub fn begin() -> Self {
        Self { asked: Cell::new(Instant::now()), ended: OnceCell::new() }
    }

    /// True once the wait has to end.
    pub fn ends(&self) -> bool {
        if self.ended.get().is_none()
            && self.asked.get().elapsed() >= ASKED_EVERY
            && let Some(interrupted) = INTERRUPTED.get()
        {
            self.asked.set(Instant::now());
            if let Some(error) = interrupted() {
                let _ = self.ended.set(error);
            }
        }
        self.ended.get().is_some()
    }

    /// Why it has ended.
    pub fn error(self) -> Option<Error> {
        self.ended.into_inner()
    }
}
