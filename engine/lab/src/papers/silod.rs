//! SiloD: several jobs, one cache, one link.

use lossfeed_control::Result;
use lossfeed_control::jobs::{Cluster, Dataset, HitCurve, Job, Resources, max_min};

use crate::cluster::{CacheSystem, Order, Reads, Rules, Submitted, Workload, simulate};

use super::claims::{Agrees::Within, Claim, hit_ratios, mean, percent};

const SILOD: &str = "SiloD (Zhao et al., EuroSys'23)";
const TIB: f64 = 1_099_511_627_776.0;
/// The part by which minutes may be off: its own simulator is off by up to 5.7 and 8.5 %.
const COMPLETION_WITHIN: f64 = 0.042;
const MAKESPAN_WITHIN: f64 = 0.071;

const fn completion(claim: &'static str, minutes: f64, note: &'static str, ours: fn() -> Result<f64>) -> Claim {
    Claim { paper: SILOD, claim, says: minutes, agrees: Within(COMPLETION_WITHIN * minutes), note, ours }
}

const fn makespan(claim: &'static str, minutes: f64, ours: fn() -> Result<f64>) -> Claim {
    Claim { paper: SILOD, claim, says: minutes, agrees: Within(MAKESPAN_WITHIN * minutes), note: "", ours }
}

pub(super) const CLAIMS: [Claim; 12] = [
    Claim {
        paper: SILOD,
        claim: "Eq. 3: reads that miss, 30 % of the dataset cached, %",
        says: 70.0,
        agrees: Within(0.05),
        note: "A cache that evicts nobody, on shuffled epochs: 1 - c/d. Eq. 4 follows: min(f*, b / (1 - c/d)).",
        ours: || Ok(percent(1.0 - mean(&hit_ratios("minio", false, 20_000, 0.3, 4)?[1..]))),
    },
    Claim {
        paper: SILOD,
        claim: "Fig. 4: rate of each of two jobs under max-min, MB/s",
        says: 107.0,
        agrees: Within(1.0),
        note: "By its own Eq. 4, with its sizes (two datasets of 1.36 TB, 1.4 TB of cache) and 50 MB/s: 107 would \
               need 104 MB/s.",
        ours: || figure_4(50e6).map(|rate| rate / 1e6),
    },
    Claim {
        paper: SILOD,
        claim: "Fig. 9: minute in which four jobs enter their second epoch",
        says: 460.0,
        agrees: Within(0.085 * 460.0),
        note: "All at once, so the link is shared alike, whatever the order: given in order, the first job would \
               be there in minute 209. With terabytes of 10^12 bytes it is 451.",
        ours: || ends(CacheSystem::Silod).map(|(_, _, second)| second),
    },
    completion(
        "Table 6: mean completion time under SiloD, min",
        3366.0,
        "8 GPUs, 2 TiB, 200 MB/s, FIFO: two ResNet-50 (114 MB/s, 13 epochs) and two EfficientNet-B1 (69 MB/s, 10) \
         on 1.3 TiB each, BERT (8 MB/s, 0.07) on 20.9. Within 4.2 %, makespans within 7.1; the paper's simulator \
         is up to 5.7 and 8.5 % off.",
        || ends(CacheSystem::Silod).map(|ends| ends.0),
    ),
    completion("the same under CoorDL", 4278.0, "", || ends(CacheSystem::Static).map(|ends| ends.0)),
    completion("the same under Alluxio's LRU", 4378.0, "", || ends(CacheSystem::Lru).map(|ends| ends.0)),
    completion("the same under Quiver", 3609.0, "", || ends(CacheSystem::Quiver).map(|ends| ends.0)),
    makespan("Table 6: makespan under SiloD, min", 3807.0, || ends(CacheSystem::Silod).map(|ends| ends.1)),
    makespan("makespan under CoorDL, min", 4870.0, || ends(CacheSystem::Static).map(|ends| ends.1)),
    makespan("makespan under Alluxio's LRU, min", 5080.0, || ends(CacheSystem::Lru).map(|ends| ends.1)),
    makespan("makespan under Quiver, min", 3933.0, || ends(CacheSystem::Quiver).map(|ends| ends.1)),
    Claim {
        paper: SILOD,
        claim: "Table 6 with the link in order: completion time over a fair link's",
        says: 1.0,
        agrees: Within(0.02),
        note: "The paper says less than 2 % for its 400 GPUs. `lossfeed-lab jobs` has it as `silod-in-order`.",
        ours: || Ok(ends(CacheSystem::SilodInOrder)?.0 / ends(CacheSystem::Silod)?.0),
    },
];

/// Two jobs that could read 114 MB/s, each its own dataset.
fn figure_4(link: f64) -> Result<f64> {
    const BYTES: f64 = 1.36e12;
    let dataset = |name: &str| Dataset { name: name.to_owned(), bytes: BYTES };
    let hits = HitCurve::uniform(BYTES)?;
    let job = |dataset| Job { name: String::new(), dataset, ideal_bytes_per_s: 114e6, hits: hits.clone() };
    let resources = Resources { cache_bytes: 1.4e12, bandwidth_bytes_per_s: link };
    let cluster = Cluster::new(resources, vec![dataset("a"), dataset("b")], vec![job(0), job(1)])?;
    Ok(max_min(&cluster).rates(&cluster).into_iter().fold(f64::INFINITY, f64::min))
}

/// On SiloD's small cluster, in minutes: the mean of the jobs' ends, the last of them, and the first end of an epoch.
fn ends(cache: CacheSystem) -> Result<(f64, f64, f64)> {
    let rows: [(u32, f64, f64, f64); 5] = [
        (1, 114e6, 1.3 * TIB, 13.0),
        (1, 114e6, 1.3 * TIB, 13.0),
        (1, 69e6, 1.3 * TIB, 10.0),
        (1, 69e6, 1.3 * TIB, 10.0),
        (4, 8e6, 20.9 * TIB, 0.07),
    ];
    let dataset = |(number, row): (usize, &(u32, f64, f64, f64))| Dataset { name: number.to_string(), bytes: row.2 };
    let job = |(number, &(gpus, rate, bytes, epochs)): (usize, &(u32, f64, f64, f64))| {
        let reads = Reads { dataset: number, ideal_bytes_per_s: rate, hits: HitCurve::uniform(bytes)? };
        let ideal_s = epochs * bytes / rate;
        Ok(Submitted { name: number.to_string(), arrives_s: 0.0, gpus, ideal_s, reads: Some(reads) })
    };
    let datasets = rows.iter().enumerate().map(dataset).collect();
    let jobs = rows.iter().enumerate().map(job).collect::<Result<Vec<_>>>()?;
    let resources = Resources { cache_bytes: 2.0 * TIB, bandwidth_bytes_per_s: 200e6 };
    let workload = Workload::new(8, resources, datasets, jobs)?;
    let mut first_s = 0.0;
    let rules = Rules { order: Order::Fifo, cache };
    let ran = simulate(&workload, rules, |moment| {
        if moment.from_s == 0.0 {
            first_s = moment.lasts_s;
        }
    })?;
    let ended: Vec<f64> = ran.iter().map(|ran| ran.ended_s / 60.0).collect();
    Ok((mean(&ended), ended.iter().copied().fold(0.0, f64::max), first_s / 60.0))
}
