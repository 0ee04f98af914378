//! Limits files as they should be, broken and hostile; from one program to another.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::{Counters, Identity, JobPage, Publisher, discover_in};

fn both(limit: Option<u64>, resize: Option<u64>) -> Result<Limits, String> {
    Ok(Limits { limit, resize })
}

#[test]
fn lines_are_read_as_this_program_and_as_kubernetes_writes_them() {
    let beside = |text: &str| parse(text.as_bytes(), false);
    assert_eq!(beside(""), both(None, None));
    assert_eq!(beside("limit=\"20MB\"\nresize=\"8GiB\"\n"), both(Some(20_000_000), Some(8 << 30)));
    assert_eq!(beside("resize=0"), both(None, Some(0)));
    assert_eq!(beside("lossfeed.dev/limit=1.5kB/s"), both(Some(1500), None));
    // As `kubectl` and the kubelet leave them: sorted, values escaped as Go does, no line's end after the last.
    let pod = "build=\"two\\nlines \\\"quoted\\\"\"\nkubernetes.io/config.seen=\"2026-11-27T00:00:00Z\"\nlimit=\"1\"\n\
               lossfeed.dev/limit=\"100MB\"\nlossfeed.dev/resize=\"4294967296\"";
    assert_eq!(parse(pod.as_bytes(), true), both(Some(100_000_000), Some(4 << 30)));
    assert_eq!(parse(b"limit=\"1\"", true), both(None, None), "another program's annotation");
}

#[test]
fn a_file_that_says_anything_else_is_refused_by_its_line() {
    for (text, says) in [
        (&b"limit=\"fast\""[..], "line 1, \"limit=\\\"fast\\\"\": "),
        (b"limit=\"5MB\"\nlimt=\"5MB\"", "line 2"),
        (b"limt=5", "unknown key: limit and resize are known"),
        (b"limit", "expected KEY"),
        (b"limit=\"5MB", "the closing quote is missing"),
        (b"limit=\"5\\u004dB\"", "line 1"),
        (b"limit=-5", "line 1"),
        (b"limit=NaN", "line 1"),
        (b"limit=1e3", "line 1"),
        (b"limit=99999999999999999999GB", "must be a size"),
        (b"limit=0", "would stop the job"),
        (b"resize=1\nresize=2", "line 2, \"resize=2\": this key comes twice"),
        (b"limit=1\nlossfeed.dev/limit=2", "comes twice"),
        (b"limit=\xff", "not UTF-8"),
        (b"limit=1\0", "line 1"),
        (b" limit=1", "unknown key"),
    ] {
        let error = parse(text, false).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
    assert!(parse(b"lossfeed.dev/limt=\"5\"", true).unwrap_err().contains("unknown key"));
    assert!(parse(b"no annotation", true).is_err());
    let long = parse(format!("{}=1", "x".repeat(3000)).as_bytes(), false).unwrap_err();
    assert!(long.len() < 200, "{long}");
}

proptest! {
    #[test]
    fn no_bytes_hurt_and_what_is_written_is_read_back(
        bytes in prop::collection::vec(any::<u8>(), 0..80), annotations: bool,
        limit in prop::option::of(1..=1u64 << 52), resize in prop::option::of(0..=1u64 << 52),
    ) {
        let _ = parse(&bytes, annotations);
        let limits = Limits { limit, resize };
        prop_assert_eq!(parse(limits.text().as_bytes(), false), Ok(limits));
    }
}

/// A publisher, its directory, and what came of its limits files.
struct Obeying {
    root: tempfile::TempDir,
    publisher: Publisher,
    counters: Arc<Counters>,
    applied: mpsc::Receiver<Limits>,
}

impl Obeying {
    fn new(named: Option<PathBuf>) -> Self {
        let root = tempfile::tempdir().unwrap();
        let counters = Arc::new(Counters::default());
        let publisher =
            Publisher::start_in(&[root.path().join("pages")], Identity::default(), counters.clone()).unwrap();
        let (sender, applied) = mpsc::channel();
        publisher.obey(named, move |limits| {
            if limits.resize == Some(13) {
                return Err("13 is refused".to_owned());
            }
            sender.send(limits).map_err(|e| e.to_string())
        });
        Self { root, publisher, counters, applied }
    }

    fn page(&self) -> JobPage {
        discover_in(&[self.root.path().join("pages")]).jobs.remove(0)
    }

    fn file(&self) -> PathBuf {
        self.publisher.path().with_extension("limits")
    }

    fn applies(&self) -> Limits {
        self.applied.recv_timeout(Duration::from_secs(30)).unwrap()
    }

    /// Waits until so many files were refused; nothing was applied meanwhile.
    fn refuses(&self, count: u64) {
        let refused = || self.counters.limits_refused_total.load(Relaxed);
        let begun = std::time::Instant::now();
        while refused() < count && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!((refused(), self.applied.try_recv().ok()), (count, None));
    }

    fn puts(&self, text: &str, mode: u32) {
        let new = self.root.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::set_permissions(&new, PermissionsExt::from_mode(mode)).unwrap();
        std::fs::rename(new, self.file()).unwrap();
    }
}

#[test]
fn limits_reach_the_engine_and_are_taken_back() {
    let obeying = Obeying::new(None);
    let limits = Limits { limit: Some(5), resize: Some(7) };
    obeying.page().set_limits(limits).unwrap();
    assert_eq!(obeying.applies(), limits);
    let mode = std::fs::metadata(obeying.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    obeying.page().set_limits(Limits { limit: Some(6), resize: None }).unwrap();
    assert_eq!(obeying.applies(), Limits { limit: Some(6), resize: None });
    obeying.page().set_limits(Limits { limit: None, resize: Some(13) }).unwrap();
    obeying.refuses(1);
    obeying.page().release_limits().unwrap();
    assert_eq!(obeying.applies(), Limits::default());
    obeying.page().release_limits().unwrap();
    // An engine that ends takes its limits along, and none are left for one that has ended.
    obeying.page().set_limits(limits).unwrap();
    let (page, file) = (obeying.page(), obeying.file());
    let Obeying { root: _root, publisher, .. } = obeying;
    drop(publisher);
    assert!(!file.exists());
    page.set_limits(limits).unwrap();
    assert!(!file.exists());
}

#[test]
fn hostile_files_beside_the_page_are_refused_and_the_last_limits_hold() {
    let obeying = Obeying::new(None);
    obeying.puts("limit=\"9\"", 0o600);
    assert_eq!(obeying.applies().limit, Some(9));
    obeying.puts("limit=\"fast\"", 0o600);
    obeying.refuses(1);
    obeying.puts("limit=\"8\"", 0o660);
    obeying.refuses(2);
    obeying.puts(&"#".repeat(5000), 0o600);
    obeying.refuses(3);
    let target = obeying.root.path().join("target");
    std::fs::write(&target, "limit=\"8\"").unwrap();
    std::fs::set_permissions(&target, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::remove_file(obeying.file()).unwrap();
    symlink(&target, obeying.file()).unwrap();
    // Between the two the file may have been seen absent.
    let begun = std::time::Instant::now();
    while obeying.counters.limits_refused_total.load(Relaxed) < 4 && begun.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(obeying.counters.limits_refused_total.load(Relaxed), 4);
    assert!(obeying.applied.try_iter().all(|limits| limits == Limits::default()));
    obeying.puts("limit=\"3\"", 0o600);
    assert_eq!(obeying.applies().limit, Some(3));
}

#[test]
fn a_named_file_is_reached_through_the_links_that_kubernetes_makes() {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let volume = tempfile::tempdir().unwrap();
    let file = volume.path().join("annotations");
    symlink("..data/annotations", &file).unwrap();
    let writes = |text: &str, mode: u32| {
        let folder = format!("..{}", NUMBER.fetch_add(1, Relaxed));
        std::fs::create_dir(volume.path().join(&folder)).unwrap();
        let inside = volume.path().join(&folder).join("annotations");
        std::fs::write(&inside, text).unwrap();
        std::fs::set_permissions(inside, PermissionsExt::from_mode(mode)).unwrap();
        symlink(folder, volume.path().join("..data_tmp")).unwrap();
        std::fs::rename(volume.path().join("..data_tmp"), volume.path().join("..data")).unwrap();
    };
    writes("app=\"x\"\nlossfeed.dev/limit=\"5MB\"", 0o644);
    let obeying = Obeying::new(Some(file));
    assert_eq!(obeying.applies().limit, Some(5_000_000));
    writes("app=\"x\"\nlossfeed.dev/limit=\"6MB\"", 0o644);
    assert_eq!(obeying.applies().limit, Some(6_000_000));
    writes("lossfeed.dev/limit=\"7MB\"", 0o666);
    obeying.refuses(1);
    // The file beside the page is not looked at.
    obeying.puts("limit=\"8\"", 0o600);
    writes("app=\"x\"", 0o644);
    assert_eq!(obeying.applies(), Limits::default());
}
