//! The cache policies, as the engine's registry has them.

use lossfeed::policy::{self, Needs};
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
