//! Why a training run waits: measured times of a window in, one word with its evidence out. Pure.
//!
//! | file | job |
//! | --- | --- |
//! | `measured` | the times of one rank, from the counters of a page or of two moments |
//! | `rules` | the words, the limits and the table that the docs show |
//! | `judge` | the rules, applied |
//! | `cause` | the parts of a wait, and the rank that holds the others up |
//! | `model` | the step with another number of workers |
//! | `remedy` | the one line to write |
//! | `what_if` | what a change would bring |

mod cause;
mod judge;
mod measured;
mod model;
mod remedy;
mod rules;
mod what_if;

pub use cause::Cause;
pub use judge::{Evidence, Verdict, judge};
pub use measured::{Cache, Loader, Measured, Settings, Wait, Work};
pub use rules::{RULES, Rule, Word};
pub use what_if::{Basis, WhatIf};

#[cfg(test)]
mod tests;
