//! Owner and clients in one process.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::message::{Key, frame, kind};
use crate::planted::planted;
use crate::*;

/// A folder with an owner that leaves soon after its last client.
fn owner(folder: &Path, bytes: u64) -> std::thread::JoinHandle<Result<(), String>> {
    let serving = Serve { folder: folder.to_owned(), bytes, idle: Duration::from_millis(300) };
    std::thread::spawn(move || serve(&serving))
}

fn client(folder: &Path, job: &str) -> Client {
    let settings = Settings {
        folders: vec![folder.to_owned()],
        bytes: 1 << 20,
        command: vec!["true".into()],
        job: job.into(),
        dataset: 7,
        name: "data".into(),
        samples: 1000,
    };
    let (client, failed) = Client::new(settings).unwrap();
    assert_eq!(failed, None);
    client
}

pub(crate) fn key(id: u32) -> Key {
    let mut key = [0; 16];
    key[..4].copy_from_slice(&id.to_le_bytes());
    key
}

pub(crate) fn data(id: u32) -> Vec<u8> {
    (0..100 + id % 50).map(|k| (k * 7 + id) as u8).collect()
}

/// Reads what is there of `ids`, checks it, and returns which.
pub(crate) fn read(client: &Client, ids: &[u32]) -> Vec<u32> {
    let keys: Vec<(usize, Key, u64)> =
        ids.iter().enumerate().map(|(k, &id)| (k, key(id), data(id).len() as u64)).collect();
    let mut came = Vec::new();
    client.read(&keys, &|_| Duration::from_secs(5), &|| false, &mut |k, bytes| {
        let (begin, end) = bytes.split_at(bytes.len() / 2);
        let half = begin.to_vec();
        planted("in the copy");
        assert_eq!([&half, end].concat(), data(ids[k]));
        came.push(ids[k]);
        ControlFlow::Continue(())
    });
    came
}

/// Delivers all of `ids` as a loader does, and counts what was fetched.
fn deliver(client: &Client, ids: &[u32], fetched: &AtomicU64) {
    let there = read(client, ids);
    let mut left: Vec<u32> = ids.iter().copied().filter(|id| !there.contains(id)).collect();
    let mut flight = client.flight().unwrap();
    while !left.is_empty() {
        let keys: Vec<Key> = left.iter().map(|&id| key(id)).collect();
        let whose = flight.claim(&keys, &|| false);
        let of = |who| left.iter().zip(&whose).filter(|(_, w)| **w == who).map(|(&id, _)| id).collect::<Vec<u32>>();
        let mut ours = of(Whose::Ours);
        let there = of(Whose::There);
        let came = read(client, &there);
        ours.extend(there.iter().filter(|id| !came.contains(id)));
        for id in ours {
            fetched.fetch_add(1, Relaxed);
            std::thread::sleep(Duration::from_micros(300));
            flight.offer(&Offer { key: key(id), id, cost: Duration::from_micros(300), data: &data(id) });
        }
        left = of(Whose::Theirs);
    }
}

#[test]
fn several_clients_fetch_each_sample_once() {
    let folder = tempfile::tempdir().unwrap();
    let owner = owner(folder.path(), 1 << 20);
    let fetched = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for rank in 0..4u32 {
            let (client, fetched) = (client(folder.path(), "job"), &fetched);
            scope.spawn(move || {
                let order: Vec<u32> = (0..1000).map(|k| (k * 7 + rank * 131) % 1000).collect();
                for ids in order.chunks(16) {
                    deliver(&client, ids, fetched);
                }
                assert_eq!(read(&client, &order).len(), 1000);
                let numbers = client.numbers();
                assert_eq!((numbers.damaged, numbers.failed, numbers.dropped), (0, 0, 0));
                assert!(numbers.bytes > 100_000);
            });
        }
    });
    assert_eq!(fetched.load(Relaxed), 1000);
    let late = client(folder.path(), "later");
    assert!(late.fetched_in_us().is_some_and(|us| us >= 300.0));
    let listed = Admin::connect(&[folder.path().to_owned()]).unwrap().unwrap().list().unwrap();
    assert_eq!((listed.samples, listed.capacity_bytes, listed.jobs.len()), (1000, 1 << 20, 2));
    assert_eq!(listed.jobs.iter().map(|job| job.clients).sum::<u32>(), 1);
    drop(late);
    assert_eq!(owner.join().unwrap(), Ok(()));
    assert!(Admin::connect(&[folder.path().to_owned()]).unwrap().is_none());
}

#[test]
fn several_old_arenas_are_taken_over_each_sample_once_and_what_is_dropped_or_forgotten_is_not() {
    let hears = |owner: &mut owner::Owner, messages: &[Vec<u8>]| {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut peer = owner::Peer::new(socket);
        let (job, name) = (String::from("job"), String::from("data"));
        let greeting = message::hello(&message::Hello { member: 5, dataset: 7, samples: 99, bytes: 1, job, name });
        let all = [greeting, messages.concat()].concat();
        message::Parser::default().feed(&all, &mut |part| owner.hear(1, &mut peer, part)).unwrap();
        owner.gone(1, &mut peer);
    };
    let with = |ids: std::ops::Range<u32>| {
        let mut owner = owner::Owner::new(1 << 20).unwrap();
        let offers = ids.map(|id| {
            let data = data(id);
            let (crc, bytes) = (crc32fast::hash(&data), data.len() as u64);
            [message::offer(&message::OfferHead { key: key(id), id, cost_us: 1, crc, bytes }), data].concat()
        });
        hears(&mut owner, &offers.collect::<Vec<_>>());
        arena::Shown::map(owner.arena.file().try_clone_to_owned().unwrap()).unwrap()
    };
    let [older, newer] = [with(0..30), with(20..50)];
    let mut owner = owner::Owner::new(1 << 20).unwrap();
    owner.begin_adoption(newer);
    owner.begin_adoption(older);
    assert_eq!(owner.adoptable(), 60);
    hears(&mut owner, &[frame(kind::FORGET, &[&key(25), &key(49)])]);
    while owner.adoptable() > 0 {
        owner.adopt_some(7);
    }
    let here = |owner: &owner::Owner| (0..60).filter(|&id| owner.books.find(&key(id)).is_some()).count();
    assert_eq!((here(&owner), owner.books.residents()), (48, 48));
    owner.begin_adoption(with(50..60));
    hears(&mut owner, &[frame(kind::DROP, &[&message::text("data")])]);
    assert_eq!((owner.adoptable(), here(&owner)), (0, 0));
}

#[test]
fn a_client_that_asks_on_and_reads_no_answer_is_refused_before_it_fills_the_memory() {
    let mut owner = owner::Owner::new(1 << 20).unwrap();
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let (mut peer, mut parser) = (owner::Peer::new(socket), message::Parser::default());
    let mut say = |samples: u32, message: &[u8], many: usize| {
        let (job, name) = (String::new(), String::new());
        let greeting = message::hello(&message::Hello { member: 5, dataset: 7, samples, bytes: 1, job, name });
        let bytes = [&greeting[..], &message.repeat(many)].concat();
        let said = parser.feed(&bytes, &mut |part| owner.hear(1, &mut peer, part));
        owner.gone(1, &mut peer);
        (peer.member, parser) = (None, message::Parser::default());
        (said, std::mem::take(&mut peer.out).len())
    };
    let order = frame(kind::ORDER, &[]);
    let (said, bytes) = say(1_000_000, &order, 100);
    assert!(said.unwrap_err().contains("bytes of answers that are not read"));
    assert!(bytes <= owner::UNREAD_MAX + 4_000_100, "{bytes}");
    let (said, bytes) = say(ORDERED_MAX + 1, &order, 1);
    assert!(said.unwrap_err().contains("an order of 4000001 samples: 4000000 are the most") && bytes < 100);
    assert!(say(10, &order, 100).0.is_ok());
}

#[test]
fn a_second_owner_leaves_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let first = owner(folder.path(), 1 << 20);
    let held = client(folder.path(), "job");
    assert_eq!(owner(folder.path(), 1 << 20).join().unwrap(), Ok(()));
    assert!(!first.is_finished());
    drop(held);
    first.join().unwrap().unwrap();
}

#[test]
fn the_fetches_of_a_client_that_ends_pass_to_one_that_waits() {
    let folder = tempfile::tempdir().unwrap();
    let owner = owner(folder.path(), 1 << 20);
    let (one, other) = (client(folder.path(), "a"), client(folder.path(), "b"));
    let mut first = one.flight().unwrap();
    assert_eq!(first.claim(&[key(1), key(2)], &|| false), [Whose::Ours; 2]);
    let mut second = other.flight().unwrap();
    assert_eq!(second.claim(&[key(1), key(3)], &|| false), [Whose::Theirs, Whose::Ours]);
    let waits = std::thread::spawn(move || second.claim(&[key(1)], &|| false));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!waits.is_finished());
    drop(first);
    assert_eq!(waits.join().unwrap(), [Whose::Ours]);
    drop((one, other));
    owner.join().unwrap().unwrap();
}

#[test]
fn a_wait_ends_when_it_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let owner = owner(folder.path(), 1 << 20);
    let one = client(folder.path(), "a");
    let mut first = one.flight().unwrap();
    first.claim(&[key(1)], &|| false);
    let mut second = one.flight().unwrap();
    second.claim(&[key(1)], &|| false);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| second.claim(&[key(1)], &|| stop.load(Relaxed)));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        stop.store(true, Relaxed);
        waits.join().unwrap();
    });
    drop((first, second, one));
    owner.join().unwrap().unwrap();
}

#[test]
fn a_hostile_client_is_refused_by_reason_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let owner = owner(folder.path(), 1 << 20);
    let good = client(folder.path(), "good");
    deliver(&good, &[1, 2, 3], &AtomicU64::new(0));
    let says = |bytes: &[u8]| {
        let socket = start::connect(folder.path()).unwrap().unwrap();
        wire::send(&socket, bytes, None).unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(5);
        link::answer(&socket, until, &|| false).err().map(|e| e.to_string()).unwrap_or_default()
    };
    let greeting = message::hello(&message::Hello {
        member: 5,
        dataset: 7,
        samples: u32::MAX,
        bytes: 1,
        job: "evil".into(),
        name: "data".into(),
    });
    let forged = message::OfferHead { key: key(9), id: 9, cost_us: 0, crc: 1, bytes: 4 };
    for (bytes, reason) in [
        (frame(99, &[]), "unknown kind 99"),
        (vec![0xff; 64], "unknown kind 255"),
        (frame(kind::RATE, &[&0u32.to_le_bytes()]), "importances before a greeting"),
        (message::offer(&forged), "an offer before a greeting"),
        (frame(kind::ADOPT, &[]), "an arena without its file"),
        (frame(kind::ORDER, &[]), "an order or processors are asked for before a greeting"),
        (frame(kind::AT, &[&[0; 4]]), "an order or processors are asked for before a greeting"),
        (frame(kind::PROCESSORS, &[&[0; 8]]), "an order or processors are asked for before a greeting"),
        ([&greeting[..], &message::offer(&forged), &[1, 2, 3, 4]].concat(), ""),
    ] {
        let refused = says(&bytes);
        assert!(refused.contains(reason), "{reason:?}: {refused}");
    }
    // Half a message, and half an offer.
    for bytes in [&greeting[..20], &[&greeting[..], &message::offer(&forged), &[1]].concat()] {
        let socket = start::connect(folder.path()).unwrap().unwrap();
        wire::send(&socket, bytes, None).unwrap();
    }
    // Files that are no arena.
    let file = std::os::fd::OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let socket = start::connect(folder.path()).unwrap().unwrap();
    wire::send(&socket, &frame(kind::ADOPT, &[]), Some(std::os::fd::AsFd::as_fd(&file))).unwrap();
    let until = std::time::Instant::now() + Duration::from_secs(5);
    assert!(link::answer(&socket, until, &|| false).is_err());
    assert_eq!(read(&good, &[1, 2, 3, 9]), [1, 2, 3]);
    let listed = Admin::connect(&[folder.path().to_owned()]).unwrap().unwrap().list().unwrap();
    assert!(listed.refused >= 7, "{listed:?}");
    assert_eq!(listed.samples, 3);
    drop((good, socket));
    owner.join().unwrap().unwrap();
}

#[test]
fn nothing_but_its_owner_can_write_an_arena_or_change_its_size() {
    let arena = arena::Arena::new(1 << 20, 3).unwrap();
    let file = std::fs::File::from(arena.file().try_clone_to_owned().unwrap());
    assert!(file.set_len(0).is_err() && file.set_len(1 << 30).is_err());
    assert!(std::os::unix::fs::FileExt::write_at(&file, &[1], 0).is_err());
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let again = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    assert!(std::os::unix::fs::FileExt::write_at(&again, &[1], 0).is_err());
    let shown = arena::Shown::map(again.into()).unwrap();
    assert_eq!(shown.id, 3);
    assert!(shown.at(0, 1).is_none() && shown.at(u64::MAX - 1, 4).is_none() && shown.at(1 << 40, 1).is_none());
    let plain = tempfile::tempfile().unwrap();
    assert!(arena::Shown::map(plain.into()).is_err());
}

#[test]
fn a_dataset_is_dropped_and_a_job_limited_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let owner = owner(folder.path(), 1 << 20);
    let job = client(folder.path(), "job");
    let all: Vec<u32> = (0..20).collect();
    deliver(&job, &all, &AtomicU64::new(0));
    let admin = Admin::connect(&[folder.path().to_owned()]).unwrap().unwrap();
    assert_eq!(admin.limit("none", Some(1)), Ok(false));
    assert_eq!(admin.limit("job", Some(1024)), Ok(true));
    let listed = admin.list().unwrap();
    assert!(listed.jobs[0].bytes <= 1024 && listed.jobs[0].limit_bytes == Some(1024), "{listed:?}");
    assert_eq!((admin.pin("none", true), admin.pin("data", true)), (Ok(false), Ok(true)));
    assert!(admin.list().unwrap().jobs[0].pinned);
    assert_eq!(admin.pin("data", false), Ok(true));
    assert_eq!(admin.drop_dataset("none"), Ok(None));
    assert_eq!(admin.drop_dataset("data"), Ok(Some(listed.samples)));
    assert!(read(&job, &all).is_empty());
    assert_eq!(admin.limit("job", None), Ok(true));
    deliver(&job, &all, &AtomicU64::new(0));
    assert_eq!(read(&job, &all), all);
    drop((job, admin));
    owner.join().unwrap().unwrap();
}

#[test]
fn a_client_that_waits_gets_the_processors_that_another_leaves_until_that_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let owner = owner(folder.path(), 1 << 20);
    let [one, two] = ["one", "two"].map(|job| client(folder.path(), job));
    let ask = |client: &Client, wanted| client.processors(8, wanted, &|| false);
    assert_eq!(ask(&one, f32::INFINITY), Some(8.0));
    assert_eq!([ask(&two, f32::INFINITY), ask(&one, f32::INFINITY)], [Some(4.0); 2]);
    assert_eq!([ask(&two, 1.5), ask(&one, f32::INFINITY)], [Some(4.0), Some(6.5)]);
    drop(two);
    let until = std::time::Instant::now() + Duration::from_secs(5);
    while ask(&one, f32::INFINITY) != Some(8.0) {
        assert!(std::time::Instant::now() < until);
    }
    drop(one);
    owner.join().unwrap().unwrap();
}
