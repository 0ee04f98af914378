//! The cache policies, as the engine's registry has them.

use lossfeed::policy::{self, Needs};
use pyo3::prelude::*;

/// Every cache policy: (name, what it does, whether it keeps by score).
#[pyfunction]
pub(crate) fn cache_policies() -> Vec<(&'static str, &'static str, bool)> {
    policy::ALL.iter().map(|p| (p.name, p.help, p.needs.contains(Needs::SCORES))).collect()
}

/// The names of the policies that only the program `lossfeed-lab` has.
#[pyfunction]
pub(crate) fn policies_in_the_lab() -> Vec<&'static str> {
    policy::IN_THE_LAB.to_vec()
}

/// The name of the cache policy that goes with a sampler of one rank when none is named.
#[pyfunction]
pub(crate) fn default_policy(sampler: &str) -> &'static str {
    policy::default_for(sampler).name
}
