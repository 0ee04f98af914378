//! A job on the screen: its verdict, its step as a bar, its tiers, its ranks.

use lossfeed_control::tune::{Knob, circuit};
use lossfeed_stats as stats;

use super::layout::{Cell, Column, Glyphs, LABEL, Screen, Style, known, number, text, wait_style};
use super::numbers::{UNKNOWN, decimal, pair, time};
use super::snapshot::Engine;

/// A part of a step.
pub(super) struct Part {
    counter: &'static str,
    /// Its letter in the bar.
    pub(super) letter: &'static str,
    pub(super) help: &'static str,
    style: Style,
}

const fn part(counter: &'static str, letter: &'static str, help: &'static str, style: Style) -> Part {
    Part { counter, letter, help, style }
}

/// The parts of a step, as the bar has them: waits by cause, then the training's own time. The last one is the rest.
pub(super) const PARTS: [Part; 11] = [
    part("wait_source_us_total", "S", "wait: reading from the source", Style::Red),
    part("wait_decode_us_total", "D", "wait: decoding", Style::Yellow),
    part("wait_python_us_total", "P", "wait: Python code of the dataset", Style::Yellow),
    part("wait_slot_us_total", "L", "wait: no free batch slot", Style::Yellow),
    part("wait_copy_us_total", "R", "wait: copying rows", Style::Yellow),
    part("wait_decide_us_total", "K", "wait: cache decisions", Style::Yellow),
    part("wait_handover_us_total", "H", "wait: hand-over", Style::Yellow),
    part("copies_us_total", "C", "copies to the device", Style::Yellow),
    part("sync_us_total", "X", "backward passes and collectives: ranks wait for each other", Style::Plain),
    part("compute_us_total", "G", "the GPU computes", Style::Green),
    part("busy_us_total", ".", "the rest of the training's time", Style::Green),
];

/// The time of each of [`PARTS`] since the start (µs).
fn times(engine: &Engine) -> [u64; PARTS.len()] {
    let mut times = PARTS.map(|part| engine.counter(part.counter).unwrap_or(0));
    // What the last one contains is shown by itself.
    let own: u64 = times[7..10].iter().sum();
    times[10] = times[10].saturating_sub(own);
    times
}

/// A bar of letters, as long as `room`, each part as wide as its share of the time.
fn bar(times: &[u64], room: usize) -> Vec<Cell> {
    let whole = times.iter().sum::<u64>().max(1) as f64;
    let (mut upto, mut drawn) = (0, 0);
    let mut cells = vec!["[".into()];
    for (&us, part) in times.iter().zip(&PARTS) {
        upto += us;
        let end = (upto as f64 / whole * room as f64).round() as usize;
        cells.push(Cell(part.letter.repeat(end.saturating_sub(drawn)), part.style));
        drawn = drawn.max(end);
    }
    cells.push(" ".repeat(room.saturating_sub(drawn)).into());
    cells.push("]".into());
    cells
}

/// The colour of the state column and of the verdict.
pub(super) fn state_style(engine: &Engine) -> Style {
    match engine.verdict.as_deref() {
        Some(_) if engine.is_wrong => Style::Red,
        Some("ok" | "compute-bound") => Style::Green,
        _ => Style::Plain,
    }
}

fn title(screen: &mut Screen, engine: &Engine) {
    let Engine { pid, job, rank, world_size, device, .. } = engine;
    let rank = if *world_size > 1 { format!(" rank {rank}/{world_size}") } else { String::new() };
    screen.rule(&format!("{pid} {job}{rank}   {device}"));
}

/// The verdict as the first line of a job, then what to try.
fn verdict(screen: &mut Screen, engine: &Engine) {
    let Some(word) = &engine.verdict else { return };
    let cause = engine.cause.as_ref().map(|cause| format!(" ({cause})")).unwrap_or_default();
    let why = engine.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    screen.parts("verdict", [format!("{word}{cause}{why}")], state_style(engine));
    screen.parts("next", engine.next.clone(), Style::Plain);
}

fn step(screen: &mut Screen, engine: &Engine) {
    let times = times(engine);
    let whole: u64 = times.iter().sum();
    let steps = engine.counter("batches_total").unwrap_or(0);
    if whole == 0 || steps == 0 {
        return;
    }
    let room = screen.inner().saturating_sub(LABEL + 2);
    screen.line(std::iter::once(format!("{:<LABEL$}", "step").into()).chain(bar(&times, room)));
    let shown = times.iter().zip(&PARTS).filter(|&(&us, _)| us * 200 >= whole);
    let parts = shown.map(|(&us, part)| {
        let help = part.help.strip_prefix("wait: ").or(part.help.split(':').next()).unwrap_or(part.help);
        format!("{} {help} {} ({:.0}%)", part.letter, time(us as f64 / steps as f64), 100.0 * us as f64 / whole as f64)
    });
    let mean = format!("{} a step:", time(whole as f64 / steps as f64));
    let passes = engine.counter("passes_total").filter(|&passes| passes > 0);
    let first = passes.zip(engine.counter("wait_first_us_total").filter(|&us| us > 0));
    let first = first.map(|(passes, us)| format!("first batch of an epoch {}", time(us as f64 / passes as f64)));
    screen.parts("", std::iter::once(mean).chain(parts).chain(first), Style::Plain);
}

/// The page of a job's step.
pub(super) fn step_page(screen: &mut Screen, engine: &Engine, _: Glyphs) {
    title(screen, engine);
    verdict(screen, engine);
    step(screen, engine);
}

/// Everything about a job.
pub(super) fn details(screen: &mut Screen, engine: &Engine, glyphs: Glyphs) {
    step_page(screen, engine, glyphs);
    let count = |name: &str| engine.counter(name).map_or(UNKNOWN.to_owned(), |n| decimal(n as f64, ""));
    let plain = Style::Plain;
    // A torch DataLoader has none of the rest.
    if engine.counter("torch_loaders").is_some_and(|loaders| loaders > 0) {
        screen.parts("source", [engine.source.clone()], plain);
    } else {
        let bytes = engine.counter("fetched_bytes_total").map_or(UNKNOWN.to_owned(), |b| decimal(b as f64, "B"));
        let rate = engine.fetched_bytes_per_s.map(|b| format!(", {}/s", decimal(b, "B"))).unwrap_or_default();
        let fetched = format!("read {} samples, {bytes}{rate}", count("fetched_samples_total"));
        let rest = [format!("joined {}", count("coalesced_total")), format!("bad {}", count("bad_samples_total"))];
        screen.parts("source", [engine.source.clone(), fetched].into_iter().chain(rest), plain);
        let held = pair(engine.counter("cache_bytes"), engine.counter("cache_capacity_bytes"));
        let samples = format!("{} of {} samples", count("residents"), count("samples_in_dataset"));
        let rest = [format!("evicted {}", count("evicted_total")), format!("bypassed {}", count("bypassed_total"))];
        let chosen = format!("{} + {}", engine.sampler, engine.policy);
        screen.parts("cache", [chosen, held, samples].into_iter().chain(rest), plain);
        let slots = ["ready", "lent", "copying"].map(|what| count(&format!("slots_{what}")));
        let [ready, held, copying] = slots;
        let slots =
            [format!("{}: ready {ready}", count("slots_total")), format!("held {held}"), format!("copying {copying}")];
        screen.parts("slots", slots, plain);
        let dropped = format!("dropped {}", count("scores_dropped_total"));
        let age = format!("age {} steps", count("score_age_steps"));
        screen.parts("scores", [count("scores_total"), dropped, age], plain);
        if let Some(workers) = engine.counter("workers") {
            let readers = engine.counter("dataset_readers").unwrap_or(0).saturating_sub(1);
            let own = match (workers, readers) {
                (0, 0) => ": the training thread loads".to_owned(),
                (0, 1) => ": a worker process reads the dataset".to_owned(),
                (0, n) => format!(": {n} worker processes read the dataset"),
                _ => String::new(),
            };
            screen.parts(
                "threads",
                std::iter::once(format!("{workers}{own}")).chain(changed(engine, Knob::Threads)),
                plain,
            );
        }
        reading(screen, engine);
    }
    if !engine.stall_history.is_empty() {
        let room = screen.inner().saturating_sub(LABEL + 16);
        let recent = &engine.stall_history[engine.stall_history.len().saturating_sub(room)..];
        let bars: String = recent.iter().map(|s| glyphs.levels[((s * 8.0) as usize).min(7)]).collect();
        screen.line([format!("{:<LABEL$}{bars} last {} s", "wait", recent.len()).into()]);
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

/// The punctuality of misses, and the last decisions about reading.
fn reading(screen: &mut Screen, engine: &Engine) {
    let plain = Style::Plain;
    let on_time = engine.ratio(stats::ON_TIME_RATIO).map(|ratio| format!("{:.1}% of misses", ratio * 100.0));
    let ahead = engine.counter("read_ahead_requests").filter(|&requests| requests > 0);
    let changes = ahead.and_then(|_| changed(engine, Knob::Requests));
    let parts = on_time.into_iter().chain(ahead.map(|requests| format!("requests {requests}"))).chain(changes);
    screen.parts("on time", parts, plain);
    if let Some(changed) = changed(engine, Knob::Lead) {
        let held = pair(engine.counter("read_ahead_bytes"), engine.counter("read_ahead_limit_bytes"));
        screen.parts("window", [held, changed], plain);
    }
    for name in TIERS {
        let Some((state, parts)) = tier(engine, name) else { continue };
        let style = if state == circuit::State::Closed { plain } else { Style::Yellow };
        screen.parts(name, parts, style);
    }
}

/// The tiers between the cache and the source, by the beginning of their counters' names.
const TIERS: [&str; 2] = ["disk", "pool"];

/// A tier, if it is used: its breaker, and what it had.
fn tier(engine: &Engine, name: &str) -> Option<(circuit::State, Vec<String>)> {
    let number = |what: &str| engine.counter(&format!("{name}_{what}"));
    let used = ["hits_total", "misses_total", "skipped_total", "bytes"];
    used.iter().any(|what| number(what).is_some_and(|n| n > 0)).then_some(())?;
    let state = number("circuit").and_then(circuit::State::of_code)?;
    let count = |what: &str| number(what).map_or(UNKNOWN.to_owned(), |n| decimal(n as f64, ""));
    let why = number("circuit_reason").and_then(circuit::Why::of_code);
    let why = why.map(|why| format!(" (last: {why})")).unwrap_or_default();
    let counts =
        ["hits", "misses", "failed", "skipped"].map(|what| format!("{what} {}", count(&format!("{what}_total"))));
    let opened = format!("opened {} times", count("opened_total"));
    Some((state, [format!("breaker {state}{why}"), opened].into_iter().chain(counts).collect()))
}

const TIER_COLUMNS: [Column; 5] = [
    text("tier", 8, 0, ""),
    number("used/limit", 17, 0, ""),
    number("samples", 9, 0, ""),
    number("delivered", 9, 0, ""),
    number("share%", 6, 0, ""),
];

/// The tiers that a job's samples came from: shares add up to all samples asked for.
pub(super) fn tiers_page(screen: &mut Screen, engine: &Engine, _: Glyphs) {
    title(screen, engine);
    let count = |name: &str| engine.counter(name).unwrap_or(0);
    let (asked, hits) = (count("requests_total"), count("hits_total"));
    let row = |tier: &str, used: String, samples: Option<u64>, delivered: u64| {
        let share = (asked > 0).then(|| 100.0 * delivered as f64 / asked as f64);
        let samples = known(samples, |n| decimal(n as f64, ""));
        vec![
            tier.into(),
            used.into(),
            samples,
            decimal(delivered as f64, "").into(),
            known(share, |s| format!("{s:.1}")),
        ]
    };
    let held = pair(engine.counter("cache_bytes"), engine.counter("cache_capacity_bytes"));
    let mut source = asked.saturating_sub(hits);
    let mut rows = vec![row("cache", held, engine.counter("residents"), hits)];
    for name in TIERS {
        let Some((state, _)) = tier(engine, name) else { continue };
        let delivered = count(&format!("{name}_hits_total"));
        source = source.saturating_sub(delivered);
        let bytes = engine.counter(&format!("{name}_bytes"));
        let used = bytes.map_or(UNKNOWN.to_owned(), |bytes| decimal(bytes as f64, "B"));
        rows.push(row(&format!("{name} {state}"), used, None, delivered));
    }
    rows.push(row("source", UNKNOWN.to_owned(), engine.counter("samples_in_dataset"), source));
    screen.table(&TIER_COLUMNS, rows);
    screen.parts("data", [engine.source.clone()], Style::Plain);
}

/// The engines by job, in the order of each job's first.
fn by_job(mut rest: Vec<&Engine>) -> Vec<Vec<&Engine>> {
    let mut jobs = Vec::new();
    while let Some(&first) = rest.first() {
        let (ranks, others) = rest.into_iter().partition(|engine| engine.job_key() == first.job_key());
        rest = others;
        jobs.push(ranks);
    }
    jobs
}

/// The rank of every job that waits most.
pub(super) fn worst_ranks<'a>(engines: impl Iterator<Item = &'a Engine>) -> Vec<&'a Engine> {
    let wait = |engine: &Engine| engine.stall_lately.unwrap_or(-1.0);
    let worst =
        |ranks: Vec<&'a Engine>| ranks.into_iter().max_by(|a, b| wait(a).total_cmp(&wait(b)).then(b.rank.cmp(&a.rank)));
    by_job(engines.collect()).into_iter().filter_map(worst).collect()
}

/// The ranks of every job, the worst wait named.
pub(super) fn ranks_page(screen: &mut Screen, engines: Vec<&Engine>) {
    for mut ranks in by_job(engines) {
        let first = ranks[0];
        ranks.sort_by_key(|engine| engine.rank);
        screen.rule(&format!("{}   {} of {} ranks are here", first.job, ranks.len(), first.world_size));
        verdict(screen, first);
        let mut waits: Vec<(f64, u32)> = ranks.iter().filter_map(|e| Some((e.stall_lately?, e.rank))).collect();
        waits.sort_by(|a, b| a.0.total_cmp(&b.0));
        if ranks.len() > 1
            && let (Some((most, rank)), Some((middle, _))) =
                (waits.last(), waits.get(waits.len().saturating_sub(1) / 2))
        {
            let worst =
                format!("rank {rank} waits most: {:.1} %, the middle rank {:.1} %", 100.0 * most, 100.0 * middle);
            screen.words([worst], Style::Plain);
        }
        for engine in ranks {
            let wait = engine.stall_lately.map_or(UNKNOWN.to_owned(), |s| format!("{:.1}", 100.0 * s));
            let step = engine.step_seconds.map_or(UNKNOWN.to_owned(), |s| time(s * 1e6));
            let rate = engine.samples_per_s.map_or(UNKNOWN.to_owned(), |s| format!("{s:.0}/s"));
            let head = format!("{:>4} {:>7} {rate:>9} {step:>8} wait ", engine.rank, engine.pid);
            let room = screen.inner().saturating_sub(head.len() + 9);
            let wait = Cell(format!("{wait:>5}% "), wait_style(engine.stall_lately));
            screen.line([head.into(), wait].into_iter().chain(bar(&times(engine), room)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_room_and_each_part_as_wide_as_its_share() {
        let drawn = |times: &[u64], room| bar(times, room).into_iter().map(|cell| cell.0).collect::<String>();
        let mut times = [0; PARTS.len()];
        (times[0], times[1], times[7], times[10]) = (50, 25, 5, 20);
        assert_eq!(drawn(&times, 20), "[SSSSSSSSSSDDDDDC....]");
        assert_eq!(drawn(&[0; PARTS.len()], 5), "[     ]");
        assert_eq!(drawn(&times, 0), "[]");
    }

    #[test]
    fn the_parts_add_up_to_waits_and_busy_time() {
        let counters =
            [("wait_source_us_total", 5), ("copies_us_total", 2), ("compute_us_total", 3), ("busy_us_total", 9)];
        let counters = counters.map(|(name, value)| (name.to_owned(), value)).into();
        let engine = Engine { counters, ..Engine::default() };
        assert_eq!(times(&engine), [5, 0, 0, 0, 0, 0, 0, 2, 0, 3, 4]);
    }
}
