//! A segment that another process is writing: what is whole in it can be read already.
//!
//! Ranks of one machine fetch different samples and want each other's in the next epoch. A segment may take minutes to
//! be complete. So whoever looks around reads on in it, record by record, up to the first that is not sound: that one
//! is not written yet, and is looked at again the next time.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::folder::{Folder, Listed, own};
use crate::format::{ALIGNMENT, Entry, HEAD};
use crate::segment::{self, Contents, Segment};

/// A segment of another writer, as far as it was read.
pub(crate) struct Followed {
    pub(crate) segment: Arc<Segment>,
    /// Where its sound records end.
    end: u64,
    cost_us: u64,
}

/// What a look at it has found.
pub(crate) struct News {
    /// Records that were not known.
    pub(crate) entries: Vec<Entry>,
    /// Whether nobody writes it any more.
    pub(crate) over: bool,
}

impl Followed {
    pub(crate) fn new(segment: Arc<Segment>) -> Self {
        Self::from(segment, HEAD.len() as u64, 0)
    }

    /// One that was complete, as far as its records went, and is written to again.
    pub(crate) fn from(segment: Arc<Segment>, end: u64, cost_us: u64) -> Self {
        Self { segment, end, cost_us }
    }

    /// Reads on. `listed`: as it is in the folder now. With the folder's lock (`locked`) one whose writer has died is
    /// ended.
    ///
    /// # Errors
    /// What the system says. Then nothing is known of it but what was, and it is looked at again.
    pub(crate) fn look(&mut self, folder: &Folder, listed: &Listed, locked: bool, now: Duration) -> io::Result<News> {
        let Self { segment, end, cost_us } = self;
        if listed.name.complete
            && let Some(Contents { mut entries, cost_us, end: read_to }) = segment.contents()
        {
            // What was read before may have been forgotten since.
            entries.retain(|entry| u64::from(entry.at) * ALIGNMENT >= *end);
            segment.ended(listed.bytes, read_to, cost_us, now);
            return Ok(News { entries, over: true });
        }
        // A writer that has died leaves nothing more, and its segment is ended under the lock.
        if !listed.name.complete && listed.bytes <= *end && !locked {
            return Ok(News { entries: Vec::new(), over: false });
        }
        let file = segment.file()?;
        let found = segment::scan_from(&file, *end)?;
        (*end, *cost_us) = (found.end, *cost_us + found.cost_us);
        let mut news = News { entries: found.entries, over: listed.name.complete };
        let mut bytes = listed.bytes;
        // Its writer may have completed it since it was listed, and gone: then it has another name.
        if !news.over && locked && own(&file) && folder.file(listed.name).is_ok() {
            bytes = segment::end(folder, listed.name, &file, &segment::scan(&file)?)?;
            news.over = true;
        }
        if news.over {
            segment.ended(bytes, *end, *cost_us, now);
        }
        Ok(news)
    }
}
