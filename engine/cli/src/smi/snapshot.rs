//! A snapshot of engines and GPUs: plain values in base units, `None` for unknown.
//!
//! Gathering ends here and drawing begins here, so the drawing can be tested without engines, drivers or a terminal.
//! The JSON form is this structure; a change of meaning or a removed key raises [`SCHEMA_VERSION`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use lossfeed_stats as stats;
use serde::Serialize;

/// Version of the JSON form. Added keys do not raise it.
pub const SCHEMA_VERSION: u32 = 2;

/// Everything on the screen.
#[derive(Debug, Clone, Serialize)]
pub struct Snapshot {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Version of this program.
    pub version: String,
    /// When it was taken, RFC 3339, UTC.
    pub time: String,
    /// This machine's name.
    pub host: Option<String>,
    /// NVML's answer.
    pub nvml: Nvml,
    /// One entry a device NVML knows, readable or not.
    pub gpus: Vec<Gpu>,
    /// One entry a stats page: the living by pid, then the ended, the last to end first.
    pub engines: Vec<Engine>,
    /// Engines of other users, whose pages only root may read.
    pub engines_of_others: usize,
    /// Stats pages, or directories of them, that cannot be read: a page of another version of lossfeed among others.
    pub unreadable: Vec<Unreadable>,
}

/// A stats page that cannot be read.
#[derive(Debug, Clone, Serialize)]
pub struct Unreadable {
    /// The file, or the directory if that itself cannot be trusted. Control characters are `?`.
    pub path: String,
    /// Why, in one line.
    pub reason: String,
}

/// NVML's answer.
#[derive(Debug, Clone, Serialize)]
pub struct Nvml {
    /// The outcome.
    pub status: NvmlStatus,
    /// The reason when it is not [`NvmlStatus::Ok`].
    pub detail: Option<String>,
    /// Version of the NVIDIA driver.
    pub driver: Option<String>,
    /// Newest CUDA version the driver speaks.
    pub cuda: Option<String>,
}

/// The outcome of loading NVML.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NvmlStatus {
    /// It answers.
    Ok,
    /// No `libnvidia-ml.so.1`: no NVIDIA driver is installed, or the container was not given one.
    LibraryNotFound,
    /// The library is there, the kernel module is not.
    DriverNotLoaded,
    /// Anything else.
    Failed,
}

/// A device.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Gpu {
    /// NVML's index.
    pub index: u32,
    /// NVML's unique id; engines are joined by it, because pids differ between a container and its host.
    pub uuid: Option<String>,
    /// Product name.
    pub name: Option<String>,
    /// Why this device could not be read at all.
    pub error: Option<String>,
    /// Core temperature.
    pub temperature_celsius: Option<u32>,
    /// Power drawn now.
    pub power_watts: Option<f64>,
    /// Power limit in force.
    pub power_limit_watts: Option<f64>,
    /// Share of the last sample period in which a kernel ran, 0 to 1.
    pub utilization_ratio: Option<f64>,
    /// Memory in use, by everyone.
    pub memory_used_bytes: Option<u64>,
    /// Memory there is.
    pub memory_total_bytes: Option<u64>,
    /// PCIe traffic towards the device.
    pub pcie_rx_bytes_per_s: Option<u64>,
    /// PCIe traffic from the device.
    pub pcie_tx_bytes_per_s: Option<u64>,
    /// PCIe generation in use now.
    pub pcie_generation: Option<u32>,
    /// PCIe lanes in use now.
    pub pcie_lanes: Option<u32>,
    /// Processes that hold the device's memory for computing.
    pub processes: Vec<Process>,
    /// Seconds that `--watch` has seen processes hold the device without running anything.
    pub idle_seconds: Option<f64>,
}

/// A process on a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Its pid, as NVML tells it: the host's.
    pub pid: u32,
    /// Its name, if NVML tells it.
    pub name: Option<String>,
    /// Device memory that it holds.
    pub memory_bytes: Option<u64>,
    /// True if it is an engine with a page here, false if it is none, null if pids do not tell.
    pub has_page: Option<bool>,
}

/// An engine, as its stats page tells. Its keys are the fields of `--query-engine`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Engine {
    /// Its process, in its own pid namespace.
    pub pid: u32,
    /// The user of the process.
    pub uid: u32,
    /// False when the process has ended and its page is still there.
    pub alive: bool,
    /// One word for the table.
    pub state: String,
    /// When the engine started, RFC 3339, UTC.
    pub started: String,
    /// Seconds since it last wrote its numbers.
    pub age_seconds: f64,
    /// The program that wrote the page.
    pub version: String,
    /// The job's name.
    pub job: String,
    /// Rank in the job.
    pub rank: u32,
    /// Ranks in the job.
    pub world_size: u32,
    /// The data's place, without secrets.
    pub source: String,
    /// Cache policy.
    pub policy: String,
    /// Sampler.
    pub sampler: String,
    /// Device the batches go to.
    pub device: String,
    /// That device's NVML id, if it is a GPU.
    pub gpu_uuid: Option<String>,
    /// The verdict's word; `None` for an engine that has ended.
    pub verdict: Option<String>,
    /// The cause it names.
    pub cause: Option<String>,
    /// The numbers it rests on, in words.
    pub why: Option<String>,
    /// One thing to try.
    pub next: Option<String>,
    /// Samples delivered a second, lately.
    pub samples_per_s: Option<f64>,
    /// Bytes fetched from the source a second, lately.
    pub fetched_bytes_per_s: Option<f64>,
    /// Share of its time that the training waited, lately.
    pub stall_lately: Option<f64>,
    /// Mean time of a step since the start, waiting included.
    pub step_seconds: Option<f64>,
    /// Stall share of each of the last seconds, oldest first.
    pub stall_history: Vec<f64>,
    /// The ratios of the counters' definitions, since the start. A hit ratio is never shown without the coverage:
    /// replaying few samples hits well.
    #[serde(flatten)]
    pub ratios: BTreeMap<&'static str, Option<f64>>,
    /// Every counter and gauge of the page, by name.
    pub counters: BTreeMap<String, u64>,
    /// The page's file: tells engines of one process apart.
    #[serde(skip)]
    pub page: PathBuf,
    /// True if the verdict asks for a change.
    #[serde(skip)]
    pub is_wrong: bool,
}

/// A live engine that has not written its numbers for so long is stopped.
const STOPPED_S: f64 = 5.0;

impl Engine {
    /// A counter or gauge of the page, if it has it.
    pub fn counter(&self, name: &str) -> Option<u64> {
        self.counters.get(name).copied()
    }

    /// A ratio of the counters' definitions, if it is known.
    pub fn ratio(&self, ratio: stats::Derived) -> Option<f64> {
        self.ratios.get(ratio.descriptor.name).copied().flatten()
    }

    /// The engines with this key are the ranks of one job. They read one dataset: a second loader of a process, for
    /// validation, is a job of its own.
    pub fn job_key(&self) -> (u32, &str, &str) {
        (self.uid, &self.job, &self.source)
    }

    /// Fills what follows from the counters.
    pub fn derive(mut self) -> Self {
        self.ratios = stats::DERIVED
            .map(|metric| (metric.descriptor.name, metric.of(&|name| self.counters.get(name).copied())))
            .into();
        let time_us = || Some(self.counter("wait_us_total")? + self.counter("busy_us_total")?);
        let steps = self.counter("batches_total").filter(|&steps| steps > 0);
        self.step_seconds = steps.zip(time_us()).map(|(steps, us)| us as f64 / steps as f64 / 1e6);
        self.state = match (self.alive, &self.verdict) {
            (false, _) => format!("ended {}", age(self.age_seconds)),
            (true, _) if self.age_seconds > STOPPED_S => "stopped".to_owned(),
            (true, Some(verdict)) => verdict.clone(),
            (true, None) => "starts".to_owned(),
        };
        self
    }
}

/// A time in its largest unit: "41s", "3m", "2h", "5d".
pub(super) fn age(seconds: f64) -> String {
    let units = [(86400.0, "d"), (3600.0, "h"), (60.0, "m")];
    let (scale, unit) = units.into_iter().find(|(scale, _)| seconds >= *scale).unwrap_or((1.0, "s"));
    format!("{:.0}{unit}", (seconds / scale).floor())
}

/// Seconds since 1970 → RFC 3339 in UTC.
pub(super) fn rfc3339(unix_s: u64) -> String {
    // The format ends with the year 9999.
    let shown = UNIX_EPOCH + Duration::from_secs(unix_s.min(253_402_300_799));
    humantime::format_rfc3339_seconds(shown).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_written_as_the_standard_says() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_795_171_337), "2026-11-20T10:42:17Z");
        assert_eq!(rfc3339(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(rfc3339(u64::MAX), "9999-12-31T23:59:59Z");
    }

    #[test]
    fn a_ratio_of_nothing_is_unknown_and_not_zero() {
        let engine = Engine { alive: true, ..Engine::default() }.derive();
        assert!(engine.ratios.values().all(Option::is_none) && engine.ratios.len() == stats::DERIVED.len());
        assert_eq!((engine.step_seconds, engine.state.as_str()), (None, "starts"));
    }

    #[test]
    fn what_follows_from_the_pages_counters_is_filled_in() {
        let counters = [("requests_total", 200), ("hits_total", 50), ("wait_us_total", 30), ("busy_us_total", 70)];
        let counters = counters.into_iter().chain([("batches_total", 4)]);
        let counters = counters.map(|(name, value)| (name.to_owned(), value)).collect();
        let engine = Engine { alive: true, counters, verdict: Some("ok".to_owned()), ..Engine::default() }.derive();
        assert_eq!((engine.ratio(stats::HIT_RATIO), engine.ratio(stats::STALL_FRACTION)), (Some(0.25), Some(0.3)));
        assert_eq!((engine.step_seconds, engine.state.as_str()), (Some(25e-6), "ok"));
        assert_eq!(Engine { age_seconds: 6.0, ..engine.clone() }.derive().state, "stopped");
        assert_eq!(Engine { age_seconds: 200.0, alive: false, ..engine }.derive().state, "ended 3m");
    }

    #[test]
    fn an_age_is_written_in_its_largest_unit() {
        for (seconds, written) in [(0.4, "0s"), (59.9, "59s"), (60.0, "1m"), (7199.0, "1h"), (1e6, "11d")] {
            assert_eq!(age(seconds), written);
        }
    }
}
