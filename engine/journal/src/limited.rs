//! Bytes from anywhere whose lines have a bounded length: a file without line ends must not fill the memory.

use std::io::{self, Read};

/// The longest line with every number at its widest is well below this.
pub(crate) const LINE_BYTES_MAX: usize = 512;

/// Reads on until a line is too long.
pub(crate) struct ShortLines<R> {
    inner: R,
    /// Bytes since the last line end.
    since: usize,
    ended: bool,
}

impl<R> ShortLines<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, since: 0, ended: false }
    }

    /// Whether the file has ended in the middle of a line.
    pub(crate) fn stopped_short(&self) -> bool {
        self.ended && self.since > 0
    }
}

impl<R: Read> Read for ShortLines<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.ended = read == 0 && !buffer.is_empty();
        for part in buffer[..read].split_inclusive(|&byte| byte == b'\n') {
            self.since += part.len();
            if self.since > LINE_BYTES_MAX {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("a line is longer than {LINE_BYTES_MAX} bytes"),
                ));
            }
            if part.ends_with(b"\n") {
                self.since = 0;
            }
        }
        Ok(read)
    }
}
