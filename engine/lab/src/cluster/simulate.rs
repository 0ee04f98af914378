//! Jobs that come, wait, run, share and end: a cluster's life, from event to event.
//!
//! Between two events every rate is constant, so the time of the next one is computed and nothing is stepped. Events
//! are: a job comes, a job ends, and an epoch ends after which more of its dataset answers than before.
//!
//! What is assumed. A byte that was fetched is cached at once, but a job reads each byte once an epoch: it hits only
//! what was cached when its epoch began. So a job's first epoch hits nothing of its own fetching. Where a dataset's
//! part shrinks, random bytes of it go; where nobody reads a dataset any more, all of them. LRU keeps what was read
//! last: after the first epoch its hits follow its share at once. Jobs that read the same dataset fill it together, as
//! if they fetched different bytes of it; under LRU they do not hit each other's. The link is never idle while
//! somebody could use it.

use lossfeed_control::jobs::fill;
use lossfeed_control::{Error, Result};

use super::cache_system::{Division, Reader, divide, lru_hits};
use super::rules::{CacheSystem, Order, Rules};
use super::schedule::key;
use super::{Reads, Workload};

/// What came of one job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ran {
    /// When it got its GPUs, in seconds.
    pub started_s: f64,
    /// When it ended.
    pub ended_s: f64,
    /// Bytes it read, from cache and store together.
    pub read_bytes: f64,
    /// Bytes of them that came over the link.
    pub fetched_bytes: f64,
}

/// The time between two events.
#[derive(Debug)]
pub struct Moment<'a> {
    /// Its beginning, in seconds.
    pub from_s: f64,
    /// How long it lasts.
    pub lasts_s: f64,
    /// Running jobs by number, each with its speed as a part of the ideal one, bytes read and bytes fetched a second.
    pub jobs: &'a [(usize, f64, f64, f64)],
    /// GPUs in use, as parts of their time.
    pub gpus: f64,
    /// Bytes that each dataset may have in the cache.
    pub cache_bytes: &'a [f64],
    /// Bytes that each has there at the beginning.
    pub filled_bytes: &'a [f64],
    /// Bytes of each that were cached when an epoch of some job on it began: only they can be hit (SiloD's Fig. 8).
    pub effective_bytes: &'a [f64],
}

/// Runs all jobs to their end. `watch` sees every moment between two events.
///
/// # Errors
/// `Settings` if a job never ends: it reads over a link of no bandwidth.
pub fn simulate(workload: &Workload, rules: Rules, mut watch: impl FnMut(&Moment)) -> Result<Vec<Ran>> {
    let mut cluster = Running::new(workload, rules);
    while cluster.comes < cluster.by_arrival.len() || !cluster.active.is_empty() || !cluster.waiting.is_empty() {
        let changed = cluster.admit();
        if changed {
            cluster.divide();
        }
        let rates = cluster.rates();
        let (lasts_s, event) = cluster.next_event(&rates)?;
        let effective = cluster.effective();
        watch(&Moment {
            from_s: cluster.now_s,
            lasts_s,
            jobs: &rates,
            gpus: cluster.gpus_used(),
            cache_bytes: &cluster.targets,
            filled_bytes: &cluster.filled,
            effective_bytes: &effective,
        });
        cluster.pass(lasts_s, &rates, event);
    }
    Ok(cluster.ran)
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Event {
    Comes(f64),
    /// By place among the active.
    Ends(usize),
    EpochEnds(usize),
}

/// A job that has its GPUs.
#[derive(Debug)]
struct Active<'a> {
    job: usize,
    key: f64,
    gpus: f64,
    left_s: f64,
    reads: Option<(&'a Reads, f64)>,
    /// Bytes left in this epoch.
    epoch_left: f64,
    /// Bytes cached when its epoch began, and still.
    effective: f64,
    /// Whether its first epoch is over.
    warm: bool,
    /// Whether an epoch of it begins now.
    begins: bool,
}

#[derive(Debug)]
struct Running<'a> {
    workload: &'a Workload,
    rules: Rules,
    now_s: f64,
    by_arrival: Vec<usize>,
    /// How many of them have come.
    comes: usize,
    keys: Vec<f64>,
    /// The last is the first in line.
    waiting: Vec<usize>,
    /// First in line first.
    active: Vec<Active<'a>>,
    gpus_taken: u32,
    /// Of each job's time where all run at once.
    share: f64,
    changed: bool,
    targets: Vec<f64>,
    filled: Vec<f64>,
    /// Of the active jobs that read.
    weights: Vec<f64>,
    ran: Vec<Ran>,
}

impl<'a> Running<'a> {
    fn new(workload: &'a Workload, rules: Rules) -> Self {
        let jobs = workload.jobs();
        let mut by_arrival: Vec<usize> = (0..jobs.len()).collect();
        by_arrival.sort_by(|&a, &b| jobs[a].arrives_s.total_cmp(&jobs[b].arrives_s));
        let datasets = workload.datasets().len();
        Self {
            workload,
            rules,
            now_s: by_arrival.first().map_or(0.0, |&first| jobs[first].arrives_s),
            by_arrival,
            comes: 0,
            keys: jobs.iter().map(|job| key(workload, job, rules.order, rules.cache)).collect(),
            waiting: Vec::new(),
            active: Vec::new(),
            gpus_taken: 0,
            share: 1.0,
            changed: false,
            targets: vec![0.0; datasets],
            filled: vec![0.0; datasets],
            weights: Vec::new(),
            ran: vec![Ran { started_s: 0.0, ended_s: 0.0, read_bytes: 0.0, fetched_bytes: 0.0 }; jobs.len()],
        }
    }

    /// Takes in who has come and gives GPUs to who is first in line. Whether the active ones are others than before.
    fn admit(&mut self) -> bool {
        let jobs = self.workload.jobs();
        while let Some(&job) = self.by_arrival.get(self.comes).filter(|&&job| jobs[job].arrives_s <= self.now_s) {
            let keys = &self.keys;
            // Behind those with the same key.
            let place = self.waiting.partition_point(|&other| keys[other] > keys[job]);
            self.waiting.insert(place, job);
            self.comes += 1;
        }
        let all_at_once = self.rules.order == Order::MaxMin;
        while let Some(&job) = self.waiting.last() {
            if !all_at_once && self.gpus_taken + jobs[job].gpus > self.workload.gpus() {
                break;
            }
            self.waiting.pop();
            self.start(job);
        }
        let wanted = f64::from(self.gpus_taken);
        self.share = if all_at_once { (f64::from(self.workload.gpus()) / wanted).min(1.0) } else { 1.0 };
        std::mem::take(&mut self.changed)
    }

    fn start(&mut self, job: usize) {
        let submitted = &self.workload.jobs()[job];
        let reads = submitted.reads.as_ref().map(|reads| (reads, self.workload.datasets()[reads.dataset].bytes));
        let key = self.keys[job];
        let place = self.active.partition_point(|other| other.key <= key);
        self.active.insert(
            place,
            Active {
                job,
                key,
                gpus: f64::from(submitted.gpus),
                left_s: submitted.ideal_s,
                epoch_left: reads.map_or(0.0, |(_, bytes)| bytes),
                effective: reads.map_or(0.0, |(reads, _)| self.filled[reads.dataset]),
                warm: false,
                begins: false,
                reads,
            },
        );
        self.gpus_taken += submitted.gpus;
        self.ran[job].started_s = self.now_s;
        self.changed = true;
    }

    fn gpus_used(&self) -> f64 {
        f64::from(self.gpus_taken) * self.share
    }

    /// Divides the cache anew; what no longer has room goes.
    fn divide(&mut self) {
        let mut place_of = vec![usize::MAX; self.targets.len()];
        let mut read = Vec::new();
        let mut readers = Vec::new();
        for active in &self.active {
            let Some((reads, _)) = active.reads else { continue };
            if place_of[reads.dataset] == usize::MAX {
                place_of[reads.dataset] = read.len();
                read.push(reads.dataset);
            }
            readers.push(Reader {
                dataset: place_of[reads.dataset],
                gpus: active.gpus,
                ideal_bytes_per_s: self.share * reads.ideal_bytes_per_s,
                hits: &reads.hits,
            });
        }
        let sizes: Vec<f64> = read.iter().map(|&dataset| self.workload.datasets()[dataset].bytes).collect();
        let Rules { order, cache } = self.rules;
        let gpus = f64::from(self.workload.gpus());
        let Division { cache_bytes, weights } = divide(cache, order, self.workload.resources(), gpus, &sizes, &readers);
        self.weights = weights;
        self.targets.fill(0.0);
        read.iter().zip(cache_bytes).for_each(|(&dataset, bytes)| self.targets[dataset] = bytes);
        let (targets, filled) = (&self.targets, &self.filled);
        for active in &mut self.active {
            let Some((reads, _)) = active.reads else { continue };
            let (target, filled) = (targets[reads.dataset], filled[reads.dataset]);
            if filled > target {
                active.effective *= target / filled;
            }
        }
        self.filled.iter_mut().zip(&self.targets).for_each(|(filled, target)| *filled = filled.min(*target));
    }

    fn effective(&self) -> Vec<f64> {
        let mut effective = vec![0.0f64; self.filled.len()];
        for active in &self.active {
            let Some((reads, _)) = active.reads else { continue };
            let most = &mut effective[reads.dataset];
            *most = most.max(active.effective);
        }
        effective
    }

    /// The part of its reads that the cache answers now.
    fn hits(&self, active: &Active) -> f64 {
        let Some((reads, bytes)) = active.reads else { return 1.0 };
        match self.rules.cache {
            CacheSystem::Lru if active.warm => lru_hits(self.targets[reads.dataset] / bytes),
            CacheSystem::Lru => 0.0,
            _ => reads.hits.at(active.effective),
        }
    }

    /// (job, speed, bytes read a second, bytes fetched a second) of the active ones, in their order.
    fn rates(&self) -> Vec<(usize, f64, f64, f64)> {
        let readers = || self.active.iter().filter_map(|active| active.reads.map(|(reads, _)| (active, reads)));
        let missed: Vec<f64> = readers().map(|(active, _)| 1.0 - self.hits(active)).collect();
        let ideal: Vec<f64> = readers().map(|(_, reads)| self.share * reads.ideal_bytes_per_s).collect();
        let wanted: Vec<f64> = ideal.iter().zip(&missed).map(|(ideal, missed)| ideal * missed).collect();
        let link = self.workload.resources().bandwidth_bytes_per_s;
        let given = match (self.rules.cache, self.rules.order) {
            (cache, Order::MaxMin) if cache.is_joint() => {
                let weights: Vec<f64> = self.weights.iter().zip(&missed).map(|(w, missed)| w * missed).collect();
                fill(&wanted, &weights, link)
            }
            (CacheSystem::SilodInOrder, _) => take_turns(&wanted, link),
            _ => fill(&wanted, &self.weights, link),
        };
        let mut reader = 0;
        let rate = |active: &Active<'a>| {
            let Some((reads, _)) = active.reads else { return (active.job, self.share, 0.0, 0.0) };
            let rate = if given[reader] >= wanted[reader] { ideal[reader] } else { given[reader] / missed[reader] };
            let fetched = rate * missed[reader];
            reader += 1;
            (active.job, rate / reads.ideal_bytes_per_s, rate, fetched)
        };
        self.active.iter().map(rate).collect()
    }

    /// Whether the end of the epoch may bring more hits.
    fn grows(&self, active: &Active) -> bool {
        let Some((reads, _)) = active.reads else { return false };
        match self.rules.cache {
            CacheSystem::Lru => !active.warm && self.targets[reads.dataset] > 0.0,
            _ => active.effective < self.targets[reads.dataset],
        }
    }

    fn next_event(&self, rates: &[(usize, f64, f64, f64)]) -> Result<(f64, Event)> {
        let arrival = self.by_arrival.get(self.comes).map(|&job| self.workload.jobs()[job].arrives_s);
        let mut next = arrival.map_or((f64::INFINITY, None), |at| (at - self.now_s, Some(Event::Comes(at))));
        for (place, (active, &(_, speed, rate, _))) in self.active.iter().zip(rates).enumerate() {
            if active.left_s < next.0 * speed {
                next = (active.left_s / speed, Some(Event::Ends(place)));
            }
            if active.epoch_left < next.0 * rate && self.grows(active) {
                next = (active.epoch_left / rate, Some(Event::EpochEnds(place)));
            }
        }
        match next {
            (lasts_s, Some(event)) if lasts_s.is_finite() => Ok((lasts_s, event)),
            _ => {
                let job = self.active.first().map_or(0, |active| active.job);
                let name = &self.workload.jobs()[job].name;
                Err(Error::settings(format!("job {name} never ends: it reads over a link of 0 bytes a second")))
            }
        }
    }

    /// Lets the time pass up to the event and makes it happen.
    fn pass(&mut self, lasts_s: f64, rates: &[(usize, f64, f64, f64)], event: Event) {
        self.now_s = if let Event::Comes(at) = event { at } else { self.now_s + lasts_s };
        for (place, (active, &(job, speed, rate, fetched))) in self.active.iter_mut().zip(rates).enumerate() {
            active.left_s = (active.left_s - speed * lasts_s).max(0.0);
            let Some((reads, bytes)) = active.reads else { continue };
            self.ran[job].read_bytes += rate * lasts_s;
            self.ran[job].fetched_bytes += fetched * lasts_s;
            let filled = &mut self.filled[reads.dataset];
            *filled = (*filled + fetched * lasts_s).min(self.targets[reads.dataset]);
            active.epoch_left -= rate * lasts_s;
            if event == Event::EpochEnds(place) {
                active.epoch_left = 0.0;
            }
            if active.epoch_left <= 0.0 {
                // Several epochs may have passed, if nothing changed between them.
                active.epoch_left = bytes - (-active.epoch_left).rem_euclid(bytes);
                active.begins = true;
            }
        }
        // When everybody's bytes have landed: epochs of several jobs may end at once.
        for active in self.active.iter_mut().filter(|active| active.begins) {
            active.begins = false;
            active.warm = true;
            active.effective = active.reads.map_or(0.0, |(reads, _)| self.filled[reads.dataset]);
        }
        if let Event::Ends(place) = event {
            let ended = self.active.remove(place);
            self.gpus_taken -= self.workload.jobs()[ended.job].gpus;
            self.ran[ended.job].ended_s = self.now_s;
            self.changed = true;
        }
    }
}

/// One after the other, each as much as it wants.
fn take_turns(wanted: &[f64], total: f64) -> Vec<f64> {
    let mut left = total;
    let take = |&wanted: &f64| {
        let given = wanted.min(left);
        left -= given;
        given
    };
    wanted.iter().map(take).collect()
}
