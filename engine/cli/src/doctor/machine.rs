//! The machine below: processor, memory, what may be page-locked, GPU, where stats pages go.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use lossfeed::device::Probe;

use super::Check;
use crate::smi;

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// What is tried with `mlock`: small enough for any container, larger than the usual limit of nothing.
const LOCK_TRIAL_BYTES: usize = 16 << 20;

/// Below this much free memory not even a small cache and its batches fit.
const LEAST_MEMORY_BYTES: u64 = 256 << 20;

pub(super) fn processor() -> Check {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = field(&info, "model name").unwrap_or(std::env::consts::ARCH);
    Check::ok("processor", format!("{model}, {cores} core{} usable here", if cores == 1 { "" } else { "s" }))
}

pub(super) fn vector_units() -> Check {
    let units = detected_units();
    if units.is_empty() {
        return Check::limited(
            "vector units",
            "none detected: scoring on the CPU runs at scalar speed",
            "use a machine with AVX2, or score on a GPU",
        );
    }
    Check::ok("vector units", units.join(" "))
}

#[cfg(target_arch = "x86_64")]
fn detected_units() -> Vec<&'static str> {
    let mut units = Vec::new();
    if std::arch::is_x86_feature_detected!("avx2") {
        units.push("avx2");
    }
    if std::arch::is_x86_feature_detected!("fma") {
        units.push("fma");
    }
    if std::arch::is_x86_feature_detected!("f16c") {
        units.push("f16c");
    }
    if std::arch::is_x86_feature_detected!("avx512f") {
        units.push("avx512f");
    }
    units
}

#[cfg(target_arch = "aarch64")]
fn detected_units() -> Vec<&'static str> {
    if std::arch::is_aarch64_feature_detected!("neon") { vec!["neon"] } else { Vec::new() }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detected_units() -> Vec<&'static str> {
    Vec::new()
}

pub(super) fn memory() -> Check {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    // cgroup v2, as a container sees its own; "max" does not parse and means no limit.
    let read = |name: &str| fs::read_to_string(name).ok().and_then(|t| t.trim().parse::<u64>().ok());
    judge_memory(&info, read("/sys/fs/cgroup/memory.max"), read("/sys/fs/cgroup/memory.current"))
}

fn judge_memory(meminfo: &str, limit_bytes: Option<u64>, used_bytes: Option<u64>) -> Check {
    let kib = |key| field(meminfo, key).and_then(|v| v.trim_end_matches(" kB").parse::<u64>().ok()).map(|k| k * 1024);
    let (Some(total), Some(free)) = (kib("MemTotal"), kib("MemAvailable")) else {
        return Check::limited("memory", "/proc/meminfo tells nothing", "give the loader's cache= in bytes");
    };
    let room = limit_bytes.map_or(free, |limit| free.min(limit.saturating_sub(used_bytes.unwrap_or(0))));
    let mut finding = format!("{:.1} GiB free of {:.1} GiB", room as f64 / GIB, total as f64 / GIB);
    if let Some(limit) = limit_bytes.filter(|&l| l < total) {
        finding += &format!(", this container may use {:.1} GiB", limit as f64 / GIB);
    }
    if room < LEAST_MEMORY_BYTES {
        let remedy =
            format!("free memory or raise the limit: {} MiB are the least for a run", LEAST_MEMORY_BYTES >> 20);
        return Check::broken("memory", finding, remedy);
    }
    Check::ok("memory", finding)
}

/// Whether memory can be page-locked by an ordinary process. A CUDA driver locks pages itself and is not bound by this
/// limit on most systems, so this is a hint and not a verdict on pinned staging.
pub(super) fn locked_memory() -> Check {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let limit = memlock_limit(&limits).unwrap_or_else(|| "unknown".to_owned());
    let tried = memmap2::MmapMut::map_anon(LOCK_TRIAL_BYTES).and_then(|map| map.lock());
    let mib = LOCK_TRIAL_BYTES >> 20;
    match tried {
        Ok(()) => Check::ok("locked memory", format!("{mib} MiB locked in a trial, limit {limit}")),
        Err(e) => Check::limited(
            "locked memory",
            format!("locking {mib} MiB failed, limit {limit}: {e}"),
            "ulimit -l unlimited; Docker: --ulimit memlock=-1; systemd: LimitMEMLOCK=infinity",
        ),
    }
}

fn memlock_limit(limits: &str) -> Option<String> {
    let soft = limits.lines().find_map(|l| l.strip_prefix("Max locked memory"))?.split_whitespace().next()?;
    Some(soft.parse::<u64>().map_or_else(|_| soft.to_owned(), |bytes| format!("{} KiB", bytes >> 10)))
}

pub(super) fn nvml() -> Check {
    let (nvml, gpus) = smi::devices();
    if nvml.status != smi::snapshot::NvmlStatus::Ok {
        return Check::limited(
            "nvml",
            format!("{}: no GPU rows in `lossfeed smi`", nvml.detail.unwrap_or_default()),
            "with a GPU: install the NVIDIA driver (525 or newer); in a container: --gpus all",
        );
    }
    let names: Vec<String> = gpus
        .iter()
        .map(|g| match (&g.name, &g.error) {
            (_, Some(why)) => format!("device {} not readable: {why}", g.index),
            (Some(name), None) => name.clone(),
            (None, None) => format!("device {}", g.index),
        })
        .collect();
    let driver = nvml.driver.unwrap_or_else(|| "unknown".to_owned());
    if gpus.iter().any(|g| g.error.is_some()) {
        return Check::limited("nvml", format!("driver {driver}; {}", names.join(", ")), "nvidia-smi -q tells more");
    }
    Check::ok("nvml", format!("driver {driver}; {}", names.join(", ")))
}

/// The driver as a process sees it that wants to compute: makes no context and touches no GPU memory.
pub(super) fn cuda() -> Check {
    judge_cuda(&lossfeed::device::probe())
}

fn judge_cuda(probe: &Probe) -> Check {
    let driver = probe.driver_version.map(|(major, minor)| format!("driver for CUDA {major}.{minor}"));
    let gpus: Vec<String> = probe.gpus.iter().map(|gpu| format!("cuda:{} {}", gpu.ordinal, gpu.name)).collect();
    let found: Vec<String> = driver.into_iter().chain(gpus).collect();
    match &probe.problem {
        None => Check::ok("cuda", found.join(", ")),
        Some(problem) => Check::limited(
            "cuda",
            [std::slice::from_ref(problem), &found[..]].concat().join(", "),
            "everything runs on the CPU; a GPU needs the NVIDIA driver 525 or newer, a container --gpus all",
        ),
    }
}

/// Where engines put the pages that `smi` reads; the first directory that can be made and written wins.
pub(super) fn stats_pages() -> Check {
    let mut refused = Vec::new();
    for directory in lossfeed_stats::candidates() {
        match writable(&directory) {
            Ok(()) => return Check::ok("stats pages", directory.display().to_string()),
            Err(e) => refused.push(format!("{}: {e}", directory.display())),
        }
    }
    Check::limited(
        "stats pages",
        format!("no directory for them ({}): `lossfeed smi` will not see engines", refused.join("; ")),
        "LOSSFEED_RUNTIME_DIR=DIR names a directory that is yours alone",
    )
}

/// Writes and removes a file in `directory`, which is made as the engine would make it and removed again if it was new.
fn writable(directory: &Path) -> io::Result<()> {
    let made = match fs::DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => true,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => false,
        Err(e) => return Err(e),
    };
    let trial = directory.join(format!("doctor-{}", std::process::id()));
    let tried = fs::OpenOptions::new().write(true).create_new(true).open(&trial).and_then(|_| fs::remove_file(&trial));
    if made {
        fs::remove_dir(directory)?;
    }
    tried
}

/// The value of `key` in "key : value" lines.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    const MEMINFO: &str = "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\n";

    #[test]
    fn a_containers_limit_counts_when_it_is_the_smaller_one() {
        let check = judge_memory(MEMINFO, Some(4 << 30), Some(1 << 30));
        assert_eq!(check.finding, "3.0 GiB free of 16.0 GiB, this container may use 4.0 GiB");
        assert_eq!(judge_memory(MEMINFO, None, None).finding, "8.0 GiB free of 16.0 GiB");
    }

    #[test]
    fn too_little_memory_is_the_one_thing_that_breaks_a_run() {
        assert_eq!(judge_memory(MEMINFO, Some(1 << 30), Some(1000 << 20)).state, State::Broken);
        assert_eq!(judge_memory("", None, None).state, State::Limited);
    }

    #[test]
    fn trying_a_place_for_stats_pages_leaves_nothing_behind() {
        let root = tempfile::tempdir().unwrap();
        writable(&root.path().join("new")).unwrap();
        writable(root.path()).unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
        assert!(writable(&root.path().join("no/parent")).is_err());
    }

    #[test]
    fn a_driver_with_a_problem_limits_and_says_what_is_there_anyway() {
        let healthy = Probe { driver_version: Some((13, 0)), ..Probe::default() };
        assert_eq!(judge_cuda(&healthy), Check::ok("cuda", "driver for CUDA 13.0"));
        let check = judge_cuda(&Probe { problem: Some("no GPU is visible".to_owned()), ..healthy });
        assert_eq!(check.state, State::Limited);
        assert_eq!(check.finding, "no GPU is visible, driver for CUDA 13.0");
    }

    #[test]
    fn the_soft_limit_is_read_in_both_its_forms() {
        let text = "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         8388608              8388608              bytes\n";
        assert_eq!(memlock_limit(text).as_deref(), Some("8192 KiB"));
        assert_eq!(memlock_limit("Max locked memory  unlimited unlimited bytes").as_deref(), Some("unlimited"));
        assert_eq!(memlock_limit(""), None);
    }
}
