//! Which job comes first.

use lossfeed_control::jobs::{HitCurve, least_share};

use super::rules::{CacheSystem, Order};
use super::{Submitted, Workload};

/// What waiting jobs are sorted by: the smallest first.
pub(super) fn key(workload: &Workload, job: &Submitted, order: Order, cache: CacheSystem) -> f64 {
    match order {
        Order::Fifo | Order::MaxMin => job.arrives_s,
        Order::Sjf if cache.is_joint() => joint_work(workload, job, cache == CacheSystem::Curves),
        Order::Sjf => job.ideal_s,
    }
}

/// SiloD's score of a job: its running time × the shares of GPUs, cache and link that it takes, smallest over what it
/// may be given (Zhao et al., EuroSys'23).
fn joint_work(workload: &Workload, job: &Submitted, own_curve: bool) -> f64 {
    let gpus = f64::from(job.gpus) / f64::from(workload.gpus());
    let Some(reads) = &job.reads else { return gpus * job.ideal_s };
    let bytes = workload.datasets()[reads.dataset].bytes;
    let straight = HitCurve::straight(bytes);
    let hits = if own_curve { &reads.hits } else { &straight };
    (gpus + least_share(hits, reads.ideal_bytes_per_s, bytes, workload.resources()).0) * job.ideal_s
}
