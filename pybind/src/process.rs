//! Which process made what Python holds: a fork copies the memory, but neither threads nor what locks stand for.

use std::sync::Arc;

use lossfeed::Error;
use lossfeed::process::Process as Core;
use pyo3::prelude::*;

use crate::errors::raise;

/// The process that made something.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process(Core);

impl Process {
    /// This one.
    pub(crate) fn this() -> Self {
        Self(Core::current())
    }

    /// Whether it is this one, and not a parent of it.
    pub(crate) fn is_this(self) -> bool {
        self.0.is_current()
    }

    /// Refuses the use of `what` in a fork.
    pub(crate) fn check(self, what: &str) -> PyResult<()> {
        let why = |made_by, fork| {
            Error::usage(format!(
                "{what} was made in process {made_by} and is used in its fork {fork}: make a loader in the child"
            ))
        };
        self.0.check(why).map_err(raise)
    }

    /// For a drop: what was made elsewhere stays. A forked child inherits locks that nobody will ever release and
    /// threads that do not exist.
    pub(crate) fn leak_elsewhere<T: ?Sized>(self, made: &Arc<T>) {
        if !self.is_this() {
            std::mem::forget(Arc::clone(made));
        }
    }
}
