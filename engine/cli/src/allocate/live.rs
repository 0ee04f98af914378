//! Running jobs as their stats pages tell: how fast each would read, what is cached, what it misses now. Pure: the
//! caller brings pages and the time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;

use lossfeed_control::Result;
use lossfeed_control::jobs::{Cluster, Dataset, HitCurve, Job, Present, Resources, Way, at_present};
use lossfeed_stats::{JobPage, Limits, Sample};

use crate::args::Sharing;

/// Looks that "now" means for a hit ratio, the newest included: one a second.
const LOOKS: usize = 4;
/// Seconds of the page's history that tell how fast the training computes.
const COMPUTE_WINDOW: usize = 20;
/// Measured hit ratios are kept apart by the part of the dataset that was cached, in so many steps.
const STEPS: f64 = 16.0;

/// A running job that can be given limits.
#[derive(Debug, Clone)]
pub(super) struct Running {
    pub(super) page: JobPage,
    /// The most bytes that its cache can have.
    most_bytes: f64,
    pub(super) resident_bytes: f64,
    /// The limits on its page.
    pub(super) has: Limits,
    /// `None` until it has trained for a moment.
    pub(super) measured: Option<Measured>,
}

/// Measurements of a job.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    /// Bytes a second that it would read over the link if the cache answered nothing and it never waited.
    pub(super) ideal_bytes_per_s: f64,
    pub(super) dataset_bytes: f64,
    /// Share of its reads that the link is not asked for, lately.
    pub(super) hits: f64,
    curve: HitCurve,
}

/// Limits for a job, and what they were made of.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    pub(super) job: Running,
    pub(super) limits: Limits,
    /// The rate with these limits and what is cached now, in bytes a second; `None` for a job that is not measured yet.
    pub(super) rate_bytes_per_s: Option<f64>,
}

/// A plan for all running jobs.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) jobs: Vec<Planned>,
    /// Bytes of the cache that no job can use.
    pub(super) unused_bytes: f64,
    /// Engines that get no limits, and why.
    pub(super) left_alone: Vec<(JobPage, &'static str)>,
}

/// The past of one page.
#[derive(Debug, Default)]
struct Past {
    /// (requests, hits), the newest last.
    looks: VecDeque<(u64, u64)>,
    hits: Option<f64>,
    /// Epoch, requests and hits at its beginning, and the most bytes that were cached in it.
    epoch: Option<(u64, u64, u64, u64)>,
    /// (bytes cached, hit ratio) of whole epochs, by the part of the dataset that was cached.
    points: BTreeMap<u64, (f64, f64)>,
}

/// Remembers what was seen of each page.
#[derive(Debug, Default)]
pub(super) struct Watcher {
    pasts: HashMap<PathBuf, Past>,
}

impl Watcher {
    /// Divides among the engines that run, as their pages are now.
    /// `epochs`: how many each job runs in all, for shortest first.
    pub(super) fn plan(
        &mut self,
        pages: Vec<JobPage>,
        sharing: Sharing,
        epochs: &[(String, u64)],
        resources: Resources,
    ) -> Result<Plan> {
        self.pasts.retain(|path, _| pages.iter().any(|page| page.path == *path));
        let mut plan = Plan::default();
        let mut running = Vec::new();
        for page in pages.into_iter().filter(|page| page.alive) {
            match refusal(&page) {
                Some(why) => plan.left_alone.push((page, why)),
                None => running.push(self.look(page)),
            }
        }
        divide(running, sharing, epochs, resources, &mut plan)?;
        Ok(plan)
    }

    fn look(&mut self, page: JobPage) -> Running {
        let past = self.pasts.entry(page.path.clone()).or_default();
        let number = |name: &str| page.snapshot.get(name).unwrap_or(0);
        let measured = past.measured(&page);
        let limit = Some(number("link_limit_bytes")).filter(|&limit| limit > 0);
        let has = Limits { limit, resize: Some(number("cache_capacity_bytes")) };
        let (most_bytes, resident_bytes) = (number("cache_most_bytes") as f64, number("cache_bytes") as f64);
        Running { most_bytes, resident_bytes, has, measured, page }
    }
}

impl Past {
    fn measured(&mut self, page: &JobPage) -> Option<Measured> {
        let number = |name: &str| page.snapshot.get(name).unwrap_or(0);
        let (requests, hits) = (number("requests_total"), number("hits_total"));
        self.looks.push_back((requests, hits));
        if self.looks.len() > LOOKS {
            self.looks.pop_front();
        }
        let first = self.looks.front().copied().unwrap_or_default();
        self.hits = ratio(hits.saturating_sub(first.1), requests.saturating_sub(first.0))
            .or(self.hits)
            .or_else(|| ratio(hits, requests));
        let tiers = tier_hits(&number);
        let from_tiers = ratio(tiers, number("fetched_samples_total")).unwrap_or(0.0);
        let link_samples = number("fetched_samples_total").saturating_sub(tiers);
        let tier_bytes = number("disk_hit_bytes_total") + number("pool_hit_bytes_total");
        let link_bytes = number("fetched_bytes_total").saturating_sub(tier_bytes);
        let sample_bytes = ratio(link_bytes, link_samples)?;
        let samples_per_s = computes(&page.history).or_else(|| {
            let busy_s = number("busy_us_total") as f64 / 1e6;
            (busy_s > 0.0).then(|| number("samples_total") as f64 / busy_s)
        });
        let ideal_bytes_per_s = samples_per_s? * sample_bytes;
        let dataset_bytes = dataset_bytes(&number, sample_bytes);
        self.note_epoch(&number, dataset_bytes);
        let points: Vec<(f64, f64)> = self.points.values().copied().chain([(dataset_bytes, 1.0)]).collect();
        let usable = |x: f64| x.is_finite() && x > 0.0;
        let curve = HitCurve::measured(&points).ok().filter(|_| usable(ideal_bytes_per_s) && usable(dataset_bytes))?;
        let hits = 1.0 - (1.0 - self.hits?) * (1.0 - from_tiers);
        Some(Measured { ideal_bytes_per_s, dataset_bytes, hits: hits.clamp(0.0, 1.0), curve })
    }

    /// A whole epoch's hit ratio is a point of the curve, at the most that was cached in it. An epoch in which the
    /// cache filled gives a point below the curve, which changes nothing of it.
    fn note_epoch(&mut self, number: &impl Fn(&str) -> u64, dataset_bytes: f64) {
        let (epoch, requests, hits) = (number("epoch"), number("requests_total"), number("hits_total"));
        let cached = number("cache_bytes");
        match &mut self.epoch {
            Some(begun) if begun.0 == epoch => begun.3 = begun.3.max(cached),
            begun => {
                // The first epoch that is seen may have begun before.
                let seen = begun.replace((epoch, requests, hits, cached));
                let Some((_, requests_then, hits_then, cached)) = seen.filter(|_| cached > 0) else { return };
                let found = ratio(hits.saturating_sub(hits_then), requests.saturating_sub(requests_then));
                if let Some(found) = found.filter(|_| dataset_bytes > 0.0) {
                    let bytes = (cached as f64).min(dataset_bytes);
                    self.points.insert((STEPS * bytes / dataset_bytes) as u64, (bytes, found.min(1.0)));
                }
            }
        }
    }
}

/// Why an engine gets no limits; `None`: it does.
fn refusal(page: &JobPage) -> Option<&'static str> {
    let number = |name: &str| page.snapshot.get(name);
    let count = |name: &str| number(name).unwrap_or(0);
    if number("torch_loaders").is_some_and(|loaders| loaders > 0) {
        return Some("a torch DataLoader has no cache");
    }
    if number("cache_most_bytes").is_none() {
        return Some("its lossfeed is too old to take limits: update it");
    }
    let fetched = count("fetched_samples_total") > tier_hits(&count);
    (fetched && number("store_requests_total") == Some(0)).then_some("it reads no store")
}

/// Fetches that the disk tier and the pool answered, and not the link.
fn tier_hits(number: &impl Fn(&str) -> u64) -> u64 {
    number("disk_hits_total") + number("pool_hits_total") + number("node_hits_total")
}

/// Samples that the training computes in a second of its own time, lately.
fn computes(history: &[Sample]) -> Option<f64> {
    let recent = &history[history.len().saturating_sub(COMPUTE_WINDOW)..];
    let of = |history: &[Sample]| {
        let (first, last) = (history.first()?, history.last()?);
        let grown = |name: &str| last.get(name)?.checked_sub(first.get(name)?);
        ratio(grown("samples_total")?, grown("busy_us_total")?).filter(|&rate| rate > 0.0)
    };
    of(recent).or_else(|| of(history)).map(|per_us| per_us * 1e6)
}

/// Bytes that caching all samples of this rank would take.
fn dataset_bytes(number: &impl Fn(&str) -> u64, sample_bytes: f64) -> f64 {
    let share = number("samples_in_share") as f64;
    let of_one = ratio(number("dataset_bytes"), number("samples_in_dataset")).filter(|&bytes| bytes > 0.0);
    let found = of_one.or_else(|| ratio(number("cache_bytes"), number("residents")).filter(|&bytes| bytes > 0.0));
    share * found.unwrap_or(sample_bytes)
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl Running {
    /// Seconds that it would still run if it never waited, from the beginning of its epoch on.
    fn left_s(&self, epochs: &[(String, u64)]) -> Option<f64> {
        let measured = self.measured.as_ref()?;
        let (_, epochs) = epochs.iter().find(|(name, _)| *name == self.page.identity.job)?;
        let left = epochs.saturating_sub(self.page.snapshot.get("epoch").unwrap_or(0));
        Some(left as f64 * measured.dataset_bytes / measured.ideal_bytes_per_s)
    }
}

/// A job that is not measured yet, or of which nothing tells how long it runs where that counts, gets an equal part of
/// both; the others divide the rest.
fn divide(
    running: Vec<Running>,
    sharing: Sharing,
    epochs: &[(String, u64)],
    resources: Resources,
    plan: &mut Plan,
) -> Result<()> {
    let all = running.len().max(1) as f64;
    let divides = |job: &Running| match sharing {
        Sharing::Sjf => job.left_s(epochs).is_some(),
        _ => job.measured.is_some(),
    };
    let (known, new): (Vec<_>, Vec<_>) = running.into_iter().partition(divides);
    let left_s: Vec<f64> = known.iter().filter_map(|job| job.left_s(epochs)).collect();
    let way = match sharing {
        Sharing::MaxMin => Way::MaxMin,
        Sharing::Fifo => Way::Fifo,
        Sharing::Sjf => Way::Sjf(&left_s),
        Sharing::InOrder => Way::InOrder,
        Sharing::EqualSplit => Way::EqualSplit,
        Sharing::Aiv => Way::Aiv,
    };
    let mut left = resources;
    for job in new {
        let cache = (resources.cache_bytes / all).min(job.most_bytes);
        let link = resources.bandwidth_bytes_per_s / all;
        left.cache_bytes -= cache;
        left.bandwidth_bytes_per_s -= link;
        plan.jobs.push(Planned { limits: limits(link, cache), rate_bytes_per_s: None, job });
    }
    let left = Resources {
        cache_bytes: left.cache_bytes.max(0.0),
        bandwidth_bytes_per_s: left.bandwidth_bytes_per_s.max(0.0),
    };
    let (mut datasets, mut jobs, mut resident, mut hits) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (dataset, job) in known.iter().enumerate() {
        let Some(measured) = &job.measured else { continue };
        let name = job.page.identity.job.clone();
        // More than the loader was made with cannot be cached. Bytes above 0 keep the dataset a dataset.
        let bytes = measured.dataset_bytes.min(job.most_bytes).max(1.0);
        datasets.push(Dataset { name: name.clone(), bytes });
        resident.push(job.resident_bytes.min(bytes));
        hits.push(measured.hits);
        jobs.push(Job { name, dataset, ideal_bytes_per_s: measured.ideal_bytes_per_s, hits: measured.curve.clone() });
    }
    let cluster = Cluster::new(left, datasets, jobs)?;
    let given = at_present(&cluster, way, Present { resident_bytes: &resident, hits: &hits });
    if !known.is_empty() {
        plan.unused_bytes = (left.cache_bytes - given.cache_bytes.iter().sum::<f64>()).max(0.0);
    }
    for (k, job) in known.into_iter().enumerate() {
        let (link, cache) = (given.bandwidth_bytes_per_s[k], given.cache_bytes[k]);
        let missed = 1.0 - hits[k].min(cluster.jobs()[k].hits.at(resident[k].min(cache)));
        let ideal = cluster.jobs()[k].ideal_bytes_per_s;
        let rate = if missed > 0.0 { ideal.min(link / missed) } else { ideal };
        plan.jobs.push(Planned { limits: limits(link, cache), rate_bytes_per_s: Some(rate), job });
    }
    plan.jobs.sort_by_key(|planned| (planned.job.page.pid, planned.job.page.started_unix_ms));
    Ok(())
}

fn limits(link: f64, cache: f64) -> Limits {
    Limits { limit: Some((link as u64).max(1)), resize: Some(cache as u64) }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
