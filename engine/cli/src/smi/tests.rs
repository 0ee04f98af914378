//! Golden screens: what a reader sees, for engines that run, have ended or are not there, with GPUs, broken ones and
//! none.
//!
//! `UPDATE_GOLDEN=1 cargo test -p lossfeed-cli` rewrites the files; look at the difference before keeping it.

use super::snapshot::{Engine, Gpu, Nvml, NvmlStatus, SCHEMA_VERSION, Snapshot, Unreadable};
use super::*;

fn engine(pid: u32, job: &str, counters: &[(&str, u64)]) -> Engine {
    Engine {
        pid,
        job: job.to_owned(),
        alive: true,
        world_size: 1,
        source: "s3://imagenet/train-{000..146}.tar".to_owned(),
        policy: "importance".to_owned(),
        sampler: "cost-aware".to_owned(),
        device: "cuda:0".to_owned(),
        gpu_uuid: Some("GPU-b".to_owned()),
        samples_per_s: Some(9812.4),
        fetched_bytes_per_s: Some(64.2e6),
        stall_history: (0..90).map(|i| f64::from(i % 10) / 10.0).collect(),
        counters: counters.iter().map(|&(k, v)| (k.to_owned(), v)).collect(),
        ..Engine::default()
    }
    .derive()
}

fn busy() -> Engine {
    engine(
        41822,
        "resnet50-in1k",
        &[
            ("requests_total", 1_000_000),
            ("hits_total", 814_000),
            ("samples_in_dataset", 1_281_167),
            ("samples_in_share", 1_281_167),
            ("distinct_epoch", 640_584),
            ("distinct_ever", 1_280_000),
            ("wait_us_total", 226),
            ("wait_source_us_total", 180),
            ("wait_decode_us_total", 31),
            ("wait_copy_us_total", 10),
            ("wait_decide_us_total", 1),
            ("wait_handover_us_total", 4),
            ("busy_us_total", 774),
            ("ess_ppm", 712_000),
            ("epoch", 12),
            ("batch", 811),
            ("batches_per_epoch", 1251),
            ("cache_bytes", 22 << 30),
            ("cache_capacity_bytes", 24 << 30),
            ("residents", 214_200),
            ("evicted_total", 41_870),
            ("bypassed_total", 55_000),
            ("fetched_samples_total", 186_000),
            ("fetched_bytes_total", 21_300_000_000),
            ("coalesced_total", 3),
            ("bad_samples_total", 0),
            ("slots_total", 8),
            ("slots_ready", 0),
            ("slots_lent", 1),
            ("slots_copying", 2),
            ("workers", 3),
            ("workers_changes_total", 2),
            ("workers_reason", 3),
            ("on_time_total", 170_000),
            ("late_total", 16_000),
            ("read_ahead_requests", 12),
            ("read_ahead_changes_total", 5),
            ("read_ahead_reason", 2),
            ("read_ahead_bytes", 200 << 20),
            ("read_ahead_limit_bytes", 256 << 20),
            ("read_ahead_limit_changes_total", 1),
            ("read_ahead_limit_reason", 1),
            ("disk_hits_total", 90_000),
            ("disk_misses_total", 96_000),
            ("disk_failed_total", 3),
            ("disk_skipped_total", 1200),
            ("disk_opened_total", 2),
            ("disk_circuit", 1),
            ("disk_circuit_reason", 1),
            ("pool_hits_total", 7000),
            ("pool_misses_total", 50),
            ("pool_failed_total", 0),
            ("pool_skipped_total", 4),
            ("pool_opened_total", 1),
            ("pool_circuit", 1),
            ("pool_circuit_reason", 2),
            ("scores_total", 999_744),
            ("scores_dropped_total", 0),
            ("score_age_steps", 412),
        ],
    )
}

fn dead() -> Engine {
    Engine {
        alive: false,
        pid: 977,
        job: "clip-b16".to_owned(),
        gpu_uuid: None,
        rank: 1,
        world_size: 2,
        samples_per_s: None,
        ..busy()
    }
}

fn gpu(index: u32, uuid: &str) -> Gpu {
    Gpu {
        index,
        uuid: Some(uuid.to_owned()),
        name: Some("NVIDIA H200".to_owned()),
        temperature_celsius: Some(54),
        power_watts: Some(412.3),
        power_limit_watts: Some(700.0),
        utilization_ratio: Some(0.63),
        memory_used_bytes: Some(76_450_000_000),
        memory_total_bytes: Some(150_754_820_096),
        pcie_rx_bytes_per_s: Some(6_320_000_000),
        pcie_tx_bytes_per_s: None,
        pcie_generation: Some(5),
        pcie_lanes: Some(16),
        error: None,
    }
}

fn screen(gpus: Vec<Gpu>, engines: Vec<Engine>) -> Snapshot {
    Snapshot {
        schema_version: SCHEMA_VERSION,
        version: "0.1.0".to_owned(),
        time: "2026-11-20T10:42:17Z".to_owned(),
        host: Some("train-07".to_owned()),
        nvml: Nvml {
            status: NvmlStatus::Ok,
            detail: None,
            driver: Some("580.95.05".to_owned()),
            cuda: Some("13.0".to_owned()),
        },
        gpus,
        engines,
        unreadable: Vec::new(),
    }
}

fn no_nvml(engines: Vec<Engine>) -> Snapshot {
    let nvml = Nvml {
        status: NvmlStatus::LibraryNotFound,
        detail: Some("libnvidia-ml.so.1 not found".to_owned()),
        driver: None,
        cuda: None,
    };
    Snapshot { nvml, ..screen(Vec::new(), engines) }
}

fn text(snapshot: &Snapshot, width: u16, ascii: bool) -> String {
    let mut out = Vec::new();
    print::print(&mut out, &draw(snapshot, Look { width, ascii, footer: "" }), false).unwrap();
    String::from_utf8(out).unwrap()
}

fn assert_golden(name: &str, drawn: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, drawn).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert_eq!(drawn, golden, "{name} changed; UPDATE_GOLDEN=1 rewrites it\n{drawn}");
}

#[test]
fn several_engines_and_gpus_join_by_uuid() {
    let snapshot = screen(vec![gpu(0, "GPU-a"), gpu(1, "GPU-b")], vec![busy(), dead()]);
    let drawn = text(&snapshot, 120, false);
    assert_golden("engines-and-gpus-120.txt", &drawn);
    let row = drawn.lines().find(|l| l.contains("41822") && l.contains("811/1251")).unwrap();
    assert!(row.contains("  1 waits"), "the engine on GPU-b belongs to row 1: {row}");
}

#[test]
fn without_nvml_one_line_says_so_and_engines_stay() {
    assert_golden("no-nvml-100.txt", &text(&no_nvml(vec![busy()]), 100, false));
}

#[test]
fn without_engines_one_line_says_so() {
    assert_golden("nothing-100.txt", &text(&no_nvml(Vec::new()), 100, false));
}

#[test]
fn the_ended_are_one_line_beside_the_living_and_rows_where_nobody_lives() {
    let drawn = text(&no_nvml(vec![busy(), dead(), Engine { pid: 7, ..dead() }]), 100, true);
    assert!(drawn.contains("ended: 2 (") && drawn.contains("7 "), "{drawn}");
    assert_eq!(drawn.matches("exited").count(), 0, "{drawn}");
    assert_eq!(text(&no_nvml(vec![dead()]), 100, true).matches("exited").count(), 1);
}

#[test]
fn pages_that_cannot_be_read_are_shown_with_the_reason() {
    let page = |name: &str| {
        Unreadable {
        path: format!("/dev/shm/lossfeed-1000/{name}.page"),
        reason: "a page of an older lossfeed (layout version 1, this program reads 2): watch that run with its own `lossfeed smi`"
            .to_owned(),
    }
    };
    let mut snapshot = no_nvml(Vec::new());
    snapshot.unreadable = vec![page("9f01-4026531836-977-1234-0")];
    assert_golden("not-readable-140.txt", &text(&snapshot, 140, false));
    snapshot.unreadable = (0..30).map(|n| page(&n.to_string())).collect();
    let drawn = text(&snapshot, 140, false);
    assert!(drawn.contains("and 22 more") && drawn.lines().count() < 30, "{drawn}");
    let json = serde_json::to_value(&snapshot).unwrap();
    assert_eq!(json["unreadable"].as_array().unwrap().len(), 30);
}

/// Every text that comes from elsewhere, with an escape sequence in 7 and in 8 bits, a bell, a line end and a mark
/// that turns text around. Nothing of them may reach a terminal, whatever the form.
#[test]
fn no_text_from_elsewhere_reaches_the_terminal_raw() {
    let hostile = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\r\n\u{202e}x";
    let mut engine = busy();
    for text in [&mut engine.job, &mut engine.source, &mut engine.policy, &mut engine.sampler, &mut engine.device] {
        hostile.clone_into(text);
    }
    let mut snapshot = screen(vec![Gpu { name: Some(hostile.to_owned()), ..gpu(0, "GPU-a") }], vec![engine]);
    snapshot.gpus.push(Gpu { index: 1, error: Some(hostile.to_owned()), ..Gpu::default() });
    snapshot.host = Some(hostile.to_owned());
    snapshot.nvml.driver = Some(hostile.to_owned());
    snapshot.unreadable = vec![Unreadable { path: hostile.to_owned(), reason: hostile.to_owned() }];
    for width in [60, 100, 160] {
        for ascii in [false, true] {
            let drawn = text(&snapshot, width, ascii);
            let raw: Vec<char> = drawn.chars().filter(|&c| c != '\n' && lossfeed_stats::steers_terminal(c)).collect();
            assert!(raw.is_empty(), "{raw:?} in {drawn:?}");
            assert!(drawn.lines().all(|l| ratatui::text::Span::raw(l).width() == usize::from(width)), "{drawn}");
        }
    }
}

#[test]
fn a_device_that_fails_keeps_its_row_and_its_reason() {
    let lost = Gpu { index: 1, error: Some("GPU is lost".to_owned()), ..Gpu::default() };
    assert_golden("one-gpu-fails-100.txt", &text(&screen(vec![gpu(0, "GPU-a"), lost], Vec::new()), 100, false));
}

#[test]
fn a_narrow_plain_terminal_gets_fewer_columns_in_ascii() {
    let drawn = text(&screen(vec![gpu(0, "GPU-b")], vec![busy(), dead()]), 60, true);
    assert!(drawn.is_ascii());
    assert_golden("narrow-ascii-60.txt", &drawn);
}

#[test]
fn every_line_is_as_wide_as_the_screen_and_a_hit_ratio_never_stands_without_coverage() {
    let crowd =
        screen(vec![gpu(0, "GPU-a")], vec![busy(), dead(), engine(1, "a-name-too-long-for-any-of-the-columns", &[])]);
    for width in 60..=160 {
        let drawn = text(&crowd, width, false);
        for line in drawn.lines() {
            assert_eq!(ratatui::text::Span::raw(line).width(), usize::from(width), "{line}");
        }
        assert_eq!(drawn.contains("hit%"), drawn.contains("cover%"), "at width {width}");
    }
}

#[test]
fn colour_marks_a_stalled_engine_and_is_absent_when_not_wanted() {
    let buffer = draw(&no_nvml(vec![busy()]), Look { width: 100, ascii: false, footer: "" });
    let (mut colored, mut plain) = (Vec::new(), Vec::new());
    print::print(&mut colored, &buffer, true).unwrap();
    print::print(&mut plain, &buffer, false).unwrap();
    assert!(String::from_utf8(colored).unwrap().contains("\x1b[33m  22.6\x1b[0m"));
    assert!(!plain.contains(&0x1b));
}

#[test]
fn the_json_form_is_one_document_in_base_units_with_null_for_unknown() {
    let args = SmiArgs { json: true, ..arguments() };
    let mut out = Vec::new();
    show(&screen(vec![gpu(0, "GPU-a")], vec![busy(), engine(1, "young", &[])]), &args, &mut out).unwrap();
    assert_eq!(out.iter().filter(|&&b| b == b'\n').count(), 1, "one line a document");
    let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(json["schema_version"], 1);
    assert_eq!(json["nvml"]["status"], "ok");
    assert_eq!(json["gpus"][0]["utilization_ratio"], 0.63);
    assert!(json["gpus"][0]["pcie_tx_bytes_per_s"].is_null());
    assert_eq!(json["engines"][0]["hit_ratio"], 0.814);
    assert_eq!(json["engines"][0]["counters"]["fetched_bytes_total"], 21_300_000_000u64);
    assert!(json["engines"][1]["hit_ratio"].is_null() && json["engines"][1]["coverage_epoch_ratio"].is_null());
}

#[test]
fn exit_codes_say_what_was_demanded_and_missing() {
    let (plain, demanding) = (arguments(), SmiArgs { require_gpu: true, ..arguments() });
    let named = SmiArgs { job: Some("other".to_owned()), ..arguments() };
    assert_eq!(verdict(&no_nvml(Vec::new()), &plain), 0);
    assert_eq!(verdict(&no_nvml(Vec::new()), &demanding), 12);
    assert_eq!(verdict(&no_nvml(Vec::new()), &named), 6);
    assert_eq!(verdict(&screen(Vec::new(), Vec::new()), &demanding), 6);
    assert_eq!(verdict(&screen(vec![gpu(0, "GPU-a")], Vec::new()), &demanding), 0);
    let lost = Gpu { error: Some("GPU is lost".to_owned()), ..Gpu::default() };
    assert_eq!(verdict(&screen(vec![lost], Vec::new()), &demanding), 15);
    let mut unloaded = no_nvml(Vec::new());
    unloaded.nvml.status = NvmlStatus::DriverNotLoaded;
    assert_eq!(verdict(&unloaded, &demanding), 9);
}

#[test]
fn a_reader_that_goes_away_is_an_error_the_command_takes_for_an_end() {
    struct Closed;
    impl io::Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    for json in [false, true] {
        let shown = show(&no_nvml(vec![busy()]), &SmiArgs { json, ..arguments() }, &mut Closed);
        assert_eq!(crate::term::exit_code(shown.map(|()| 0)), 0);
        assert!(show(&no_nvml(vec![busy()]), &SmiArgs { json, ..arguments() }, &mut Closed).is_err());
    }
}

fn arguments() -> SmiArgs {
    SmiArgs { watch: None, job: None, require_gpu: false, json: false, color: crate::term::Color::Never, ascii: false }
}
