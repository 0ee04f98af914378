//! Plans of pages that publishers write.

use std::sync::Arc;

use lossfeed_stats::{Counters, Identity, Publisher, discover_in};

use super::*;

const LINK: Resources = Resources { cache_bytes: 5e6, bandwidth_bytes_per_s: 2e6 };

struct Machine {
    root: tempfile::TempDir,
    running: Vec<(Publisher, Arc<Counters>)>,
}

impl Machine {
    fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap(), running: Vec::new() }
    }

    fn place(&self) -> [PathBuf; 1] {
        [self.root.path().join("pages")]
    }

    /// Starts a job over 500 samples of 10 kB that reads `rate` samples in a second of its own time.
    fn start(&mut self, name: &str, rate: u64) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        let identity = Identity { job: name.to_owned(), world_size: 1, ..Identity::default() };
        let publisher = Publisher::start_in(&self.place(), identity, Arc::clone(&counters)).unwrap();
        for (gauge, value) in [
            (&counters.samples_in_dataset, 500),
            (&counters.samples_in_share, 500),
            (&counters.dataset_bytes, 5_000_000),
            (&counters.cache_most_bytes, 8_000_000),
            (&counters.cache_capacity_bytes, 8_000_000),
            (&counters.samples_total, 2 * rate),
            (&counters.busy_us_total, 2_000_000),
        ] {
            Counters::set(gauge, value);
        }
        if rate > 0 {
            fetches(&counters, 50);
        }
        self.running.push((publisher, Arc::clone(&counters)));
        counters
    }

    fn pages(&self) -> Vec<JobPage> {
        self.running.iter().for_each(|(publisher, _)| publisher.publish());
        let mut found = discover_in(&self.place());
        assert_eq!(found.unreadable, []);
        found.jobs.sort_by(|a, b| a.identity.job.cmp(&b.identity.job));
        found.jobs
    }

    fn plan(&self, watcher: &mut Watcher) -> Plan {
        self.plan_by(watcher, Sharing::Fifo, &[])
    }

    fn plan_by(&self, watcher: &mut Watcher, sharing: Sharing, epochs: &[(String, u64)]) -> Plan {
        let mut plan = watcher.plan(self.pages(), sharing, epochs, LINK).unwrap();
        plan.jobs.sort_by(|a, b| a.job.page.identity.job.cmp(&b.job.page.identity.job));
        plan
    }
}

fn fetches(counters: &Counters, samples: u64) {
    Counters::add(&counters.requests_total, samples);
    Counters::add(&counters.misses_total, samples);
    Counters::add(&counters.fetched_samples_total, samples);
    Counters::add(&counters.fetched_bytes_total, samples * 10_000);
    Counters::add(&counters.store_requests_total, samples);
}

fn hits(counters: &Counters, samples: u64) {
    Counters::add(&counters.requests_total, samples);
    Counters::add(&counters.hits_total, samples);
}

fn limits(plan: &Plan) -> Vec<(f64, f64)> {
    let mb = |value: Option<u64>| (value.unwrap() as f64 / 1e4).round() / 100.0;
    plan.jobs.iter().map(|planned| (mb(planned.limits.limit), mb(planned.limits.resize))).collect()
}

#[test]
fn a_cold_job_is_given_the_link_and_a_warm_one_the_rest_of_it_to_others() {
    let (mut machine, mut watcher) = (Machine::new(), Watcher::default());
    let (a, _b) = (machine.start("a", 400), machine.start("b", 200));
    // 4 and 2 MB/s: the cache goes to the first, and the link is fair while both are cold.
    assert_eq!(limits(&machine.plan(&mut watcher)), [(1.0, 5.0), (1.0, 0.0)]);
    fetches(&a, 450);
    Counters::set(&a.cache_bytes, 5_000_000);
    assert_eq!(limits(&machine.plan(&mut watcher))[0].0, 1.0, "all cached, and nothing hit yet");
    // The looks of before are forgotten.
    for _ in 0..LOOKS {
        hits(&a, 100);
        machine.plan(&mut watcher);
    }
    let plan = machine.plan(&mut watcher);
    assert_eq!(limits(&plan), [(0.01, 5.0), (1.99, 0.0)]);
    let rates: Vec<f64> = plan.jobs.iter().map(|planned| planned.rate_bytes_per_s.unwrap().round()).collect();
    assert_eq!(rates, [4e6, 1.99e6]);
    // One leaves: the other has all of both.
    machine.running.remove(0);
    assert_eq!(limits(&machine.plan(&mut watcher)), [(2.0, 5.0)]);
}

#[test]
fn a_job_without_numbers_gets_an_equal_part_and_engines_without_a_store_are_left_alone() {
    let (mut machine, mut watcher) = (Machine::new(), Watcher::default());
    machine.start("a", 400);
    machine.start("new", 0);
    let plan = machine.plan(&mut watcher);
    assert_eq!(limits(&plan), [(1.0, 2.5), (1.0, 2.5)]);
    assert!(plan.jobs[1].rate_bytes_per_s.is_none());
    let local = machine.start("local", 100);
    Counters::set(&local.store_requests_total, 0);
    let torch = machine.start("torch", 100);
    Counters::set(&torch.torch_loaders, 1);
    let plan = machine.plan(&mut watcher);
    let alone: Vec<(&str, &str)> =
        plan.left_alone.iter().map(|(page, why)| (page.identity.job.as_str(), *why)).collect();
    assert_eq!(alone, [("local", "it reads no store"), ("torch", "a torch DataLoader has no cache")]);
    assert_eq!(plan.jobs.len(), 2);
}

#[test]
fn memory_that_no_loader_can_use_is_told() {
    let (mut machine, mut watcher) = (Machine::new(), Watcher::default());
    let a = machine.start("a", 400);
    Counters::set(&a.cache_most_bytes, 2_000_000);
    let plan = machine.plan(&mut watcher);
    assert_eq!((limits(&plan), plan.unused_bytes), (vec![(2.0, 2.0)], 3e6));
}

/// 10 epochs of 1.25 s are left beside 2 of 1.7 s, then 2 beside 2: the one with the least left has the cache.
#[test]
fn shortest_first_goes_by_the_epochs_that_are_left() {
    let (mut machine, mut watcher) = (Machine::new(), Watcher::default());
    let (a, b) = (machine.start("a", 400), machine.start("b", 300));
    let epochs = [("a".to_owned(), 10), ("b".to_owned(), 12)];
    let caches = |plan: &Plan| limits(plan).iter().map(|limits| limits.1).collect::<Vec<_>>();
    Counters::set(&b.epoch, 10);
    assert_eq!(caches(&machine.plan_by(&mut watcher, Sharing::Sjf, &epochs)), [0.0, 5.0]);
    Counters::set(&a.epoch, 8);
    assert_eq!(caches(&machine.plan_by(&mut watcher, Sharing::Sjf, &epochs)), [5.0, 0.0]);
    // A job that is not named gets an equal part, and no rate is foretold.
    let plan = machine.plan_by(&mut watcher, Sharing::Sjf, &epochs[..1]);
    assert_eq!((caches(&plan), plan.jobs[1].rate_bytes_per_s), (vec![2.5, 2.5], None));
}

/// Under an equal split the first job's rate with its 2.5 MB is twice what it is without; the second computes so slowly
/// that the link alone is enough.
#[test]
fn importance_values_leave_out_a_job_that_a_cache_does_not_help() {
    let (mut machine, mut watcher) = (Machine::new(), Watcher::default());
    machine.start("a", 400);
    machine.start("b", 50);
    let plan = machine.plan_by(&mut watcher, Sharing::Aiv, &[]);
    assert_eq!(limits(&plan).iter().map(|limits| limits.1).collect::<Vec<_>>(), [5.0, 0.0]);
    assert_eq!(plan.unused_bytes, 0.0);
    // Alone, and with a link that is enough, it gets nothing: the memory stays unused, and that is said.
    machine.running.remove(0);
    let plan = machine.plan_by(&mut watcher, Sharing::Aiv, &[]);
    assert_eq!((limits(&plan)[0].1, plan.unused_bytes), (0.0, 5e6));
}

/// With 1 of 5 MB cached the first job hits 60 % of its reads: its next bytes save less than the second job's.
#[test]
fn whole_epochs_that_were_watched_bend_the_curve() {
    let (mut machine, mut watcher) = (Machine::new(), Watcher::default());
    let (a, b) = (machine.start("a", 400), machine.start("b", 300));
    Counters::set(&a.cache_bytes, 1_000_000);
    machine.plan(&mut watcher);
    for epoch in 1..=2 {
        hits(&a, 300);
        fetches(&a, 200);
        Counters::set(&a.epoch, epoch);
        Counters::set(&b.epoch, epoch);
        machine.plan(&mut watcher);
    }
    let plan = machine.plan(&mut watcher);
    assert_eq!(limits(&plan).iter().map(|limits| limits.1).collect::<Vec<_>>(), [1.0, 4.0]);
}

#[test]
fn hits_of_disk_tier_and_pool_do_not_go_over_the_link() {
    let (mut machine, mut watcher) = (Machine::new(), Watcher::default());
    let a = machine.start("a", 400);
    Counters::set(&a.disk_hits_total, 10);
    Counters::set(&a.disk_hit_bytes_total, 100_000);
    Counters::set(&a.pool_hits_total, 15);
    Counters::set(&a.pool_hit_bytes_total, 150_000);
    let plan = machine.plan(&mut watcher);
    let measured = plan.jobs[0].job.measured.as_ref().unwrap();
    assert_eq!((measured.hits, measured.ideal_bytes_per_s), (0.5, 4e6));
}
