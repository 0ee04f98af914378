//! What callers and the writing thread share.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use lossfeed_sync::{Condvar, Mutex};

use crate::Key;
use crate::claims::{Table, Whose};
use crate::folder::Folder;
use crate::policy::Policy;
use crate::read_at::ReadAt;
use crate::shelf::Shelf;

/// A call asks who fetches samples.
pub(crate) struct Request {
    pub(crate) ticket: u64,
    pub(crate) keys: Vec<Option<Key>>,
    /// The answer may wait until one of the keys is no longer another's. Then, since when the call waits.
    pub(crate) since: Option<Instant>,
    pub(crate) answer: SyncSender<Vec<Whose>>,
}

/// What the thread is asked for.
pub(crate) enum Item {
    Keep {
        key: Key,
        cost_us: u32,
        data: Box<[u8]>,
    },
    Forget {
        key: Key,
    },
    /// The fetches that were claimed with this ticket have ended.
    Landed {
        ticket: u64,
    },
    #[cfg(test)]
    Look,
}

impl Item {
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Item::Keep { data, .. } => data.len(),
            _ => 0,
        }
    }
}

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) items: VecDeque<Item>,
    pub(crate) requests: Vec<Request>,
    pub(crate) bytes: usize,
    pub(crate) over: bool,
    /// Something was taken and is not dealt with yet.
    pub(crate) busy: bool,
    /// The thread has ended.
    pub(crate) gone: bool,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) hits: AtomicU64,
    pub(crate) hit_bytes: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) declined: AtomicU64,
    pub(crate) evicted_segments: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

/// What callers and the writing thread share.
pub(crate) struct Shared {
    pub(crate) folder: Arc<Folder>,
    pub(crate) shelf: Shelf,
    pub(crate) policy: Policy,
    pub(crate) limit_bytes: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) dataset_bytes: u64,
    pub(crate) counts: Counts,
    pub(crate) read: Arc<dyn ReadAt>,
    /// What was found when the folder was opened: records, and what their fetches took, µs.
    pub(crate) opened: Mutex<(u64, u64)>,
    /// Steps that the thread has done: one that does none for long hangs.
    pub(crate) beats: AtomicU64,
    pub(crate) queue: Mutex<Queue>,
    /// Keys whose forgetting is queued, and how often: until that is dealt with, what was offered before it may still
    /// come to the shelf, and is not found there.
    pub(crate) forgetting: Mutex<HashMap<Key, u32>>,
    /// There is something to write, or it is over.
    pub(crate) news: Condvar,
    /// Everything that was queued has been dealt with.
    pub(crate) settled: Condvar,
    /// Nothing is written any more: the disk refused.
    pub(crate) off: AtomicBool,
    /// The start of the clock that measures pauses: the wall clock may be set back.
    pub(crate) begun: Instant,
    /// Until then nothing is written, ms since it begun: it is not worth it, or there is no room.
    pub(crate) declined_until_ms: AtomicU64,
    /// The bytes that a test leaves on the disk.
    #[cfg(test)]
    pub(crate) spare: AtomicU64,
    /// The file of claims; `None` where claims are not shared.
    pub(crate) table: Option<Arc<Table>>,
    /// Claims so far: they are numbered.
    pub(crate) tickets: AtomicU64,
    /// A call waits for the thread.
    pub(crate) requested: AtomicBool,
    /// The thread did not answer a call, and has done nothing since.
    pub(crate) stuck: AtomicBool,
    /// There were other processes when a call claimed last.
    pub(crate) company: AtomicBool,
    /// What all requests since the last look would have cost as fetches, µs.
    pub(crate) asked_us: AtomicU64,
}

impl Shared {
    /// True while nothing is written.
    pub(crate) fn declines(&self) -> bool {
        (self.begun.elapsed().as_millis() as u64) < self.declined_until_ms.load(Relaxed)
    }

    /// Nothing is written for so long.
    pub(crate) fn decline(&self, pause: Duration) {
        self.declined_until_ms.store((self.begun.elapsed() + pause).as_millis() as u64, Relaxed);
    }

    /// The forgetting of `key` is queued.
    pub(crate) fn begin_forgetting(&self, key: Key) {
        *self.forgetting.lock().entry(key).or_default() += 1;
    }

    /// One forgetting of `key` was dealt with.
    pub(crate) fn end_forgetting(&self, key: Key) {
        let mut forgetting = self.forgetting.lock();
        if let Some(times) = forgetting.get_mut(&key) {
            *times -= 1;
            if *times == 0 {
                forgetting.remove(&key);
            }
        }
    }

    /// Whether `key` is on the shelf and stays there. What is still to be forgotten does not: it may have come there
    /// after the call that forgets it has looked.
    pub(crate) fn keeps(&self, key: Key) -> bool {
        // Before the shelf is looked at: what is not being forgotten any more is gone from it. The other way round the
        // thread may finish a forgetting between the two looks, and what it took away would count as kept.
        let forgotten = self.forgetting.lock().contains_key(&key);
        !forgotten && self.shelf.has(key)
    }

    /// The keys that may be looked for, where those are not all.
    pub(crate) fn lookable(&self, keys: &[Option<Key>]) -> Option<Vec<Option<Key>>> {
        let forgetting = self.forgetting.lock();
        let lookable = |key: &Option<Key>| key.filter(|key| !forgetting.contains_key(key));
        (!forgetting.is_empty()).then(|| keys.iter().map(lookable).collect())
    }
}
