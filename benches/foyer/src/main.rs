//! The disk tier beside foyer's block engine: the same records, opened again and read, and plain `pread` of the same
//! bytes beside both.
//!
//!     cargo run --release                  in this folder; one line of JSON a measurement
//!
//! `LOSSFEED_RECORDS` sets how many records of 1 KB are opened again (1,000,000), `LOSSFEED_FOLDER` where they lie (the
//! system's folder for temporary files; foyer takes whole pages, so 5 GB are needed there). Every measurement is a
//! process of its own, in turn; files are in the page cache. Rates are by processor time of the whole process, and by
//! the clock: both readers check what they read, foyer by xxhash and the tier by CRC-32.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use foyer::{
    BlockEngineConfig, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder, IoEngineConfig, Load,
    PsyncIoEngineConfig, RecoverMode, UringIoEngineConfig,
};
use lossfeed_disk::{Disk, Key, Policy, Settings};
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 5;
const READ_BYTES: u64 = 400 << 20;
/// Reads of foyer that are under way at once, where that is asked for: a batch's.
const TOGETHER: usize = 256;
const KINDS: [&str; 3] = ["tier", "foyer-psync", "foyer-uring"];

fn key(n: u64) -> Key {
    let half = |n: u64| (n ^ (n >> 31)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    Key::from(half(n)) << 64 | Key::from(half(half(n)))
}

/// Noise, so that nothing is gained by its looks.
fn body(bytes: usize) -> Vec<u8> {
    let mut state = 1u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

fn shuffled(records: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..records).collect();
    order.sort_unstable_by_key(|&n| key(n + (1 << 40)));
    order
}

/// Time by the clock, and of all this process's threads.
struct Stopwatch(Instant, f64);

impl Stopwatch {
    fn start() -> Self {
        Self(Instant::now(), Self::processor())
    }
    fn processor() -> f64 {
        let now = clock_gettime(ClockId::ProcessCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    }
    fn told(&self) -> (f64, f64) {
        (self.0.elapsed().as_secs_f64(), Self::processor() - self.1)
    }
}

/// Resident memory of this process that is no file's, in bytes.
fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn tier(folder: &Path) -> Disk {
    let limit_bytes = 16 << 30;
    let settings =
        Settings { folder: folder.to_owned(), limit_bytes, dataset_bytes: limit_bytes, policy: Policy::Worth };
    Disk::open(&settings).unwrap()
}

/// foyer's engine in a folder that has room for these records, as pages.
async fn foyer(folder: &Path, kind: &str, records: u64, bytes: usize) -> HybridCache<u128, Vec<u8>> {
    let pages = (bytes as u64 + 512).next_multiple_of(4096);
    let capacity = (records * pages * 5 / 4).next_multiple_of(16 << 20) + (256 << 20);
    let device = FsDeviceBuilder::new(folder).with_capacity(capacity as usize).build().unwrap();
    let io: Box<dyn IoEngineConfig> = match kind {
        "foyer-uring" => UringIoEngineConfig::new().boxed(),
        _ => PsyncIoEngineConfig::new().boxed(),
    };
    HybridCacheBuilder::new()
        .memory(1 << 20)
        .storage()
        .with_io_engine_config(io)
        .with_engine_config(
            BlockEngineConfig::new(device)
                .with_block_size(16 << 20)
                .with_buffer_pool_size(128 << 20)
                .with_submit_queue_size_threshold(256 << 20),
        )
        .with_recover_mode(RecoverMode::Quiet)
        .build()
        .await
        .unwrap()
}

fn fill_tier(folder: &Path, records: u64, data: &[u8]) {
    let disk = tier(folder);
    for n in 0..records {
        disk.offer(key(n), Duration::from_millis(1), data);
        if (n + 1).is_multiple_of((32 << 20) / data.len() as u64) {
            disk.settle();
        }
    }
    disk.settle();
    assert_eq!(disk.numbers().written, records);
}

async fn fill_foyer(folder: &Path, kind: &str, records: u64, data: &[u8]) {
    let cache = foyer(folder, kind, records, data.len()).await;
    for n in 0..records {
        drop(cache.storage_writer(key(n)).force().insert(data.to_vec()));
        if (n + 1).is_multiple_of((32 << 20) / data.len() as u64) {
            cache.storage().wait().await;
        }
    }
    cache.storage().wait().await;
    cache.close().await.unwrap();
}

async fn reopen(folder: &Path, kind: &str, records: u64, bytes: usize) {
    let before = memory();
    let begun = Stopwatch::start();
    let (there, told, more);
    if kind == "tier" {
        let disk = tier(folder);
        told = begun.told();
        more = memory().saturating_sub(before);
        there = disk.records() as u64;
    } else {
        let cache = foyer(folder, kind, records, bytes).await;
        told = begun.told();
        more = memory().saturating_sub(before);
        there = (0..records).filter(|&n| cache.storage().may_contains(&key(n))).count() as u64;
        cache.close().await.unwrap();
    }
    let each = more as f64 / records as f64;
    println!(
        "{{\"kind\":\"{kind}\",\"what\":\"reopen\",\"records\":{records},\"there\":{there},\"seconds\":{:.3},\"processor_s\":{:.3},\"memory_bytes_a_record\":{each:.1}}}",
        told.0, told.1
    );
}

fn read_tier(folder: &Path, order: &[u64], bytes: usize) -> (u64, (f64, f64)) {
    let disk = tier(folder);
    let (mut into, mut hits) = (vec![0; bytes], 0);
    let begun = Stopwatch::start();
    for batch in order.chunks(TOGETHER) {
        let keys: Vec<Option<Key>> = batch.iter().map(|&n| Some(key(n))).collect();
        let found = disk.find(&keys);
        hits += found.iter().flatten().filter(|found| disk.read_found(found, &mut into)).count() as u64;
    }
    (hits, begun.told())
}

async fn read_foyer(
    cache: &HybridCache<u128, Vec<u8>>,
    order: &[u64],
    together: usize,
    bytes: usize,
) -> (u64, (f64, f64)) {
    let mut hits = 0;
    let begun = Stopwatch::start();
    for batch in order.chunks(together) {
        let reads: Vec<_> = batch
            .iter()
            .map(|&n| {
                let storage = cache.storage().clone();
                tokio::spawn(async move {
                    matches!(storage.load(&key(n)).await, Ok(Load::Entry { value, .. }) if value.len() == bytes)
                })
            })
            .collect();
        for read in reads {
            hits += u64::from(read.await.unwrap());
        }
    }
    (hits, begun.told())
}

fn read_plain(file: &Path, order: &[u64], bytes: usize) -> (u64, (f64, f64)) {
    let file = File::open(file).unwrap();
    let mut into = vec![0; bytes];
    let begun = Stopwatch::start();
    order.iter().for_each(|&n| file.read_exact_at(&mut into, n * bytes as u64).unwrap());
    (order.len() as u64, begun.told())
}

async fn read(folder: &Path, kind: &str, records: u64, bytes: usize) {
    let order = shuffled(records);
    let (kind, together) = kind.split_once('*').map_or((kind, TOGETHER), |(kind, _)| (kind, 1));
    let (hits, (clock, processor)) = match kind {
        "tier" => read_tier(folder, &order, bytes),
        "plain" => read_plain(&folder.join("plain"), &order, bytes),
        _ => {
            let cache = foyer(folder, kind, records, bytes).await;
            let read = read_foyer(&cache, &order, together, bytes).await;
            cache.close().await.unwrap();
            read
        }
    };
    let megabytes = (hits * bytes as u64) as f64 / 1e6;
    println!(
        "{{\"kind\":\"{kind}\",\"what\":\"read\",\"bytes\":{bytes},\"records\":{records},\"hits\":{hits},\"under_way\":{together},\"mb_s\":{:.0},\"mb_per_processor_s\":{:.0}}}",
        megabytes / clock,
        megabytes / processor
    );
}

/// One measurement in a process of its own.
fn apart(act: &str, kind: &str, folder: &Path, records: u64, bytes: usize) {
    let done = Command::new(std::env::current_exe().unwrap())
        .args([act, kind, &folder.display().to_string(), &records.to_string(), &bytes.to_string()])
        .status()
        .unwrap();
    if !done.success() {
        println!("{{\"kind\":\"{kind}\",\"what\":\"{act}\",\"bytes\":{bytes},\"failed\":\"{done}\"}}");
    }
}

fn all(place: &Path) {
    let records: u64 = std::env::var("LOSSFEED_RECORDS").map_or(1_000_000, |n| n.parse().unwrap());
    let of = |kind: &str| place.join(kind);
    let emptied = || KINDS.iter().chain(&["plain"]).for_each(|kind| drop(fs::remove_dir_all(of(kind))));
    KINDS.iter().for_each(|kind| apart("fill", kind, &of(kind), records, 1024));
    for _ in 0..ROUNDS {
        KINDS.iter().for_each(|kind| apart("reopen", kind, &of(kind), records, 1024));
    }
    emptied();
    for bytes in [3 << 10, 110 << 10] {
        let records = READ_BYTES / bytes as u64;
        KINDS.iter().chain(&["plain"]).for_each(|kind| apart("fill", kind, &of(kind), records, bytes));
        for _ in 0..ROUNDS {
            for kind in ["tier", "plain", "foyer-psync", "foyer-psync*1", "foyer-uring", "foyer-uring*1"] {
                let folder = of(kind.split('*').next().unwrap());
                apart("read", kind, &folder, records, bytes);
            }
        }
        emptied();
    }
}

fn main() {
    let place = std::env::var_os("LOSSFEED_FOLDER").map_or_else(std::env::temp_dir, PathBuf::from);
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [act, kind, folder, records, bytes] = args.as_slice() else {
        let place = place.join(format!("lossfeed-bench-foyer-{}", std::process::id()));
        all(&place);
        fs::remove_dir_all(&place).ok();
        return;
    };
    let (folder, records, bytes) = (Path::new(folder), records.parse().unwrap(), bytes.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    fs::create_dir_all(folder).unwrap();
    match (act.as_str(), kind.as_str()) {
        ("fill", "tier") => fill_tier(folder, records, &body(bytes)),
        ("fill", "plain") => {
            let (file, data) = (File::create(folder.join("plain")).unwrap(), body(bytes));
            (0..records).for_each(|n| file.write_all_at(&data, n * bytes as u64).unwrap());
        }
        ("fill", _) => runtime.block_on(fill_foyer(folder, kind, records, &body(bytes))),
        ("reopen", _) => runtime.block_on(reopen(folder, kind, records, bytes)),
        _ => runtime.block_on(read(folder, kind, records, bytes)),
    }
}
