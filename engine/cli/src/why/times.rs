//! The probe's numbers as the counters of a stats page. Pure.
//!
//! Waits get their causes here. For torch's `DataLoader` the times of its fetches say what the loop waited for: with
//! workers, a batch that takes `fetch` seconds to make comes every `fetch / workers`, and what is beyond the loop's own
//! time was waited for; the rest of the wait is the hand-over. For `lossfeed.Loader` the engine's counters say it.

use std::collections::BTreeMap;

use lossfeed_stats::verdict::{Measured, Settings, Work};

use super::records::{Numbers, Record};

/// So many waits of a second and more are pauses, if each is so many times the mean of the others; more are a pace.
const PAUSES: f64 = 3.0;
const PAUSE_TIMES: f64 = 20.0;
/// Samples of computing fetches that a division needs.
const SAMPLES_MIN: f64 = 5.0;
/// Loaders of two kinds feed a loop if each gives this share of its batches.
const MIXED: f64 = 0.05;
/// Steps with GPU events that a GPU's time needs.
const GPU_STEPS_MIN: f64 = 10.0;

/// The counters of one rank, by their names on a stats page.
pub(super) fn counters(record: &Record) -> BTreeMap<&'static str, u64> {
    let n = |name: &str| record.numbers.get(name);
    let (batches, first) = (n("batches"), n("wait_first"));
    let mut pace = without_pauses(n("wait") - first, batches - n("passes"), n("wait_longs"), n("wait_long"));
    let mut busy = without_pauses(n("busy"), batches, n("busy_longs"), n("busy_long"));
    let mut own = if busy < n("busy") { n("own_processor") - n("busy_long_processor") } else { n("own_processor") };
    if n("busy_first") > 0.0 {
        // The run's first step loads code: it counts as one of the others.
        let steps = batches / (batches - 1.0).max(1.0);
        (busy, own) = (busy * steps, own * steps);
    }
    let gpu_steps = n("gpu_steps");
    if gpu_steps >= GPU_STEPS_MIN {
        // What the GPU has queued covers a wait: only its idle time is lost.
        let idle = (n("gpu_gap") / gpu_steps * batches).min(pace);
        busy += pace - idle;
        pace = idle;
    }
    let torch = n("torch") > 0.0;
    let feed = Feed::of(record, pace, busy);
    let parts = if torch { feed.parts(pace) } else { Parts::of_engine(&feed.made, &n, pace) };
    if !torch && n("workers") > 0.0 {
        // Loader threads compute while the loop does; the clock of the process has both.
        own -= n("processor") * busy / (busy + pace + first).max(1e-9);
    }
    let us = |seconds: f64| (seconds.max(0.0) * 1e6) as u64;
    let mut counters: BTreeMap<&'static str, u64> = [
        ("batches_total", batches as u64),
        ("samples_total", n("samples") as u64),
        ("passes_total", n("passes") as u64),
        ("steps_total", n("steps") as u64),
        ("wait_us_total", us(pace + first)),
        ("wait_first_us_total", us(first)),
        ("wait_source_us_total", us(parts.source)),
        ("wait_decode_us_total", us(parts.decode)),
        ("wait_python_us_total", us(parts.python)),
        ("wait_slot_us_total", us(parts.slot)),
        ("wait_copy_us_total", us(parts.copy)),
        ("wait_decide_us_total", us(parts.decide)),
        ("wait_handover_us_total", us(parts.handover)),
        ("busy_us_total", us(busy)),
        ("copies_us_total", us(n("copies"))),
        ("copies_pageable_us_total", us(n("pageable"))),
        ("compute_us_total", if gpu_steps >= GPU_STEPS_MIN { us(n("gpu_span") / gpu_steps * batches) } else { 0 }),
        ("sync_us_total", us(n("sync"))),
        ("own_processor_us_total", us(own)),
        ("workers", if torch { feed.workers as u64 } else { n("workers") as u64 }),
        ("processors", n("processors").round() as u64),
        ("torch_loaders", u64::from(torch)),
    ]
    .into();
    let (filled, work, processor) = match feed.made.batches {
        0.0 => (n("filled"), n("work"), n("processor")),
        made => (made, feed.made.wall, feed.made.processor),
    };
    counters.extend([
        ("filled_total", filled as u64),
        ("work_us_total", us(work)),
        ("processor_us_total", us(processor)),
    ]);
    if !torch {
        counters.extend([
            ("dataset_readers", n("readers") as u64),
            ("cache_capacity_bytes", n("cache_capacity") as u64),
            ("cache_bytes", n("cache_used") as u64),
            ("requests_total", n("requests") as u64),
            ("hits_total", n("hits") as u64),
            ("fetched_samples_total", n("fetched") as u64),
            ("fetched_bytes_total", n("fetched_bytes") as u64),
            ("distinct_ever", n("distinct") as u64),
            ("samples_in_dataset", n("dataset") as u64),
            ("scores_total", n("scores") as u64),
            ("scores_late_total", n("scores_late") as u64),
            ("scores_dropped_total", n("scores_dropped") as u64),
            ("store_us_p50", us(n("store_p50"))),
            ("store_us_p99", us(n("store_p99"))),
        ]);
    }
    counters
}

/// One rank, as a verdict takes it.
/// `taken`: processors that other programs had in the mean.
pub(super) fn measured(record: &Record, taken: f64) -> Measured {
    let counters = counters(record);
    let n = |name: &str| record.numbers.get(name);
    let m = Measured::of(&|name| counters.get(name).copied(), None);
    let set = |name: &str| (n("torch") > 0.0).then(|| n(name) > 0.0);
    let (persistent, pinned, stream) = (set("persistent"), set("pinned"), set("stream"));
    let feed = Feed::of(record, m.pace_wait_us() as f64 / 1e6, m.busy_us as f64 / 1e6);
    let us = |seconds: f64| (seconds.max(0.0) * 1e6) as u64;
    Measured {
        rank: record.words.rank,
        settings: Settings { persistent, pinned, stream, taken_permille: (1e3 * taken) as u64, ..m.settings },
        work: match feed.made.batches {
            0.0 => m.work,
            made => Work {
                batches: made as u64,
                total_us: us(feed.made.wall),
                processor_us: us(feed.made.processor),
                queued_us: us(feed.made.delay),
                packed_us: us(feed.made.spent - feed.made.processor),
                taken_us: us(if feed.workers > 0.0 { n("wait_processor") } else { 0.0 }),
                pieces: n("pieces") as u64,
                mixed: feed.mixed,
            },
        },
        ..m
    }
}

/// A sum of `count` times without its few long ones, where those are pauses.
fn without_pauses(sum: f64, count: f64, longs: f64, long: f64) -> f64 {
    let rest = (sum - long).max(0.0) / (count - longs).max(1.0);
    let pauses = longs > 0.0 && longs <= PAUSES && long / longs >= PAUSE_TIMES * rest;
    if pauses { rest * count } else { sum.max(0.0) }
}

/// Fetches of a rank.
#[derive(Default)]
struct Made {
    batches: f64,
    wall: f64,
    processor: f64,
    /// Part of the wall time: waiting for a processor.
    delay: f64,
    /// Part of the wall time: neither computing nor waiting for a processor.
    waiting: f64,
    /// Processor time of the worker processes for all they do.
    spent: f64,
    python: f64,
    compiled: f64,
}

impl Made {
    fn of(fetches: &[Numbers]) -> Self {
        let mut all = Self::default();
        for fetch in fetches {
            let (batches, mut wall) = (fetch.get("batches"), fetch.get("wall"));
            let (processor, delay) = (fetch.get("processor"), fetch.get("delay"));
            let longest = fetch.get("longest");
            if longest > 1.0 {
                wall = without_pauses(wall, batches, 1.0, longest);
            }
            all.batches += batches;
            all.wall += wall;
            all.processor += processor;
            all.delay += delay;
            all.waiting += (wall - processor - delay).max(0.0);
            all.spent += fetch.get("spent").max(processor);
            all.python += fetch.get("python");
            all.compiled += fetch.get("compiled");
        }
        all
    }

    /// `us` of fetching, divided into waiting, compiled code and Python.
    fn divide(&self, us: f64) -> (f64, f64, f64) {
        let waiting = if self.wall > 0.0 { self.waiting / self.wall } else { 0.0 };
        let samples = self.python + self.compiled;
        let compiled = if samples >= SAMPLES_MIN { self.compiled / samples } else { 0.0 };
        let computing = us * (1.0 - waiting);
        (us * waiting, computing * compiled, computing * (1.0 - compiled))
    }
}

/// Those fetches that a loop waited for most, where several loaders feed it.
#[derive(Default)]
struct Feed {
    made: Made,
    /// Worker processes that made them.
    workers: f64,
    /// The waits that they explain.
    explained: f64,
    /// Those of the others, and the waits that they explain.
    others: (Made, f64),
    /// True if these and the others both made batches.
    mixed: bool,
}

impl Feed {
    /// `pace` and `busy`: the loop's waits without first batches, and the time between them.
    fn of(record: &Record, pace: f64, busy: f64) -> Self {
        let n = |name: &str| record.numbers.get(name);
        if !record.pool.is_empty() {
            // Calls for items, of which several make a batch.
            let made = Made { batches: n("filled"), ..Made::of(&record.pool) };
            return Self { made, workers: (n("readers") - 1.0).max(1.0), ..Self::default() };
        }
        let (inline, made) = (Made::of(&record.inline), Made::of(&record.fetches));
        let batches = n("batches").max(1.0);
        let by_inline = (inline.wall * (1.0 - n("passes") / batches)).clamp(0.0, pace);
        let workers = match made.batches {
            0.0 if inline.batches == 0.0 => n("workers"),
            0.0 => 0.0,
            _ if n("torch") > 0.0 => n("workers").max(1.0),
            _ => (n("readers") - 1.0).max(1.0),
        };
        let each = made.wall / made.batches.max(1.0) / workers.max(1.0) - busy / batches;
        let by_workers = (each * (batches - inline.batches)).clamp(0.0, pace - by_inline);
        let mixed = inline.batches.min(made.batches) > MIXED * batches;
        if made.batches == 0.0 || (inline.batches > 0.0 && by_inline > by_workers) {
            let workers = if inline.batches > 0.0 { 0.0 } else { workers };
            return Self { made: inline, workers, explained: by_inline, others: (made, by_workers), mixed };
        }
        Self { made, workers, explained: by_workers, others: (inline, by_inline), mixed }
    }

    /// The waits by cause; those that no fetch explains are the hand-over.
    fn parts(&self, pace: f64) -> Parts {
        let (one, other) = (self.made.divide(self.explained), self.others.0.divide(self.others.1));
        let handover = pace - self.explained - self.others.1;
        let (source, decode, python) = (one.0 + other.0, one.1 + other.1, one.2 + other.2);
        Parts { source, decode, python, handover, ..Parts::default() }
    }
}

/// A wait by cause, in seconds.
#[derive(Default)]
struct Parts {
    source: f64,
    decode: f64,
    python: f64,
    slot: f64,
    copy: f64,
    decide: f64,
    handover: f64,
}

impl Parts {
    fn of_engine(made: &Made, n: &dyn Fn(&str) -> f64, pace: f64) -> Self {
        let scale = if n("engine_wait") > 0.0 { pace / n("engine_wait") } else { 0.0 };
        let part = |name: &str| scale * n(name);
        let read = part("wait_source");
        let (source, compiled, python) = if made.batches > 0.0 { made.divide(read) } else { (read, 0.0, 0.0) };
        let decode = compiled + part("wait_decode");
        let (slot, copy, decide) = (part("wait_slot"), part("wait_copy"), part("wait_decide"));
        let handover = (pace - source - decode - python - slot - copy - decide).max(0.0);
        Self { source, decode, python, slot, copy, decide, handover }
    }
}

#[cfg(test)]
mod tests {
    use lossfeed_stats::verdict::judge;

    use super::*;

    fn record(numbers: &[(&str, f64)], fetches: &[&[(&str, f64)]]) -> Record {
        let common = [("batches", 100.0), ("passes", 1.0), ("samples", 1600.0), ("torch", 1.0), ("processors", 2.0)];
        Record {
            numbers: Numbers::of(&[&common, numbers].concat()),
            fetches: fetches.iter().map(|fetch| Numbers::of(fetch)).collect(),
            ..Record::default()
        }
    }

    fn title(record: &Record) -> String {
        judge(&[measured(record, 0.0)]).title()
    }

    #[test]
    fn a_wait_that_the_fetches_explain_is_divided_as_they_are_and_the_rest_is_the_hand_over() {
        let loop_ = [("wait", 2.0), ("busy", 1.0), ("workers", 2.0)];
        let waits: &[(&str, f64)] = &[("batches", 50.0), ("wall", 3.0), ("processor", 0.1)];
        let computes: &[(&str, f64)] = &[("batches", 50.0), ("wall", 3.0), ("processor", 2.8), ("delay", 0.2)];
        let sampled = |python: f64, compiled: f64| [computes, &[("python", python), ("compiled", compiled)]].concat();
        assert_eq!(title(&record(&loop_, &[waits, waits])), "input-bound (source)");
        assert_eq!(title(&record(&loop_, &[computes, computes])), "input-bound (python)", "no samples");
        assert_eq!(title(&record(&loop_, &[&sampled(2.0, 28.0), &sampled(2.0, 28.0)])), "input-bound (decode)");
        assert_eq!(title(&record(&loop_, &[&sampled(28.0, 2.0), &sampled(28.0, 2.0)])), "input-bound (python)");
        let quick: &[(&str, f64)] = &[("batches", 50.0), ("wall", 0.1), ("processor", 0.1)];
        assert_eq!(title(&record(&loop_, &[quick, quick])), "input-bound (hand-over)");
        let inline = |fetch: &[(&str, f64)]| Record {
            inline: vec![Numbers::of(fetch)],
            ..record(&[("wait", 2.0), ("busy", 1.0)], &[])
        };
        assert_eq!(title(&inline(&[("batches", 100.0), ("wall", 1.9)])), "input-bound (source)");
    }

    #[test]
    fn few_long_waits_are_pauses_and_many_are_a_pace() {
        let paused = [("wait", 5.1), ("wait_longs", 1.0), ("wait_long", 5.0), ("busy", 2.0)];
        assert_eq!(title(&record(&paused, &[])), "ok");
        let slow = [("wait", 50.1), ("wait_longs", 10.0), ("wait_long", 50.0), ("busy", 2.0)];
        assert_eq!(title(&record(&slow, &[])), "input-bound (hand-over)");
        // Every wait is long.
        assert_eq!(without_pauses(4.5, 3.0, 3.0, 4.5), 0.0);
        assert_eq!(without_pauses(6.0, 4.0, 3.0, 4.5), 6.0);
    }

    #[test]
    fn work_that_a_gpu_has_queued_covers_a_wait() {
        let numbers = [("wait", 2.0), ("busy", 2.0), ("gpu_steps", 90.0), ("gpu_span", 3.55)];
        assert_eq!(title(&record(&[&numbers[..], &[("gpu_gap", 0.05)]].concat(), &[])), "compute-bound");
        assert_eq!(title(&record(&[&numbers[..], &[("gpu_gap", 1.7)]].concat(), &[])), "input-bound (hand-over)");
    }

    #[test]
    fn our_loaders_waits_have_the_engines_causes() {
        let numbers = [
            ("torch", 0.0),
            ("wait", 2.0),
            ("busy", 1.0),
            ("engine_wait", 4.0),
            ("wait_source", 1.0),
            ("wait_decode", 2.8),
            ("wait_handover", 0.2),
        ];
        let found = counters(&record(&numbers, &[]));
        assert_eq!((found["wait_source_us_total"], found["wait_decode_us_total"]), (500_000, 1_400_000));
        assert_eq!(found["wait_handover_us_total"], 100_000);
        assert_eq!(title(&record(&numbers, &[])), "input-bound (decode)");
    }
}
