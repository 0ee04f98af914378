//! Truths about stores: memory and a throttled file system stand for what is far away.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::error::ErrorKind;
use crate::tests::{all, archive, class_folders, png, refusal};
use crate::*;

fn throttled() -> OpenOptions {
    OpenOptions {
        throttle: Some(Throttle { latency: Duration::from_millis(1), bandwidth_bytes_per_s: Some(50 << 20) }),
        ..OpenOptions::default()
    }
}

/// A store that holds these objects.
fn holding(objects: &[(&str, Vec<u8>)]) -> Arc<dyn ObjectStore> {
    let store = InMemory::new();
    let runtime = runtime::shared().unwrap();
    for (key, bytes) in objects {
        runtime.block_on(store.put(&Path::parse(key).unwrap(), bytes.clone().into())).unwrap();
    }
    Arc::new(store)
}

#[test]
fn a_throttled_path_gives_what_the_plain_path_gives() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("odd %41 ~name #");
    class_folders(&folder);
    fs::write(folder.join("dog/b c %20 é.png"), png(9)).unwrap();
    let shards = dir.path().join("shards");
    fs::create_dir(&shards).unwrap();
    for n in 0..3u8 {
        let (a, b) = (png(n), png(n + 10));
        fs::write(shards.join(format!("{n}.tar")), archive(&[("x/a.png", &a), ("y/b.png", &b), ("y/empty.png", b"")]))
            .unwrap();
    }
    for path in [
        folder.to_str().unwrap().to_owned(),
        shards.to_str().unwrap().to_owned(),
        format!("{}/{{2,0}}.tar", shards.display()),
    ] {
        let plain = open(&path, &OpenOptions::default()).unwrap();
        let far = open(&path, &throttled()).unwrap();
        assert_eq!(all(&*far), all(&*plain), "{path}");
        assert_eq!((far.labels(), far.classes(), far.describe()), (plain.labels(), plain.classes(), plain.describe()));
    }
}

#[test]
fn a_store_gives_folders_and_shards_as_a_directory_does() {
    let (a, b) = (png(1), png(2));
    let shard = |c: &str, image: &[u8]| archive(&[(&format!("{c}/1.png"), image)]);
    let store = holding(&[
        ("folder/b/1.png", a.clone()),
        ("folder/a-b/1.png", b.clone()),
        ("folder/a/deep/1.png", a.clone()),
        ("folder/a/notes.txt", b"x".to_vec()),
        ("folder/readme", b"x".to_vec()),
        ("shards/s-0.tar", shard("dog", &a)),
        ("shards/s-1.tar", shard("cat", &b)),
        ("shards/sub/s-2.tar", shard("cow", &b)),
    ]);
    let open = |path: &str| open_in(store.clone(), path, &OpenOptions::default());
    let folder = open("folder").unwrap();
    assert_eq!(folder.classes(), ["a", "a-b", "b"]);
    let labelled: Vec<_> = all(&*folder).into_iter().map(|(n, r)| (n, r.unwrap().1)).collect();
    assert_eq!(labelled, [("a/deep/1.png".to_owned(), 0), ("a-b/1.png".to_owned(), 1), ("b/1.png".to_owned(), 2)]);
    for path in ["shards/s-{0..1}.tar", "shards/*.tar"] {
        let shards = open(path).unwrap();
        assert_eq!(shards.classes(), ["cat", "dog"], "{path}");
        let expected = [
            ("s-0.tar/dog/1.png".to_owned(), Ok((a.clone(), 1))),
            ("s-1.tar/cat/1.png".to_owned(), Ok((b.clone(), 0))),
        ];
        assert_eq!(all(&*shards), expected, "{path}");
    }
    assert_eq!(open("shards/s-1.tar").unwrap().len(), 1);
    refusal(open("shards"), ErrorKind::Settings, &["2 tar files and 1 folders"]);
    refusal(open("nothing"), ErrorKind::Source, &["nothing", "does not exist or is empty"]);
    refusal(open("shards/s-{1..3}.tar"), ErrorKind::Source, &["s-2.tar does not exist"]);
    refusal(open("shards/t-*.tar"), ErrorKind::Source, &["t-*.tar", "pattern"]);
}

/// A run's state that was saved beside the one goes on beside the other.
#[test]
fn a_folder_in_a_store_has_the_ids_of_the_same_folder_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let names = [
        "cat/2.png",
        "cat/a/3.png",
        "cat/a/b/4.png",
        "cat/a-b/5.png",
        "cat/a.png",
        "cat/b/a/6.png",
        "cat/b/z.png",
        "cat-wild/1.png",
        "cat!/1.png",
        "Cat/1.png",
        "cat0/1.png",
        // Nobody's samples.
        "cat/.ipynb_checkpoints/2.png",
        "cat/a/.thumbs/deep/3.png",
        "cat/a/.4.png",
        "cat/notes.txt",
        ".git/cat/1.png",
        "readme",
    ];
    let tree: Vec<(&str, Vec<u8>)> = (1..).zip(names).map(|(n, name)| (name, png(n))).collect();
    for (name, bytes) in &tree {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let disk = open(dir.path().to_str().unwrap(), &OpenOptions::default()).unwrap();
    let stored = open_in(holding(&tree), "", &OpenOptions::default()).unwrap();
    assert_eq!(all(&*stored), all(&*disk));
    assert_eq!((stored.len(), stored.name(1)), (11, "cat/2.png".to_owned()));
    assert_eq!((stored.digest(), stored.classes()), (disk.digest(), disk.classes()));
    let ignored = |source: &dyn Source| source.describe().split_once(':').unwrap().1.to_owned();
    assert_eq!(ignored(&*stored), ignored(&*disk));
}

#[test]
fn an_object_replaced_after_indexing_is_refused_by_its_tag() {
    let shard = |value| archive(&[("c/1.png", &png(value))]);
    let store = holding(&[("s.tar", shard(1))]);
    let source = open_in(store.clone(), "s.tar", &OpenOptions::default()).unwrap();
    assert!(all(&*source)[0].1.is_ok());
    runtime::shared().unwrap().block_on(store.put(&Path::from("s.tar"), shard(2).into())).unwrap();
    let message = all(&*source).remove(0).1.unwrap_err();
    assert!(message.contains("changed since it was indexed"), "{message}");
}

#[test]
fn a_whole_object_replaced_after_opening_is_refused_by_its_tag() {
    let store = holding(&[("c/1.png", png(1)), ("c/2.png", png(2))]);
    let source = open_in(store.clone(), "", &OpenOptions::default()).unwrap();
    assert!(all(&*source).iter().all(|(_, r)| r.is_ok()));
    runtime::shared().unwrap().block_on(store.put(&Path::from("c/1.png"), png(9).into())).unwrap();
    let seen = all(&*source);
    let message = seen[0].1.as_ref().unwrap_err();
    assert!(message.contains("c/1.png changed since it was indexed"), "{message}");
    assert!(seen[1].1.is_ok());
}

#[test]
fn an_object_that_is_gone_or_cut_is_named_and_the_rest_is_read() {
    let dir = tempfile::tempdir().unwrap();
    class_folders(dir.path());
    let source = open(dir.path().to_str().unwrap(), &throttled()).unwrap();
    fs::remove_file(dir.path().join("cat/a.png")).unwrap();
    fs::write(dir.path().join("dog/a.PNG"), b"short").unwrap();
    let seen = all(&*source);
    assert!(seen[0].1.as_ref().unwrap_err().contains("cat/a.png is gone"), "{:?}", seen[0]);
    assert!(seen[1].1.is_ok());
    let message = seen[2].1.as_ref().unwrap_err();
    assert!(message.contains("dog/a.PNG") && message.contains("got 5") && message.contains("has 5"), "{message}");
}

#[test]
fn a_store_that_does_not_answer_is_an_outage_with_its_numbers() {
    let store = holding(&[("c/1.png", png(1)), ("c/2.png", png(2))]);
    let options = OpenOptions {
        throttle: Some(Throttle { latency: Duration::from_secs(3600), bandwidth_bytes_per_s: None }),
        timeout: Some(Duration::from_millis(5)),
        retry_timeout: Duration::from_millis(50),
        connections: 1,
        ..OpenOptions::default()
    };
    let source = open_in(store, "", &options).unwrap();
    let mut kinds = Vec::new();
    source.fetch(&[0, 1], &mut |_, answer| {
        let error = answer.unwrap_err();
        for word in
            ["within 5ms (timeout)", "within 50ms", "retry_timeout", "nothing is known to be wrong with the data"]
        {
            assert!(error.to_string().contains(word), "{word:?} is missing from: {error}");
        }
        kinds.push(error.kind());
        std::ops::ControlFlow::Continue(())
    });
    assert_eq!(kinds, [ErrorKind::Outage; 2]);
}

#[test]
fn latency_and_bandwidth_take_at_least_their_time() {
    let store = holding(&[("c/1.png", png(1)), ("c/2.png", png(2))]);
    let bytes = 2 * png(1).len() as u64;
    let timed = |throttle| {
        let source =
            open_in(store.clone(), "", &OpenOptions { throttle: Some(throttle), ..OpenOptions::default() }).unwrap();
        let start = Instant::now();
        assert!(all(&*source).iter().all(|(_, r)| r.is_ok()));
        start.elapsed()
    };
    let latency = Duration::from_millis(30);
    assert!(timed(Throttle { latency, bandwidth_bytes_per_s: None }) >= latency);
    let rate = bytes * 20;
    assert!(
        timed(Throttle { latency: Duration::ZERO, bandwidth_bytes_per_s: Some(rate) }) >= Duration::from_millis(49)
    );
}

#[test]
fn a_store_of_the_callers_own_has_no_disk_tier() {
    let tier = crate::options::DiskTier { folder: "/nowhere".into(), bytes: 1 << 30 };
    let options = OpenOptions { disk: Some(tier), ..OpenOptions::default() };
    let store = Arc::new(object_store::memory::InMemory::new());
    refusal(open_in(store, "*.tar", &options), ErrorKind::Settings, &["cannot be kept on disk", "by its URL"]);
}

#[test]
fn a_url_without_its_feature_or_host_is_refused_with_the_remedy() {
    let open = |url: &str| open(url, &OpenOptions::default());
    refusal(open("ftp://host/x.tar"), ErrorKind::Settings, &["ftp://"]);
    refusal(open("file://relative/x"), ErrorKind::Settings, &["file:///absolute/path"]);
    #[cfg(not(feature = "cloud"))]
    refusal(open("s3://bucket/x.tar"), ErrorKind::Settings, &["s3://", "feature \"cloud\""]);
}
