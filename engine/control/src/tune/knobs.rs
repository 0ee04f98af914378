//! The numbers that are set while a run goes on: one table, which journal, `smi`, the counters' help and the page
//! `pybind/docs/tuning.md` follow (`tests/facts` holds the last two to it).

use super::requests::Requests;
use super::{circuit, crew, lead};

/// A self-adjusting number's names, range and counters.
#[derive(Debug)]
pub struct About {
    /// The journal's word for it.
    pub name: &'static str,
    /// What it is.
    pub sets: &'static str,
    /// Its range.
    pub range: &'static str,
    /// The keyword that fixes the number, or that turns its rule on.
    pub given: &'static str,
    /// The counter that has its value.
    pub gauge: &'static str,
    /// The counter of its changes; empty where an epoch has one at most.
    pub changes: &'static str,
    /// The counter of the last change's reason; empty where there is one reason only.
    pub reason: &'static str,
    /// The reasons in words: number 1 is the first.
    pub reasons: &'static [&'static str],
    /// The decision of that number.
    pub decision: u32,
}

macro_rules! knobs {
    ($($(#[$about:meta])* $Knob:ident { $($field:ident: $value:expr),+ $(,)? })+) => {
        /// A number that is set while a run goes on.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Knob {
            $($(#[$about])* $Knob,)+
        }

        impl Knob {
            /// All of them, in the order of the page.
            pub const ALL: [Self; [$(Self::$Knob),+].len()] = [$(Self::$Knob),+];

            /// What is said of it.
            pub fn about(self) -> &'static About {
                match self {
                    $(Self::$Knob => const { &About { $($field: $value),+ } },)+
                }
            }
        }
    };
}

knobs! {
    /// Loader threads that fill batches.
    Threads {
        name: "threads",
        sets: "loader threads that fill batches",
        range: "1 to 64; starts at one per processor; bounded by memory for their batches",
        given: "`num_workers=N` fixes it",
        gauge: "workers",
        changes: "workers_changes_total",
        reason: "workers_reason",
        reasons: crew::Why::WORDS,
        decision: 44,
    }
    /// Requests in flight ahead of need.
    Requests {
        name: "requests",
        sets: "limit of in-flight prefetch requests; for local files, of reader threads",
        range: "1 to `connections=`; for files 0 while reads are fast, otherwise 8 to 64",
        given: "`read_ahead=0` turns prefetching off",
        gauge: "read_ahead_requests",
        changes: "read_ahead_changes_total",
        reason: "read_ahead_reason",
        reasons: Requests::WORDS,
        decision: 30,
    }
    /// Bytes that are read ahead at most.
    Lead {
        name: "lead",
        sets: "prefetch limit in bytes",
        range: "128 MiB to 1 GiB, at most a sixteenth of the memory",
        given: "`read_ahead=BYTES` fixes it",
        gauge: "read_ahead_limit_bytes",
        changes: "read_ahead_limit_changes_total",
        reason: "read_ahead_limit_reason",
        reasons: lead::Why::WORDS,
        decision: 54,
    }
    /// The circuit before the disk tier, by [`circuit::State::code`].
    Disk {
        name: "disk",
        sets: "circuit breaker of the disk tier",
        range: "0 closed (used), 1 open (skipped), 2 half-open (tried)",
        given: "",
        gauge: "disk_circuit",
        changes: "disk_opened_total",
        reason: "disk_circuit_reason",
        reasons: circuit::Why::WORDS,
        decision: 47,
    }
    /// The circuit before the pool, by [`circuit::State::code`].
    Pool {
        name: "pool",
        sets: "circuit breaker of the pool",
        range: "0 closed (used), 1 open (skipped), 2 half-open (tried)",
        given: "",
        gauge: "pool_circuit",
        changes: "pool_opened_total",
        reason: "pool_circuit_reason",
        reasons: circuit::Why::WORDS,
        decision: 66,
    }
    /// The circuit before the node cache, by [`circuit::State::code`].
    Node {
        name: "node",
        sets: "circuit breaker of the node cache",
        range: "0 closed (used), 1 open (skipped), 2 half-open (tried)",
        given: "",
        gauge: "node_circuit",
        changes: "node_opened_total",
        reason: "node_circuit_reason",
        reasons: circuit::Why::WORDS,
        decision: 47,
    }
    /// The part of the rows that may be fetched in the next epoch.
    Fetches {
        name: "fetches",
        sets: "share of the rows that the next epoch may fetch, in millionths",
        range: "1/64 to `fetches`, or to 1",
        given: "`stall` or `bytes` of `sampler=\"auto\"` turns it on",
        gauge: "fetches_ppm",
        changes: "",
        reason: "",
        reasons: &[],
        decision: 53,
    }
    /// Neighbouring samples that are new together.
    Block {
        name: "block",
        sets: "length of the runs of neighbours that enter together in the next pass",
        range: "1 to 64",
        given: "`\"block\": \"auto\"` of `replay`, `echo` and `auto` turns it on, as do mixed labels for `auto`",
        gauge: "block_samples",
        changes: "",
        reason: "",
        reasons: &[],
        decision: 53,
    }
}
