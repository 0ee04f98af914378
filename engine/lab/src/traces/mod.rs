//! Readers of libCacheSim's traces: requests for objects of various sizes, without epochs and scores.

mod object_csv;
mod object_requests;
mod oracle_general;

pub use object_csv::{ObjectColumns, read_object_csv};
pub use object_requests::Taken;
pub use oracle_general::read_oracle_general;
