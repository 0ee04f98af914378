//! The segment files that are open. A process may have 1,024 files open by default, and a folder may have hundreds of
//! segments for each dataset. So few are open at a time, of all tiers of the process together.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use lossfeed_sync::process::pid;
use lossfeed_sync::{Mutex, PerProcess};

/// The most that are open, beside those that are being written or read.
pub(crate) const OPEN_MAX: usize = 64;

/// In the order in which they are looked at when one has to be closed.
static OPEN: PerProcess<Mutex<VecDeque<Weak<OpenFile>>>> = PerProcess::new();

/// A file that is opened when it is needed.
#[derive(Default)]
pub(crate) struct OpenFile {
    file: Mutex<Option<Arc<File>>>,
    /// Since it was looked at last.
    used: AtomicBool,
}

impl OpenFile {
    /// The file, which `open` opens if it is not.
    pub(crate) fn get(self: &Arc<Self>, open: impl FnOnce() -> io::Result<File>) -> io::Result<Arc<File>> {
        let mut held = self.file.lock();
        if let Some(file) = &*held {
            self.used.store(true, Relaxed);
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(open()?);
        *held = Some(Arc::clone(&file));
        drop(held);
        self.make_room();
        Ok(file)
    }

    /// It is open as `file`.
    pub(crate) fn is(self: &Arc<Self>, file: &Arc<File>) {
        *self.file.lock() = Some(Arc::clone(file));
        self.make_room();
    }

    /// Puts itself into the row, and closes others that were not used for longest.
    fn make_room(self: &Arc<Self>) {
        let mut open = OPEN.of(pid()).lock();
        open.push_back(Arc::downgrade(self));
        if open.len() > OPEN_MAX {
            open.retain(|one| one.strong_count() > 0);
        }
        while open.len() > OPEN_MAX {
            let Some(one) = open.pop_front() else { return };
            let Some(other) = one.upgrade() else { continue };
            if other.used.swap(false, Relaxed) {
                open.push_back(one);
            } else {
                // A read that has it goes on.
                *other.file.lock() = None;
            }
        }
    }
}
