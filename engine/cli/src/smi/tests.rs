//! Golden screens: what a reader sees, for engines that run, have ended or are not there, with GPUs, broken ones and
//! none.
//!
//! `UPDATE_GOLDEN=1 cargo test -p lossfeed-cli` rewrites the files; look at the difference before keeping it.

use clap::Parser;

use super::snapshot::{Engine, Gpu, Nvml, NvmlStatus, Unreadable};
use super::*;
use crate::args::{Cli, Command};

/// The made-up machine, under a version that goldens can name.
fn machine() -> Snapshot {
    Snapshot { version: "0.1.0".to_owned(), host: Some("train-07".to_owned()), ..demo::snapshot(600.0) }
}

fn no_nvml(engines: Vec<Engine>) -> Snapshot {
    let nvml = Nvml {
        status: NvmlStatus::LibraryNotFound,
        detail: Some("libnvidia-ml.so.1 not found".to_owned()),
        driver: None,
        cuda: None,
    };
    Snapshot { nvml, gpus: Vec::new(), engines, engines_of_others: 0, ..machine() }
}

fn page(snapshot: &Snapshot, page: Page, width: u16, ascii: bool) -> String {
    let mut out = Vec::new();
    print::print(&mut out, &draw(snapshot, Look { width, ascii, footer: "", page }), false).unwrap();
    String::from_utf8(out).unwrap()
}

fn text(snapshot: &Snapshot, width: u16) -> String {
    page(snapshot, Page::Jobs, width, false)
}

fn assert_golden(name: &str, drawn: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, drawn).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(drawn, golden, "{name} changed; UPDATE_GOLDEN=1 rewrites it\n{drawn}");
}

const PAGES: [(Page, &str); 6] = [
    (Page::Jobs, "jobs"),
    (Page::Step, "step"),
    (Page::Tiers, "tiers"),
    (Page::Ranks, "ranks"),
    (Page::Gpus, "gpus"),
    (Page::Help, "help"),
];

#[test]
fn every_page_at_four_widths() {
    for (shown, name) in PAGES {
        for width in [60, 80, 120, 200] {
            let drawn = page(&machine(), shown, width, width == 60);
            assert!(width != 60 || drawn.is_ascii(), "{drawn}");
            assert_golden(&format!("{name}-{width}.txt"), &drawn);
        }
    }
}

/// Words longer than a line can hold are cut and end in a mark; everything else is whole at every width.
#[test]
fn no_screen_cuts_a_line_and_every_line_is_as_wide_as_the_screen() {
    for (shown, name) in PAGES {
        for width in 60..=200 {
            let drawn = page(&machine(), shown, width, false);
            for line in drawn.lines() {
                assert_eq!(term::columns(line), usize::from(width), "{line}");
            }
            // Names in tables may be cut: their column is as wide as the screen allows.
            let whole = |line: &&str| line.contains("resnet50") || !line.replace("(…", "").contains('…');
            let cut: Vec<&str> = drawn.lines().filter(|line| !whole(line)).collect();
            assert!(cut.is_empty(), "{name} at {width}: {cut:?}");
            assert_eq!(drawn.contains(" hit%"), drawn.contains(" cover%"), "at width {width}");
        }
    }
}

#[test]
fn the_verdict_is_the_first_line_of_a_job_and_the_remedy_the_second() {
    let drawn = page(&machine(), Page::Jobs, 100, true);
    let lines: Vec<&str> = drawn.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("+- 41822 ")).unwrap();
    assert!(lines[at + 1].starts_with("| verdict  input-bound (source): waits take 61 %"), "{drawn}");
    let next = lines[at..].iter().position(|line| line.starts_with("| next ")).unwrap();
    assert!(next <= 4, "{drawn}");
}

#[test]
fn without_engines_and_without_nvml_a_line_says_what_to_do() {
    assert_golden("nothing-100.txt", &text(&no_nvml(Vec::new()), 100));
}

#[test]
fn the_ended_are_the_last_rows_with_their_age() {
    let drawn = text(&machine(), 120);
    let at = |word: &str| drawn.lines().position(|line| line.contains(word)).unwrap();
    let row = drawn.lines().nth(at("bert-base")).unwrap();
    assert!(row.contains("ended 13m") && at("bert-base") == at("41910") + 1, "{drawn}");
    assert_eq!(drawn.matches("bert-base").count(), 1, "no details of an engine that has ended");
}

#[test]
fn a_torch_loader_has_a_verdict_and_a_step_and_no_cache() {
    let mut engines = machine().engines;
    engines.truncate(1);
    engines[0].counters.insert("torch_loaders".to_owned(), 1);
    let drawn = text(&no_nvml(engines), 100);
    assert!(drawn.contains("│ verdict ") && drawn.contains("│ step "), "{drawn}");
    assert!(!["│ cache ", "│ slots ", "│ scores "].iter().any(|line| drawn.contains(line)), "{drawn}");
}

#[test]
fn pages_that_cannot_be_read_are_shown_with_the_reason() {
    let page = |name: &str| Unreadable {
        path: format!("/dev/shm/lossfeed-1000/{name}.page"),
        reason: "a page of an older lossfeed (layout version 1, this program reads 2): \
                 watch that run with its own `lossfeed smi`"
            .to_owned(),
    };
    let mut snapshot = no_nvml(Vec::new());
    snapshot.unreadable = vec![page("9f01-4026531836-977-1234-0")];
    assert_golden("not-readable-140.txt", &text(&snapshot, 140));
    snapshot.unreadable = (0..30).map(|n| page(&n.to_string())).collect();
    let drawn = text(&snapshot, 140);
    assert!(drawn.contains("and 22 more") && drawn.lines().count() < 30, "{drawn}");
    let json = serde_json::to_value(&snapshot).unwrap();
    assert_eq!(json["unreadable"].as_array().unwrap().len(), 30);
}

/// Every text that comes from elsewhere, with an escape sequence in 7 and in 8 bits, a bell, a line end and a mark
/// that turns text around. Nothing of them may reach a terminal, whatever the form.
#[test]
fn no_text_from_elsewhere_reaches_the_terminal_raw() {
    let hostile = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\r\n\u{202e}x";
    let mut snapshot = machine();
    let engine = &mut snapshot.engines[0];
    for text in [&mut engine.job, &mut engine.source, &mut engine.policy, &mut engine.sampler, &mut engine.device] {
        hostile.clone_into(text);
    }
    snapshot.gpus[0].name = Some(hostile.to_owned());
    snapshot.gpus[5].processes[0].name = Some(hostile.to_owned());
    snapshot.gpus.push(Gpu { index: 6, error: Some(hostile.to_owned()), ..Gpu::default() });
    snapshot.host = Some(hostile.to_owned());
    snapshot.nvml.driver = Some(hostile.to_owned());
    snapshot.unreadable = vec![Unreadable { path: hostile.to_owned(), reason: hostile.to_owned() }];
    let steers = |drawn: &str| drawn.chars().any(|c| c != '\n' && lossfeed_stats::steers_terminal(c));
    for (shown, _) in PAGES {
        for width in [60, 100, 200] {
            let drawn = page(&snapshot, shown, width, width == 60);
            assert!(!steers(&drawn), "{drawn:?}");
            assert!(drawn.lines().all(|l| term::columns(l) == usize::from(width)), "{drawn}");
        }
    }
    for form in ["-L", "-q", "--query-engine=job,source,sampler"] {
        let mut out = Vec::new();
        show(&snapshot, &typed(form), true, &mut out).unwrap();
        assert!(!steers(&String::from_utf8(out).unwrap()), "{form}");
    }
    assert!(!steers(&dmon::Monitor::default().round(snapshot)));
}

#[test]
fn a_device_that_fails_keeps_its_row_and_its_reason() {
    let mut snapshot = Snapshot { engines: Vec::new(), engines_of_others: 0, ..machine() };
    snapshot.gpus.truncate(1);
    snapshot.gpus.push(Gpu { index: 1, error: Some("GPU is lost".to_owned()), ..Gpu::default() });
    assert_golden("one-gpu-fails-100.txt", &text(&snapshot, 100));
}

#[test]
fn colour_marks_a_job_that_waits_and_is_absent_when_not_wanted() {
    let look = Look { width: 100, ascii: false, footer: "", page: Page::Jobs };
    let lines = draw(&machine(), look);
    let (mut colored, mut plain) = (Vec::new(), Vec::new());
    print::print(&mut colored, &lines, true).unwrap();
    print::print(&mut plain, &lines, false).unwrap();
    let colored = String::from_utf8(colored).unwrap();
    assert!(colored.contains("\x1b[33m 61.0\x1b[0m") && colored.contains("\x1b[31minput-bound"), "{colored}");
    assert!(!plain.contains(&0x1b));
}

/// Every value that is a number in the definitions is one in the document, and none is hidden in a string.
#[test]
fn the_json_form_is_one_document_in_base_units_with_null_for_unknown() {
    let mut snapshot = machine();
    snapshot.gpus[0].pcie_tx_bytes_per_s = None;
    snapshot.engines[1].counters.clear();
    snapshot.engines[1] = std::mem::take(&mut snapshot.engines[1]).derive();
    let mut out = Vec::new();
    show(&snapshot, &typed("--json"), true, &mut out).unwrap();
    assert_eq!(out.iter().filter(|&&b| b == b'\n').count(), 1, "one line a document");
    let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(json["schema_version"], 2);
    assert_eq!(json["nvml"]["status"], "ok");
    assert_eq!(json["gpus"][0]["utilization_ratio"], 0.97);
    assert!(json["gpus"][0]["pcie_tx_bytes_per_s"].is_null());
    let engine = &json["engines"][0];
    assert_eq!((&engine["verdict"], &engine["cause"]), (&"input-bound".into(), &"source".into()));
    assert!((engine["hit_ratio"].as_f64().unwrap() - 0.38).abs() < 1e-4);
    assert!(json["engines"][1]["hit_ratio"].is_null() && json["engines"][1]["coverage_epoch"].is_null());
    assert!(engine["counters"].as_object().unwrap().values().all(serde_json::Value::is_u64));
    fn no_number_in_a_string(value: &serde_json::Value) {
        match value {
            serde_json::Value::String(text) => assert!(text.parse::<f64>().is_err(), "{text:?}"),
            serde_json::Value::Array(all) => all.iter().for_each(no_number_in_a_string),
            serde_json::Value::Object(all) => {
                all.iter().filter(|(key, _)| *key != "cuda").for_each(|(_, v)| no_number_in_a_string(v))
            }
            _ => {}
        }
    }
    no_number_in_a_string(&json);
}

#[test]
fn the_forms_for_programs_are_nvidia_smis() {
    let shown = |options: &str, first: bool| {
        let mut out = Vec::new();
        show(&machine(), &typed(options), first, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let list = shown("-L", true);
    assert_eq!(list.lines().count(), 6);
    assert_eq!(
        list.lines().next(),
        Some("Engine 41822: resnet50-in1k (rank 0 of 1, cuda:0, UUID: GPU-00000004): input-bound")
    );
    let asked = "--query-engine=pid,job,stall_fraction,cache_capacity_bytes";
    let csv = shown(asked, true);
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "pid, job, stall_fraction [ratio], cache_capacity_bytes [bytes]");
    assert!(lines[1].starts_with("41822, resnet50-in1k, 0.6") && lines[1].ends_with(", 8600000000 bytes"), "{csv}");
    assert_eq!(shown(asked, false).lines().next(), Some(lines[1]), "a head once, with --watch");
    let bare = shown(&format!("{asked} --format=csv,noheader,nounits"), true);
    assert!(bare.lines().count() == 6 && bare.lines().next().unwrap().ends_with(", 8600000000"), "{bare}");
    let full = shown("-q", true);
    assert!(full.contains("    cache_capacity_bytes            : 8600000000 bytes\n"), "{full}");
    assert!(full.contains("    samples_per_s                   : [N/A]\n"), "of the ended\n{full}");
}

#[test]
fn exit_codes_say_what_was_demanded_and_missing() {
    let code = |snapshot: &Snapshot, options: &str| exit(snapshot, &typed(options), true);
    let none = no_nvml(Vec::new());
    assert_eq!(code(&none, ""), 0);
    assert_eq!(code(&none, "--require-gpu"), 12);
    assert_eq!(code(&none, "--job other"), 6);
    let mut gpus = machine();
    assert_eq!(code(&gpus, "--require-gpu"), 0);
    gpus.gpus = vec![Gpu { error: Some("GPU is lost".to_owned()), ..Gpu::default() }];
    assert_eq!(code(&gpus, "--require-gpu"), 15);
    gpus.gpus.clear();
    assert_eq!(code(&gpus, "--require-gpu"), 6);
    let mut unloaded = no_nvml(Vec::new());
    unloaded.nvml.status = NvmlStatus::DriverNotLoaded;
    assert_eq!(code(&unloaded, "--require-gpu"), 9);
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
    for form in ["", "--json", "-L", "-q", "--query-engine=pid"] {
        let shown = show(&machine(), &typed(form), true, &mut Closed);
        assert!(shown.is_err(), "{form}");
        assert_eq!(crate::term::exit_code(shown.map(|()| 0)), 0);
    }
}

#[test]
fn the_help_explains_every_column_line_part_and_key() {
    let legend = legend();
    for word in ["cover%", "on time", "S        wait: reading", "arrows", "pcie rx"] {
        assert!(legend.contains(&format!("\n  {word}")), "{word}\n{legend}");
    }
}

fn typed(options: &str) -> SmiArgs {
    let words = ["lossfeed", "smi"].into_iter().chain(options.split_whitespace());
    match Cli::parse_from(words).command {
        Command::Smi(args) => args,
        other => panic!("{other:?}"),
    }
}
