//! Connections are free again as soon as their bytes are there, whatever the thread that wants them is busy with; and
//! reading ahead leaves some for second requests.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::sync::Semaphore;

use crate::options::OpenOptions;
use crate::place::open_in;
use crate::runtime;
use crate::sample::Source;
use crate::tests::png;

/// Objects in memory whose answers take a moment, and the first one for one object until it is let.
#[derive(Debug)]
struct Counting {
    inner: InMemory,
    let_go: Semaphore,
    held: AtomicUsize,
    under_way: AtomicUsize,
    most_under_way: AtomicUsize,
}

/// With `objects` in it.
fn counting(objects: u8) -> Arc<Counting> {
    let store = Arc::new(Counting {
        inner: InMemory::new(),
        let_go: Semaphore::new(0),
        held: AtomicUsize::new(0),
        under_way: AtomicUsize::new(0),
        most_under_way: AtomicUsize::new(0),
    });
    for k in 0..objects {
        let key = Path::parse(format!("d/c/{k}.png")).unwrap();
        runtime::shared().unwrap().block_on(store.inner.put(&key, png(k).into())).unwrap();
    }
    store
}

const HELD_BACK: &str = "d/c/1.png";

impl fmt::Display for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("counting")
    }
}

#[async_trait]
impl ObjectStore for Counting {
    async fn put_opts(&self, to: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(to, payload, options).await
    }
    async fn put_multipart_opts(&self, to: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(to, options).await
    }
    async fn get_opts(&self, from: &Path, options: GetOptions) -> Result<GetResult> {
        let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_under_way.fetch_max(now, Ordering::SeqCst);
        // No request is answered before those asked with it are under way too.
        tokio::time::sleep(Duration::from_millis(5)).await;
        if from.as_ref() == HELD_BACK && self.held.fetch_add(1, Ordering::SeqCst) == 0 {
            drop(self.let_go.acquire().await);
        }
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        self.inner.get_opts(from, options).await
    }
    fn delete_stream(&self, these: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(these)
    }
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }
    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// Reads `ids`; says so at the first sample, and goes on when `release` is dropped.
fn read_slowly(source: &dyn Source, ids: &[u32], busy: &Sender<()>, release: &std::sync::Mutex<()>) -> usize {
    let mut got = 0;
    source.fetch(ids, &mut |_, payload| {
        got += usize::from(payload.is_ok());
        if got == 1 {
            busy.send(()).unwrap();
            drop(release.lock().unwrap());
        }
        ControlFlow::Continue(())
    });
    got
}

#[test]
fn threads_that_are_busy_with_a_sample_keep_no_connection_from_another_thread() {
    const CONNECTIONS: usize = 2;
    let store = counting(5);
    let options = OpenOptions { connections: CONNECTIONS, ..OpenOptions::default() };
    let source = open_in(store.clone(), "d", &options).unwrap();
    let release = std::sync::Mutex::new(());
    let (busy, is_busy) = channel();
    let (answered, answer) = channel();
    std::thread::scope(|scope| {
        let held = release.lock().unwrap();
        // One connection brings sample 0, whose reader is then busy; the other waits for sample 1.
        let first = scope.spawn(|| read_slowly(&*source, &[0, 1], &busy, &release));
        is_busy.recv().unwrap();
        // The free connection brings sample 2 or 3, whose reader is then busy too.
        let second = scope.spawn(|| read_slowly(&*source, &[2, 3], &busy, &release));
        is_busy.recv().unwrap();
        store.let_go.add_permits(1);
        // Nothing is under way for a busy reader that could not have come in: a third one is served.
        let third = scope.spawn(|| answered.send(read_slowly(&*source, &[4], &busy, &std::sync::Mutex::new(()))));
        let in_time = answer.recv_timeout(Duration::from_secs(20));
        drop(held);
        assert_eq!((first.join().unwrap(), second.join().unwrap()), (2, 2));
        drop(third.join());
        assert_eq!(in_time, Ok(1), "both connections were kept by threads that were busy");
    });
    let most = store.most_under_way.load(Ordering::SeqCst);
    assert!(most <= CONNECTIONS, "{most} requests at a time");
}

/// The first answer for sample 1 never comes. Requests ahead of need are as many as may be, all the time, and the second
/// request for it has a connection all the same. On a busy machine so many answers may be late before it that none may be
/// asked twice any more: then it is tried again.
#[test]
fn reading_ahead_leaves_a_connection_for_a_second_request() {
    assert!((0..6).any(|_| is_asked_twice()), "nobody asked a second time for what did not come");
}

fn is_asked_twice() -> bool {
    const CONNECTIONS: usize = 4;
    let store = counting(200);
    let options = OpenOptions { connections: CONNECTIONS, ..OpenOptions::default() };
    let source = open_in(store.clone(), "d", &options).unwrap();
    let held_back = (0..200).find(|&id| source.name(id).ends_with("c/1.png")).unwrap();
    // What is late is known from the samples before it; enough come after it to keep all lanes busy.
    let mut ids: Vec<u32> = (0..200).filter(|&id| id != held_back).collect();
    ids.insert(100, held_back);
    let (answered, answers) = channel();
    let came = std::thread::scope(|scope| {
        let (source, ids) = (&source, &ids);
        scope.spawn(move || {
            source.fetch_by(1, &|| false, ids, &mut |_, payload| {
                assert!(payload.is_ok());
                answered.send(()).unwrap();
                ControlFlow::Continue(())
            });
        });
        let came = (0..ids.len()).take_while(|_| answers.recv_timeout(Duration::from_secs(5)).is_ok()).count();
        store.let_go.add_permits(1);
        came
    });
    let most = store.most_under_way.load(Ordering::SeqCst);
    assert!(most <= CONNECTIONS, "{most} requests at a time");
    came == ids.len()
}
