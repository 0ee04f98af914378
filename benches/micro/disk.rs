//! What the disk tier costs: opened again, and read beside plain `pread` of the same bytes in the same order.
//!
//! `cargo bench -p lossfeed-benches --bench disk`. `LOSSFEED_RECORDS` sets how many records are opened again
//! (1,000,000 of 1 KB), `LOSSFEED_FOLDER` where they lie (the system's folder for temporary files; 1.2 GB are needed
//! there). One line of JSON a measurement. Rates are of one thread, in MB/s, the median of seven rounds in turn:
//! `warm` from the page cache, by a second of processor time; `cold` after it was emptied of these files, by the clock.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lossfeed_disk::{Disk, Key, Policy, Settings};

const ROUNDS: usize = 7;
const READ_BYTES: usize = 1 << 29;
const COLD_READS: usize = 2000;

fn key(n: u64) -> Key {
    let half = |n: u64| (n ^ (n >> 31)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    Key::from(half(n)) << 64 | Key::from(half(half(n)))
}

fn open(folder: &Path) -> Disk {
    let limit_bytes = 16 << 30;
    let settings =
        Settings { folder: folder.to_owned(), limit_bytes, dataset_bytes: limit_bytes, policy: Policy::Worth };
    Disk::open(&settings).unwrap()
}

fn fill(disk: &Disk, records: u64, data: &[u8]) {
    for n in 0..records {
        disk.offer(key(n), Duration::from_millis(1), data);
        // The queue drops what it has no room for.
        if (n + 1).is_multiple_of((32 << 20) / data.len() as u64) {
            disk.settle();
        }
    }
    disk.settle();
    assert_eq!(disk.numbers().written, records, "{:?}", disk.numbers());
}

/// Puts the files on the device, and takes them out of the page cache.
fn empty_the_page_cache(files: &[PathBuf]) {
    for file in files {
        let file = File::open(file).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Time by the clock, and of this thread's processor.
struct Stopwatch {
    begun: Instant,
    processor_ns: f64,
}

impl Stopwatch {
    fn start() -> Self {
        Self { begun: Instant::now(), processor_ns: processor_ns() }
    }
    fn seconds(&self, by_the_clock: bool) -> f64 {
        if by_the_clock { self.begun.elapsed().as_secs_f64() } else { (processor_ns() - self.processor_ns) / 1e9 }
    }
}

fn processor_ns() -> f64 {
    fs::read_to_string("/proc/thread-self/schedstat").unwrap().split(' ').next().unwrap().parse().unwrap()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

fn reopen(folder: &Path, records: u64) {
    fill(&open(folder), records, &vec![7; 1024]);
    for cold in [false, true] {
        let times = (0..ROUNDS).map(|_| {
            if cold {
                empty_the_page_cache(&files(folder));
            }
            let begun = Instant::now();
            let disk = open(folder);
            let took = begun.elapsed().as_secs_f64();
            assert_eq!(disk.records() as u64, records);
            took
        });
        let seconds = median(times.collect());
        let cache = if cold { "cold" } else { "warm" };
        println!(
            "{{\"bench\":\"disk\",\"what\":\"reopen\",\"cache\":\"{cache}\",\"records\":{records},\"seconds\":{seconds:.3}}}"
        );
    }
}

fn read(folder: &Path, bytes: usize) {
    let records = (READ_BYTES / bytes) as u64;
    let mut state = 1u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    });
    let data: Vec<u8> = noise.take(bytes).collect();
    let disk = open(folder);
    let begun = Instant::now();
    fill(&disk, records, &data);
    let written = begun.elapsed().as_secs_f64();
    drop(disk);
    let disk = open(folder);
    let plain = folder.with_extension("plain");
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&plain).unwrap();
    (0..records).for_each(|n| file.write_all_at(&data, n * bytes as u64).unwrap());
    let mut order: Vec<u64> = (0..records).collect();
    order.sort_unstable_by_key(|&n| key(n + (1 << 40)));
    let mut into = vec![0; bytes];
    for cold in [false, true] {
        let (mut tier, mut pread) = (Vec::new(), Vec::new());
        // The disk is slow, and a rate needs no more.
        let order = if cold { &order[..COLD_READS.min(order.len())] } else { &order[..] };
        for _ in 0..ROUNDS {
            if cold {
                empty_the_page_cache(&[files(folder), vec![plain.clone()]].concat());
            }
            let begun = Stopwatch::start();
            for batch in order.chunks(256) {
                let keys: Vec<Option<Key>> = batch.iter().map(|&n| Some(key(n))).collect();
                let found = disk.find(&keys).into_iter().flatten().enumerate();
                let wanted = found.map(|(k, found)| (k, found, bytes)).collect();
                let reads = disk.read_all(wanted, &|_| Duration::from_secs(60), &|| false, &mut |_, data| {
                    std::hint::black_box(data);
                    ControlFlow::Continue(())
                });
                assert_eq!(reads.answers as usize, batch.len());
            }
            tier.push(begun.seconds(cold));
            let begun = Stopwatch::start();
            order.iter().for_each(|&n| file.read_exact_at(&mut into, n * bytes as u64).unwrap());
            pread.push(begun.seconds(cold));
        }
        let megabytes = (order.len() * bytes) as f64 / 1e6;
        let (tier, pread) = (median(tier), median(pread));
        println!(
            "{{\"bench\":\"disk\",\"what\":\"read\",\"cache\":\"{}\",\"bytes\":{bytes},\"tier_mb_s\":{:.0},\"pread_mb_s\":{:.0},\"ratio\":{:.3},\"written_mb_s\":{:.0}}}",
            if cold { "cold" } else { "warm" },
            megabytes / tier,
            megabytes / pread,
            pread / tier,
            (records as usize * bytes) as f64 / 1e6 / written,
        );
    }
    drop(disk);
    fs::remove_file(plain).unwrap();
}

fn main() {
    let records: u64 = std::env::var("LOSSFEED_RECORDS").map_or(1_000_000, |n| n.parse().unwrap());
    let place = std::env::var_os("LOSSFEED_FOLDER").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = place.join(format!("lossfeed-bench-disk-{}", std::process::id()));
    let emptied = |work: &dyn Fn(&Path)| {
        work(&folder);
        fs::remove_dir_all(&folder).unwrap();
    };
    emptied(&|folder| reopen(folder, records));
    for bytes in [1 << 10, 3 << 10, 16 << 10, 110 << 10, 1 << 20] {
        emptied(&|folder| read(folder, bytes));
    }
}
