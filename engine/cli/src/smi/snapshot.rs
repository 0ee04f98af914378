//! What `smi` shows, frozen at one instant: plain values in base units, `None` where nobody knows.
//!
//! Gathering ends here and drawing begins here, so the drawing can be tested without engines, drivers or a terminal.
//! The JSON form is this structure as it stands; a change of meaning or a removed key raises [`SCHEMA_VERSION`].

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use lossfeed_stats as stats;
use serde::Serialize;

/// Version of the JSON form. Added keys do not raise it.
pub const SCHEMA_VERSION: u32 = 1;

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
    /// How NVML answered.
    pub nvml: Nvml,
    /// One entry a device NVML knows, readable or not.
    pub gpus: Vec<Gpu>,
    /// One entry a stats page, alive or not, by pid.
    pub engines: Vec<Engine>,
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

/// How NVML answered.
#[derive(Debug, Clone, Serialize)]
pub struct Nvml {
    /// What happened.
    pub status: NvmlStatus,
    /// The reason when it is not [`NvmlStatus::Ok`].
    pub detail: Option<String>,
    /// Version of the NVIDIA driver.
    pub driver: Option<String>,
    /// Newest CUDA version the driver speaks.
    pub cuda: Option<String>,
}

/// What happened when NVML was loaded.
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
}

/// An engine, as its stats page tells.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Engine {
    /// Its process, in its own pid namespace.
    pub pid: u32,
    /// False when the process has ended and left its page behind.
    pub alive: bool,
    /// The job's name.
    pub job: String,
    /// Rank in the job.
    pub rank: u32,
    /// Ranks in the job.
    pub world_size: u32,
    /// Where the data lies.
    pub source: String,
    /// Cache policy.
    pub policy: String,
    /// Sampler.
    pub sampler: String,
    /// Device the batches go to.
    pub device: String,
    /// That device's NVML id, if it is a GPU.
    pub gpu_uuid: Option<String>,
    /// hits / requests since the start. Never shown without the coverage: replaying few samples hits well.
    pub hit_ratio: Option<f64>,
    /// Share of this rank's samples delivered at least once in this epoch, so far.
    pub coverage_epoch_ratio: Option<f64>,
    /// Share of the whole dataset that this rank delivered at least once since the start.
    pub coverage_ever_ratio: Option<f64>,
    /// Share of the consumer's time spent waiting for a batch, since the start.
    pub stall_ratio: Option<f64>,
    /// Effective sample size of the plan's weights, as a share of its draws; 1 = all weights equal.
    pub ess_ratio: Option<f64>,
    /// Samples delivered a second, lately.
    pub samples_per_s: Option<f64>,
    /// Bytes fetched from the source a second, lately.
    pub fetched_bytes_per_s: Option<f64>,
    /// Stall share of each of the last seconds, oldest first.
    pub stall_history: Vec<f64>,
    /// Every counter and gauge of the page, by name; renamed ones by their former names too, for one release.
    pub counters: BTreeMap<String, u64>,
}

impl Engine {
    /// A counter or gauge of the page, if it has it.
    pub fn counter(&self, name: &str) -> Option<u64> {
        self.counters.get(name).copied()
    }

    /// Fills the ratios from the counters.
    pub fn derive(mut self) -> Self {
        let ratio = |metric: stats::Derived| metric.of(&|name| self.counters.get(name).copied());
        self.hit_ratio = ratio(stats::HIT_RATIO);
        self.coverage_epoch_ratio = ratio(stats::COVERAGE_EPOCH);
        self.coverage_ever_ratio = ratio(stats::COVERAGE_EVER);
        self.stall_ratio = ratio(stats::STALL_FRACTION);
        self.ess_ratio = ratio(stats::ESS_FRACTION);
        self
    }

    /// One word for the state column: the first that applies.
    pub fn state(&self) -> &'static str {
        match (self.alive, self.stall_ratio) {
            (false, _) => "exited",
            (true, None) => "starts",
            // The thresholds nvitop paints by. The share counts from the run's start; batches that lie ready now say that
            // whoever waits is not waiting for them.
            (true, Some(stall)) if stall >= 0.10 && self.counter("slots_ready").unwrap_or(0) == 0 => "waits",
            (true, Some(_)) => "ok",
        }
    }
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
        assert_eq!(engine.hit_ratio, None);
        assert_eq!(engine.stall_ratio, None);
        assert_eq!(engine.state(), "starts");
    }

    #[test]
    fn ratios_come_from_the_pages_counters() {
        let counters = [
            ("requests_total", 200),
            ("hits_total", 50),
            ("samples_in_dataset", 1000),
            ("samples_in_share", 500),
            ("distinct_epoch", 100),
            ("distinct_ever", 900),
            ("wait_us_total", 30),
            ("busy_us_total", 70),
            ("ess_ppm", 812_000),
        ];
        let counters = counters.iter().map(|&(k, v)| (k.to_owned(), v)).collect();
        let engine = Engine { alive: true, counters, ..Engine::default() }.derive();
        assert_eq!(engine.hit_ratio, Some(0.25));
        assert_eq!(engine.coverage_epoch_ratio, Some(0.2));
        assert_eq!(engine.coverage_ever_ratio, Some(0.9));
        assert_eq!(engine.stall_ratio, Some(0.3));
        assert_eq!(engine.ess_ratio, Some(0.812));
        assert_eq!(engine.state(), "waits");
        let mut ready = engine;
        ready.counters.insert("slots_ready".to_owned(), 3);
        assert_eq!(ready.state(), "ok", "it waited once, and does not now");
    }
}
