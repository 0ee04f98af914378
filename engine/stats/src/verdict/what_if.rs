//! The effect of a change: the step after it, from the times before it.

use super::cause::Cause;
use super::measured::{Loader, Measured, share};
use super::model::Model;
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

/// A setting to change, and what that brings where it can be foretold.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Proposal {
    /// The keyword.
    pub(super) setting: &'static str,
    /// Its new value.
    pub(super) value: u64,
    /// The step then.
    pub(super) then: Option<WhatIf>,
}

/// A change must save so much of the step.
const WORTH: f64 = 0.05;

/// The setting to change for a rank that waits for its input. `cache_small`: it reads again what the cache gave up.
pub(super) fn input(m: &Measured, cause: Cause, cache_small: bool) -> Option<Proposal> {
    let found = match (m.loader, cause) {
        (_, Cause::Slot) => None,
        (Loader::Torch, Cause::Handover) => inline(m),
        (Loader::Lossfeed, Cause::Source) if cache_small || m.settings.processes.is_none() => larger_cache(m),
        (Loader::Lossfeed, Cause::Python) if is_threaded(m) => processes_for_threads(m),
        (Loader::Torch, _) | (_, Cause::Source | Cause::Decode | Cause::Python) => more_workers(m),
        _ => None,
    };
    found.filter(|p| p.then.as_ref().is_none_or(|then| then.then_us <= (1.0 - WORTH) * then.step_us))
}

/// Threads of our own loader read a Python dataset.
pub(super) fn is_threaded(m: &Measured) -> bool {
    m.settings.processes == Some(0) && m.settings.workers.is_some_and(|n| n > 0)
}

/// The step with its waits gone: an upper bound, whatever is changed.
pub(super) fn no_wait(m: &Measured) -> Vec<WhatIf> {
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

fn modelled(setting: &'static str, (now, value): (u64, u64), step_us: f64, then_us: f64) -> Proposal {
    let change = format!("{setting} {now} → {value}");
    let then = WhatIf { change, setting, value, step_us, then_us, basis: Basis::Modelled };
    Proposal { setting, value, then: Some(then) }
}

fn more_workers(m: &Measured) -> Option<Proposal> {
    let model = Model::of(m)?;
    let threads = m.loader == Loader::Lossfeed && m.settings.processes.is_none();
    let value = if threads { model.enough().min(m.settings.processors?) } else { model.enough() };
    if value <= model.workers {
        return None;
    }
    if m.work.mixed {
        return Some(Proposal { setting: "num_workers", value, then: None });
    }
    Some(modelled("num_workers", (model.workers, value), model.now, model.changed(value)))
}

/// The hand-over costs more than the batch: make it where it is used.
fn inline(m: &Measured) -> Option<Proposal> {
    let model = Model::of(m).filter(|model| model.workers > 0)?;
    Some(modelled("num_workers", (model.workers, 0), model.now, model.with(0)))
}

/// Threads that compute in Python take turns. What each would wait for without the others is unknown, and so the step.
fn processes_for_threads(m: &Measured) -> Option<Proposal> {
    let value = Model::of(m)?.enough().max(2).min(m.settings.processors?);
    (value > 1).then_some(Proposal { setting: "processes", value, then: None })
}

/// A cache of such a size that reads no longer hold the training up. Reads shrink as misses do, from the second pass
/// on: the step foretold is the mean of a run with as many passes.
fn larger_cache(m: &Measured) -> Option<Proposal> {
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
    // What was read ahead and stayed for the next pass is no hit and costs nothing either.
    let cold = step_us / share(c.fetched, c.requests).clamp(1e-3, 1.0);
    let bytes = round_up((1.0 - busy / cold) * dataset * 1.05);
    // A cache that is used again has as large a share of the samples as of the bytes.
    let missing = 1.0 - (bytes as f64 / dataset).min(1.0);
    let (later, passes) = (busy.max(cold * missing), m.passes as f64);
    let then_us = if m.passes < 2 { later } else { (cold + (passes - 1.0) * later) / passes };
    let since = if m.passes < 2 { ", from the second pass on" } else { "" };
    let then = WhatIf {
        change: format!("cache {} → {}{since}", size(c.capacity_bytes), size(bytes)),
        setting: "cache",
        value: bytes,
        step_us,
        then_us,
        basis: Basis::Modelled,
    };
    Some(Proposal { setting: "cache", value: bytes, then: Some(then) })
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
