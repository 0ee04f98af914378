//! Samples behind an object store: one request a sample, a bounded number of them in flight, each with a time limit and
//! retried when that can help.

use std::future::Future;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use object_store::path::Path;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{GetOptions, ObjectStore, ObjectStoreExt};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use super::catalog::{Catalog, Place, Stamp};
use super::files::{Reader, short_read};
use super::pacer::Pacer;
use super::{OpenOptions, runtime};
use crate::error::{Error, Result};
use crate::types::SampleId;

/// Requests per sample before giving up. The cloud clients retry refused requests on top of this by themselves; these
/// attempts are for what they do not see: time limits and streams that break off.
const ATTEMPTS: u32 = 3;
/// Wait before the second attempt; four times as long before the third.
const BACKOFF: Duration = Duration::from_millis(50);

/// Requests to one store.
pub(super) struct Store {
    runtime: Arc<Runtime>,
    process: u32,
    /// Without a throttle, for what is not a sample.
    plain: Arc<dyn ObjectStore>,
    samples: Arc<dyn ObjectStore>,
    /// Ask for ranges by `get_ranges`, which cannot name an entity tag: the throttle cannot wrap what a local file
    /// system answers to anything else.
    by_ranges: bool,
    permits: Semaphore,
    connections: usize,
    pacer: Option<Pacer>,
    timeout: Option<Duration>,
}

impl Store {
    /// `local` is whether `plain` is the file system of this machine.
    pub(super) fn new(plain: Arc<dyn ObjectStore>, local: bool, options: &OpenOptions) -> Result<Self> {
        let latency = options.throttle.map_or(Duration::ZERO, |t| t.latency);
        let samples: Arc<dyn ObjectStore> = if latency.is_zero() {
            plain.clone()
        } else {
            Arc::new(ThrottledStore::new(
                plain.clone(),
                ThrottleConfig { wait_get_per_call: latency, ..ThrottleConfig::default() },
            ))
        };
        Ok(Self {
            runtime: runtime::shared()?,
            process: std::process::id(),
            plain,
            samples,
            by_ranges: local,
            permits: Semaphore::new(options.connections),
            connections: options.connections,
            pacer: options.throttle.and_then(|t| t.bandwidth_bytes_per_s).map(Pacer::new),
            timeout: options.timeout,
        })
    }

    /// Runs `work` to its end on the calling thread.
    pub(super) fn wait<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        if self.process != std::process::id() {
            return Err(Error::usage(
                "this source was opened before a fork and its connections belong to the parent process: open it again in the child",
            ));
        }
        Ok(self.runtime.block_on(work))
    }

    /// A range of an object, whole or an error. `what` names it in errors.
    pub(super) async fn range(
        &self,
        key: &Path,
        range: Range<u64>,
        etag: Option<&str>,
        what: &dyn Fn() -> String,
    ) -> Result<Bytes> {
        retried(|| async {
            let _permit = self.permits.acquire().await.map_err(|e| Failure::Final(Error::internal("the store's permits are closed").because(e)))?;
            let answer = match self.timeout {
                None => Ok(self.once(key, range.clone(), etag).await),
                Some(limit) => tokio::time::timeout(limit, self.once(key, range.clone(), etag)).await,
            };
            let (wanted, offset) = (range.end - range.start, range.start);
            let answer = answer.map_err(|_| {
                Failure::Retry(Error::timeout(format!(
                    "{}: no answer for {wanted} bytes at offset {offset} within {:?}: check the network or raise timeout",
                    what(),
                    self.timeout.unwrap_or_default()
                )))
            })?;
            let bytes = match answer {
                Ok(bytes) => bytes,
                Err(e) => return Err(self.diagnosed(Failure::of(e, &what()), key, &range, &what()).await),
            };
            let got = bytes.len() as u64;
            if got != wanted {
                return Err(Failure::Final(short_read(&what(), key.as_ref(), offset, wanted, got)));
            }
            // Waiting for the link is waiting with the connection busy: the permit is held.
            if let Some(pacer) = &self.pacer {
                pacer.pass(got).await;
            }
            Ok(bytes)
        })
        .await
    }

    /// A range beyond an object's end is refused by stores in words of their own: the object's size tells it apart from
    /// trouble that passes.
    async fn diagnosed(&self, failure: Failure, key: &Path, range: &Range<u64>, what: &str) -> Failure {
        let Failure::Retry(_) = &failure else { return failure };
        match tokio::time::timeout(self.timeout.unwrap_or(Duration::MAX), self.plain.head(key)).await {
            Ok(Ok(meta)) if meta.size < range.end => {
                let got = meta.size.saturating_sub(range.start);
                Failure::Final(short_read(what, key.as_ref(), range.start, range.end - range.start, got))
            }
            _ => failure,
        }
    }

    async fn once(&self, key: &Path, range: Range<u64>, etag: Option<&str>) -> object_store::Result<Bytes> {
        if self.by_ranges {
            let mut got = self.samples.get_ranges(key, std::slice::from_ref(&range)).await?;
            return Ok(got.pop().unwrap_or_default());
        }
        let options =
            GetOptions { range: Some(range.into()), if_match: etag.map(str::to_owned), ..GetOptions::default() };
        self.samples.get_opts(key, options).await?.bytes().await
    }

    /// Size and stamp of an object; `None` when there is none.
    pub(super) fn head(&self, key: &Path) -> Result<Option<(u64, Stamp)>> {
        let answer = self.limited(self.plain.head(key), key)?;
        match answer {
            Ok(meta) => {
                let modified_ns = i128::from(meta.last_modified.timestamp_nanos_opt().unwrap_or(0));
                Ok(Some((meta.size, Stamp { etag: meta.e_tag, modified_ns })))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(Failure::of(e, key.as_ref()).into_error()),
        }
    }

    /// Every object below a prefix, with its size, sorted by key.
    pub(super) fn list(&self, prefix: &Path) -> Result<Vec<(String, u64)>> {
        let listing = async {
            let mut found = Vec::new();
            let mut objects = self.plain.list(Some(prefix));
            while let Some(object) = objects.next().await {
                let object = object?;
                found.push((object.location.to_string(), object.size));
            }
            Ok(found)
        };
        // A listing has many pages: no limit on the whole.
        let mut found = self.wait(listing)?.map_err(|e| Failure::of(e, prefix.as_ref()).into_error())?;
        found.sort_unstable();
        Ok(found)
    }

    fn limited<T>(&self, work: impl Future<Output = T>, key: &Path) -> Result<T> {
        let limit = self.timeout.unwrap_or(Duration::MAX);
        self.wait(async { tokio::time::timeout(limit, work).await })?.map_err(|_| {
            Error::timeout(format!("{key}: no answer within {limit:?}: check the network or raise timeout"))
        })
    }
}

/// Up to [`ATTEMPTS`] attempts, with growing pauses between.
pub(super) async fn retried<T, F: Future<Output = Result<T, Failure>>>(mut attempt: impl FnMut() -> F) -> Result<T> {
    let mut made = 0;
    loop {
        made += 1;
        match attempt().await {
            Ok(answer) => return Ok(answer),
            Err(Failure::Final(e)) => return Err(e),
            Err(Failure::Retry(e)) if made >= ATTEMPTS => {
                return Err(Error::new(e.kind(), format!("{e} ({ATTEMPTS} attempts)")));
            }
            Err(Failure::Retry(e)) => {
                tracing::debug!(error = %e, made, "retrying");
                tokio::time::sleep(BACKOFF * 4u32.pow(made - 1)).await;
            }
        }
    }
}

/// What a store's error means for the next attempt.
#[derive(Debug)]
pub(super) enum Failure {
    Retry(Error),
    Final(Error),
}

impl Failure {
    fn of(e: object_store::Error, what: &str) -> Self {
        use object_store::Error as E;
        let (retry, remedy) = match &e {
            E::NotFound { .. } => (false, "does not exist: check the URL"),
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => {
                (false, "may not be read: check the credentials and their permissions")
            }
            E::Precondition { .. } | E::NotModified { .. } => {
                (false, "changed since it was indexed: open the dataset again")
            }
            E::InvalidPath { .. }
            | E::NotSupported { .. }
            | E::NotImplemented { .. }
            | E::UnknownConfigurationKey { .. } => (false, "cannot be read from this store"),
            _ => (true, "could not be read: check the network"),
        };
        let error = Error::unreadable(format!("{what} {remedy}")).because(e);
        if retry { Failure::Retry(error) } else { Failure::Final(error) }
    }

    fn into_error(self) -> Error {
        match self {
            Failure::Retry(e) | Failure::Final(e) => e,
        }
    }
}

/// Reads samples of a catalog from a store.
pub(super) struct StoreReader {
    pub(super) store: Store,
    /// Keys of the catalog's shards.
    pub(super) shards: Vec<Path>,
    /// What names of whole-object samples are relative to.
    pub(super) root: Path,
}

impl StoreReader {
    async fn sample(&self, catalog: &Catalog, id: SampleId) -> Result<Bytes> {
        let missing = || Error::internal(format!("sample {id} is not in the catalog"));
        let place = catalog.place(id).ok_or_else(missing)?;
        let range = place.offset..place.offset + u64::from(place.bytes);
        let name = || catalog.name(id);
        if place.shard == Place::OWN_FILE {
            let key = below(&self.root, catalog.names.get(id as usize))?;
            return self.store.range(&key, range, None, &name).await;
        }
        let key = self.shards.get(place.shard as usize).ok_or_else(missing)?;
        let etag = catalog.shards.get(place.shard as usize).and_then(|s| s.stamp.etag.as_deref());
        self.store.range(key, range, etag, &name).await
    }
}

/// The key of `name` below `root`.
pub(super) fn below(root: &Path, name: &str) -> Result<Path> {
    let text = if root.as_ref().is_empty() { name.to_owned() } else { format!("{root}/{name}") };
    Path::parse(&text).map_err(|e| Error::unreadable(format!("{text} is no valid key: rename it")).because(e))
}

impl Reader for StoreReader {
    fn read(
        &self,
        catalog: &Catalog,
        wanted: &[(usize, SampleId)],
        sink: &mut dyn FnMut(usize, SampleId, Result<&[u8]>) -> ControlFlow<()>,
    ) {
        let mut answered = 0;
        let work = async {
            let mut answers = stream::iter(wanted)
                .map(|&(k, id)| async move { (k, id, self.sample(catalog, id).await) })
                .buffer_unordered(self.store.connections);
            while let Some((k, id, answer)) = answers.next().await {
                answered += 1;
                let going = match answer {
                    Ok(bytes) => sink(k, id, Ok(&bytes)),
                    Err(e) => sink(k, id, Err(e)),
                };
                // Requests under way are dropped with their stream.
                if going.is_break() {
                    break;
                }
            }
        };
        if let Err(e) = self.store.wait(work) {
            // Nothing has run: every position gets the reason.
            for &(k, id) in wanted.iter().skip(answered) {
                if sink(k, id, Err(Error::new(e.kind(), e.to_string()))).is_break() {
                    return;
                }
            }
        }
    }
}
