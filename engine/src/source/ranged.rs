//! A remote object as a file that can be read and sought, for the walk over an archive's headers.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Error, Result};

/// Enough for a header, its extension and the label or header that follows.
const AHEAD_BYTES_MIN: u64 = 4 << 10;
const AHEAD_BYTES_MAX: u64 = 4 << 20;

/// Reads ahead by as much as turns out to be useful: twice as much each time everything was used (small members lie
/// close together), half as much each time a seek left it (large members are skipped, not transferred).
pub(super) struct Ranged<F> {
    fetch: F,
    len: u64,
    at: u64,
    held: Vec<u8>,
    held_from: u64,
    ahead: u64,
    /// The error behind an `io::Error`, which the archive library passes on as text only.
    failure: Arc<Mutex<Option<Error>>>,
}

impl<F: FnMut(Range<u64>) -> Result<Vec<u8>>> Ranged<F> {
    /// An object of `len` bytes; `fetch` brings a range that lies within it.
    pub(super) fn new(len: u64, fetch: F) -> Self {
        Self { fetch, len, at: 0, held: Vec::new(), held_from: 0, ahead: 64 << 10, failure: Arc::default() }
    }

    /// Where the reason of a failed read is found afterwards.
    pub(super) fn failure(&self) -> Arc<Mutex<Option<Error>>> {
        self.failure.clone()
    }

    fn held_until(&self) -> u64 {
        self.held_from + self.held.len() as u64
    }
}

impl<F: FnMut(Range<u64>) -> Result<Vec<u8>>> Read for Ranged<F> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.len || buf.is_empty() {
            return Ok(0);
        }
        if !(self.held_from..self.held_until()).contains(&self.at) {
            let used_up = !self.held.is_empty() && self.at == self.held_until();
            if used_up {
                self.ahead = (self.ahead * 2).min(AHEAD_BYTES_MAX);
            } else if !self.held.is_empty() {
                self.ahead = (self.ahead / 2).max(AHEAD_BYTES_MIN);
            }
            let range = self.at..self.len.min(self.at + self.ahead.max(buf.len() as u64));
            let wanted = range.end - range.start;
            self.held = (self.fetch)(range).map_err(|e| {
                let text = io::Error::other(e.to_string());
                self.failure.lock().get_or_insert(e);
                text
            })?;
            self.held_from = self.at;
            if (self.held.len() as u64) < wanted {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!("wanted {wanted} bytes at offset {}, got {}", self.at, self.held.len()),
                ));
            }
        }
        let from = (self.at - self.held_from) as usize;
        let ready = self.held.get(from..).unwrap_or_default();
        let n = ready.len().min(buf.len());
        if let (Some(to), Some(from)) = (buf.get_mut(..n), ready.get(..n)) {
            to.copy_from_slice(from);
        }
        self.at += n as u64;
        Ok(n)
    }
}

impl<F> Seek for Ranged<F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(n) => Some(n),
            SeekFrom::Current(n) => self.at.checked_add_signed(n),
            SeekFrom::End(n) => self.len.checked_add_signed(n),
        };
        self.at = target.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "seek out of range"))?;
        Ok(self.at)
    }
}
