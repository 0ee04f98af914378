//! The engine's registries: cache policies and counters.

use lossfeed::policy::{self, Needs};
use lossfeed::stats::{self, Kind};
use pyo3::prelude::*;

/// Every cache policy: (name, what it does, whether a training run can use it, whether it keeps by score).
#[pyfunction]
pub(crate) fn cache_policies() -> Vec<(&'static str, &'static str, bool, bool)> {
    policy::ALL.iter().map(|p| (p.name, p.help, p.is_live(), p.needs.contains(Needs::SCORES))).collect()
}

/// The name of the cache policy that goes with a sampler of one rank when none is named.
#[pyfunction]
pub(crate) fn default_policy(sampler: &str) -> &'static str {
    policy::default_for(sampler).name
}

/// A counter, gauge or ratio: (name, whether it only grows, unit, help, what its values mean if they are codes).
type Number = (&'static str, bool, &'static str, String, Vec<(u64, &'static str)>);

/// Every key of an engine's stats.
#[pyfunction]
pub(crate) fn counters() -> Vec<Number> {
    let number = |d: stats::Descriptor, name, help| (name, d.kind == Kind::Counter, d.unit.name(), help, d.codes());
    let renamed = stats::RENAMED.iter().filter_map(|&(old, new)| {
        let d = stats::descriptors().find(|d| d.name == new)?;
        Some(number(d, old, format!("Former name of `{new}`, until the next release.")))
    });
    stats::descriptors().map(|d| number(d, d.name, d.help.to_owned())).chain(renamed).collect()
}
