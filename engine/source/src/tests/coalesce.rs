//! Truths about samples that come together: the same samples, the same errors, fewer requests. The twin is a request a
//! sample.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use lossfeed_sync::Mutex;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use proptest::prelude::*;

use crate::options::{OpenOptions, Throttle};
use crate::place::open_in;
use crate::runtime;
use crate::sample::{News, Source, Traffic};
use crate::tests::{archive, png};
use crate::types::SampleId;

/// What is wrong with a store that was indexed while it was well.
#[derive(Debug, Clone, Default)]
struct Wrongs {
    /// Bytes that come with another value.
    damaged: Vec<u64>,
    /// A range that reaches here ends here.
    cut_at: Option<u64>,
    /// So many answers end in their middle.
    cut_answers: usize,
    /// No answer comes.
    hangs: bool,
}

/// Objects in memory, read with these wrongs; what was asked for is noted.
#[derive(Debug, Default)]
struct Wrong {
    inner: InMemory,
    wrongs: Mutex<Wrongs>,
    asked: Mutex<Vec<Range<u64>>>,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("wrong")
    }
}

impl Wrong {
    /// What comes of an answer.
    fn told(&self, range: &Range<u64>, bytes: &Bytes) -> Vec<u8> {
        let (mut wrongs, mut bytes) = (self.wrongs.lock(), bytes.to_vec());
        for at in wrongs.damaged.iter().filter(|at| range.contains(at)) {
            bytes[(at - range.start) as usize] ^= 1;
        }
        if let Some(cut) = wrongs.cut_at.filter(|cut| range.contains(cut)) {
            bytes.truncate((cut - range.start) as usize);
        }
        if wrongs.cut_answers > 0 {
            wrongs.cut_answers -= 1;
            bytes.truncate(bytes.len() / 2);
        }
        bytes
    }
}

#[async_trait]
impl ObjectStore for Wrong {
    async fn put_opts(&self, to: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(to, payload, options).await
    }
    async fn put_multipart_opts(&self, to: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(to, options).await
    }
    async fn get_opts(&self, from: &Path, options: GetOptions) -> Result<GetResult> {
        let Some(GetRange::Bounded(range)) = options.range.clone() else {
            return self.inner.get_opts(from, options).await;
        };
        self.asked.lock().push(range.clone());
        if self.wrongs.lock().hangs {
            std::future::pending::<()>().await;
        }
        let answer = self.inner.get_opts(from, options).await?;
        let (meta, attributes, told) = (answer.meta.clone(), answer.attributes.clone(), answer.range.clone());
        let body = self.told(&range, &answer.bytes().await?);
        // In pieces, as networks bring it.
        let pieces: Vec<_> = body.chunks(1000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        let payload = GetResultPayload::Stream(stream::iter(pieces).boxed());
        Ok(GetResult { payload, meta, range: told, attributes, extensions: Default::default() })
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

/// Shards of images of these sizes.
fn holding(shards: &[Vec<usize>]) -> Arc<Wrong> {
    let store = Arc::new(Wrong::default());
    for (s, sizes) in shards.iter().enumerate() {
        let bodies: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(n, &size)| vec![(n + s) as u8; size]).collect();
        let names: Vec<String> = (0..sizes.len()).map(|n| format!("c/{n}.png")).collect();
        let members: Vec<(&str, &[u8])> =
            names.iter().map(String::as_str).zip(bodies.iter().map(Vec::as_slice)).collect();
        let key = Path::from(format!("{s}.tar"));
        runtime::shared().unwrap().block_on(store.inner.put(&key, archive(&members).into())).unwrap();
    }
    store
}

fn opened(store: &Arc<Wrong>, latency: Option<Duration>, coalesce: bool, checksums: bool) -> Arc<dyn Source> {
    let throttle = latency.map(|latency| Throttle { latency, bandwidth_bytes_per_s: None });
    let connections = if latency.is_some() { 1 } else { 4 };
    let options = OpenOptions { coalesce, checksums, connections, throttle, ..OpenOptions::default() };
    let source = open_in(store.clone(), "*.tar", &options).unwrap();
    // What was read with the headers.
    source.tell(News::Room(0));
    store.asked.lock().clear();
    source
}

/// With one connection a wait that is worth far more than what lies between neighbours, however slow this machine is.
const SOME: Option<Duration> = Some(Duration::from_millis(10));

type Told = BTreeMap<usize, std::result::Result<(Vec<u8>, Vec<u8>), String>>;

/// What the source answers for `ids`, by position, and what it took.
fn fetched(source: &dyn Source, ids: &[SampleId]) -> (Told, Traffic) {
    let mut told = Told::new();
    let traffic = source.fetch_by(u64::MAX, &|| false, ids, &mut |k, payload| {
        let payload = payload.map(|p| (p.data.to_vec(), p.target.to_vec())).map_err(|e| e.to_string());
        assert!(told.insert(k, payload).is_none(), "position {k} twice");
        ControlFlow::Continue(())
    });
    assert_eq!(told.len(), ids.len(), "every position once");
    (told, traffic)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn samples_that_come_together_are_those_that_come_alone(
        shards in prop::collection::vec(
            prop::collection::vec(prop_oneof![8 => 1usize..6000, 1 => Just(0usize), 1 => 1usize..300_000], 1..40),
            1..4,
        ),
        chosen in prop::collection::vec(any::<bool>(), 120),
        turns in any::<u64>(),
        damaged in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        cut_at in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        cut_answers in 0usize..3,
        checksums in any::<bool>(),
    ) {
        let store = holding(&shards);
        let (together, alone) = (opened(&store, None, true, checksums), opened(&store, None, false, checksums));
        // Some of the samples, in another order than they lie in.
        let mut ids: Vec<SampleId> = (0..together.len() as SampleId).filter(|&id| chosen[id as usize]).collect();
        let mix = |id: SampleId| (u64::from(id) + 1).wrapping_mul(turns | 1).rotate_left(17);
        if turns % 3 > 0 {
            ids.sort_by_key(|&id| mix(id));
        }
        let end = 600 * shards.iter().flatten().count() + shards.iter().flatten().sum::<usize>();
        let at = |index: prop::sample::Index| index.index(end) as u64;
        let wrongs = Wrongs { damaged: damaged.into_iter().map(at).collect(), cut_at: cut_at.map(at), ..Wrongs::default() };
        *store.wrongs.lock() = wrongs.clone();
        let (expected, one_each) = fetched(&*alone, &ids);
        let requests = store.asked.lock().len() as u64;
        prop_assert_eq!(one_each, Traffic { requests, ..Traffic::default() });
        store.asked.lock().clear();
        let (told, _) = fetched(&*together, &ids);
        prop_assert_eq!(&told, &expected);

        // Answers that are cut once: asked again, and everything comes as before.
        *store.wrongs.lock() = Wrongs { cut_answers: if cut_at.is_some() { 0 } else { cut_answers }, ..wrongs };
        store.asked.lock().clear();
        let (told, traffic) = fetched(&*together, &ids);
        if cut_answers < 2 {
            prop_assert_eq!(&told, &expected);
        }
        prop_assert_eq!(traffic.requests, store.asked.lock().len() as u64);
    }
}

#[test]
fn an_epoch_in_order_takes_a_request_for_dozens_of_samples_and_reads_little_in_vain() {
    let store = holding(&[vec![3000; 1000]]);
    let source = opened(&store, SOME, true, false);
    let mut all = Traffic::default();
    for batch in (0..1000).collect::<Vec<SampleId>>().chunks(64) {
        let (told, traffic) = fetched(&*source, batch);
        assert!(told.values().all(std::result::Result::is_ok));
        all += traffic;
    }
    assert_eq!(all.requests, store.asked.lock().len() as u64);
    assert!(all.requests <= 100, "{all:?}");
    // A header and padding each.
    assert!(all.vain_bytes <= 1000 * (512 + 511), "{all:?}");
    let longest = store.asked.lock().iter().map(|r| r.end - r.start).max();
    assert!(longest.is_some_and(|bytes| bytes <= 512 << 10), "{longest:?}");
}

#[test]
fn what_is_needed_one_behind_the_other_and_by_nobody_yet_takes_a_request_a_lane() {
    let store = holding(&[vec![3000; 2000], vec![3000; 300]]);
    let source = opened(&store, SOME, true, false);
    let in_order: Vec<SampleId> = (0..2000).collect();
    let asked = |ids: &[SampleId], request_bytes| {
        store.asked.lock().clear();
        let mut came = 0;
        source.fetch_by(request_bytes, &|| false, ids, &mut |k, payload| {
            assert_eq!(payload.unwrap().data, vec![(ids[k] % 2000 + ids[k] / 2000) as u8; 3000]);
            came += 1;
            ControlFlow::Continue(())
        });
        assert_eq!(came, ids.len());
        store.asked.lock().iter().map(|range| range.end - range.start).collect::<Vec<u64>>()
    };
    // 7.2 MB through one lane; where they were cut by 512 KB they took fourteen.
    let early = asked(&in_order, 16 << 10);
    assert!(early.len() <= 3 && early.iter().all(|&bytes| bytes <= 8 << 20), "{early:?}");
    // Who comes along is who lies in the same requests: a call for 1.5 MB has no longer ones.
    let along = source.along(&in_order, 500, 16 << 10);
    assert!(along.len() <= 500 && along.iter().copied().eq(500..500 + along.len()), "{along:?}");
    // Somebody waits for each, or others are needed in between: not longer than they were.
    for (ids, request_bytes) in [
        (in_order.clone(), u64::MAX),
        ((0..1000).flat_map(|id| [id, 1000 + id]).collect(), 16 << 10),
        ((0..2000).rev().collect(), 16 << 10),
    ] {
        let asked = asked(&ids, request_bytes);
        assert!(asked.iter().all(|&bytes| bytes <= 512 << 10), "{asked:?}");
    }
}

#[test]
fn a_shuffled_epoch_of_runs_of_neighbours_takes_a_request_for_ten_samples_at_most() {
    let store = holding(&[vec![3000; 2048], vec![900; 2048]]);
    let source = opened(&store, SOME, true, false);
    // Runs of 64 neighbours in an order drawn by chance, and a fifth of the samples cached.
    let mix = |n: u64| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    let mut runs: Vec<Vec<SampleId>> = (0..4096).collect::<Vec<_>>().chunks(64).map(<[_]>::to_vec).collect();
    runs.sort_by_key(|run| mix(u64::from(run[0])));
    let missed: Vec<SampleId> = runs.concat().into_iter().filter(|&id| mix(u64::from(id) + 5000) % 5 > 0).collect();
    let mut all = Traffic::default();
    for batch in missed.chunks(256) {
        let (told, traffic) = fetched(&*source, batch);
        assert!(told.values().all(std::result::Result::is_ok));
        all += traffic;
    }
    assert!((3000..3500).contains(&missed.len()) && all.requests as usize * 10 <= missed.len(), "{all:?}");
}

#[test]
fn a_sample_that_is_not_sound_has_its_own_error_and_its_neighbours_come() {
    let store = holding(&[vec![3000; 20]]);
    let source = opened(&store, SOME, true, true);
    // Within the eleventh sample: each takes a header and six blocks.
    store.wrongs.lock().damaged.push(10 * 3584 + 600);
    let (told, _) = fetched(&*source, &(0..20).collect::<Vec<_>>());
    for (k, answer) in told {
        match answer {
            Ok((data, _)) => assert_eq!((k != 10, data), (true, vec![k as u8; 3000])),
            Err(e) => assert!(k == 10 && e.contains("0.tar/c/10.png has the checksum"), "{k}: {e}"),
        }
    }
    // Few for all, then four for the one that is bad.
    let asked = store.asked.lock().clone();
    let alone = asked.iter().filter(|range| range.end - range.start == 3000).count();
    assert!(alone == 4 && asked.len() <= 10, "{asked:?}");
}

#[test]
fn a_replaced_shard_is_refused_sample_by_sample() {
    let store = holding(&[vec![3000; 5], vec![2000; 5]]);
    let source = opened(&store, SOME, true, false);
    let other = archive(&[("c/0.png", &png(1))]);
    runtime::shared().unwrap().block_on(store.inner.put(&Path::from("0.tar"), other.into())).unwrap();
    let (told, _) = fetched(&*source, &(0..10).collect::<Vec<_>>());
    for (k, answer) in told {
        let named = format!("0.tar/c/{k}.png changed since it was indexed");
        assert_eq!(answer.is_ok(), k >= 5);
        assert!(answer.map_or_else(|e| e.contains(&named), |_| true));
    }
}

#[test]
fn whoever_has_enough_gets_no_more_of_what_came_together() {
    let store = holding(&[vec![3000; 50]]);
    let source = opened(&store, SOME, true, false);
    for enough in [1, 7] {
        let mut got = 0;
        source.fetch_by(u64::MAX, &|| false, &(0..50).collect::<Vec<_>>(), &mut |_, payload| {
            got += usize::from(payload.is_ok());
            if got == enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(got, enough);
    }
    // Nobody wants an answer that takes an hour.
    let throttle = Some(Throttle { latency: Duration::from_secs(3600), bandwidth_bytes_per_s: None });
    let slow = OpenOptions { throttle, timeout: None, ..OpenOptions::default() };
    let folder = Arc::new(InMemory::new());
    for n in 0..3u8 {
        runtime::shared().unwrap().block_on(folder.put(&Path::from(format!("c/{n}.png")), png(n).into())).unwrap();
    }
    let source = open_in(folder, "", &slow).unwrap();
    let mut answers = 0;
    source.fetch_by(u64::MAX, &|| true, &[0, 1, 2], &mut |_, _| {
        answers += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(answers, 0);
}

#[test]
fn an_outage_is_told_once_for_all_and_of_each() {
    let store = holding(&[vec![3000; 30]]);
    let options = OpenOptions {
        throttle: None,
        timeout: Some(Duration::from_millis(20)),
        retry_timeout: Duration::from_millis(60),
        ..OpenOptions::default()
    };
    let source = open_in(store.clone(), "*.tar", &options).unwrap();
    source.tell(News::Room(0));
    store.wrongs.lock().hangs = true;
    store.asked.lock().clear();
    let mut kinds = Vec::new();
    source.fetch_by(u64::MAX, &|| false, &(0..30).collect::<Vec<_>>(), &mut |_, payload| {
        let e = payload.map(|_| ()).unwrap_err();
        assert!(e.to_string().contains("nothing is known to be wrong with the data"), "{e}");
        kinds.push(e.kind());
        ControlFlow::Continue(())
    });
    assert_eq!(kinds, [crate::error::ErrorKind::Outage; 30]);
    let asked = store.asked.lock().len();
    assert!(asked <= 4, "{asked} requests");
}
