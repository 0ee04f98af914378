//! A segment that another process is writing: what is whole in it can be read already.
//!
//! Ranks of one machine fetch different samples and want each other's in the next epoch. A segment may take minutes to
//! be complete. So whoever looks around reads on in it, record by record, up to the first that is not sound: that one
//! is not written yet, and is looked at again the next time.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::folder::{Folder, Listed, own};
use crate::format::{Entry, HEAD};
use crate::segment::{self, Segment};

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
        Self { segment, end: HEAD.len() as u64, cost_us: 0 }
    }

    /// Reads on. `listed`: as it is in the folder now. With the folder's lock (`locked`) one whose writer has died is
    /// ended.
    ///
    /// # Errors
    /// What the system says. Then nothing is known of it but what was, and it is looked at again.
    pub(crate) fn look(&mut self, folder: &Folder, listed: &Listed, locked: bool, now: Duration) -> io::Result<News> {
        let complete = listed.name.complete;
        // Behind the records of a complete one is its footer, at which the scan stops.
        let (found, end) = segment::scan_from(&self.segment.file, self.end)?;
        self.end = end;
        self.cost_us += found.cost_us;
        let mut over = complete;
        let mut bytes = listed.bytes;
        if !complete && locked && own(&self.segment.file) {
            let (whole, end) = segment::scan(&self.segment.file)?;
            bytes = segment::end(folder, listed.name, &self.segment.file, &whole, end)?;
            over = true;
        }
        if over {
            self.segment.ended(bytes, self.cost_us, now);
        }
        Ok(News { entries: found.entries, over })
    }
}
