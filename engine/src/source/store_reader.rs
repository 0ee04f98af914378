//! Samples behind an object store: one request a sample.

use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use tokio::task::JoinSet;

use super::catalog::{Catalog, Place};
use super::identity::Mark;
use super::reader::Reader;
use super::store::{Store, Wanted};
use crate::error::{Error, Result};
use crate::types::SampleId;

/// How often a wait for a store looks whether anybody still wants the answer.
const STOP_SOON: Duration = Duration::from_millis(50);

/// Reads samples of a catalog from a store.
pub(super) struct StoreReader(Arc<Stored>);

/// What its requests share.
struct Stored {
    store: Store,
    /// Keys of the catalog's shards.
    shards: Vec<Path>,
    /// What names of whole-object samples are relative to.
    root: Path,
}

impl StoreReader {
    /// Over the `shards` of a catalog by their keys, or over objects below `root`.
    pub(super) fn new(store: Store, shards: Vec<Path>, root: Path) -> Self {
        Self(Arc::new(Stored { store, shards, root }))
    }
}

impl Stored {
    async fn sample(&self, catalog: &Catalog, id: SampleId) -> Result<Bytes> {
        let missing = || Error::internal(format!("sample {id} is not in the catalog"));
        let place = catalog.place(id).ok_or_else(missing)?;
        let (start, bytes) = (place.offset, u64::from(place.bytes));
        let what = || catalog.name(id);
        let sound = |data: &[u8]| catalog.verify(id, data);
        let requests = &AtomicU64::new(0);
        if place.shard == Place::OWN_FILE {
            let key = below(&self.root, catalog.names.get(id as usize))?;
            let mark = catalog.mark(id);
            let wanted = Wanted { key: &key, start, bytes, total: bytes, mark, if_match: None, what: &what, requests };
            return self.store.range(wanted, &sound).await;
        }
        let (key, shard) =
            self.shards.get(place.shard as usize).zip(catalog.shards.get(place.shard as usize)).ok_or_else(missing)?;
        let if_match = shard.stamp.if_match();
        let mark = Mark::of(&shard.stamp);
        let (total, if_match) = (shard.bytes, if_match.as_deref());
        let wanted = Wanted { key, start, bytes, total, mark, if_match, what: &what, requests };
        self.store.range(wanted, &sound).await
    }
}

/// The key of `name` below `root`.
pub(super) fn below(root: &Path, name: &str) -> Result<Path> {
    let text = if root.as_ref().is_empty() { name.to_owned() } else { format!("{root}/{name}") };
    Path::parse(&text).map_err(|e| Error::unreadable(format!("{text} is no valid key: rename it")).because(e))
}

impl Reader for StoreReader {
    fn remote(&self) -> bool {
        true
    }

    /// Every request is a task of the runtime, so that its answer comes in and its connection is free again while the
    /// calling thread is still busy with an earlier sample. Memory stays bounded: a call has at most as many requests
    /// under way, and answers that wait for it, as the store has connections.
    fn read(
        &self,
        catalog: &Arc<Catalog>,
        wanted: &[(usize, SampleId)],
        stopped: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(usize, SampleId, Result<&[u8]>) -> ControlFlow<()>,
    ) {
        let mut answered = 0;
        let work = async {
            let (mut to_ask, mut asked) = (wanted.iter(), JoinSet::new());
            loop {
                while asked.len() < self.0.store.connections()
                    && let Some(&(k, id)) = to_ask.next()
                {
                    let (stored, catalog) = (Arc::clone(&self.0), Arc::clone(catalog));
                    asked.spawn(async move { (k, id, stored.sample(&catalog, id).await) });
                }
                // A store that does not serve is asked for minutes: nobody may want its answer by then.
                let Ok(next) = tokio::time::timeout(STOP_SOON, asked.join_next()).await else {
                    if stopped() {
                        break;
                    }
                    continue;
                };
                let (k, id, answer) = match next {
                    Some(Ok(answer)) => answer,
                    // As if it had happened on this thread, which knows what to do about it.
                    Some(Err(lost)) => match lost.try_into_panic() {
                        Ok(panic) => resume_unwind(panic),
                        Err(_) => break,
                    },
                    None => break,
                };
                answered += 1;
                let going = match answer {
                    Ok(bytes) => sink(k, id, Ok(&bytes)),
                    Err(e) => sink(k, id, Err(e)),
                };
                // Requests under way end with the set that holds them.
                if going.is_break() {
                    break;
                }
            }
        };
        if let Err(e) = self.0.store.wait(work) {
            // Nothing has run: every position gets the reason.
            for &(k, id) in wanted.iter().skip(answered) {
                if sink(k, id, Err(Error::new(e.kind(), e.to_string()))).is_break() {
                    return;
                }
            }
        }
    }
}
