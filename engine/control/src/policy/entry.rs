//! What is to be known of a policy without making one.

use super::{Needs, Policy};

/// What is to be known of a policy without making one. Each policy's file has its own.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// What users type.
    pub name: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
    /// What it asks of the run.
    pub needs: Needs,
    /// The samplers it is taken with if nobody named a policy.
    pub suits: Suits,
    /// Makes an empty one for ids `0..samples`.
    pub make: fn(samples: usize) -> Box<dyn Policy>,
}

/// The samplers a policy is taken with if nobody named one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suits {
    /// None.
    Nobody,
    /// Those of these names.
    Samplers(&'static [&'static str]),
    /// All that have no policy of their own.
    TheRest,
}
