//! The numbers that the program's processes left: a file each, of names and 8-byte floats. Nothing read is trusted.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Bytes for the names, as in the probe's `slots.py`.
const NAMES_BYTES: usize = 2048;
/// No file is longer.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Numbers by name, in seconds, bytes and counts.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Numbers(BTreeMap<String, f64>);

impl Numbers {
    /// A number; 0 if it is missing, or none that can be counted with.
    pub(super) fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().filter(|x| x.is_finite() && *x >= 0.0).unwrap_or(0.0)
    }

    #[cfg(test)]
    pub(super) fn of(numbers: &[(&str, f64)]) -> Self {
        Self(numbers.iter().map(|&(name, value)| (name.to_owned(), value)).collect())
    }

    /// Adds the numbers of another worker of the same parent.
    fn join(&mut self, other: &Self) {
        for (name, &value) in &other.0 {
            let sum = self.0.entry(name.clone()).or_default();
            *sum = match name.as_str() {
                "parent" => value,
                "longest" => sum.max(value),
                _ => *sum + value,
            };
        }
    }

    /// The bytes of a file that holds them.
    fn bytes(&self) -> Vec<u8> {
        let names: Vec<&str> = self.0.keys().map(String::as_str).collect();
        let mut bytes = names.join("\n").into_bytes();
        bytes.resize(NAMES_BYTES, b' ');
        bytes.extend(self.0.values().flat_map(|value| value.to_ne_bytes()));
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (names, values) = bytes.split_at_checked(NAMES_BYTES)?;
        let names = std::str::from_utf8(names).ok()?.trim_end().split('\n');
        let values = values.chunks_exact(8).filter_map(|value| value.try_into().ok().map(f64::from_ne_bytes));
        Some(Self(names.map(str::to_owned).zip(values).collect()))
    }
}

/// Words of a training process about itself.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Words {
    pub(super) rank: u32,
    pub(super) world_size: u32,
    pub(super) script: String,
    pub(super) source: String,
    pub(super) device: String,
    pub(super) gpu_uuid: Option<String>,
}

/// A training process: its loop, and all that made its batches.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Record {
    pub(super) pid: u32,
    pub(super) words: Words,
    pub(super) numbers: Numbers,
    /// Made in the loop's own process.
    pub(super) inline: Vec<Numbers>,
    /// Made by torch's worker processes.
    pub(super) fetches: Vec<Numbers>,
    /// Items that worker processes read for the cache of `lossfeed.Loader`.
    pub(super) pool: Vec<Numbers>,
}

impl Record {
    /// The numbers of one kind of file.
    fn of_kind(&mut self, kind: &str) -> &mut Vec<Numbers> {
        match kind {
            "inline" => &mut self.inline,
            "fetch" => &mut self.fetches,
            _ => &mut self.pool,
        }
    }
}

/// Kinds of files that worker processes write: many may come and end.
const WORKERS: [&str; 2] = ["fetch", "pool"];

/// Every training process that left numbers, by pid.
pub(super) fn read(folder: &Path) -> Vec<Record> {
    let mut records: BTreeMap<u32, Record> = BTreeMap::new();
    let mut fetches = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((kind, of)) = name.strip_suffix(".slots").and_then(|stem| stem.split_once('-')) else { continue };
        let Some(numbers) = numbers(&entry.path()) else { continue };
        match (kind, of.parse::<u32>()) {
            ("rank", Ok(pid)) => {
                let words = fs::read(folder.join(format!("rank-{pid}.json"))).ok();
                let words = words.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
                records.insert(pid, Record { pid, words, numbers, ..Record::default() });
            }
            _ if kind == "inline" || WORKERS.contains(&kind) => fetches.push((kind.to_owned(), numbers)),
            _ => {}
        }
    }
    for (kind, fetch) in fetches {
        if let Some(record) = records.get_mut(&(fetch.get("parent") as u32)) {
            record.of_kind(&kind).push(fetch);
        }
    }
    records.into_values().collect()
}

/// Puts the files of ended workers together, a file for each rank: a program may start new ones for every pass.
pub(super) fn join_ended(folder: &Path) {
    WORKERS.iter().for_each(|kind| join_kind(folder, kind));
}

fn join_kind(folder: &Path, kind: &str) {
    let mut ended: BTreeMap<u32, (Numbers, Vec<PathBuf>)> = BTreeMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let stem = name.strip_prefix(kind).and_then(|name| name.strip_prefix('-')?.strip_suffix(".slots"));
        let Some(pid) = stem.and_then(|stem| stem.split('-').next()?.parse::<u32>().ok()) else { continue };
        if Path::new("/proc").join(pid.to_string()).exists() {
            continue;
        }
        if let Some(fetch) = numbers(&entry.path()) {
            let (sum, files) = ended.entry(fetch.get("parent") as u32).or_default();
            sum.join(&fetch);
            files.push(entry.path());
        }
    }
    for (parent, (sum, files)) in ended {
        // Written under another name first: a reader never sees half of it.
        let (passing, kept) = (folder.join(".ended"), folder.join(format!("{kind}-of-{parent}.slots")));
        let sum = numbers(&kept).map_or(sum.clone(), |before| {
            let mut all = before;
            all.join(&sum);
            all
        });
        if fs::write(&passing, sum.bytes()).and_then(|()| fs::rename(&passing, &kept)).is_ok() {
            files.iter().for_each(|file| drop(fs::remove_file(file)));
        }
    }
}

fn numbers(path: &Path) -> Option<Numbers> {
    let long = fs::symlink_metadata(path).ok().is_none_or(|file| !file.is_file() || file.len() > FILE_BYTES_MAX);
    if long { None } else { Numbers::parse(&fs::read(path).ok()?) }
}

/// The ranks of the job: of several processes that claim one rank, or of processes that know no ranks, the one with the
/// most batches.
pub(super) fn job(records: &[Record]) -> Vec<&Record> {
    let distributed = records.iter().any(|record| record.words.world_size > 1);
    let mut ranks: BTreeMap<u32, &Record> = BTreeMap::new();
    for record in records.iter().filter(|record| (record.words.world_size > 1) == distributed) {
        let batches = |record: &Record| record.numbers.get("batches");
        let rank = ranks.entry(record.words.rank).or_insert(record);
        if batches(record) > batches(rank) {
            *rank = record;
        }
    }
    ranks.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(names: &str, values: &[f64]) -> Vec<u8> {
        let mut bytes = names.as_bytes().to_vec();
        bytes.resize(NAMES_BYTES, b' ');
        bytes.extend(values.iter().flat_map(|x| x.to_ne_bytes()));
        bytes
    }

    #[test]
    fn numbers_are_read_by_name_and_what_is_damaged_counts_as_nothing() {
        let numbers = Numbers::parse(&file("batches\nwait\nbusy", &[3.0, f64::NAN])).unwrap();
        assert_eq!((numbers.get("batches"), numbers.get("wait"), numbers.get("busy")), (3.0, 0.0, 0.0));
        assert_eq!(Numbers::parse(b"short"), None);
        assert_eq!(Numbers::parse(&[0xff; NAMES_BYTES]), None);
    }

    #[test]
    fn workers_find_their_rank_and_other_files_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        put("rank-7.slots", &file("batches", &[5.0]));
        put("rank-7.json", br#"{"rank": 1, "world_size": 2, "script": "train.py", "unknown": 3}"#);
        put("fetch-8.slots", &file("parent\nbatches", &[7.0, 2.0]));
        put("fetch-9.slots", &file("parent\nbatches", &[99.0, 2.0]));
        put("inline-7.slots", &file("parent\nbatches", &[7.0, 3.0]));
        put("pool-12.slots", &file("parent\nbatches", &[7.0, 4.0]));
        put("other-12.slots", &file("parent\nbatches", &[7.0, 4.0]));
        put("rank-x.slots", b"");
        put("rank-10.slots", &vec![b' '; FILE_BYTES_MAX as usize + 1]);
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("rank-11.slots")).unwrap();
        let found = read(folder.path());
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].words.rank, found[0].words.script.as_str()), (1, "train.py"));
        let batches = |of: &[Numbers]| of.iter().map(|one| one.get("batches")).collect::<Vec<_>>();
        let found = [&found[0].inline, &found[0].fetches, &found[0].pool].map(|of| batches(of));
        assert_eq!(found, [[3.0], [2.0], [4.0]]);
    }

    #[test]
    fn ended_workers_are_joined_and_living_ones_left_to_write() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: String, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        let of = |batches, longest| file("parent\nbatches\nlongest", &[7.0, batches, longest]);
        put("rank-7.slots".into(), &file("batches", &[5.0]));
        // No process has a number so high.
        for (pid, batches, longest) in [(4_300_000, 2.0, 0.5), (4_300_001, 3.0, 0.9)] {
            put(format!("fetch-{pid}.slots"), &of(batches, longest));
        }
        put(format!("fetch-{}.slots", std::process::id()), &of(4.0, 0.1));
        for _ in 0..2 {
            join_ended(folder.path());
            let fetches = &read(folder.path())[0].fetches;
            assert_eq!(fetches.len(), 2, "{fetches:?}");
            assert_eq!(fetches.iter().map(|fetch| fetch.get("batches")).sum::<f64>(), 9.0);
        }
        put("fetch-4300000-9.slots".into(), &of(1.0, 0.2));
        join_ended(folder.path());
        let fetches = &read(folder.path())[0].fetches;
        let joined = fetches.iter().find(|fetch| fetch.get("batches") == 6.0).unwrap();
        assert_eq!((joined.get("parent"), joined.get("longest")), (7.0, 0.9));
    }

    #[test]
    fn of_processes_that_claim_one_rank_the_busiest_is_the_ranks() {
        let of = |pid, rank, world_size, batches| Record {
            pid,
            words: Words { rank, world_size, ..Words::default() },
            numbers: Numbers::of(&[("batches", batches)]),
            ..Record::default()
        };
        let pids = |records: &[Record]| job(records).iter().map(|record| record.pid).collect::<Vec<_>>();
        assert_eq!(pids(&[of(1, 0, 2, 5.0), of(2, 1, 2, 5.0), of(3, 1, 2, 9.0), of(4, 0, 1, 99.0)]), [1, 3]);
        assert_eq!(pids(&[of(1, 0, 1, 5.0), of(2, 0, 1, 6.0)]), [2]);
        assert!(pids(&[]).is_empty());
    }
}
