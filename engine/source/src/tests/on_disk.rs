//! Truths about a source with a disk tier before it: the same samples, fetched once.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::error::ErrorKind;
use crate::error::Result;
use crate::tests::{all, archive, class_folders, png, refusal};
use crate::types::{SampleId, TensorSpec};
use crate::wrap::on_disk::OnDisk;
use crate::*;

fn tier(folder: &Path) -> DiskTier {
    DiskTier { folder: folder.to_owned(), bytes: 64 << 20 }
}

fn open_with(path: &Path, folder: &Path, far: bool) -> Arc<dyn Source> {
    let throttle = far.then_some(Throttle { latency: Duration::from_millis(1), bandwidth_bytes_per_s: None });
    let options = OpenOptions { throttle, disk: Some(tier(folder)), ..OpenOptions::default() };
    open(path.to_str().unwrap(), &options).unwrap()
}

/// Until what was offered can be read: the tier's thread writes it.
fn written(source: &dyn Source, samples: u64) {
    let begun = Instant::now();
    while source.counted().disk.unwrap().0.written < samples {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", source.counted().disk);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_was_fetched_once_comes_from_the_disk_also_after_a_restart_and_through_others() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, shard, tier) = (dir.path().join("folder"), dir.path().join("s.tar"), dir.path().join("tier"));
    class_folders(&folder);
    fs::write(&shard, archive(&[("x/a.png", &png(4)), ("y/b.png", &png(5)), ("y/empty.png", b"")])).unwrap();
    for (path, samples) in [(&folder, 3), (&shard, 2)] {
        let plain = open(path.to_str().unwrap(), &OpenOptions::default()).unwrap();
        for far in [true, false] {
            let source = open_with(path, &tier, far);
            assert_eq!(all(&*source), all(&*plain));
            let numbers = source.counted().disk.unwrap().0;
            // Near and far it is the same file.
            assert_eq!((numbers.hits, numbers.misses), if far { (0, samples) } else { (samples, 0) });
            if far {
                written(&*source, samples);
            }
            assert_eq!(all(&*source), all(&*plain));
            assert_eq!(source.counted().disk.unwrap().0.hits, if far { samples } else { 2 * samples });
            assert_eq!((source.digest(), source.describe()), (plain.digest(), plain.describe()));
            assert_eq!((source.facts().remote, source.facts().in_memory), (far, false));
        }
    }
}

#[test]
fn an_object_that_changed_is_not_there_and_its_neighbours_are() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, shard, tier) = (dir.path().join("folder"), dir.path().join("s.tar"), dir.path().join("tier"));
    class_folders(&folder);
    let members = |value| archive(&[("x/a.png", &png(value)), ("y/b.png", &png(5))]);
    fs::write(&shard, members(4)).unwrap();
    for path in [&folder, &shard] {
        let source = open_with(path, &tier, true);
        all(&*source);
        written(&*source, source.len() as u64);
    }
    // Equal names, equal lengths, other bytes; and one more class, so that ids and labels move.
    fs::write(folder.join("dog/a.PNG"), png(9)).unwrap();
    fs::create_dir(folder.join("ant")).unwrap();
    fs::write(folder.join("ant/z.png"), png(8)).unwrap();
    fs::write(&shard, members(6)).unwrap();
    for (path, hits) in [(&folder, 2), (&shard, 0)] {
        let plain = open(path.to_str().unwrap(), &OpenOptions::default()).unwrap();
        let source = open_with(path, &tier, true);
        assert_eq!(all(&*source), all(&*plain));
        assert_eq!(source.counted().disk.unwrap().0.hits, hits);
    }
}

#[test]
fn what_the_disk_has_does_not_need_the_source_and_errors_stay_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("folder");
    class_folders(&folder);
    let source = open_with(&folder, &dir.path().join("tier"), true);
    source.fetch(&[0, 2], &mut |_, payload| {
        assert!(payload.is_ok());
        ControlFlow::Continue(())
    });
    written(&*source, 2);
    fs::remove_dir_all(&folder).unwrap();
    let seen = all(&*source);
    assert!(seen[0].1.is_ok() && seen[2].1.is_ok());
    assert!(seen[1].1.as_ref().unwrap_err().contains("cat/deeper/b.png is gone"), "{:?}", seen[1]);
    let mut kinds = Vec::new();
    source.fetch(&[7, 0, 9], &mut |k, payload| {
        kinds.push((k, payload.map(drop).map_err(|e| e.kind())));
        ControlFlow::Continue(())
    });
    kinds.sort_by_key(|(k, _)| *k);
    assert_eq!(kinds, [(0, Err(ErrorKind::Usage)), (1, Ok(())), (2, Err(ErrorKind::Usage))]);
    // Nobody wants more than one; and nothing at all.
    let mut answers = 0;
    source.fetch(&[0, 1, 2], &mut |_, _| {
        answers += 1;
        ControlFlow::Break(())
    });
    source.fetch_by(u64::MAX, &|| true, &[0, 1, 2], &mut |_, _| {
        answers += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(answers, 1);
}

/// One sample behind a network that damages the first answers.
struct Damaging {
    asked: AtomicU32,
    damaged: u32,
    facts: Facts,
    proof: Option<[u8; 16]>,
}

impl Damaging {
    fn new(damaged: u32, proof: Option<[u8; 16]>) -> Arc<Self> {
        let facts = Facts::new(1, "damaging", Form::Images { tailed: false }, TensorSpec::class_index());
        Arc::new(Self { asked: AtomicU32::new(0), damaged, facts: Facts { remote: true, ..facts }, proof })
    }
}

impl Source for Damaging {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn name(&self, id: SampleId) -> String {
        id.to_string()
    }
    fn size(&self, _: SampleId) -> Size {
        Size::known(4)
    }
    fn labels(&self) -> Option<&[i64]> {
        Some(&[3])
    }
    fn proof(&self, _: SampleId) -> Option<[u8; 16]> {
        self.proof
    }
    fn fetch_by(
        &self,
        _: u64,
        _: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        for k in 0..ids.len() {
            let data = if self.asked.fetch_add(1, Relaxed) < self.damaged { b"bad!" } else { b"good" };
            _ = sink(k, Ok(Payload::new(data, bytemuck::bytes_of(&3i64))));
        }
        Traffic::default()
    }
}

#[test]
fn what_was_damaged_on_the_way_is_fetched_again_and_not_kept() {
    let one = |source: &dyn Source| {
        let mut got = Vec::new();
        source.fetch(&[0], &mut |_, payload| {
            got = payload.unwrap().data.to_vec();
            ControlFlow::Continue(())
        });
        got
    };
    let dir = tempfile::tempdir().unwrap();
    let inner = Damaging::new(1, Some([1; 16]));
    let source = OnDisk::before(inner.clone(), "a store", &tier(dir.path()), None).unwrap();
    assert_eq!(one(&source), b"bad!");
    // As the loader does. Whether the damaged bytes were written before or after, they are forgotten.
    source.tell(News::Doubtful(&[0]));
    assert_eq!(one(&source), b"good");
    let begun = Instant::now();
    while source.counted().disk.unwrap().0.hits == 0 {
        assert_eq!(one(&source), b"good");
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", source.counted().disk);
    }
    // Of what was written and read.
    source.tell(News::Doubtful(&[0]));
    let asked = inner.asked.load(Relaxed);
    assert_eq!((one(&source), inner.asked.load(Relaxed)), (b"good".to_vec(), asked + 1));
    drop(source);

    // Nobody doubts: it is fetched once.
    let inner = Damaging::new(0, Some([2; 16]));
    let source = OnDisk::before(inner.clone(), "a store", &tier(dir.path()), None).unwrap();
    assert_eq!(one(&source), b"good");
    written(&source, 1);
    assert_eq!(one(&source), b"good");
    assert_eq!((inner.asked.load(Relaxed), source.counted().disk.unwrap().0.hits), (1, 1));
    drop(source);

    // Another store's object of the same name and version is another object.
    let other = Damaging::new(0, Some([2; 16]));
    let source = OnDisk::before(other, "another store", &tier(dir.path()), None).unwrap();
    one(&source);
    assert_eq!(source.counted().disk.unwrap().0.hits, 0);
}

#[test]
fn a_source_that_proves_nothing_and_a_folder_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |proof, tier: DiskTier| OnDisk::before(Damaging::new(0, proof), "a store", &tier, None);
    refusal(refused(None, tier(dir.path())), ErrorKind::Settings, &["damaging", "neither entity tags nor dates"]);
    let small = DiskTier { bytes: 1000, ..tier(dir.path()) };
    refusal(refused(Some([1; 16]), small), ErrorKind::Settings, &["1000 bytes", "64 MiB"]);
    fs::write(dir.path().join("file"), "").unwrap();
    refusal(refused(Some([1; 16]), tier(&dir.path().join("file"))), ErrorKind::Settings, &["disk folder", "file"]);
}
