//! Plain web servers, which need not give parts of objects: what asks for a range gets all of it, with status 200.
//!
//! Which kind a server is, its first answer to a range says. From one that gives parts a whole object is a wrong answer
//! as any other. Of one that gives none, shards are read once and kept in memory, as long as the dataset is open:
//! samples are asked for in any order, and each would cost all of its shard. So all shards together must have room,
//! which is found out when they are opened. An object that is one sample is read whole anyway, and not kept.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use futures::stream::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetResultPayload, ObjectStoreExt};
use parking_lot::Mutex;

use super::OpenOptions;
use super::failure::{Refused, cause, classified, transport};
use super::identity::{Mark, Stamp};
use super::retry::Failure;
use super::store::{Store, Wanted};
use crate::error::{Error, Result};

/// The name of the store option that says how much is kept, and what it is where nobody says.
pub(super) const WHOLE_BYTES: &str = "whole_bytes";
const WHOLE_BYTES_USUAL: u64 = 1 << 30;

/// Whether a server gives parts, and the shards of one that does not.
pub(super) struct Wholes {
    most: u64,
    in_parts: OnceLock<bool>,
    /// Of all shards of the dataset, as far as it is known.
    dataset_bytes: AtomicU64,
    shards: Mutex<HashMap<Path, Kept>>,
}

/// A shard. Whoever reads it holds the lock.
type Kept = Arc<tokio::sync::Mutex<Option<Bytes>>>;

impl Wholes {
    /// # Errors
    /// `Settings` for a bound that is no number.
    pub(super) fn new(options: &OpenOptions) -> Result<Self> {
        let given = options.store_options.iter().rev().find(|(key, _)| key.eq_ignore_ascii_case(WHOLE_BYTES));
        let most = match given {
            None => WHOLE_BYTES_USUAL,
            Some((_, text)) => text.trim().parse().map_err(|_| {
                Error::settings(format!(
                    "store_options={{{WHOLE_BYTES:?}: {text:?}}} is no number of bytes, as in \"4000000000\""
                ))
            })?,
        };
        let (dataset_bytes, shards) = (AtomicU64::new(0), Mutex::default());
        Ok(Self { most, in_parts: OnceLock::new(), dataset_bytes, shards })
    }

    /// Whether the server gives parts, or has not been asked for one.
    pub(super) fn in_parts(&self) -> bool {
        self.in_parts.get().copied().unwrap_or(true)
    }

    /// Whether it has been asked.
    fn is_known(&self) -> bool {
        self.in_parts.get().is_some()
    }

    /// What an answer to a range has shown. Only the first one counts.
    pub(super) fn learn(&self, in_parts: bool) {
        if self.in_parts.set(in_parts).is_ok() && !in_parts {
            tracing::warn!(
                "the server gives no parts of its objects: each shard is read whole and kept in memory ({} bytes at most, \
                 {WHOLE_BYTES} of store_options), which is slower to begin",
                self.most
            );
        }
    }

    /// The wanted part of a shard that is kept.
    pub(super) fn held(&self, wanted: &Wanted<'_>) -> Option<Bytes> {
        let kept = self.shards.lock().get(wanted.key).cloned()?;
        kept.try_lock().ok()?.as_ref().and_then(|shard| part(shard, wanted))
    }

    /// Whether all shards have room.
    ///
    /// # Errors
    /// `Source` with the numbers and the remedy.
    fn has_room(&self, what: &str, bytes: u64) -> Result<()> {
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

fn part(shard: &Bytes, wanted: &Wanted<'_>) -> Option<Bytes> {
    let (start, end) = (usize::try_from(wanted.start).ok()?, usize::try_from(wanted.start + wanted.bytes).ok()?);
    (end <= shard.len()).then(|| shard.slice(start..end))
}

/// Whether an error says no more than that a server does not answer questions about objects, or tells no size.
pub(super) fn says_nothing(e: &object_store::Error) -> bool {
    match cause::<Refused>(e) {
        Some(refused) => matches!(refused.status, 405 | 501),
        None => matches!(e, object_store::Error::Generic { .. }) && transport(e).is_none(),
    }
}

impl Store {
    /// If `e` says that the server gives no parts, that is known from now on.
    pub(super) fn learnt_of_parts(&self, e: &object_store::Error) {
        if let (object_store::Error::NotSupported { .. }, Some(wholes)) = (e, &self.wholes) {
            wholes.learn(false);
        }
    }

    /// Size and stamp of an object by asking for its first byte; `None` when there is none.
    pub(super) async fn looked_at(&self, key: &Path) -> Result<Option<(u64, Stamp)>, Failure> {
        let first = GetOptions { range: Some((0..1).into()), ..GetOptions::default() };
        let answer = match self.inner.get_opts(key, first).await {
            Ok(answer) => {
                if let Some(wholes) = &self.wholes {
                    wholes.learn(true);
                }
                Ok(answer)
            }
            Err(e) if matches!(e, object_store::Error::NotSupported { .. }) => {
                self.learnt_of_parts(&e);
                // Its body is left where it is.
                self.inner.get(key).await
            }
            Err(e) if cause::<Refused>(&e).is_some_and(|refused| refused.status == 416) => {
                return Err(Failure::Final(Error::unreadable(format!("{key} is empty (0 bytes): store it again"))));
            }
            Err(e) => Err(e),
        };
        match answer {
            Ok(answer) => Ok(Some((answer.meta.size, Stamp::of_object(&answer.meta)))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(classified(e, key.as_ref(), false, self.maker)),
        }
    }

    /// Before shards are walked: which they are, and their sizes.
    pub(super) fn expect<'a>(&self, shards: impl Iterator<Item = (&'a Path, u64)>) {
        let Some(wholes) = &self.wholes else { return };
        let mut kept = wholes.shards.lock();
        let all = shards.fold(0u64, |all, (key, bytes)| {
            kept.entry(key.clone()).or_default();
            all.saturating_add(bytes)
        });
        wholes.dataset_bytes.store(all, Ordering::Relaxed);
    }

    /// After shards were indexed, maybe without a question to the server: whether it gives parts, and else whether they
    /// have room.
    ///
    /// # Errors
    /// As reading; `Source` where there is no room.
    pub(super) fn settle(&self, key: &Path, what: &str, bytes: u64) -> Result<()> {
        let Some(wholes) = &self.wholes else { return Ok(()) };
        if !wholes.is_known() {
            self.look(key)?;
        }
        if wholes.in_parts() { Ok(()) } else { wholes.has_room(what, bytes) }
    }

    /// A part of an object by reading all of it, or of what was read before.
    pub(super) async fn of_whole(&self, wanted: Wanted<'_>) -> Result<Bytes, Failure> {
        let internal = || Failure::Final(Error::internal("a whole object without a part of it"));
        let Some(wholes) = &self.wholes else { return Err(internal()) };
        let kept = wholes.shards.lock().get(wanted.key).cloned();
        // What is no shard is one sample.
        let Some(kept) = kept else {
            let all = self.whole(wanted).await?;
            return part(&all, &wanted).ok_or_else(internal);
        };
        let mut kept = kept.lock().await;
        if kept.is_none() {
            wholes.has_room(&(wanted.what)(), wanted.total).map_err(Failure::Final)?;
            *kept = Some(self.whole(wanted).await?);
        }
        kept.as_ref().and_then(|shard| part(shard, &wanted)).ok_or_else(internal)
    }

    /// All of the object that `wanted` is of. The time limit is one on each piece and none on the whole.
    async fn whole(&self, wanted: Wanted<'_>) -> Result<Bytes, Failure> {
        let what = || format!("all of {}", (wanted.what)());
        let failed = |e| classified(e, &(wanted.what)(), true, self.maker);
        let all = Wanted { start: 0, bytes: wanted.total, ..wanted };
        wanted.requests.fetch_add(1, Ordering::Relaxed);
        self.delayed().await;
        let (started, paced) = (Instant::now(), self.is_paced());
        let options = GetOptions { if_match: wanted.if_match.map(str::to_owned), ..GetOptions::default() };
        let answer =
            self.limited(&what, async { self.inner.get_opts(wanted.key, options).await.map_err(failed) }).await?;
        let (first_byte, before) = (started.elapsed(), self.link.brought());
        all.proved(answer.meta.size, Mark::of(&Stamp::of_object(&answer.meta)), &answer.meta)?;
        let GetResultPayload::Stream(mut pieces) = answer.payload else {
            return Err(Failure::Final(Error::internal("a web server that is a file")));
        };
        let mut bytes = Vec::new();
        loop {
            let next = async { pieces.next().await.transpose().map_err(failed) };
            let Some(piece) = self.limited(&what, next).await? else { break };
            if bytes.len() as u64 + piece.len() as u64 > wanted.total {
                let more = format!("more than {}", wanted.total);
                return Err(Failure::Again(all.wrong_length(&more, answer.meta.size)));
            }
            if !paced {
                self.link.count(piece.len() as u64);
            }
            // As much as comes, whatever was announced.
            bytes.try_reserve(piece.len()).map_err(|e| {
                Failure::Final(
                    Error::memory(format!("there is no memory for {} bytes of {}", wanted.total, what())).because(e),
                )
            })?;
            bytes.extend_from_slice(&piece);
        }
        if bytes.len() as u64 != wanted.total {
            return Err(Failure::Again(all.wrong_length(&bytes.len().to_string(), answer.meta.size)));
        }
        self.let_through(wanted.total, paced).await;
        let body = started.elapsed().saturating_sub(first_byte);
        self.link.learn(first_byte, body, wanted.total, self.link.brought().saturating_sub(before));
        Ok(bytes.into())
    }
}
