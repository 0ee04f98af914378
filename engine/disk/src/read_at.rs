//! Where a read of a record meets the system.

use std::fs::File;
use std::io::{self, ErrorKind, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::io::{Errno, ReadWriteFlags};

/// Reads the head and the data of a record, which lie one behind the other. Tests put one in its place that fails.
pub trait ReadAt: Send + Sync {
    /// Reads what the page cache has, and waits for no answer of a device. False unless that is all; the system may have
    /// begun to read the rest.
    fn cached(&self, file: &File, head: &mut [u8], data: &mut [u8], at: u64) -> bool;

    /// Reads all of it, however long the device takes.
    ///
    /// # Errors
    /// As the system says; `UnexpectedEof` where the file ends before.
    fn whole(&self, file: &File, head: &mut [u8], data: &mut [u8], at: u64) -> io::Result<()>;
}

/// The system itself.
#[derive(Debug, Default)]
pub(crate) struct System {
    /// This file system cannot read without waiting: memory of the system (tmpfs), network file systems and others.
    waits: AtomicBool,
}

impl ReadAt for System {
    fn cached(&self, file: &File, head: &mut [u8], data: &mut [u8], at: u64) -> bool {
        if self.waits.load(Relaxed) {
            return false;
        }
        let wanted = head.len() + data.len();
        let mut parts = [IoSliceMut::new(head), IoSliceMut::new(data)];
        let got = rustix::io::preadv2(file, &mut parts, at, ReadWriteFlags::NOWAIT);
        if matches!(got, Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)) {
            self.waits.store(true, Relaxed);
        }
        got == Ok(wanted)
    }

    fn whole(&self, file: &File, head: &mut [u8], data: &mut [u8], at: u64) -> io::Result<()> {
        let (front, wanted) = (head.len() as u64, head.len() + data.len());
        match rustix::io::preadv(file, &mut [IoSliceMut::new(head), IoSliceMut::new(data)], at) {
            Ok(got) if got == wanted => Ok(()),
            // Interrupted, or at the file's end: the long way tells them apart.
            Ok(_) | Err(Errno::INTR) => {
                file.read_exact_at(head, at)?;
                file.read_exact_at(data, at + front)
            }
            Err(e) => Err(e.into()),
        }
    }
}

/// Why a record did not come.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It is not what was written.
    Damaged,
    /// It could not be read.
    Failed(io::Error),
    /// Another process has dropped its segment.
    Gone,
}

impl From<io::Error> for Trouble {
    fn from(e: io::Error) -> Self {
        if e.kind() == ErrorKind::UnexpectedEof { Self::Damaged } else { Self::Failed(e) }
    }
}
