//! Which job comes first.

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
///
/// Slower than ideal is never less: GPUs and cache are then held longer for the same bytes. And between two corners of
/// its hit curve the score is a straight line, so the smallest is at a corner, or where the whole cache is its own.
fn joint_work(workload: &Workload, job: &Submitted, own_curve: bool) -> f64 {
    let gpus = f64::from(job.gpus) / f64::from(workload.gpus());
    let Some(reads) = &job.reads else { return gpus * job.ideal_s };
    let resources = workload.resources();
    let bytes = workload.datasets()[reads.dataset].bytes;
    let most = bytes.min(resources.cache_bytes);
    let part = |of: f64, total: f64| if of <= 0.0 { 0.0 } else { of / total };
    let with = |cached: f64| {
        let hits = if own_curve { reads.hits.at(cached) } else { (cached / bytes).min(1.0) };
        let link = part(reads.ideal_bytes_per_s * (1.0 - hits), resources.bandwidth_bytes_per_s);
        (gpus + part(cached, resources.cache_bytes) + link) * job.ideal_s
    };
    let corners = reads.hits.pieces().map(|piece| piece.1).filter(|&bytes| own_curve && bytes < most);
    corners.chain([0.0, most]).map(with).fold(f64::INFINITY, f64::min)
}
