//! A remote object as a file that can be read and sought, for the walk over an archive's headers.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use lossfeed_sync::Mutex;

use crate::error::{Error, Result};
use crate::request::link::Worth;

/// What is read where a member was jumped over, for its header and the labels and headers that follow: a sixteenth of
/// what the request costs by itself, within these bounds.
const JUMP_SHARE: u64 = 16;
const JUMP_BYTES_MIN: u64 = 4 << 10;
const JUMP_BYTES_MAX: u64 = 64 << 10;
/// While what is read is used, each request brings so many times the last.
const GROWTH: u64 = 4;
/// The most that one request brings, and one walk holds.
const AHEAD_BYTES_MAX: u64 = 4 << 20;
/// A seek this short is never worth a request, whatever was measured: tens of headers of small members lie there.
const GAP_BYTES_MIN: u64 = 16 << 10;

/// Reads ahead, and more each time, while every seek is a short one. A seek that leaps over more than a request is worth
/// begins anew with little, also if what it leapt over was held already: more such members will follow. So the headers
/// of small members come in a few large requests, members and all, and those of large members by a small request each.
pub(crate) struct Ranged<F, W> {
    fetch: F,
    worth: W,
    len: u64,
    at: u64,
    held: Bytes,
    held_from: u64,
    ahead: u64,
    /// Where the last read ended, and the longest leap from there since the last request.
    read_until: u64,
    leapt: u64,
    /// The error behind an `io::Error`, which the archive library passes on as text only.
    failure: Arc<Mutex<Option<Error>>>,
}

impl<F: FnMut(Range<u64>) -> Result<Bytes>, W: Fn() -> Worth> Ranged<F, W> {
    /// An object of `len` bytes; `fetch` brings a range that lies within it, and `worth` says what one is worth now.
    pub(crate) fn new(len: u64, worth: W, fetch: F) -> Self {
        Self {
            fetch,
            worth,
            len,
            at: 0,
            held: Bytes::new(),
            held_from: 0,
            ahead: 0,
            read_until: 0,
            leapt: 0,
            failure: Arc::default(),
        }
    }

    /// Where the reason of a failed read is found afterwards.
    pub(crate) fn failure(&self) -> Arc<Mutex<Option<Error>>> {
        self.failure.clone()
    }

    fn held_until(&self) -> u64 {
        self.held_from + self.held.len() as u64
    }

    /// How much is read from here on, where nothing is held.
    fn ahead(&self) -> u64 {
        let Worth { gap_bytes, request_bytes_max, .. } = (self.worth)();
        let near = self.at >= self.held_from && self.leapt <= gap_bytes.max(GAP_BYTES_MIN);
        if near && !self.held.is_empty() {
            (self.ahead * GROWTH).min(AHEAD_BYTES_MAX).min(request_bytes_max)
        } else {
            (gap_bytes / JUMP_SHARE).clamp(JUMP_BYTES_MIN, JUMP_BYTES_MAX)
        }
    }
}

impl<F: FnMut(Range<u64>) -> Result<Bytes>, W: Fn() -> Worth> Read for Ranged<F, W> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.len || buf.is_empty() {
            return Ok(0);
        }
        self.leapt = self.leapt.max(self.at.saturating_sub(self.read_until));
        if !(self.held_from..self.held_until()).contains(&self.at) {
            self.ahead = self.ahead();
            self.leapt = 0;
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
        self.read_until = self.at;
        Ok(n)
    }
}

impl<F, W> Seek for Ranged<F, W> {
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
