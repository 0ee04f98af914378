//! Truths about samples that come by lists: the same samples and the same errors as by ranges, with a tenth of the
//! requests at most, whatever the store's stream says. The twin is the same store without lists.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use lossfeed_sync::Mutex;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt};
use proptest::prelude::*;

use super::failure::Maker;
use super::lister::{Entry, Lister, Pieces};
use super::store::Store;
use super::tests::archive;
use super::{OpenOptions, Source, Traffic, runtime, store_open};
use crate::types::SampleId;

/// What is wrong with one answer.
#[derive(Debug, Clone)]
enum Wrong {
    Nothing,
    /// It ends after this share of its bytes.
    Cut(f64),
    /// Its archive ends, as archives do, before this entry.
    Ends(usize),
    Missing(usize),
    /// Missing, and not empty.
    MissingWithBytes(usize),
    /// Another entry's place.
    Swapped(usize),
    Renamed(usize),
    Longer(usize),
    Damaged(usize),
    NoArchive,
    /// The connection breaks before anything comes.
    Breaks,
    /// The store does not know lists.
    Unknown,
    Busy,
}

/// A store that takes lists of the members of its shards.
#[derive(Default)]
struct Fake {
    bodies: HashMap<String, Vec<u8>>,
    /// Of the answers to come; then there are sound ones.
    wrongs: Mutex<Vec<Wrong>>,
    asked: Mutex<Vec<Vec<Entry>>>,
    by_name: bool,
    hangs: AtomicBool,
}

struct Listing(Arc<Fake>);

impl Fake {
    fn answer(&self, entries: &[Entry], wrong: &Wrong) -> Vec<u8> {
        let mut members: Vec<(String, Vec<u8>)> = Vec::new();
        for entry in entries {
            let name =
                entry.member.as_ref().map_or(entry.object.clone(), |member| format!("{}/{member}", entry.object));
            match self.bodies.get(&name) {
                Some(body) => members.push((format!("bucket/{name}"), body.clone())),
                None => members.push((format!("__404__/bucket/{name}"), Vec::new())),
            }
        }
        let count = members.len().max(1);
        let at = |n: &usize| n % count;
        match wrong {
            Wrong::Ends(n) => members.truncate(at(n)),
            Wrong::Missing(n) => members[at(n)] = (format!("__404__/{}", members[at(n)].0), Vec::new()),
            Wrong::MissingWithBytes(n) => members[at(n)].0 = format!("__404__/{}", members[at(n)].0),
            Wrong::Swapped(n) => members.swap(at(n), 0),
            Wrong::Renamed(n) => members[at(n)].0.push('x'),
            Wrong::Longer(n) => members[at(n)].1.push(0),
            Wrong::Damaged(n) => members[at(n)].1[0] ^= 1,
            _ => {}
        }
        let named: Vec<(&str, &[u8])> = members.iter().map(|(name, body)| (name.as_str(), body.as_slice())).collect();
        let mut bytes = archive(&named);
        match wrong {
            Wrong::Cut(share) => bytes.truncate((bytes.len() as f64 * share) as usize),
            Wrong::NoArchive => bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(31) ^ 0x5a),
            _ => {}
        }
        bytes
    }
}

impl Lister for Listing {
    fn ask(&self, entries: Arc<[Entry]>) -> BoxFuture<'static, object_store::Result<Pieces>> {
        let fake = Arc::clone(&self.0);
        Box::pin(async move {
            fake.asked.lock().push(entries.to_vec());
            let wrong = fake.wrongs.lock().pop().unwrap_or(Wrong::Nothing);
            let failed = |said: &str| Error::Generic { store: "fake", source: said.into() };
            if matches!(wrong, Wrong::Unknown) {
                return Err(Error::NotFound { path: "moss".to_owned(), source: "no such question".into() });
            }
            if matches!(wrong, Wrong::Busy) {
                return Err(failed("busy"));
            }
            if fake.hangs.load(Ordering::Relaxed) {
                return Ok(futures::stream::pending().boxed());
            }
            let broken = matches!(wrong, Wrong::Breaks | Wrong::Cut(_)).then(|| Err(failed("the connection broke")));
            let body = if matches!(wrong, Wrong::Breaks) { Vec::new() } else { fake.answer(&entries, &wrong) };
            let pieces: Vec<_> = body.chunks(1700).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
            Ok(futures::stream::iter(pieces.into_iter().chain(broken)).boxed())
        })
    }
    fn bucket(&self) -> &str {
        "bucket"
    }
    fn by_name(&self) -> bool {
        self.0.by_name
    }
}

/// Shards of samples of these sizes; with lists and without.
struct Made {
    inner: Arc<InMemory>,
    fake: Arc<Fake>,
    listed: Arc<dyn Source>,
    ranged: Arc<dyn Source>,
}

fn put(inner: &InMemory, s: usize, sizes: &[usize], salt: usize) -> Vec<(String, Vec<u8>)> {
    let body = |n: usize, size: usize| (0..size).map(|at| (at * 7 + n * 3 + s + salt) as u8).collect();
    let members: Vec<(String, Vec<u8>)> =
        sizes.iter().enumerate().map(|(n, &size)| (format!("c/{n}.png"), body(n, size))).collect();
    let named: Vec<(&str, &[u8])> = members.iter().map(|(name, body)| (name.as_str(), body.as_slice())).collect();
    let key = Path::from(format!("{s}.tar"));
    runtime::shared().unwrap().block_on(inner.put(&key, archive(&named).into())).unwrap();
    members
}

fn made(shards: &[Vec<usize>], checksums: bool, by_name: bool, timeout: Option<Duration>) -> Made {
    let inner = Arc::new(InMemory::new());
    let mut fake = Fake { by_name, ..Fake::default() };
    for (s, sizes) in shards.iter().enumerate() {
        fake.bodies.extend(put(&inner, s, sizes, 0).into_iter().map(|(name, body)| (format!("{s}.tar/{name}"), body)));
    }
    let fake = Arc::new(fake);
    let open = |lists: bool| {
        let options =
            OpenOptions { checksums, timeout, retry_timeout: Duration::from_secs(20), ..OpenOptions::default() };
        let mut store = Store::new(inner.clone(), Maker::Caller, &options).unwrap();
        store.lister = lists.then(|| Arc::new(Listing(Arc::clone(&fake))) as Arc<dyn Lister>);
        store_open::in_store(store, "fake:/", &["*.tar".to_owned()], &|_| None, &options).unwrap()
    };
    let (listed, ranged) = (open(true), open(false));
    fake.asked.lock().clear();
    Made { inner, fake, listed, ranged }
}

type Told = Vec<Option<Result<Vec<u8>, String>>>;

fn fetched(source: &dyn Source, ids: &[SampleId], stopped: &dyn Fn() -> bool) -> (Told, Traffic) {
    let mut told: Told = vec![None; ids.len()];
    let traffic = source.fetch_by(u64::MAX, stopped, ids, &mut |k, payload| {
        let answer = payload.map(|payload| payload.data.to_vec()).map_err(|e| e.to_string());
        assert!(told[k].replace(answer).is_none(), "position {k} twice");
        ControlFlow::Continue(())
    });
    (told, traffic)
}

fn shuffled(samples: usize, count: usize, turns: u64) -> Vec<SampleId> {
    let mut ids: Vec<SampleId> = (0..samples as SampleId).collect();
    ids.sort_by_key(|&id| (u64::from(id) + 1).wrapping_mul(turns | 1).rotate_left(17));
    ids.truncate(count);
    ids
}

fn any_wrong() -> impl Strategy<Value = Wrong> {
    prop_oneof![
        Just(Wrong::Nothing),
        (0.0..1.0f64).prop_map(Wrong::Cut),
        (0usize..200).prop_map(Wrong::Ends),
        (0usize..200).prop_map(Wrong::Missing),
        (0usize..200).prop_map(Wrong::MissingWithBytes),
        (1usize..200).prop_map(Wrong::Swapped),
        (0usize..200).prop_map(Wrong::Renamed),
        (0usize..200).prop_map(Wrong::Longer),
        (0usize..200).prop_map(Wrong::Damaged),
        Just(Wrong::NoArchive),
        Just(Wrong::Breaks),
        Just(Wrong::Unknown),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn samples_of_lists_are_those_of_ranges_whatever_the_stream_says(
        shards in prop::collection::vec(prop::collection::vec(prop_oneof![6 => 1usize..5000, 1 => Just(0usize), 1 => 1usize..90_000], 1..50), 1..4),
        count in 1usize..120,
        turns in any::<u64>(),
        wrongs in prop::collection::vec(any_wrong(), 0..5),
    ) {
        let made = made(&shards, true, false, None);
        let ids = shuffled(made.listed.len(), count, turns);
        let (expected, _) = fetched(&*made.ranged, &ids, &|| false);
        prop_assert!(made.fake.asked.lock().is_empty());
        *made.fake.wrongs.lock() = wrongs;
        for _ in 0..2 {
            let (told, traffic) = fetched(&*made.listed, &ids, &|| false);
            prop_assert_eq!(&told, &expected);
            prop_assert!(traffic.requests >= made.fake.asked.lock().len() as u64);
            made.fake.asked.lock().clear();
        }
    }
}

#[test]
fn a_shuffled_batch_is_one_request_where_ranges_take_more_than_ten_times_as_many() {
    let made = made(&[vec![3000; 600], vec![900; 600], vec![3000; 600]], true, false, None);
    let (mut lists, mut ranges) = (Traffic::default(), Traffic::default());
    for batch in shuffled(made.listed.len(), 1792, 0x9e37_79b9_7f4a_7c15).chunks(256) {
        let (expected, alone) = fetched(&*made.ranged, batch, &|| false);
        let (told, listed) = fetched(&*made.listed, batch, &|| false);
        assert_eq!(told, expected);
        assert!(told.iter().all(|answer| matches!(answer, Some(Ok(_)))));
        (lists, ranges) = (
            {
                lists += listed;
                lists
            },
            {
                ranges += alone;
                ranges
            },
        );
    }
    assert_eq!((lists.requests, lists.vain_bytes), (7, 0), "1792 samples in batches of 256");
    assert_eq!(made.fake.asked.lock().len(), 7);
    assert!(ranges.requests >= 10 * lists.requests, "{ranges:?}");
}

#[test]
fn fewer_than_sixteen_and_samples_without_checksums_come_by_ranges() {
    let proved = made(&[vec![500; 40]], true, false, None);
    fetched(&*proved.listed, &shuffled(40, 15, 5), &|| false);
    assert_eq!(proved.fake.asked.lock().len(), 0);
    fetched(&*proved.listed, &shuffled(40, 16, 5), &|| false);
    assert_eq!(proved.fake.asked.lock().len(), 1);
    for (by_name, lists) in [(false, 0), (true, 1)] {
        let unproved = made(&[vec![500; 40]], false, by_name, None);
        let (told, _) = fetched(&*unproved.listed, &shuffled(40, 40, 5), &|| false);
        assert!(told.iter().all(|answer| matches!(answer, Some(Ok(_)))));
        assert_eq!(unproved.fake.asked.lock().len(), lists);
    }
}

#[test]
fn those_that_nobody_needs_yet_come_along_in_a_list() {
    let made = made(&[vec![500; 400]], true, false, None);
    let ids = shuffled(400, 300, 3);
    assert_eq!(made.listed.along(&ids, 20, 1), (20..128).collect::<Vec<_>>());
    assert_eq!(made.listed.along(&ids, 200, 1), Vec::<usize>::new());
}

#[test]
fn a_stream_that_ends_early_is_followed_by_a_list_of_what_is_left() {
    let made = made(&[vec![2000; 200]], true, false, None);
    *made.fake.wrongs.lock() = vec![Wrong::Ends(40), Wrong::Cut(0.5)];
    let ids = shuffled(200, 200, 9);
    let (told, traffic) = fetched(&*made.listed, &ids, &|| false);
    assert!(told.iter().all(|answer| matches!(answer, Some(Ok(_)))));
    let sizes: Vec<usize> = made.fake.asked.lock().iter().map(Vec::len).collect();
    assert!(sizes.len() == 3 && sizes[1] < 110 && sizes[1] > 90 && sizes[2] == sizes[1] - 40, "{sizes:?}");
    assert_eq!(traffic.requests, 3);
}

#[test]
fn a_store_that_does_not_know_lists_is_asked_for_one_once() {
    let made = made(&[vec![2000; 50]], true, false, None);
    *made.fake.wrongs.lock() = vec![Wrong::Unknown; 4];
    for _ in 0..3 {
        let (told, _) = fetched(&*made.listed, &shuffled(50, 50, 9), &|| false);
        assert!(told.iter().all(|answer| matches!(answer, Some(Ok(_)))));
    }
    // What is known to be there and is not found is asked for a few times more.
    assert_eq!(made.fake.asked.lock().len(), 4);
}

#[test]
fn a_store_that_is_busy_for_a_moment_is_asked_again() {
    let made = made(&[vec![2000; 50]], true, false, None);
    *made.fake.wrongs.lock() = vec![Wrong::Busy];
    let (told, traffic) = fetched(&*made.listed, &shuffled(50, 50, 9), &|| false);
    assert!(told.iter().all(|answer| matches!(answer, Some(Ok(_)))));
    assert_eq!((traffic.requests, made.fake.asked.lock().len()), (2, 2));
}

#[test]
fn another_object_of_the_same_names_and_lengths_is_never_delivered() {
    let made = made(&[vec![2000; 50]], true, false, None);
    let ids = shuffled(50, 50, 9);
    put(&made.inner, 0, &[2000; 50], 1);
    let bodies = made.fake.bodies.keys().cloned().collect::<Vec<_>>();
    *made.fake.wrongs.lock() = (0..bodies.len()).map(Wrong::Damaged).collect();
    let (told, _) = fetched(&*made.listed, &ids, &|| false);
    let (expected, _) = fetched(&*made.ranged, &ids, &|| false);
    for (k, (answer, twin)) in told.iter().zip(&expected).enumerate() {
        assert!(twin.as_ref().is_some_and(|twin| twin.as_ref().is_err_and(|e| e.contains("changed since"))));
        // The fake still has the bytes that were indexed, but for the damaged one.
        let sound = made.fake.bodies.get(&format!("0.tar/c/{}.png", ids[k])).cloned();
        assert!(answer == twin || answer.as_ref().and_then(|answer| answer.clone().ok()) == sound, "{answer:?}");
    }
    assert!(told.iter().any(|answer| matches!(answer, Some(Err(_)))));
}

#[test]
fn a_stream_that_says_nothing_is_left_when_nobody_wants_it_or_its_time_is_up() {
    let made = made(&[vec![100; 40]], true, false, Some(Duration::from_millis(700)));
    made.fake.hangs.store(true, Ordering::Relaxed);
    let (told, _) = fetched(&*made.listed, &shuffled(40, 40, 2), &|| !made.fake.asked.lock().is_empty());
    assert!(told.iter().all(Option::is_none), "nobody wanted them any more");
    let (told, _) = fetched(&*made.listed, &shuffled(40, 40, 2), &|| false);
    assert!(told.iter().all(|answer| matches!(answer, Some(Ok(_)))), "then they come by ranges");
}
