//! Which schedulers and cache systems there are.

use serde::{Deserialize, Serialize};

/// Who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Which job comes first.
    pub order: Order,
    /// What is cached.
    pub cache: CacheSystem,
}

/// In which order waiting jobs get GPUs.
///
/// A job gets all of its GPUs at once and keeps them to its end. The first in line is waited for: nobody overtakes it,
/// however few GPUs it would need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// In order of arrival.
    Fifo,
    /// The least work first. A cache that decides together with the schedule counts all resources;
    /// elsewhere the scheduler knows the ideal running time alone.
    Sjf,
    /// Nobody waits: every job runs at once, at the same share of its time where GPUs are short (Gavel's max-min
    /// fairness, with rounds so short that they do not show).
    MaxMin,
}

impl Order {
    /// As options and documents have it.
    pub fn name(self) -> &'static str {
        match self {
            Order::Fifo => "fifo",
            Order::Sjf => "sjf",
            Order::MaxMin => "max-min",
        }
    }
}

/// All orders.
pub const ORDERS: [Order; 3] = [Order::Fifo, Order::Sjf, Order::MaxMin];

/// Who decides what is cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheSystem {
    /// One least-recently-used list for all jobs (Alluxio as SiloD runs it).
    Lru,
    /// A fixed part for every GPU, never evicted from (CoorDL).
    Static,
    /// Whole datasets, those first of which a byte saves most; one that does not fit is passed over (Quiver, as SiloD
    /// describes it).
    Quiver,
    /// Parts in the order of their slopes, as if every job hit what is cached of its dataset, decided together with
    /// the schedule (SiloD).
    Silod,
    /// The same, but under FIFO and SJF the first job in line takes all that it wants of the link. Not SiloD's: its
    /// paper says that a fair link changes completion times by less than 2 %.
    SilodInOrder,
    /// The same by each job's own [`HitCurve`].
    #[serde(rename = "ours")]
    Curves,
}

/// All systems.
pub const CACHE_SYSTEMS: [CacheSystem; 6] = [
    CacheSystem::Lru,
    CacheSystem::Static,
    CacheSystem::Quiver,
    CacheSystem::Silod,
    CacheSystem::SilodInOrder,
    CacheSystem::Curves,
];

impl CacheSystem {
    /// As options and documents have it.
    pub fn name(self) -> &'static str {
        match self {
            CacheSystem::Lru => "lru",
            CacheSystem::Static => "static",
            CacheSystem::Quiver => "quiver",
            CacheSystem::Silod => "silod",
            CacheSystem::SilodInOrder => "silod-in-order",
            CacheSystem::Curves => "ours",
        }
    }
    /// True if cache and schedule are decided together, and with max-min fairness the link too.
    pub fn is_joint(self) -> bool {
        matches!(self, CacheSystem::Silod | CacheSystem::SilodInOrder | CacheSystem::Curves)
    }
}
