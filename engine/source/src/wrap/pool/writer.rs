//! The task that writes to the pool: fetched samples, and how important they are. No caller waits for it: its queue is
//! bounded in bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use redis::ErrorKind;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::keys::Keys;
use super::server::{Item, Put, Server};
use super::value::Key;
use super::{Counts, Rated};
use crate::types::SampleId;

/// Bytes that may wait.
const QUEUE_BYTES: u64 = 64 << 20;
/// A request has so many bytes of samples and one more sample at most: the server serves no other request while it runs
/// the script.
const REQUEST_BYTES: usize = 1 << 20;
/// A request that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Samples whose importance one request changes.
const RATED_AT_ONCE: usize = 4096;

/// A task in the queue.
pub(super) enum Job {
    /// A sample, and the importances of the run that fetched it.
    Keep(Item, Option<Arc<Rated>>),
    /// These samples have other importances.
    Rate(Vec<SampleId>, Arc<Rated>),
}

/// See the module's head.
pub(super) struct Writer {
    queue: Option<UnboundedSender<Job>>,
    waiting: Arc<AtomicU64>,
}

impl Writer {
    pub(super) fn start(runtime: &Runtime, server: Arc<Server>, keys: Arc<Keys>, counts: Arc<Counts>) -> Self {
        let (queue, items) = unbounded_channel();
        let waiting = Arc::<AtomicU64>::default();
        runtime.spawn(write(server, keys, counts, items, Arc::clone(&waiting)));
        Self { queue: Some(queue), waiting }
    }

    /// Queues a job of so many bytes; false where there is no room for it.
    pub(super) fn offer(&self, bytes: usize, job: impl FnOnce() -> Job) -> bool {
        let bytes = bytes as u64;
        if self.waiting.fetch_add(bytes, Relaxed) + bytes > QUEUE_BYTES {
            self.waiting.fetch_sub(bytes, Relaxed);
            return false;
        }
        self.queue.as_ref().is_some_and(|queue| queue.send(job()).is_ok())
    }

    /// Leaves the queue as it is: the task is the parent process's, and waking it would take locks of the parent.
    pub(super) fn abandon(&mut self) {
        std::mem::forget(self.queue.take());
    }
}

async fn write(
    server: Arc<Server>,
    keys: Arc<Keys>,
    counts: Arc<Counts>,
    mut queue: UnboundedReceiver<Job>,
    waiting: Arc<AtomicU64>,
) {
    while let Some(mut job) = queue.recv().await {
        let (mut items, mut run, mut bytes) = (Vec::new(), None, 0);
        loop {
            match job {
                Job::Keep(item, rated) => {
                    bytes += item.data.len();
                    items.push(item);
                    run = rated.or(run);
                }
                Job::Rate(ids, rated) => {
                    rate(&server, &keys, &ids, &rated).await;
                    waiting.fetch_sub(size_of_val(ids.as_slice()) as u64, Relaxed);
                }
            }
            match queue.try_recv() {
                Ok(next) if bytes < REQUEST_BYTES => job = next,
                Ok(next) => {
                    keep(&server, &keys, &counts, &items, run.as_deref()).await;
                    waiting.fetch_sub(bytes as u64, Relaxed);
                    (items, bytes, job) = (Vec::new(), 0, next);
                }
                Err(_) => break,
            }
        }
        keep(&server, &keys, &counts, &items, run.as_deref()).await;
        waiting.fetch_sub(bytes as u64, Relaxed);
    }
}

async fn keep(server: &Server, keys: &Keys, counts: &Counts, items: &[Item], rated: Option<&Rated>) {
    if items.is_empty() {
        return;
    }
    let run = rated.map_or("", |rated| &rated.run);
    let put = tokio::time::timeout(PATIENCE, server.put(items, run)).await;
    let put = put.unwrap_or_else(|_| Err((ErrorKind::Io, "the server did not answer in time").into()));
    let put = put.unwrap_or_else(|e| {
        tracing::debug!(error = %e, "the pool keeps nothing");
        server.disconnect();
        vec![Put::Failed; items.len()]
    });
    for (item, put) in items.iter().zip(put) {
        let count = match put {
            Put::Written { evicted } => {
                keys.set(item.id, true);
                counts.evicted.fetch_add(evicted, Relaxed);
                &counts.written
            }
            Put::Declined => &counts.declined,
            Put::Failed => &counts.dropped,
        };
        count.fetch_add(1, Relaxed);
    }
}

async fn rate(server: &Server, keys: &Keys, ids: &[SampleId], rated: &Rated) {
    for ids in ids.chunks(RATED_AT_ONCE) {
        let worths: Vec<(Key, f32)> = ids.iter().filter_map(|&id| Some((keys.of(id)?, rated.worth(id)))).collect();
        match tokio::time::timeout(PATIENCE, server.rate(&worths, &rated.run)).await {
            Ok(Ok(())) => {}
            failed => {
                tracing::debug!(?failed, "the pool keeps what mattered before");
                return server.disconnect();
            }
        }
    }
}
