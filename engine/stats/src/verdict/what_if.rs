//! The effect of a change: the step after it, from the times before it.

use super::cause::Cause;
use super::measured::{Loader, Measured, share};
use super::rules::FULL;

/// The origin of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// The run itself showed it.
    Measured,
    /// Computed from what it showed.
    Modelled,
}

impl Basis {
    /// Its name on screens and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Basis::Measured => "measured",
            Basis::Modelled => "modelled",
        }
    }
}

/// A change, and the step after it.
#[derive(Debug, Clone, PartialEq)]
pub struct WhatIf {
    /// The change in words: `num_workers 2 → 6`.
    pub change: String,
    /// The keyword that changes; empty where the change is none.
    pub setting: &'static str,
    /// Its new value; 0 where there is none.
    pub value: u64,
    /// Step now (µs).
    pub step_us: f64,
    /// Step then (µs).
    pub then_us: f64,
    /// The origin of `then_us`.
    pub basis: Basis,
}

/// More workers than this are not proposed.
const WORKERS_MAX: u64 = 32;
/// Workers are planned for batches that take so many times as long.
const SPARE: f64 = 1.15;
/// A change must save so much of the step.
const WORTH: f64 = 0.05;

/// Changes for a rank that waits for its input, best first.
pub(super) fn input(m: &Measured, cause: Cause) -> Vec<WhatIf> {
    let found = match (m.loader, cause) {
        (_, Cause::Slot) => None,
        (Loader::Torch, Cause::Handover) => inline(m),
        (Loader::Torch, _) => more_workers(m),
        (Loader::Lossfeed, _) if m.settings.processes.is_some() => more_processes(m),
        (Loader::Lossfeed, Cause::Source) => larger_cache(m),
        (Loader::Lossfeed, Cause::Decode) => more_threads(m),
        _ => None,
    };
    found.into_iter().filter(|then| then.then_us <= (1.0 - WORTH) * then.step_us).chain(no_wait(m)).collect()
}

/// The step with its waits gone: an upper bound, whatever is changed.
fn no_wait(m: &Measured) -> Vec<WhatIf> {
    let mut bound = without(m, m.pace_wait_us() as f64, "no wait at all");
    bound.iter_mut().for_each(|then| then.basis = Basis::Measured);
    bound
}

/// The step without `us` of the window.
pub(super) fn without(m: &Measured, us: f64, change: &str) -> Vec<WhatIf> {
    let step_us = m.step_us();
    let then_us = step_us - us / m.steps.max(1) as f64;
    vec![WhatIf { change: change.to_owned(), setting: "", value: 0, step_us, then_us, basis: Basis::Modelled }]
}

/// All ranks as fast as the middle one.
pub(super) fn rank_alike(m: &Measured, gap_us: f64) -> Vec<WhatIf> {
    without(m, gap_us * m.steps as f64, "this rank as fast as the middle one")
}

/// Times of one step, for a model.
struct Step {
    now: f64,
    busy: f64,
    /// Making one batch.
    fetch: f64,
    /// The least time for loader and training together on the processors there are.
    processors: f64,
}

impl Step {
    fn of(m: &Measured) -> Option<Self> {
        if m.work.batches == 0 {
            return None;
        }
        let each = |us: u64, n: u64| us as f64 / n.max(1) as f64;
        let computes = each(m.work.processor_us, m.work.batches) + each(m.own_processor_us, m.steps);
        Some(Self {
            now: m.step_us(),
            busy: each(m.busy_us, m.steps),
            fetch: each(m.work.total_us, m.work.batches),
            processors: computes / m.settings.processors.unwrap_or(1).max(1) as f64,
        })
    }

    /// The step with `workers` of them, by the slowest of training, workers and processors.
    fn with(&self, workers: u64) -> f64 {
        match workers {
            0 => self.busy + self.fetch,
            n => self.busy.max(self.fetch / n as f64).max(self.processors),
        }
    }

    /// The change from `now` to `then` workers. What the model does not explain stays as it is.
    fn change(&self, setting: &'static str, now: u64, then: u64) -> WhatIf {
        let unexplained = (self.now - self.with(now)).max(0.0).min(0.2 * self.now);
        WhatIf {
            change: format!("{setting} {now} → {then}"),
            setting,
            value: then,
            step_us: self.now,
            then_us: self.with(then) + unexplained,
            basis: Basis::Modelled,
        }
    }

    /// The fewest workers that keep up, with a little to spare for batches that take longer. Processors that are the
    /// limit have none to spare.
    fn enough(&self) -> u64 {
        let pace = self.busy.max(self.processors).max(1.0);
        let spare = if self.processors > self.busy { 1.0 } else { SPARE };
        ((spare * self.fetch / pace).ceil() as u64).clamp(1, WORKERS_MAX)
    }
}

fn more_workers(m: &Measured) -> Option<WhatIf> {
    let (step, now) = (Step::of(m)?, m.settings.workers?);
    let enough = step.enough();
    (enough > now).then(|| step.change("num_workers", now, enough))
}

/// The hand-over costs more than the batch: make it where it is used.
fn inline(m: &Measured) -> Option<WhatIf> {
    let (step, now) = (Step::of(m)?, m.settings.workers.filter(|&n| n > 0)?);
    let then = step.with(0);
    Some(WhatIf {
        change: format!("num_workers {now} → 0"),
        setting: "num_workers",
        value: 0,
        step_us: step.now,
        then_us: then,
        basis: Basis::Modelled,
    })
}

/// A Python dataset in processes: the pace of one reader now, divided.
fn more_processes(m: &Measured) -> Option<WhatIf> {
    let now = m.settings.processes?;
    let step = Step::of(m)?;
    if now > 0 {
        let then = step.enough();
        return (then > now).then(|| step.change("processes", now, then));
    }
    // Threads take turns in the dataset, and their times have the turns in them: the pace of all is that of one reader.
    let pace = Step { fetch: step.now, ..step };
    let then = pace.enough();
    Some(WhatIf { then_us: pace.with(then), ..pace.change("processes", now, then) })
}

fn more_threads(m: &Measured) -> Option<WhatIf> {
    let (step, now) = (Step::of(m)?, m.settings.workers?);
    let then = step.enough().min(m.settings.processors?);
    (then > now).then(|| step.change("num_workers", now, then))
}

/// A cache of such a size that reads no longer hold the training up. Reads shrink as misses do, from the second pass
/// on: the step foretold is the mean of a run with as many passes.
fn larger_cache(m: &Measured) -> Option<WhatIf> {
    let c = &m.cache;
    if c.fetched == 0 || c.dataset == 0 {
        return None;
    }
    let dataset = c.fetched_bytes as f64 / c.fetched as f64 * c.dataset as f64;
    let full = c.capacity_bytes == 0 || c.used_bytes as f64 >= FULL * c.capacity_bytes as f64;
    if !full || c.capacity_bytes as f64 >= dataset {
        return None;
    }
    let step_us = m.step_us();
    let busy = m.busy_us as f64 / m.steps.max(1) as f64;
    let cold = step_us / (1.0 - share(c.hits, c.requests)).max(1e-3);
    let bytes = round_up((1.0 - busy / cold) * dataset * 1.05);
    // A cache that is used again has as large a share of the samples as of the bytes.
    let missing = 1.0 - (bytes as f64 / dataset).min(1.0);
    let (later, passes) = (busy.max(cold * missing), m.passes as f64);
    let then_us = if m.passes < 2 { later } else { (cold + (passes - 1.0) * later) / passes };
    let since = if m.passes < 2 { ", from the second pass on" } else { "" };
    Some(WhatIf {
        change: format!("cache {} → {}{since}", size(c.capacity_bytes), size(bytes)),
        setting: "cache",
        value: bytes,
        step_us,
        then_us,
        basis: Basis::Modelled,
    })
}

/// Two digits of a binary unit.
fn round_up(bytes: f64) -> u64 {
    let unit = [1u64 << 40, 1 << 30, 1 << 20, 1 << 10].into_iter().find(|&u| bytes >= u as f64).unwrap_or(1);
    let count = bytes / unit as f64;
    let step = if count >= 100.0 { 10.0 } else { 1.0 };
    ((count / step).ceil() * step) as u64 * unit
}

/// A size in the form that `cache=` takes.
pub(super) fn size(bytes: u64) -> String {
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|&(unit, _)| bytes >= unit) {
        Some((unit, name)) if bytes.is_multiple_of(unit) => format!("{}{name}", bytes / unit),
        Some((unit, name)) => format!("{:.1}{name}", bytes as f64 / unit as f64),
        None => format!("{bytes}B"),
    }
}
