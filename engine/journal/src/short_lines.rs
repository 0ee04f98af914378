//! Bytes from anywhere whose lines have a bounded length: a file without line ends must not fill the memory.

use std::io::{self, Read};

/// Reads on until a line is too long. The `csv` crate bounds neither lines nor fields by itself.
pub struct ShortLines<R> {
    inner: R,
    longest: usize,
    /// Of the line that is being read, from 1.
    number: u64,
    /// Bytes since the last line end.
    since: usize,
    ended: bool,
    too_long: bool,
}

impl<R> ShortLines<R> {
    /// The lines of `inner`, of at most `longest` bytes each with their ends.
    pub fn new(inner: R, longest: usize) -> Self {
        Self { inner, longest, number: 1, since: 0, ended: false, too_long: false }
    }

    /// What a line may have, in bytes.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Whether the file has ended in the middle of a line.
    pub fn stopped_short(&self) -> bool {
        self.ended && self.since > 0
    }

    /// The number of the line that was too long, from 1; reading ended there.
    pub fn too_long(&self) -> Option<u64> {
        self.too_long.then_some(self.number)
    }
}

impl<R: Read> Read for ShortLines<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.ended = read == 0 && !buffer.is_empty();
        for part in buffer[..read].split_inclusive(|&byte| byte == b'\n') {
            self.since += part.len();
            if self.since > self.longest {
                self.too_long = true;
                let said = format!("a line is longer than {} bytes", self.longest);
                return Err(io::Error::new(io::ErrorKind::InvalidData, said));
            }
            if part.ends_with(b"\n") {
                (self.number, self.since) = (self.number + 1, 0);
            }
        }
        Ok(read)
    }
}
