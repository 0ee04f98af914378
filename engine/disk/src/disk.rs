//! The tier as its callers see it.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lossfeed_control::error::{Error, Result};
use lossfeed_sync::{Condvar, Mutex};

use crate::claims::Claims;
use crate::folder::Folder;
use crate::format::record_bytes;
use crate::policy::Policy;
use crate::read_at::{ReadAt, System, Trouble};
use crate::readers::Readers;
use crate::segment::Segment;
use crate::shared::{Counts, Item, Queue, Shared};
use crate::shelf::Shelf;
use crate::writer::{WriteAt, Writer};
use crate::{Key, format};

/// The smallest limit: 64 MiB. Below it a few large samples would be all that fits.
pub const LIMIT_MIN: u64 = 64 << 20;
/// The largest limit: 2 TiB, which is 64 segments of the largest size.
pub const LIMIT_MAX: u64 = 2 << 40;
/// A limit is divided into so many segments: evicting one loses a sixty-fourth of what is kept.
const SEGMENTS: u64 = 64;
const SEGMENT_MIN: u64 = 4 << 20;
const SEGMENT_MAX: u64 = 32 << 30;
/// What waits to be written takes at most so much memory, and what is being written as much again.
const QUEUE_BYTES: usize = 64 << 20;
/// When the tier is dropped a write that takes longer than this is left behind.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a disk tier is opened.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The folder; made for its owner alone if it is not there. Several datasets and processes may share it.
    pub folder: PathBuf,
    /// All segments in it together take at most so many bytes: [`LIMIT_MIN`] to [`LIMIT_MAX`].
    pub limit_bytes: u64,
    /// Bytes of the dataset that is to be kept in it; what its samples are worth on average follows from that.
    pub dataset_bytes: u64,
    /// Which segment gives way.
    pub policy: Policy,
}

/// What a disk tier has counted since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Records read whole.
    pub hits: u64,
    /// Their bytes, heads left out.
    pub hit_bytes: u64,
    /// Records that were asked for and are not there, those that are damaged or could not be read included.
    pub misses: u64,
    /// Records that were there and were not what had been written.
    pub damaged: u64,
    /// Records that were there and could not be read.
    pub failed: u64,
    /// Records that were there and did not come in time; they are no misses.
    pub late: u64,
    /// Records written.
    pub written: u64,
    /// Their bytes, heads left out.
    pub written_bytes: u64,
    /// Records that were not written: the queue was full, writing has ended, or they are too large.
    pub dropped: u64,
    /// Records that were not written because what is there is worth as much, the disk has to keep room for others, or
    /// there is no room and another process holds the folder's lock.
    pub declined: u64,
    /// Segments that gave way.
    pub evicted_segments: u64,
    /// Bytes of all segments in the folder, when they were last looked at.
    pub bytes: u64,
}

/// Where a record lies. It may be evicted meanwhile, and can still be read.
pub struct Found {
    pub(crate) key: Key,
    pub(crate) segment: Arc<Segment>,
    pub(crate) at: u32,
}

/// A disk tier, for one dataset. Any number of threads may call it. Dropping it writes what is queued and ends its
/// segment, unless its disk hangs: then the thread that writes is left behind. In a fork of the process that opened it
/// dropping does nothing, and nothing else may be called.
pub struct Disk {
    pub(crate) shared: Arc<Shared>,
    pub(crate) readers: Readers,
    thread: Option<JoinHandle<()>>,
    patience: Duration,
    made_by: u32,
}

impl Disk {
    /// Opens the folder and reads the index of what lies in it. Segments that were cut by a crash are ended.
    ///
    /// # Errors
    /// `Settings` for a limit that is out of range, or a folder that cannot be used: see its message. What lies in the
    /// folder never is an error.
    pub fn open(settings: &Settings) -> Result<Self> {
        Self::open_over(settings, Arc::new(System::default()))
    }

    /// The same with another way to read.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_over(settings: &Settings, read: Arc<dyn ReadAt>) -> Result<Self> {
        if !(LIMIT_MIN..=LIMIT_MAX).contains(&settings.limit_bytes) {
            return Err(Error::settings(format!(
                "a disk tier of {} bytes is not possible: give it {LIMIT_MIN} (64 MiB) to {LIMIT_MAX} (2 TiB)",
                settings.limit_bytes
            )));
        }
        let segment_bytes = (settings.limit_bytes / SEGMENTS).clamp(SEGMENT_MIN, SEGMENT_MAX);
        Self::start(settings, segment_bytes, Box::new(FileExt::write_all_at), read, PATIENCE)
    }

    /// The same with segments of another size and another way to write.
    #[cfg(test)]
    pub(crate) fn open_with(settings: &Settings, segment_bytes: u64, write: WriteAt) -> Result<Self> {
        Self::start(settings, segment_bytes, write, Arc::new(System::default()), PATIENCE)
    }

    pub(crate) fn start(
        settings: &Settings,
        segment_bytes: u64,
        write: WriteAt,
        read: Arc<dyn ReadAt>,
        patience: Duration,
    ) -> Result<Self> {
        let folder = Arc::new(Folder::open(&settings.folder)?);
        let claims = Claims::open(&folder);
        let shared = Arc::new(Shared {
            folder,
            shelf: Shelf::default(),
            policy: settings.policy,
            limit_bytes: settings.limit_bytes,
            segment_bytes,
            dataset_bytes: settings.dataset_bytes.max(1),
            counts: Counts::default(),
            read,
            opened: Mutex::default(),
            beats: AtomicU64::new(0),
            queue: Mutex::new(Queue::default()),
            forgetting: Mutex::default(),
            news: Condvar::new(),
            settled: Condvar::new(),
            off: AtomicBool::new(false),
            begun: Instant::now(),
            declined_until_ms: AtomicU64::new(0),
            table: claims.as_ref().map(Claims::table),
            tickets: AtomicU64::new(0),
            requested: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            company: AtomicBool::new(false),
            #[cfg(test)]
            spare: AtomicU64::new(u64::MAX),
            asked_us: AtomicU64::new(0),
        });
        let mut writer = Writer::new(Arc::clone(&shared), write, claims);
        writer.open();
        let thread = std::thread::Builder::new()
            .name("lossfeed-disk".into())
            .spawn(move || writer.run())
            .map_err(|e| Error::memory("no thread for the disk tier: allow this process more threads").because(e))?;
        let (readers, made_by) = (Readers::default(), std::process::id());
        Ok(Self { shared, readers, thread: Some(thread), patience, made_by })
    }

    /// Looks for the records of many keys, by the index alone: reading them one by one comes after. A key that is
    /// `None` is not looked for.
    pub fn find(&self, keys: &[Option<Key>]) -> Vec<Option<Found>> {
        // Before the shelf is looked at: what is not being forgotten any more is gone from it.
        let lookable = self.shared.lookable(keys);
        let found = self.shared.shelf.find_all(lookable.as_deref().unwrap_or(keys));
        let missing = keys.iter().zip(&found).filter(|(key, found)| key.is_some() && found.is_none()).count();
        self.shared.counts.misses.fetch_add(missing as u64, Relaxed);
        let with_key = |(key, found): (&Option<Key>, Option<(Arc<Segment>, u32)>)| {
            let (segment, at) = found?;
            Some(Found { key: (*key)?, segment, at })
        };
        keys.iter().zip(found).map(with_key).collect()
    }

    /// Reads a record that was found into `into`, which must have its length, however long that takes. False if it is
    /// not whole; what stands in `into` then means nothing.
    pub fn read_found(&self, found: &Found, into: &mut [u8]) -> bool {
        let outcome = found.segment.read(&*self.shared.read, found.at, found.key, into);
        self.count(found, &outcome, into.len())
    }

    /// Counts a record that was read, and forgets one that is not whole; whether it is.
    pub(crate) fn count(&self, found: &Found, outcome: &std::result::Result<u32, Trouble>, bytes: usize) -> bool {
        let counts = &self.shared.counts;
        let trouble = match outcome {
            Ok(cost_us) => {
                counts.hits.fetch_add(1, Relaxed);
                counts.hit_bytes.fetch_add(bytes as u64, Relaxed);
                self.shared.asked_us.fetch_add(u64::from(*cost_us).max(1), Relaxed);
                return true;
            }
            Err(trouble) => trouble,
        };
        counts.misses.fetch_add(1, Relaxed);
        if let Trouble::Failed(error) = trouble {
            counts.failed.fetch_add(1, Relaxed);
            tracing::debug!(target: "lossfeed::disk", %error, "a record could not be read");
        }
        // What cannot be read is fetched, and may be written to a better place.
        if self.shared.shelf.forget(found.key, found.segment.number, found.at) && matches!(trouble, Trouble::Damaged) {
            counts.damaged.fetch_add(1, Relaxed);
        }
        false
    }

    /// What the fetches of the records that were there at the opening had taken on average, µs; `None` if there were
    /// none.
    pub fn fetched_in_us(&self) -> Option<f64> {
        let (records, cost_us) = *self.shared.opened.lock();
        (records > 0).then(|| cost_us as f64 / records as f64)
    }

    /// Reads the record of `key` into `into`, if there is one: [`Self::find`] and [`Self::read_found`].
    pub fn read(&self, key: Key, into: &mut [u8]) -> bool {
        self.find(&[Some(key)]).pop().flatten().is_some_and(|found| self.read_found(&found, into))
    }

    /// Whether there is a record of `key`, by the index alone.
    pub fn has(&self, key: Key) -> bool {
        self.shared.shelf.has(key)
    }

    /// Hands over a sample that was fetched, to be written if it is worth it. `cost` is what its fetch took. Copies it,
    /// and never waits.
    pub fn offer(&self, key: Key, cost: Duration, data: &[u8]) {
        let shared = &self.shared;
        let cost_us = u32::try_from(cost.as_micros()).unwrap_or(u32::MAX).max(1);
        shared.asked_us.fetch_add(u64::from(cost_us), Relaxed);
        let room = shared.segment_bytes - (format::HEAD.len() + format::TAIL) as u64;
        if shared.off.load(Relaxed) || record_bytes(data.len()) > room || data.len() > u32::MAX as usize {
            shared.counts.dropped.fetch_add(1, Relaxed);
        } else if shared.declines() {
            shared.counts.declined.fetch_add(1, Relaxed);
        } else if !shared.keeps(key) && !self.push(Item::Keep { key, cost_us, data: data.into() }) {
            shared.counts.dropped.fetch_add(1, Relaxed);
        }
    }

    /// What was kept of `key` is not what it should be: it is not delivered again.
    pub fn forget(&self, key: Key) {
        self.shared.begin_forgetting(key);
        if let Some((segment, at)) = self.shared.shelf.find(key) {
            self.shared.shelf.forget(key, segment.number, at);
        }
        // And behind what was offered before and is not written yet. An order takes no memory to speak of, so it always
        // has room.
        self.push(Item::Forget { key });
    }

    fn push(&self, item: Item) -> bool {
        let mut queue = self.shared.queue.lock();
        let bytes = item.bytes();
        if queue.bytes + bytes > QUEUE_BYTES && bytes > 0 && queue.bytes > 0 {
            return false;
        }
        queue.bytes += bytes;
        queue.items.push_back(item);
        drop(queue);
        self.shared.news.notify_one();
        true
    }

    /// Waits until everything that was offered so far has been written or let go.
    pub fn settle(&self) {
        let mut queue = self.shared.queue.lock();
        while queue.busy || !queue.items.is_empty() || !queue.requests.is_empty() {
            self.shared.settled.wait(&mut queue);
        }
    }

    /// Looks around now.
    #[cfg(test)]
    pub(crate) fn look(&self) {
        self.shared.queue.lock().items.push_back(Item::Look);
        self.shared.news.notify_one();
        self.settle();
    }

    /// Records that can be read.
    pub fn records(&self) -> usize {
        self.shared.shelf.records()
    }

    /// What was counted so far.
    pub fn numbers(&self) -> Numbers {
        let counts = &self.shared.counts;
        Numbers {
            hits: counts.hits.load(Relaxed),
            hit_bytes: counts.hit_bytes.load(Relaxed),
            misses: counts.misses.load(Relaxed),
            damaged: counts.damaged.load(Relaxed),
            failed: counts.failed.load(Relaxed),
            late: counts.late.load(Relaxed),
            written: counts.written.load(Relaxed),
            written_bytes: counts.written_bytes.load(Relaxed),
            dropped: counts.dropped.load(Relaxed),
            declined: counts.declined.load(Relaxed),
            evicted_segments: counts.evicted_segments.load(Relaxed),
            bytes: counts.bytes.load(Relaxed),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.made_by != std::process::id() {
            // The thread is the parent's, and a lock may be held for ever.
            return;
        }
        self.readers.close();
        self.shared.queue.lock().over = true;
        self.shared.news.notify_one();
        let folder = self.shared.folder.path().display();
        if !self.thread_ends() {
            tracing::warn!(
                target: "lossfeed::disk", %folder,
                "a write to the disk tier did not end within {} s and was abandoned; unwritten samples will be \
                 fetched again",
                self.patience.as_secs()
            );
        } else if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!(target: "lossfeed::disk", %folder, "the disk tier's thread ended unexpectedly");
        }
    }
}

impl Disk {
    /// Waits until the thread has ended, as long as it gets on.
    fn thread_ends(&self) -> bool {
        let mut queue = self.shared.queue.lock();
        let mut seen = self.shared.beats.load(Relaxed);
        while !queue.gone {
            if self.shared.settled.wait_for(&mut queue, self.patience).timed_out() {
                let now = self.shared.beats.load(Relaxed);
                if now == std::mem::replace(&mut seen, now) && !queue.gone {
                    return false;
                }
            }
        }
        true
    }
}
