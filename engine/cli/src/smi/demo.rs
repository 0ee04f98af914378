//! Made-up engines and GPUs, for `--demo` and for tests. Pure: the same second, the same screen.

use super::snapshot::{Engine, Gpu, Nvml, NvmlStatus, Process, SCHEMA_VERSION, Snapshot, rfc3339};
use super::{gather, held, judged};

/// The start of the made-up runs, in seconds since 1970 UTC.
const START_S: u64 = 1_795_170_737;

/// The machine `t` seconds after the runs began: a job that waits for its store, one of four ranks that is well, one
/// that has ended, and a GPU that is held and idle.
pub(super) fn snapshot(t: f64) -> Snapshot {
    let uuid = |index: u32| format!("GPU-{index:08}");
    let mut engines = vec![waiting(t)];
    engines.extend((0..4).map(|rank| Engine { gpu_uuid: Some(uuid(rank)), rank, pid: 41_907 + rank, ..well(t, rank) }));
    engines.push(Engine {
        alive: false,
        pid: 977,
        job: "bert-base".to_owned(),
        age_seconds: 200.0 + t,
        gpu_uuid: None,
        ..waiting(60.0)
    });
    for engine in &mut engines {
        engine.page = format!("{}.page", engine.pid).into();
        engine.started = rfc3339(START_S);
        if !engine.alive {
            (engine.samples_per_s, engine.fetched_bytes_per_s, engine.stall_lately) = (None, None, None);
        }
        *engine = std::mem::take(engine).derive();
    }
    judged::judge(&mut engines, &[]);
    gather::order(&mut engines);
    let mut gpus: Vec<Gpu> = (0..6).map(|index| gpu(index, uuid(index), t)).collect();
    held::mark(&mut gpus, &engines);
    Snapshot {
        schema_version: SCHEMA_VERSION,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        time: rfc3339(START_S + t as u64),
        host: Some("demo: made-up numbers".to_owned()),
        nvml: Nvml {
            status: NvmlStatus::Ok,
            detail: None,
            driver: Some("580.95.05".to_owned()),
            cuda: Some("13.0".to_owned()),
        },
        gpus,
        engines,
        engines_of_others: 2,
        unreadable: Vec::new(),
    }
}

/// Every counter of the definitions; those that are not named are 0.
fn counters(named: &[(&str, f64)]) -> std::collections::BTreeMap<String, u64> {
    let all = lossfeed_stats::Counters::NAMES.iter().map(|&name| (name.to_owned(), 0));
    all.chain(named.iter().map(|&(name, value)| (name.to_owned(), value as u64))).collect()
}

fn waiting(t: f64) -> Engine {
    let step_us = 52_100.0;
    let steps = t * 1e6 / step_us;
    let us = |share: f64| share * t * 1e6;
    let delivered = 256.0 * steps;
    let counters = counters(&[
        ("requests_total", delivered),
        ("hits_total", 0.38 * delivered),
        ("fetched_samples_total", 0.62 * delivered),
        ("fetched_bytes_total", 0.62 * delivered * 114_000.0),
        ("on_time_total", 0.4 * delivered),
        ("late_total", 0.22 * delivered),
        ("batches_total", steps),
        ("samples_total", delivered),
        ("passes_total", 1.0),
        ("wait_us_total", us(0.61)),
        ("wait_source_us_total", us(0.55)),
        ("wait_decode_us_total", us(0.05)),
        ("wait_handover_us_total", us(0.01)),
        ("busy_us_total", us(0.39)),
        ("batch", steps % 5004.0),
        ("batches_per_epoch", 5004.0),
        ("epoch", (steps / 5004.0).floor()),
        ("samples_in_dataset", 1_281_167.0),
        ("samples_in_share", 1_281_167.0),
        ("distinct_epoch", delivered.min(1_281_167.0)),
        ("distinct_ever", delivered.min(1_281_167.0)),
        ("residents", 71_000.0),
        ("cache_bytes", 8.3e9),
        ("cache_capacity_bytes", 8.6e9),
        ("evicted_total", 0.2 * delivered),
        ("slots_total", 8.0),
        ("slots_lent", 1.0),
        ("workers", 2.0),
        ("workers_changes_total", 3.0),
        ("workers_reason", 3.0),
        ("read_ahead_requests", 12.0),
        ("read_ahead_changes_total", 5.0),
        ("read_ahead_reason", 2.0),
        ("read_ahead_bytes", 200e6),
        ("read_ahead_limit_bytes", 268e6),
        ("read_ahead_limit_changes_total", 1.0),
        ("read_ahead_limit_reason", 1.0),
        ("disk_hits_total", 0.1 * delivered),
        ("disk_misses_total", 0.5 * delivered),
        ("disk_bytes", 310e9),
        ("store_us_p50", 21_000.0),
        ("store_us_p99", 480_000.0),
        ("scores_total", delivered),
        ("score_age_steps", 412.0),
        ("ess_ppm", 712_000.0),
        ("processors", 16.0),
    ]);
    Engine {
        pid: 41_822,
        source: "s3://imagenet/train-{000..146}.tar".to_owned(),
        job: "resnet50-in1k".to_owned(),
        gpu_uuid: Some("GPU-00000004".to_owned()),
        world_size: 1,
        samples_per_s: Some(256e6 / step_us),
        fetched_bytes_per_s: Some(0.62 * 114_000.0 * 256e6 / step_us),
        stall_lately: Some(0.61),
        stall_history: (0..90).map(|s| 0.61 + 0.3 * ((t + f64::from(s)) / 9.0).sin()).collect(),
        counters,
        ..common()
    }
}

fn well(t: f64, rank: u32) -> Engine {
    let step_us = 70_300.0;
    let steps = t * 1e6 / step_us;
    let wait = if rank == 2 { 0.05 } else { 0.01 };
    let delivered = 250.0 * steps;
    let counters = counters(&[
        ("requests_total", delivered),
        ("hits_total", 0.97 * delivered),
        ("fetched_samples_total", 0.03 * delivered),
        ("fetched_bytes_total", 0.03 * delivered * 98_000.0),
        ("batches_total", steps),
        ("samples_total", delivered),
        ("wait_us_total", wait * t * 1e6),
        ("wait_source_us_total", wait * t * 1e6),
        ("busy_us_total", (1.0 - wait) * t * 1e6),
        ("batch", steps % 9766.0),
        ("batches_per_epoch", 9766.0),
        ("epoch", 3.0),
        ("samples_in_dataset", 9_765_625.0),
        ("samples_in_share", 2_441_406.0),
        ("distinct_epoch", delivered.min(2_441_406.0)),
        ("distinct_ever", 2_441_406.0),
        ("residents", 214_000.0),
        ("cache_bytes", 21e9),
        ("cache_capacity_bytes", 26e9),
        ("slots_total", 8.0),
        ("slots_ready", 6.0),
        ("workers", 3.0),
        ("ess_ppm", 930_000.0),
        ("processors", 16.0),
    ]);
    Engine {
        source: "/data/clip/shard-{0000..2047}.tar".to_owned(),
        job: "clip-b16".to_owned(),
        world_size: 4,
        samples_per_s: Some(250e6 / step_us),
        fetched_bytes_per_s: Some(0.03 * 98_000.0 * 250e6 / step_us),
        stall_lately: Some(wait),
        stall_history: vec![wait; 90],
        counters,
        ..common()
    }
}

fn common() -> Engine {
    Engine {
        uid: 1000,
        alive: true,
        age_seconds: 0.4,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        policy: "importance".to_owned(),
        sampler: "cost-aware".to_owned(),
        device: "cuda:0".to_owned(),
        ..Engine::default()
    }
}

fn gpu(index: u32, uuid: String, t: f64) -> Gpu {
    let (busy, pid, name) = match index {
        0..=3 => (0.97, 41_907 + index, "/usr/bin/python3"),
        4 => (0.38, 41_822, "/usr/bin/python3"),
        _ => (0.0, 3_121, "/opt/conda/bin/jupyter"),
    };
    Gpu {
        index,
        uuid: Some(uuid),
        name: Some("NVIDIA H200".to_owned()),
        temperature_celsius: Some(41 + (20.0 * busy) as u32),
        power_watts: Some(120.0 + 480.0 * busy),
        power_limit_watts: Some(700.0),
        utilization_ratio: Some(busy),
        memory_used_bytes: Some(76_450_000_000),
        memory_total_bytes: Some(150_754_820_096),
        pcie_rx_bytes_per_s: Some((8.9e9 * busy) as u64),
        pcie_tx_bytes_per_s: Some((0.4e9 * busy) as u64),
        pcie_generation: Some(5),
        pcie_lanes: Some(16),
        processes: vec![Process {
            pid,
            name: Some(name.to_owned()),
            memory_bytes: Some(76_100_000_000),
            has_page: None,
        }],
        idle_seconds: (busy == 0.0).then_some(t),
        error: None,
    }
}
