//! Snapshot → screen. Pure: same snapshot, same style, same width, same cells.

use lossfeed_control::tune::{Knob, circuit};
use lossfeed_stats as stats;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};

use super::layout::{ASCII, Cell, Column, Screen, UNICODE, number, text};
use super::snapshot::{Engine, Gpu, NvmlStatus, Snapshot};

/// How to draw.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Columns, 60 and more.
    pub width: u16,
    /// Plain ASCII instead of box characters.
    pub ascii: bool,
    /// Footer of the frame (the keys of `--watch`), empty for none.
    pub footer: &'static str,
}

const GPU_COLUMNS: [Column; 9] = [
    number("id", 2, 0),
    text("name", 14, 0),
    number("temp", 5, 0),
    number("power", 9, 90),
    number("util", 5, 0),
    number("memory", 17, 0),
    number("pcie rx", 10, 80),
    number("pcie tx", 10, 80),
    number("link", 5, 90),
];

/// Hit ratio and coverage share their condition: the one is never shown without the other.
const ENGINE_COLUMNS: [Column; 13] = [
    number("pid", 7, 0),
    text("job", 9, 0),
    number("rank", 5, 110),
    number("gpu", 3, 100),
    text("state", 6, 0),
    number("epoch", 5, 80),
    number("batch", 11, 80),
    number("sample/s", 8, 0),
    number("hit%", 5, 0),
    number("cover%", 6, 0),
    number("ever%", 5, 90),
    number("stall%", 6, 0),
    number("ESS", 4, 100),
];

/// Draws the whole screen.
pub fn draw(snapshot: &Snapshot, look: Look) -> Buffer {
    let mut screen = Screen::new(look.width, if look.ascii { ASCII } else { UNICODE });
    screen.rule(&format!("lossfeed {}", snapshot.version));
    let mut head = vec![snapshot.host.clone().unwrap_or_else(|| "-".to_owned()), snapshot.time.clone()];
    head.extend(snapshot.nvml.driver.as_ref().map(|d| format!("driver {d}")));
    head.extend(snapshot.nvml.cuda.as_ref().map(|c| format!("CUDA {c}")));
    screen.line([head.join("   ").into()]);

    screen.rule("GPU");
    gpus(&mut screen, snapshot);

    screen.rule("ENGINES");
    if snapshot.engines.is_empty() {
        screen.line(["running engines: none".into()]);
    } else {
        // The ended are one line beside the living, and rows where nobody lives: somebody looks for one of them.
        let (living, ended): (Vec<&Engine>, Vec<&Engine>) = snapshot.engines.iter().partition(|engine| engine.alive);
        let shown = if living.is_empty() { &ended } else { &living };
        screen.table(&ENGINE_COLUMNS, shown.iter().map(|engine| engine_row(engine, &snapshot.gpus)).collect());
        if !living.is_empty() && !ended.is_empty() {
            let names: Vec<String> = ended.iter().map(|engine| format!("{} {}", engine.pid, engine.job)).collect();
            let line = format!("ended: {} ({})", ended.len(), names.join(", "));
            screen.line([Cell(line, Style::new().add_modifier(Modifier::DIM))]);
        }
    }
    for engine in snapshot.engines.iter().filter(|e| e.alive) {
        details(&mut screen, engine, if look.ascii { ASCII.levels } else { UNICODE.levels });
    }
    if !snapshot.unreadable.is_empty() {
        screen.rule("NOT READABLE");
    }
    for page in snapshot.unreadable.iter().take(UNREADABLE_SHOWN) {
        // The end of a path says more than its beginning, and the reason more than either.
        screen.line([Cell(page.reason.clone(), Style::new().fg(Color::Yellow))]);
        screen.line([format!("  {}", page.path).into()]);
    }
    let more = snapshot.unreadable.len().saturating_sub(UNREADABLE_SHOWN);
    if more > 0 {
        screen.line([format!("and {more} more: see --json").into()]);
    }
    screen.close(look.footer);
    screen.into_buffer()
}

/// Pages that cannot be read, as many as are named one by one.
const UNREADABLE_SHOWN: usize = 8;

fn gpus(screen: &mut Screen, snapshot: &Snapshot) {
    if snapshot.nvml.status != NvmlStatus::Ok {
        let why = snapshot.nvml.detail.as_deref().unwrap_or("no reason given");
        screen.line([format!("NVML not available: {why} (engine rows do not need it)").into()]);
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
        screen.line([Cell(line, Style::new().fg(Color::Red))]);
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
    let mut stall = percent(engine.stall_ratio);
    stall.1 = match engine.stall_ratio {
        Some(s) if s >= 0.75 => Style::new().fg(Color::Red),
        Some(s) if s >= 0.10 => Style::new().fg(Color::Yellow),
        Some(_) => Style::new().fg(Color::Green),
        None => Style::new(),
    };
    let mut row = vec![
        engine.pid.to_string().into(),
        engine.job.as_str().into(),
        format!("{}/{}", engine.rank, engine.world_size).into(),
        gpu.map_or(UNKNOWN.into(), |g| g.index.to_string().into()),
        engine.state().into(),
        known(engine.counter("epoch"), |e| e.to_string()),
        batch.into(),
        known(engine.samples_per_s, |s| format!("{s:.0}")),
        percent(engine.hit_ratio),
        percent(engine.coverage_epoch_ratio),
        percent(engine.coverage_ever_ratio),
        stall,
        known(engine.ess_ratio, |e| format!("{e:.2}")),
    ];
    if !engine.alive {
        for cell in &mut row {
            cell.1 = Style::new().add_modifier(Modifier::DIM);
        }
    }
    row
}

fn details(screen: &mut Screen, engine: &Engine, levels: [&'static str; 8]) {
    let count = |name: &str| engine.counter(name).map_or(UNKNOWN.to_owned(), |n| decimal(n as f64, ""));
    screen.rule(&format!("{} {}   {} + {}   {}", engine.pid, engine.job, engine.sampler, engine.policy, engine.device));
    screen.line([format!("source  {}", engine.source).into()]);
    let rate = engine.fetched_bytes_per_s.map(|b| format!("   {}/s", decimal(b, "B"))).unwrap_or_default();
    screen.line([format!(
        "fetched {} samples   {}{rate}   joined {}   bad {}",
        count("fetched_samples_total"),
        engine.counter("fetched_bytes_total").map_or(UNKNOWN.to_owned(), |b| decimal(b as f64, "B")),
        count("coalesced_total"),
        count("bad_samples_total"),
    )
    .into()]);
    screen.line([format!(
        "cache   {}   {} of {} samples   evicted {}   bypassed {}",
        pair(engine.counter("cache_bytes"), engine.counter("cache_capacity_bytes")),
        count("residents"),
        count("samples_in_dataset"),
        count("evicted_total"),
        count("bypassed_total"),
    )
    .into()]);
    screen.line([format!(
        "slots   {}: ready {}  held {}  copying {}   scores {}   dropped {}   age {} steps",
        count("slots_total"),
        count("slots_ready"),
        count("slots_lent"),
        count("slots_copying"),
        count("scores_total"),
        count("scores_dropped_total"),
        count("score_age_steps"),
    )
    .into()]);
    if let Some(workers) = engine.counter("workers") {
        let own = if workers == 0 { ": the training thread loads" } else { "" };
        let changed = changed(engine, Knob::Threads).map(|changed| format!("   {changed}"));
        screen.line([format!("threads {workers}{own}{}", changed.unwrap_or_default()).into()]);
    }
    reading(screen, engine);
    if let Some(waited) = engine.counter("wait_us_total").filter(|&us| us > 0) {
        let causes = ["source", "decode", "slot", "copy", "decide", "handover"].map(|cause| {
            let us = engine.counter(&format!("wait_{cause}_us_total")).unwrap_or(0);
            format!("{cause} {:.0}%", 100.0 * us as f64 / waited as f64)
        });
        screen.line([format!("waits   {}", causes.join("  ")).into()]);
    }
    if !engine.stall_history.is_empty() {
        let room = screen.inner().saturating_sub(24);
        let from = engine.stall_history.len().saturating_sub(room);
        let recent = &engine.stall_history[from..];
        let bars: String = recent.iter().map(|s| levels[((s * 8.0) as usize).min(7)]).collect();
        screen.line([format!("stall   {bars} last {} s", recent.len()).into()]);
    }
}

/// Count and last reason of a self-adjusting number's changes; `None` before the first.
fn changed(engine: &Engine, knob: Knob) -> Option<String> {
    let about = knob.about();
    let code = engine.counter(about.reason)?.checked_sub(1)?;
    let why = about.reasons.get(code as usize)?;
    let changes = engine.counter(about.changes).map_or(UNKNOWN.to_owned(), |n| decimal(n as f64, ""));
    Some(format!("changed {changes} times (last: {why})"))
}

/// How misses arrived, and the last decisions about reading.
fn reading(screen: &mut Screen, engine: &Engine) {
    let count = |name: &str| engine.counter(name).map_or(UNKNOWN.to_owned(), |n| decimal(n as f64, ""));
    let fetched = engine.counter("on_time_total").unwrap_or(0) + engine.counter("late_total").unwrap_or(0);
    let ahead = engine.counter("read_ahead_requests").filter(|&requests| requests > 0);
    if fetched > 0 || ahead.is_some() {
        let ratio = stats::ON_TIME_RATIO.of(&|name| engine.counter(name));
        let on_time = ratio.map(|ratio| format!("{:.1}% of misses", ratio * 100.0));
        let requests = ahead.map(|requests| {
            let changed = changed(engine, Knob::Requests).map(|changed| format!(", {changed}"));
            format!("requests {requests}{}", changed.unwrap_or_default())
        });
        let parts: Vec<String> = on_time.into_iter().chain(requests).collect();
        screen.line([format!("on time {}", parts.join("   ")).into()]);
    }
    if let Some(changed) = changed(engine, Knob::Lead) {
        let held = pair(engine.counter("read_ahead_bytes"), engine.counter("read_ahead_limit_bytes"));
        screen.line([format!("window  {held}, {changed}").into()]);
    }
    for tier in ["disk", "pool"] {
        let number = |name: &str| engine.counter(&format!("{tier}_{name}"));
        let state = number("circuit").and_then(circuit::State::of_code);
        let used = ["hits_total", "misses_total", "skipped_total", "bytes"];
        let Some(state) = state.filter(|_| used.iter().any(|name| number(name).is_some_and(|n| n > 0))) else {
            continue;
        };
        let count = |name: &str| count(&format!("{tier}_{name}"));
        let why = number("circuit_reason").and_then(circuit::Why::of_code);
        let why = why.map(|why| format!(" (last: {why}), opened {} times", count("opened_total")));
        let text = format!(
            "{tier}    breaker {state}{}   hits {}   misses {}   failed {}   skipped {}",
            why.unwrap_or_default(),
            count("hits_total"),
            count("misses_total"),
            count("failed_total"),
            count("skipped_total"),
        );
        let style = if state == circuit::State::Closed { Style::new() } else { Style::new().fg(Color::Yellow) };
        screen.line([Cell(text, style)]);
    }
}

/// What is drawn where nobody knows.
const UNKNOWN: &str = "-";

fn known<T>(value: Option<T>, show: impl Fn(T) -> String) -> Cell {
    value.map_or_else(|| UNKNOWN.into(), |v| show(v).into())
}

/// "6.0/8.0 GiB": both in the unit of the larger.
fn pair(used: Option<u64>, total: Option<u64>) -> String {
    let (Some(used), Some(total)) = (used, total) else { return UNKNOWN.to_owned() };
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let step = (0..units.len() - 1).take_while(|&k| total as f64 >= 1024f64.powi(k as i32 + 1)).count();
    let scale = 1024f64.powi(step as i32);
    let digits = usize::from(step > 0);
    format!("{:.digits$}/{:.digits$} {}", used as f64 / scale, total as f64 / scale, units[step])
}

/// Three digits and a decimal prefix: 1234567 → "1.23 M" followed by the unit.
fn decimal(value: f64, unit: &str) -> String {
    let prefixes = ["", "k", "M", "G", "T", "P"];
    // 999.5 would be written as 1000 of the smaller prefix.
    let step = (0..prefixes.len() - 1).take_while(|&k| value >= 999.5 * 1000f64.powi(k as i32)).count();
    let scaled = value / 1000f64.powi(step as i32);
    let digits = match () {
        () if step == 0 => 0,
        () if scaled < 9.995 => 2,
        () if scaled < 99.95 => 1,
        () => 0,
    };
    format!("{scaled:.digits$} {}{unit}", prefixes[step]).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits_and_roll_over_to_the_next_prefix() {
        assert_eq!(decimal(0.0, ""), "0");
        assert_eq!(decimal(999.0, "B"), "999 B");
        assert_eq!(decimal(999.6, "B"), "1.00 kB");
        assert_eq!(decimal(41_234.0, ""), "41.2 k");
        assert_eq!(decimal(6_320_000_000.0, "B"), "6.32 GB");
    }

    #[test]
    fn a_pair_of_sizes_shares_the_unit_of_the_larger() {
        assert_eq!(pair(Some(6 << 30), Some(8 << 30)), "6.0/8.0 GiB");
        assert_eq!(pair(Some(10), Some(1000)), "10/1000 B");
        assert_eq!(pair(None, Some(1)), "-");
    }
}
