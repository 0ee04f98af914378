//! The thread that writes what is offered, drops what gives way, and looks what other processes do.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::Key;
use crate::claims::{Claims, PULSE};
use crate::folder::{Listed, Name, now, own};
use crate::followed::Followed;
use crate::format::{self, ALIGNMENT, Entry, HEAD, TAIL, record_bytes};
use crate::policy::{self, Policy, Worth};
use crate::segment::{self, Contents, Segment};
use crate::shared::{Item, Request, Shared};

/// Time between two looks at the folder, and the pause in writing after nothing was worth it or had room.
pub(crate) const LOOK_AROUND: Duration = Duration::from_secs(10);
/// Time between two looks at what others fetch while a call waits for that.
pub(crate) const TICK: Duration = Duration::from_millis(2);
/// Records are gathered until they make a write of this size, or nothing more is queued.
const WRITE_BYTES: usize = 1 << 20;
/// All are listed at every look. Where there are more the shortest gives way.
const SEGMENTS_MAX: usize = 256;
/// A complete segment of less than this part of a whole one is written to again.
const SHORT_PART: u64 = 2;

/// Writes bytes at a position of a file.
pub(crate) type WriteAt = Box<dyn FnMut(&File, &[u8], u64) -> io::Result<()> + Send>;

/// The segment under way.
struct Active {
    segment: Arc<Segment>,
    /// Open, and locked, as long as it is written.
    file: Arc<File>,
    /// The records of the segment that is written.
    contents: Contents,
    /// What comes next, and its entries: not written yet.
    gathered: Vec<u8>,
    coming: Vec<Entry>,
    coming_cost_us: u64,
    coming_data_bytes: u64,
}

impl Active {
    fn new(segment: Arc<Segment>, file: File, contents: Contents) -> Self {
        let file = Arc::new(file);
        segment.is_open(&file);
        let (gathered, coming) = (Vec::new(), Vec::new());
        Self { segment, file, contents, gathered, coming, coming_cost_us: 0, coming_data_bytes: 0 }
    }

    /// Its bytes, if it ended after another record of so many.
    fn bytes_with(&self, data: usize) -> u64 {
        let listed = (self.contents.entries.len() + self.coming.len()) * format::ENTRY;
        self.contents.end + self.gathered.len() as u64 + (listed + TAIL) as u64 + record_bytes(data)
    }
}

pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    write: WriteAt,
    active: Option<Active>,
    /// What other processes are writing.
    pub(crate) followed: Vec<Followed>,
    next_number: u32,
    /// What the dataset's samples are asked for, as fetches would have cost.
    pub(crate) demand: Worth,
    pub(crate) looked: Instant,
    /// This process's claims and the others'; `None` where claims are not shared.
    pub(crate) claims: Option<Claims>,
    /// Calls that wait for what others fetch.
    pub(crate) waiting: Vec<Request>,
    pub(crate) served: Instant,
    /// Calls that have ended, and whose claims end with the next write.
    landed: Vec<u64>,
    /// It was told that the disk has no room.
    full: bool,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, write: WriteAt, claims: Option<Claims>) -> Self {
        let (demand, looked) = (Worth::new(0, now()), Instant::now());
        Self {
            shared,
            write,
            active: None,
            followed: Vec::new(),
            next_number: 0,
            demand,
            looked,
            claims,
            waiting: Vec::new(),
            served: looked,
            landed: Vec::new(),
            full: false,
        }
    }

    /// Brings the index up to what lies in the folder, and the folder to its limit.
    pub(crate) fn open(&mut self) {
        // Another process that holds the lock for seconds was stopped: what is complete can be read all the same.
        let lock = self.shared.folder.lock();
        let opened = self.look_around(lock.is_ok()).and_then(|()| match &lock {
            Ok(_) => self.make_room(0, true, None).map(drop),
            Err(_) => Ok(()),
        });
        if let Err(e) = opened {
            self.turn_off(&e);
        }
    }

    /// Serves the queue until it is over.
    pub(crate) fn run(mut self) {
        // However it ends: whoever waits for it must not wait for ever.
        let _gone = Gone(Arc::clone(&self.shared));
        loop {
            let (items, over) = self.next();
            self.shared.stuck.store(false, Relaxed);
            self.serve();
            for item in items {
                match item {
                    Item::Forget { key } => {
                        self.forget(key);
                        self.shared.end_forgetting(key);
                    }
                    Item::Keep { key, cost_us, data } => self.keep(key, cost_us, &data),
                    Item::Landed { ticket } => {
                        self.waiting.retain(|request| request.ticket != ticket);
                        self.landed.push(ticket);
                    }
                    #[cfg(test)]
                    Item::Look => drop(self.look_around(false)),
                }
                self.shared.beats.fetch_add(1, Relaxed);
                if self.shared.requested.load(Relaxed) {
                    self.serve();
                }
            }
            self.write_gathered();
            if let Some(claims) = &mut self.claims {
                self.landed.drain(..).for_each(|ticket| claims.end(ticket));
                claims.write();
            }
            if over {
                self.end();
                // Its last write may hang, and is waited for until the end is told.
                self.claims = None;
            } else if self.looked.elapsed() >= LOOK_AROUND {
                // Trouble with the folder shows when something is written.
                let _ = self.look_around(false);
            }
            let mut queue = self.shared.queue.lock();
            queue.busy = false;
            self.shared.settled.notify_all();
            if over && queue.items.is_empty() {
                return;
            }
        }
    }

    /// What is queued, after a while nothing; and whether it is over.
    fn next(&self) -> (VecDeque<Item>, bool) {
        let mut queue = self.shared.queue.lock();
        if queue.items.is_empty() && queue.requests.is_empty() && !queue.over {
            let claims = self.claims.as_ref().is_some_and(Claims::any);
            let pause = if !self.waiting.is_empty() {
                TICK
            } else if claims {
                PULSE
            } else {
                LOOK_AROUND
            };
            self.shared.news.wait_for(&mut queue, pause);
        }
        queue.busy = true;
        queue.bytes = 0;
        (std::mem::take(&mut queue.items), queue.over)
    }

    fn forget(&mut self, key: Key) {
        self.write_gathered();
        if let Some((segment, at)) = self.shared.shelf.find(key) {
            self.shared.shelf.forget(key, segment.number, at);
        }
    }

    fn keep(&mut self, key: Key, cost_us: u32, data: &[u8]) {
        let gathered = self.active.as_ref().is_some_and(|a| a.coming.iter().any(|e| e.key as u64 == key as u64));
        if gathered || self.shared.shelf.has(key) {
            return;
        }
        if self.active.as_ref().is_some_and(|a| a.bytes_with(data.len()) > self.shared.segment_bytes) {
            self.end();
        }
        // What was queued before the last try to begin a segment is declined with it. A try for each would walk the
        // folder for each. Where another process holds the lock it would wait for each, and a drop of the tier would
        // wait for all of them.
        if self.active.is_none() && !self.shared.off.load(Relaxed) && !self.shared.declines() {
            self.begin();
        }
        let Some(active) = &mut self.active else {
            let counts = &self.shared.counts;
            let counter = if self.shared.off.load(Relaxed) { &counts.dropped } else { &counts.declined };
            counter.fetch_add(1, Relaxed);
            return;
        };
        let at = (active.contents.end + active.gathered.len() as u64) / ALIGNMENT;
        active.coming.push(Entry { key, at: at as u32, bytes: data.len() as u32 });
        active.coming_cost_us += u64::from(cost_us);
        active.coming_data_bytes += data.len() as u64;
        format::put_record(&mut active.gathered, key, cost_us, data);
        if active.gathered.len() >= WRITE_BYTES {
            self.write_gathered();
        }
    }

    /// Writes what was gathered; from then on it can be read.
    fn write_gathered(&mut self) {
        if self.active.as_ref().is_none_or(|active| active.gathered.is_empty()) {
            return;
        }
        let room = self.room();
        let Some(active) = self.active.as_mut().filter(|a| !a.gathered.is_empty()) else { return };
        let counts = &self.shared.counts;
        let written = match room.and_then(|room| room.checked_sub(active.gathered.len() as u64).ok_or_else(full)) {
            Ok(_) => (self.write)(&active.file, &active.gathered, active.contents.end),
            Err(e) => Err(e),
        };
        match written {
            Ok(()) => {
                self.full = false;
                self.shared.shelf.publish(active.segment.number, &active.coming);
                counts.written.fetch_add(active.coming.len() as u64, Relaxed);
                counts.written_bytes.fetch_add(active.coming_data_bytes, Relaxed);
                counts.bytes.fetch_add(active.gathered.len() as u64, Relaxed);
                active.contents.end += active.gathered.len() as u64;
                active.contents.entries.append(&mut active.coming);
                active.contents.cost_us += active.coming_cost_us;
                if let Some(claims) = &mut self.claims {
                    claims.step();
                    claims.write();
                }
            }
            Err(e) => {
                let counter = if is_full(&e) { &counts.declined } else { &counts.dropped };
                counter.fetch_add(active.coming.len() as u64, Relaxed);
                active.coming.clear();
                self.refused(&e);
            }
        }
        if let Some(active) = &mut self.active {
            active.gathered.clear();
            (active.coming_cost_us, active.coming_data_bytes) = (0, 0);
        }
    }

    /// Ends the segment under way. One that cannot be ended is read record by record the next time.
    fn end(&mut self) {
        self.write_gathered();
        let Some(active) = self.active.take() else { return };
        let name = active.segment.name();
        if active.contents.entries.is_empty() {
            let _ = self.shared.folder.remove(name);
            self.shared.shelf.remove(&active.segment);
            return;
        }
        match segment::end(&self.shared.folder, name, &active.file, &active.contents) {
            Ok(bytes) => active.segment.ended(bytes, active.contents.end, active.contents.cost_us, now()),
            Err(e) => self.refused(&e),
        }
    }

    /// Begins a segment, if there is room for a whole one or room is worth being made.
    fn begin(&mut self) {
        match self.try_begin() {
            Ok(Some(active)) => self.active = Some(active),
            Ok(None) => self.shared.decline(LOOK_AROUND),
            // Another process began one in the same nanosecond, or took it for one that a crash has cut: later.
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::AlreadyExists) => {
                self.shared.decline(LOOK_AROUND);
            }
            Err(e) => self.refused(&e),
        }
    }

    /// The bytes that may be written now.
    fn room(&self) -> io::Result<u64> {
        #[cfg(test)]
        return Ok(self.shared.spare.load(Relaxed));
        #[cfg(not(test))]
        self.shared.folder.spare(self.shared.limit_bytes)
    }

    /// A write was refused: for now, or for good.
    fn refused(&mut self, e: &io::Error) {
        if !is_full(e) {
            return self.turn_off(e);
        }
        self.shared.decline(LOOK_AROUND);
        if !std::mem::replace(&mut self.full, true) {
            tracing::warn!(
                target: "lossfeed::disk",
                folder = %self.shared.folder.path().display(),
                "the disk tier pauses writing: its disk has less free than the reserve, a twentieth of the disk but at \
                 most 10 GiB or the tier's own limit"
            );
        }
    }

    fn try_begin(&mut self) -> io::Result<Option<Active>> {
        let lock = match self.shared.folder.lock() {
            // Its holder was stopped, perhaps for ever. Nothing is dropped without the lock; what there is room for is
            // written, at worst a segment a process too much, until one drops again.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => None,
            lock => Some(lock?),
        };
        if self.room()? == 0 {
            return Err(full());
        }
        self.look_around(lock.is_some())?;
        let wanted = self.shared.segment_bytes;
        let fits = if lock.is_some() {
            if let Some(active) = self.go_on()? {
                return Ok(Some(active));
            }
            self.make_room(wanted, false, None)?
        } else {
            let listed = self.shared.folder.list()?;
            self.reserved(&listed) + wanted <= self.shared.limit_bytes && listed.len() < SEGMENTS_MAX
        };
        if !fits {
            return Ok(None);
        }
        let name = Name { born: now().as_nanos() as u64, complete: false };
        let file = self.shared.folder.create(name)?;
        drop(lock);
        (self.write)(&file, HEAD, 0)?;
        let listed = Listed { name, bytes: HEAD.len() as u64, used: now() };
        let segment = Arc::new(Segment::new(self.number(), &listed, &self.shared.folder, 0));
        self.shared.shelf.add(Arc::clone(&segment), &[]);
        let contents = Contents { entries: Vec::new(), cost_us: 0, end: HEAD.len() as u64 };
        Ok(Some(Active::new(segment, file, contents)))
    }

    /// Begins to write to the longest of the short segments again, if there is one and it is worth it. Under the folder's
    /// lock.
    fn go_on(&mut self) -> io::Result<Option<Active>> {
        let Shared { shelf, folder, segment_bytes, .. } = &*Arc::clone(&self.shared);
        let mut short = shelf.segments();
        short.retain(|s| s.complete.load(Relaxed) && s.bytes() < segment_bytes / SHORT_PART);
        short.sort_by_key(|s| (std::cmp::Reverse(s.bytes()), s.born));
        for segment in short {
            // Not one of another user's, and none that another process writes.
            let Ok(file) = folder.file(segment.name()) else { continue };
            if !own(&file) {
                continue;
            }
            let Some(contents) = segment::contents(&file) else { continue };
            if !self.make_room(segment_bytes - segment.bytes(), false, Some(segment.born))? {
                return Ok(None);
            }
            folder.reopen(segment.name())?;
            segment.complete.store(false, Relaxed);
            file.set_len(contents.end)?;
            return Ok(Some(Active::new(segment, file, contents)));
        }
        Ok(None)
    }

    /// True before it has seen a segment.
    pub(crate) fn is_new(&self) -> bool {
        self.next_number == 0
    }

    pub(crate) fn number(&mut self) -> u32 {
        self.next_number += 1;
        self.next_number
    }

    /// The bytes of these segments, when those under way are ended.
    fn reserved(&self, listed: &[Listed]) -> u64 {
        let whole = |l: &Listed| if l.name.complete { l.bytes } else { l.bytes.max(self.shared.segment_bytes) };
        listed.iter().map(whole).sum()
    }

    /// Drops segments until the folder has room for `wanted` bytes more; false if it is not worth it. `anyway` asks
    /// nobody what they are worth: the limit is kept. The one that was `born` then stays. Under the folder's lock.
    fn make_room(&mut self, wanted: u64, anyway: bool, born: Option<u64>) -> io::Result<bool> {
        let shared = &self.shared;
        let listed = shared.folder.list()?;
        let (mut total, mut count) = (self.reserved(&listed), listed.len());
        let now = now();
        let mut residents: Vec<_> = shared.shelf.segments();
        residents
            .retain(|s| s.complete.load(Relaxed) && Some(s.born) != born && listed.iter().any(|l| l.name == s.name()));
        let newcomer =
            if anyway { f64::INFINITY } else { self.demand.log2_at(now) - (shared.dataset_bytes as f64).log2() };
        while total + wanted > shared.limit_bytes || (born.is_none() && count >= SEGMENTS_MAX) {
            let seen: Vec<_> = residents.iter().map(|s| s.resident(now)).collect();
            let crowded = total + wanted <= shared.limit_bytes && shared.policy == Policy::Worth;
            let chosen = if crowded {
                seen.iter().min_by_key(|r| r.bytes).map(|r| r.number)
            } else {
                policy::victim(shared.policy, &seen, newcomer)
            };
            let Some(at) = chosen.and_then(|number| residents.iter().position(|s| s.number == number)) else {
                return Ok(anyway);
            };
            let victim = residents.swap_remove(at);
            shared.folder.remove(victim.name())?;
            let bytes = victim.resident(now).bytes;
            shared.shelf.remove(&victim);
            (total, count) = (total.saturating_sub(bytes), count - 1);
            shared.counts.evicted_segments.fetch_add(1, Relaxed);
        }
        shared.counts.bytes.store(listed_bytes(&shared.folder.list()?), Relaxed);
        Ok(true)
    }

    pub(crate) fn turn_off(&self, e: &io::Error) {
        if !self.shared.off.swap(true, Relaxed) {
            tracing::warn!(
                target: "lossfeed::disk",
                folder = %self.shared.folder.path().display(),
                error = %e,
                "the disk tier is read-only from now on: free space on its disk, then open the dataset again"
            );
        }
    }
}

struct Gone(Arc<Shared>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.queue.lock().gone = true;
        self.0.settled.notify_all();
    }
}

/// The error of a disk without room.
fn full() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

pub(crate) fn listed_bytes(listed: &[Listed]) -> u64 {
    listed.iter().map(|l| l.bytes).sum()
}
