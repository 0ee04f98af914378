//! Snapshot → screen. Pure: same snapshot, same look, same cells.

use lossfeed_stats as stats;

use super::job;
use super::layout::{ASCII, Cell, Column, Glyphs, LABEL, Screen, Style, UNICODE, known, number, text, wait_style};
use super::numbers::{UNKNOWN, decimal, pair};
use super::snapshot::{Engine, Gpu, NvmlStatus, Snapshot};
use super::view::Page;
use super::{NO_ENGINE, held, view};
use crate::term;

/// The look of a screen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look<'a> {
    /// Columns, 60 and more.
    pub(super) width: u16,
    /// Plain ASCII instead of box characters.
    pub(super) ascii: bool,
    /// Footer of the frame (the keys of `--watch`), empty for none.
    pub(super) footer: &'a str,
    /// The page to show.
    pub(super) page: Page,
}

const GPU_COLUMNS: [Column; 9] = [
    number("id", 2, 0, "NVML's index of the GPU"),
    text("name", 14, 0, "product"),
    number("temp", 5, 0, "temperature of the core"),
    number("power", 9, 90, "power drawn now, and the limit in force"),
    number("util", 5, 0, "share of the last sample period in which a kernel ran"),
    number("memory", 17, 0, "memory in use by everyone, and all there is"),
    number("pcie rx", 10, 80, "PCIe traffic to the GPU"),
    number("pcie tx", 10, 80, "PCIe traffic from the GPU"),
    number("link", 5, 90, "PCIe generation and lanes in use"),
];

/// Hit ratio and coverage share their condition: the one is never shown without the other.
const ENGINE_COLUMNS: [Column; 14] = [
    number("pid", 7, 0, "process id, in the engine's own pid namespace"),
    text("job", 8, 0, "name of the job"),
    number("user", 6, 120, "user id"),
    number("rank", 5, 100, "rank and ranks of the job"),
    number("gpu", 3, 110, "NVML's index of its GPU"),
    text("state", 13, 0, "the verdict; starts, stopped; or how long ago it ended"),
    number("epoch", 5, 90, "current epoch"),
    number("batch", 11, 100, "batch of the epoch, and batches of an epoch"),
    number("sample/s", 8, 0, "samples delivered a second, over the last 10 s"),
    number("wait%", 5, 0, "share of the last 10 s in which the training waited for a batch"),
    number("hit%", 5, 70, "samples that were in the cache, since the start; read it with cover%: repeats hit well"),
    number("cover%", 6, 70, "distinct samples of this epoch so far, as a share of the rank's"),
    number("ever%", 5, 90, "distinct samples since the start, as a share of the dataset"),
    number("ESS", 4, 120, "effective sample size of the epoch's weights; 1: all are equal"),
];

/// The lines under a job's table row.
const LINES: [(&str, &str); 11] = [
    ("source", "where the data is, what was read from it, samples that another thread was reading already, bad ones"),
    ("cache", "bytes and samples held; evicted: removed to make room; bypassed: read and not kept"),
    ("slots", "batches under way: ready for the training, held by it, being copied to the device"),
    ("scores", "samples that received a score, lost scores, mean age of an importance in scored batches"),
    ("threads", "threads that fill batches, and how they last changed"),
    ("on time", "misses that were ready when their batch needed them; in-flight prefetch requests"),
    ("window", "prefetched bytes, and their limit"),
    ("disk", "circuit breaker of the disk tier, samples it had and had not"),
    ("pool", "circuit breaker of the pool, samples it had and had not"),
    ("step", "a mean step as a bar, and its parts"),
    ("wait", "share of each of the last seconds that was a wait"),
];

/// The meaning of columns, lines and keys, for `--help` and the manual.
pub(crate) fn legend() -> String {
    let room = usize::from(term::width().min(110)) - LABEL - 3;
    let mut text = String::new();
    for (head, rows) in tables() {
        text += &format!("{head}:\n");
        for (name, help) in rows {
            let lines = term::wrap(help, room).join(&format!("\n{:1$}", "", LABEL + 2));
            text += &format!("  {name:<LABEL$}{lines}\n");
        }
        text += "\n";
    }
    text.trim_end().to_owned()
}

fn tables() -> [(&'static str, Vec<(&'static str, &'static str)>); 5] {
    let of = |columns: &[Column]| columns.iter().map(|column| (column.head, column.help)).collect::<Vec<_>>();
    [
        ("Columns of JOBS", of(&ENGINE_COLUMNS)),
        ("Lines of a job", LINES.to_vec()),
        ("Parts of a step", job::PARTS.iter().map(|part| (part.letter, part.help)).collect()),
        ("Columns of GPU", of(&GPU_COLUMNS)),
        ("Keys of --watch", view::KEYS.to_vec()),
    ]
}

/// Draws the whole screen.
pub(super) fn draw(snapshot: &Snapshot, look: Look<'_>) -> Vec<Vec<Cell>> {
    let glyphs = if look.ascii { ASCII } else { UNICODE };
    let mut screen = Screen::new(look.width, glyphs);
    screen.rule(&format!("lossfeed {}", snapshot.version));
    let mut head = vec![snapshot.host.clone().unwrap_or_else(|| "-".to_owned()), snapshot.time.clone()];
    head.extend(snapshot.nvml.driver.as_ref().map(|d| format!("driver {d}")));
    head.extend(snapshot.nvml.cuda.as_ref().map(|c| format!("CUDA {c}")));
    screen.words(head, Style::Plain);
    match look.page {
        Page::Jobs => {
            gpus(&mut screen, snapshot);
            jobs(&mut screen, snapshot);
            each(&mut screen, job::worst_ranks(living(snapshot)), glyphs, job::details);
            unreadable(&mut screen, snapshot);
        }
        Page::Gpus => {
            gpus(&mut screen, snapshot);
            processes(&mut screen, snapshot);
        }
        Page::Step => each(&mut screen, job::worst_ranks(living(snapshot)), glyphs, job::step_page),
        Page::Tiers => each(&mut screen, living(snapshot).collect(), glyphs, job::tiers_page),
        Page::Ranks => job::ranks_page(&mut screen, living(snapshot).collect()),
        Page::Help => help(&mut screen),
    }
    if matches!(look.page, Page::Step | Page::Tiers | Page::Ranks) && living(snapshot).next().is_none() {
        screen.rule("JOBS");
        none(&mut screen);
    }
    screen.close(look.footer);
    screen.into_lines()
}

fn living(snapshot: &Snapshot) -> impl Iterator<Item = &Engine> {
    snapshot.engines.iter().filter(|engine| engine.alive)
}

fn each(screen: &mut Screen, engines: Vec<&Engine>, glyphs: Glyphs, page: fn(&mut Screen, &Engine, Glyphs)) {
    for engine in engines {
        page(screen, engine, glyphs);
    }
}

fn help(screen: &mut Screen) {
    for (head, rows) in tables() {
        screen.rule(head);
        for (name, help) in rows {
            screen.parts(name, [help.to_owned()], Style::Plain);
        }
    }
}

fn none(screen: &mut Screen) {
    screen.words([NO_ENGINE.to_owned()], Style::Plain);
}

fn jobs(screen: &mut Screen, snapshot: &Snapshot) {
    screen.rule("JOBS");
    if living(snapshot).next().is_none() {
        none(screen);
    }
    if !snapshot.engines.is_empty() {
        screen.table(&ENGINE_COLUMNS, snapshot.engines.iter().map(|e| engine_row(e, &snapshot.gpus)).collect());
    }
    if snapshot.engines_of_others > 0 {
        let others = snapshot.engines_of_others;
        screen.words([format!("engines of other users: {others} (root sees them)")], Style::Plain);
    }
}

/// Pages that cannot be read, as many as are named one by one.
const UNREADABLE_SHOWN: usize = 8;

fn unreadable(screen: &mut Screen, snapshot: &Snapshot) {
    if !snapshot.unreadable.is_empty() {
        screen.rule("NOT READABLE");
    }
    for page in snapshot.unreadable.iter().take(UNREADABLE_SHOWN) {
        // The end of a path says more than its beginning, and the reason more than either.
        screen.line([Cell(page.reason.clone(), Style::Yellow)]);
        screen.line([format!("  {}", page.path).into()]);
    }
    let more = snapshot.unreadable.len().saturating_sub(UNREADABLE_SHOWN);
    if more > 0 {
        screen.line([format!("and {more} more: see --json").into()]);
    }
}

fn gpus(screen: &mut Screen, snapshot: &Snapshot) {
    screen.rule("GPU");
    if snapshot.nvml.status != NvmlStatus::Ok {
        let why = snapshot.nvml.detail.as_deref().unwrap_or("no reason given");
        screen.line([format!("NVML not available: {why}").into()]);
        return;
    }
    if snapshot.gpus.is_empty() {
        let why = snapshot.nvml.detail.as_deref().unwrap_or("NVML reports no device");
        screen.line([format!("no device: {why}").into()]);
        return;
    }
    // A device that cannot be read keeps its place among the rows, with the reason in place of the numbers.
    let (mut rows, mut broken) = (Vec::new(), Vec::new());
    for gpu in &snapshot.gpus {
        match &gpu.error {
            Some(why) => broken.push(format!("{:>2} not readable: {why}", gpu.index)),
            None => rows.push(gpu_row(gpu)),
        }
    }
    if !rows.is_empty() {
        screen.table(&GPU_COLUMNS, rows);
    }
    for line in broken {
        screen.line([Cell(line, Style::Red)]);
    }
    for line in held::findings(&snapshot.gpus) {
        screen.words(line.split("; ").map(str::to_owned), Style::Yellow);
    }
}

const PROCESS_COLUMNS: [Column; 5] = [
    number("gpu", 3, 0, ""),
    number("pid", 7, 0, ""),
    text("process", 12, 0, ""),
    number("memory", 9, 0, ""),
    text("page", 4, 0, ""),
];

fn processes(screen: &mut Screen, snapshot: &Snapshot) {
    let rows = snapshot.gpus.iter().flat_map(|gpu| gpu.processes.iter().map(move |process| (gpu, process)));
    let rows: Vec<Vec<Cell>> = rows
        .map(|(gpu, process)| {
            vec![
                gpu.index.to_string().into(),
                process.pid.to_string().into(),
                process.name.as_deref().unwrap_or(UNKNOWN).into(),
                known(process.memory_bytes, |bytes| decimal(bytes as f64, "B")),
                known(process.has_page, |page| if page { "yes" } else { "no" }.to_owned()),
            ]
        })
        .collect();
    screen.rule("PROCESSES");
    if rows.is_empty() {
        screen.line(["no process holds a GPU".into()]);
    } else {
        screen.table(&PROCESS_COLUMNS, rows);
    }
}

fn gpu_row(gpu: &Gpu) -> Vec<Cell> {
    let power = match (gpu.power_watts, gpu.power_limit_watts) {
        (Some(now), Some(limit)) => format!("{now:.0}/{limit:.0}W"),
        (Some(now), None) => format!("{now:.0}W"),
        _ => UNKNOWN.to_owned(),
    };
    let link = match (gpu.pcie_generation, gpu.pcie_lanes) {
        (Some(generation), Some(lanes)) => format!("{generation}x{lanes}"),
        _ => UNKNOWN.to_owned(),
    };
    vec![
        gpu.index.to_string().into(),
        gpu.name.as_deref().map_or(UNKNOWN, |n| n.trim_start_matches("NVIDIA ")).into(),
        known(gpu.temperature_celsius, |t| format!("{t}C")),
        power.into(),
        known(gpu.utilization_ratio, |u| format!("{:.0}%", u * 100.0)),
        pair(gpu.memory_used_bytes, gpu.memory_total_bytes).into(),
        known(gpu.pcie_rx_bytes_per_s, |b| format!("{}/s", decimal(b as f64, "B"))),
        known(gpu.pcie_tx_bytes_per_s, |b| format!("{}/s", decimal(b as f64, "B"))),
        link.into(),
    ]
}

fn engine_row(engine: &Engine, gpus: &[Gpu]) -> Vec<Cell> {
    // By NVML's id and never by pid: NVML reports the host's pids, a container has its own.
    let gpu = engine.gpu_uuid.as_ref().and_then(|uuid| gpus.iter().find(|g| g.uuid.as_ref() == Some(uuid)));
    let percent = |ratio: Option<f64>| known(ratio, |r| format!("{:.1}", r * 100.0));
    let batch = match (engine.counter("batch"), engine.counter("batches_per_epoch")) {
        (Some(batch), Some(of)) if of > 0 => format!("{batch}/{of}"),
        _ => UNKNOWN.to_owned(),
    };
    let mut wait = percent(engine.stall_lately);
    wait.1 = wait_style(engine.stall_lately);
    let mut row = vec![
        engine.pid.to_string().into(),
        engine.job.as_str().into(),
        engine.uid.to_string().into(),
        format!("{}/{}", engine.rank, engine.world_size).into(),
        gpu.map_or(UNKNOWN.into(), |g| g.index.to_string().into()),
        Cell(engine.state.clone(), job::state_style(engine)),
        known(engine.counter("epoch"), |e| e.to_string()),
        batch.into(),
        known(engine.samples_per_s, |s| format!("{s:.0}")),
        wait,
        percent(engine.ratio(stats::HIT_RATIO)),
        percent(engine.ratio(stats::COVERAGE_EPOCH)),
        percent(engine.ratio(stats::COVERAGE_EVER)),
        known(engine.ratio(stats::ESS_FRACTION), |e| format!("{e:.2}")),
    ];
    if !engine.alive {
        for cell in &mut row {
            cell.1 = Style::Dim;
        }
    }
    row
}
