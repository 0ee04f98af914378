//! Plain web servers, which need not give parts of objects: what asks for a range gets all of it, with status 200.
//!
//! Which kind a server is, its first answer to a range says. From one that gives parts a whole object is a wrong answer
//! as any other. Of one that gives none, shards are read once and kept in memory, as long as the dataset is open:
//! samples are asked for in any order, and each would cost all of its shard. So all shards together must have room,
//! which is found out when they are opened. An object that is one sample is read whole anyway, and not kept.
//!
//! A shard may have been damaged on its way. It is let go of and read once more where a sample of it does not decode or
//! has another checksum; what is still wrong then is wrong at the server, and is not read a third time.
//!
//! Locks: the list of shards is held for one look; reading a shard holds that shard's lock, and its other readers wait.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use lossfeed_sync::Mutex;
use object_store::path::Path;

use crate::error::{Error, Result};
use crate::options::OpenOptions;
use crate::request::failure::{Refused, cause, transport};

/// The name of the store option that says how much is kept, and what it is where nobody says.
pub(crate) const WHOLE_BYTES: &str = "whole_bytes";
const WHOLE_BYTES_USUAL: u64 = 1 << 30;

/// Whether a server gives parts, and the shards of one that does not.
pub(crate) struct Wholes {
    most: u64,
    in_parts: OnceLock<bool>,
    /// Of all shards of the dataset, as far as it is known.
    dataset_bytes: AtomicU64,
    shards: Mutex<HashMap<Path, Kept>>,
    /// Shards that were read a second time.
    doubted: Mutex<HashSet<Path>>,
}

/// A shard. Whoever reads it holds the lock.
pub(crate) type Kept = Arc<tokio::sync::Mutex<Option<Bytes>>>;

impl Wholes {
    /// # Errors
    /// `Settings` for a bound that is no number.
    pub(crate) fn new(options: &OpenOptions) -> Result<Self> {
        let given = options.store_options.iter().rev().find(|(key, _)| key.eq_ignore_ascii_case(WHOLE_BYTES));
        let most = match given {
            None => WHOLE_BYTES_USUAL,
            Some((_, text)) => text.trim().parse().map_err(|_| {
                Error::settings(format!(
                    "store_options={{{WHOLE_BYTES:?}: {text:?}}} is no number of bytes, as in \"4000000000\""
                ))
            })?,
        };
        let (dataset_bytes, shards, doubted) = (AtomicU64::new(0), Mutex::default(), Mutex::default());
        Ok(Self { most, in_parts: OnceLock::new(), dataset_bytes, shards, doubted })
    }

    /// Whether the server gives parts, or has not been asked for one.
    pub(crate) fn in_parts(&self) -> bool {
        self.in_parts.get().copied().unwrap_or(true)
    }

    /// Whether it has been asked.
    pub(crate) fn is_known(&self) -> bool {
        self.in_parts.get().is_some()
    }

    /// What an answer to a range has shown. Only the first one counts.
    pub(crate) fn learn(&self, in_parts: bool) {
        if self.in_parts.set(in_parts).is_ok() && !in_parts {
            tracing::warn!(
                "the server does not support ranges: each shard is read whole and kept in memory (at most {} bytes, \
                 {WHOLE_BYTES} of store_options), so opening takes longer",
                self.most
            );
        }
    }

    /// The wanted part of a shard that is kept.
    pub(crate) fn held(&self, key: &Path, start: u64, bytes: u64) -> Option<Bytes> {
        let kept = self.kept(key)?;
        kept.try_lock().ok()?.as_ref().and_then(|shard| part(shard, start, bytes))
    }

    /// The place of a shard; `None` for what is none.
    pub(crate) fn kept(&self, key: &Path) -> Option<Kept> {
        self.shards.lock().get(key).cloned()
    }

    /// Lets go of a shard that is kept, if that was not done before. Somebody who reads it at this moment keeps it: who
    /// doubts again is heard.
    pub(crate) fn doubt(&self, key: &Path) {
        let Some(kept) = self.kept(key) else { return };
        if let Ok(mut kept) = kept.try_lock()
            && kept.is_some()
            && self.doubted.lock().insert(key.clone())
        {
            tracing::debug!(%key, "a sample of a shard in memory is damaged: the shard is read again");
            *kept = None;
        }
    }

    /// Before shards are walked: which they are, and their sizes.
    pub(crate) fn announce<'a>(&self, shards: impl Iterator<Item = (&'a Path, u64)>) {
        let mut kept = self.shards.lock();
        let all = shards.fold(0u64, |all, (key, bytes)| {
            kept.entry(key.clone()).or_default();
            all.saturating_add(bytes)
        });
        self.dataset_bytes.store(all, Ordering::Relaxed);
    }

    /// Whether all shards have room.
    ///
    /// # Errors
    /// `Source` with the numbers and the remedy.
    pub(crate) fn has_room(&self, what: &str, bytes: u64) -> Result<()> {
        let all = self.dataset_bytes.load(Ordering::Relaxed).max(bytes);
        if all <= self.most {
            return Ok(());
        }
        Err(Error::unreadable(format!(
            "{what} has {bytes} bytes ({all} with the dataset's other shards), and its server gives no parts of objects, so shards are \
             kept in memory whole, {} bytes of them at most: raise store_options={{\"{WHOLE_BYTES}\": \"{all}\"}} if there is memory, \
             copy the shards to a disk of this machine, or use a server that serves ranges",
            self.most
        )))
    }
}

/// The part of an object that is there whole.
pub(crate) fn part(shard: &Bytes, start: u64, bytes: u64) -> Option<Bytes> {
    let (start, end) = (usize::try_from(start).ok()?, usize::try_from(start.checked_add(bytes)?).ok()?);
    (end <= shard.len()).then(|| shard.slice(start..end))
}

/// Whether an error says no more than that a server does not answer questions about objects, or tells no size.
pub(crate) fn says_nothing(e: &object_store::Error) -> bool {
    match cause::<Refused>(e) {
        Some(refused) => matches!(refused.status, 405 | 501),
        None => matches!(e, object_store::Error::Generic { .. }) && transport(e).is_none(),
    }
}
