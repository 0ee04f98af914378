//! How far a long command is, on standard error, where somebody looks at it.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

/// One line that is written over; nothing at all if nobody looks.
pub(crate) struct Progress<W: Write = io::Stderr> {
    what: &'static str,
    total: usize,
    state: Mutex<(usize, Option<W>)>,
}

impl Progress {
    /// `total` of `what` are to be done. Silent unless standard error is a terminal.
    pub(crate) fn on_stderr(what: &'static str, total: usize) -> Self {
        let err = io::stderr();
        let terminal = err.is_terminal();
        Self::on(what, total, terminal.then_some(err))
    }
}

impl<W: Write> Progress<W> {
    fn on(what: &'static str, total: usize, out: Option<W>) -> Self {
        Self { what, total, state: Mutex::new((0, out)) }
    }
    /// One more is done.
    pub(crate) fn step(&self) {
        self.show(|done| (done + 1, self.total));
    }
    /// `done` of `total` are. Several threads may say so, and not in order.
    #[cfg(any(test, feature = "engine"))]
    pub(crate) fn at(&self, done: usize, total: usize) {
        self.show(|before| (done.max(before), total));
    }
    fn show(&self, now: impl Fn(usize) -> (usize, usize)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (done, total) = now(state.0);
        state.0 = done;
        if let Some(out) = &mut state.1 {
            let _ = write!(out, "\r{done} of {total} {}\x1b[K", self.what).and_then(|()| out.flush());
        }
    }
}

/// The line disappears.
impl<W: Write> Drop for Progress<W> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let (1.., Some(out)) = (state.0, &mut state.1) {
            let _ = write!(out, "\r\x1b[K").and_then(|()| out.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_written_over_and_gone_at_the_end() {
        let mut out = Vec::new();
        let progress = Progress::on("replays", 2, Some(&mut out));
        progress.step();
        progress.step();
        drop(progress);
        let mut shards = Vec::new();
        let progress = Progress::on("shards", 0, Some(&mut shards));
        progress.at(2, 3);
        progress.at(1, 3);
        drop(progress);
        assert_eq!(String::from_utf8(shards).unwrap(), "\r2 of 3 shards\x1b[K\r2 of 3 shards\x1b[K\r\x1b[K");
        assert_eq!(String::from_utf8(out).unwrap(), "\r1 of 2 replays\x1b[K\r2 of 2 replays\x1b[K\r\x1b[K");
    }
}
