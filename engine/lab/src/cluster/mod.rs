//! A cluster's jobs from arrival to end, with cache and link divided in one of several systems' ways.
//!
//! [`simulate`] runs a list of jobs. The lists are Gavel's traces ([`parse_trace`]).

mod assign;
mod cache_system;
mod gavel;
mod over_time;
mod rules;
mod schedule;
mod simulate;
mod workload;

pub use assign::{Assumed, READINGS, Reading, SCORED_HITS, assign};
pub use cache_system::lru_hits;
pub use gavel::{Throughputs, TraceJob, parse_trace};
pub use over_time::OverTime;
pub use rules::{CACHE_SYSTEMS, CacheSystem, ORDERS, Order, Rules};
pub use simulate::{Moment, Ran, simulate};
pub use workload::{Reads, Submitted, Workload};
