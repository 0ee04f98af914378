//! Counts and orders that must not change.

mod order;
mod replay;
