//! Files of this machine that are kept open, those of all datasets together.
//!
//! A process may have 1024 files open by default, and a dataset may consist of more. So each file has one place among
//! a fixed number of places, which it shares with others; whoever needs it opens it there, and the one before it is
//! closed. Nobody waits for a place: who finds it in use opens the file for itself. So a fork, in which a place may be
//! in use for ever, can read too.
//!
//! Lock: held for one look or put; a caller that finds it taken opens the file for itself.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lossfeed_sync::RwLock;

use crate::error::Result;

/// Files kept open: a quarter of what a process may have by default.
pub(crate) const HANDLES_MAX: usize = 256;

type Place = RwLock<Option<(u64, Arc<File>)>>;

static PLACES: [Place; HANDLES_MAX] = [const { RwLock::new(None) }; HANDLES_MAX];
/// What the next file is called. Names that follow each other have different places.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The files of one dataset. Those of them that are open are closed with it.
#[derive(Debug)]
pub(crate) struct Handles {
    first: u64,
    files: u64,
}

impl Handles {
    pub(crate) fn of(files: usize) -> Self {
        let files = files as u64;
        Self { first: NEXT.fetch_add(files, Relaxed), files }
    }

    /// File `number` of them, and whether `open` had to open it.
    pub(crate) fn file(&self, number: usize, open: impl FnOnce() -> Result<File>) -> Result<(Arc<File>, bool)> {
        let called = self.first + number as u64;
        let place = place(called);
        if let Some(held) = place.try_read()
            && let Some((holder, file)) = &*held
            && *holder == called
        {
            return Ok((file.clone(), false));
        }
        let file = Arc::new(open()?);
        // Closing a file may take long, so it is done when the place is free again.
        let before = place.try_write().and_then(|mut held| held.replace((called, file.clone())));
        drop(before);
        Ok((file, true))
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        let own = self.first..self.first + self.files;
        for called in own.clone().take(HANDLES_MAX) {
            let gone = place(called).try_write().and_then(|mut held| held.take_if(|(holder, _)| own.contains(holder)));
            drop(gone);
        }
    }
}

fn place(called: u64) -> &'static Place {
    &PLACES[(called % HANDLES_MAX as u64) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::open_below;

    #[test]
    fn a_file_stays_open_until_another_takes_its_place_or_its_dataset_goes() {
        let dir = tempfile::tempdir().unwrap();
        let files = HANDLES_MAX + 2;
        let path = |number: usize| dir.path().join(number.to_string());
        (0..files).for_each(|number| std::fs::write(path(number), "x").unwrap());
        let handles = Handles::of(files);
        let was_opened = |number: usize| handles.file(number, || Ok(File::open(path(number)).unwrap())).unwrap().1;
        assert!(was_opened(0) && was_opened(1) && !was_opened(0) && !was_opened(1));
        // It has the place of the first.
        assert!(was_opened(HANDLES_MAX) && !was_opened(1) && was_opened(0) && was_opened(HANDLES_MAX));
        assert_eq!(open_below(dir.path()), 2);
        let other = Handles::of(1);
        let kept = other.file(0, || Ok(File::open(path(5)).unwrap())).unwrap();
        assert!((0..files).filter(|&number| was_opened(number)).count() >= files - 3);
        assert!(open_below(dir.path()) <= HANDLES_MAX + 1, "all places, and what we hold");
        drop(kept);
        drop(other);
        drop(handles);
        assert_eq!(open_below(dir.path()), 0);
    }
}
