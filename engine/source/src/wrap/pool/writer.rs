//! The task that writes to the pool what was fetched. No caller waits for it: its queue is bounded in bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Counts;
use super::server::{Item, Put, Server};

/// Bytes that may wait.
const QUEUE_BYTES: u64 = 64 << 20;
/// A request has so many bytes of samples and one more sample at most: the server serves no other request while it runs
/// the script.
const REQUEST_BYTES: usize = 1 << 20;
/// A request that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the module's head.
pub(super) struct Writer {
    queue: Option<UnboundedSender<Item>>,
    waiting: Arc<AtomicU64>,
}

impl Writer {
    pub(super) fn start(runtime: &Runtime, server: Arc<Server>, counts: Arc<Counts>) -> Self {
        let (queue, items) = unbounded_channel();
        let waiting = Arc::<AtomicU64>::default();
        runtime.spawn(write(server, counts, items, Arc::clone(&waiting)));
        Self { queue: Some(queue), waiting }
    }

    /// Queues an item of so many bytes; false where there is no room for it.
    pub(super) fn offer(&self, bytes: usize, item: impl FnOnce() -> Item) -> bool {
        let bytes = bytes as u64;
        if self.waiting.fetch_add(bytes, Relaxed) + bytes > QUEUE_BYTES {
            self.waiting.fetch_sub(bytes, Relaxed);
            return false;
        }
        self.queue.as_ref().is_some_and(|queue| queue.send(item()).is_ok())
    }

    /// Leaves the queue as it is: the task is the parent process's, and waking it would take locks of the parent.
    pub(super) fn abandon(&mut self) {
        std::mem::forget(self.queue.take());
    }
}

async fn write(server: Arc<Server>, counts: Arc<Counts>, mut queue: UnboundedReceiver<Item>, waiting: Arc<AtomicU64>) {
    let mut items = Vec::new();
    while let Some(first) = queue.recv().await {
        let mut bytes = first.data.len();
        items.push(first);
        while bytes < REQUEST_BYTES
            && let Ok(item) = queue.try_recv()
        {
            bytes += item.data.len();
            items.push(item);
        }
        let number = |of: Put, put: &[Put]| put.iter().filter(|&&put| put == of).count() as u64;
        let put = match tokio::time::timeout(PATIENCE, server.put(&items)).await {
            Ok(Ok(put)) => put,
            failed => {
                if let Ok(Err(e)) = failed {
                    tracing::debug!(error = %e, "the pool keeps nothing");
                }
                server.disconnect();
                vec![Put::Failed; items.len()]
            }
        };
        for (count, of) in
            [(&counts.written, Put::Written), (&counts.declined, Put::Declined), (&counts.dropped, Put::Failed)]
        {
            count.fetch_add(number(of, &put), Relaxed);
        }
        items.clear();
        waiting.fetch_sub(bytes as u64, Relaxed);
    }
}
