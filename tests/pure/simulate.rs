//! Jobs that come, run, share and end: against closed forms, books that must balance, and small fixed steps of time.

use lossfeed::jobs::{Cluster, Dataset, HitCurve, Job, Resources, cache_for};
use lossfeed::random::{Purpose, generator, unit};
use lossfeed_lab::cluster::{
    CACHE_SYSTEMS, CacheSystem, Moment, ORDERS, Order, OverTime, Ran, Reads, Rules, Submitted, Workload, lru_hits,
    simulate,
};
use proptest::prelude::*;

fn dataset(bytes: f64) -> Dataset {
    Dataset { name: format!("of {bytes}"), bytes }
}

fn submitted(arrives_s: f64, gpus: u32, ideal_s: f64, reads: Option<Reads>) -> Submitted {
    Submitted { name: format!("at {arrives_s}"), arrives_s, gpus, ideal_s, reads }
}

fn reads(dataset: usize, ideal: f64, hits: HitCurve) -> Option<Reads> {
    Some(Reads { dataset, ideal_bytes_per_s: ideal, hits })
}

fn resources(cache: f64, link: f64) -> Resources {
    Resources { cache_bytes: cache, bandwidth_bytes_per_s: link }
}

fn run(workload: &Workload, order: Order, cache: CacheSystem) -> Vec<Ran> {
    simulate(workload, Rules { order, cache }, |_| {}).unwrap()
}

fn all_rules() -> impl Iterator<Item = Rules> {
    ORDERS.into_iter().flat_map(|order| CACHE_SYSTEMS.into_iter().map(move |cache| Rules { order, cache }))
}

/// Up to eight jobs on four GPUs, over up to four datasets, some of them with curves, some that read nothing.
fn workloads() -> impl Strategy<Value = Workload> {
    let sizes = prop::collection::vec(1..=60u32, 1..=4);
    let points = prop::collection::vec((1..=60u32, 0..=10u32), 0..4);
    let jobs = prop::collection::vec((0..=50u32, 1..=4u32, 1..=90u32, 0..=4usize, 1..=9u32, points), 1..=8);
    (sizes, jobs, 0..=90u32, 1..=20u32).prop_map(|(sizes, jobs, cache, link)| {
        let datasets: Vec<_> = sizes.iter().map(|&bytes| dataset(bytes.into())).collect();
        let job = |(arrives, gpus, ideal_s, of, ideal, points): (u32, u32, u32, usize, u32, Vec<(u32, u32)>)| {
            let points: Vec<_> = points.into_iter().map(|(b, h)| (f64::from(b), f64::from(h) / 10.0)).collect();
            let read = sizes.get(of).and_then(|&bytes| {
                let plain = HitCurve::uniform(bytes.into()).unwrap();
                let hits = if points.is_empty() { plain } else { HitCurve::measured(&points).unwrap() };
                reads(of, ideal.into(), hits)
            });
            submitted(arrives.into(), gpus, ideal_s.into(), read)
        };
        let jobs = jobs.into_iter().map(job).collect();
        Workload::new(4, resources(cache.into(), link.into()), datasets, jobs).unwrap()
    })
}

fn within_totals(workload: &Workload, moment: &Moment) -> Result<(), TestCaseError> {
    let near = 1.0 + 1e-9;
    let Resources { cache_bytes, bandwidth_bytes_per_s } = workload.resources();
    prop_assert!(moment.lasts_s >= 0.0 && moment.lasts_s.is_finite(), "{moment:?}");
    prop_assert!(moment.gpus <= f64::from(workload.gpus()) * near, "{moment:?}");
    prop_assert!(moment.cache_bytes.iter().sum::<f64>() <= cache_bytes * near, "{moment:?}");
    prop_assert!(moment.jobs.iter().map(|job| job.3).sum::<f64>() <= bandwidth_bytes_per_s * near, "{moment:?}");
    for ((filled, cached), dataset) in moment.filled_bytes.iter().zip(moment.cache_bytes).zip(workload.datasets()) {
        prop_assert!(filled <= cached && *cached <= dataset.bytes * near, "{moment:?}");
    }
    for &(job, speed, rate, fetched) in moment.jobs {
        prop_assert!((0.0..=near).contains(&speed) && fetched <= rate * near, "{moment:?}");
        let ideal = workload.jobs()[job].reads.as_ref().map_or(0.0, |reads| reads.ideal_bytes_per_s);
        prop_assert!((rate - speed * ideal).abs() <= 1e-9 * ideal, "{moment:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Totals hold at every event; every job runs once, from when it has come, reads what it is to read and no more;
    /// and the same again gives the same.
    #[test]
    fn the_books_balance_under_every_rule(workload in workloads()) {
        for rules in all_rules() {
            let mut broken = Ok(());
            let mut fetched = 0.0;
            let found = simulate(&workload, rules, |moment| {
                fetched += moment.lasts_s * moment.jobs.iter().map(|job| job.3).sum::<f64>();
                if broken.is_ok() {
                    broken = within_totals(&workload, moment);
                }
            });
            broken?;
            let found = found.unwrap();
            for (job, ran) in workload.jobs().iter().zip(&found) {
                let bytes = job.reads.as_ref().map_or(0.0, |reads| job.ideal_s * reads.ideal_bytes_per_s);
                prop_assert!((ran.read_bytes - bytes).abs() <= 1e-6 * bytes, "{rules:?} {job:?} {ran:?}");
                prop_assert!(ran.fetched_bytes <= ran.read_bytes * (1.0 + 1e-9));
                prop_assert!(ran.started_s >= job.arrives_s, "{rules:?} {job:?} {ran:?}");
                prop_assert!(ran.ended_s - ran.started_s >= job.ideal_s * (1.0 - 1e-9), "{rules:?} {job:?} {ran:?}");
            }
            let all: f64 = found.iter().map(|ran| ran.fetched_bytes).sum();
            prop_assert!((all - fetched).abs() <= 1e-6 * fetched);
            prop_assert_eq!(&found, &simulate(&workload, rules, |_| {}).unwrap());
        }
    }

    /// A job alone, in closed form: its first epoch comes over the link, the others at SiloD's Eq. 4; an LRU hits by
    /// its formula, and Quiver nothing unless all fits. More cache or link never makes it longer.
    #[test]
    fn a_job_alone_is_the_closed_form(
        bytes in 1.0..100.0f64, ideal in 1.0..50.0f64, epochs in 1..20u32, part in 0.01..1.5f64, link in 0.1..60.0f64,
    ) {
        let alone = |part: f64, link: f64, rules: Rules| {
            let one = reads(0, ideal, HitCurve::uniform(bytes).unwrap());
            let job = submitted(3.0, 2, f64::from(epochs) * bytes / ideal, one);
            let workload = Workload::new(2, resources(part * bytes, link), vec![dataset(bytes)], vec![job]).unwrap();
            let ran = run(&workload, rules.order, rules.cache)[0];
            (ran.ended_s - ran.started_s, ran.fetched_bytes)
        };
        for rules in all_rules() {
            let hits = match rules.cache {
                CacheSystem::Lru => lru_hits(part),
                CacheSystem::Quiver if part < 1.0 => 0.0,
                _ => part.min(1.0),
            };
            let rate = |hits: f64| if hits >= 1.0 { ideal } else { ideal.min(link / (1.0 - hits)) };
            let later = f64::from(epochs - 1) * bytes;
            let (takes, fetches) = (bytes / rate(0.0) + later / rate(hits), bytes + later * (1.0 - hits));
            let (found, fetched) = alone(part, link, rules);
            prop_assert!((found - takes).abs() <= 1e-6 * takes, "{rules:?}: {found} s, by hand {takes}");
            prop_assert!((fetched - fetches).abs() <= 1e-6 * fetches, "{rules:?}: {fetched}, by hand {fetches}");
            for (more, wider) in [(part * 1.3, link), (part, link * 1.3)] {
                prop_assert!(alone(more, wider, rules).0 <= found * (1.0 + 1e-9), "{rules:?}");
            }
        }
    }
}

/// The same life in small steps of time, decided anew in every step by the plainest means.
fn in_steps(workload: &Workload, cache: CacheSystem, step: f64) -> Vec<f64> {
    struct Life {
        left: f64,
        read: f64,
        effective: f64,
        running: bool,
    }
    let jobs = workload.jobs();
    let plain = |job: &Submitted| job.reads.clone().unwrap();
    let mut lives: Vec<Life> =
        jobs.iter().map(|job| Life { left: job.ideal_s, read: 0.0, effective: 0.0, running: false }).collect();
    let mut ended = vec![0.0; jobs.len()];
    let mut filled = vec![0.0; workload.datasets().len()];
    let total = workload.resources();
    for tick in 0u64.. {
        let now = tick as f64 * step;
        let mut free = workload.gpus();
        lives.iter().zip(jobs).filter(|(life, _)| life.running).for_each(|(_, job)| free -= job.gpus);
        // Jobs are listed in order of arrival; the first that does not fit is waited for.
        for (life, job) in lives.iter_mut().zip(jobs).filter(|(life, _)| !life.running && life.left > 0.0) {
            if job.arrives_s > now || job.gpus > free {
                break;
            }
            free -= job.gpus;
            life.running = true;
        }
        let running: Vec<usize> = (0..jobs.len()).filter(|&j| lives[j].running).collect();
        let mut target = vec![0.0; filled.len()];
        if cache == CacheSystem::Static {
            for &j in &running {
                let part = total.cache_bytes * f64::from(jobs[j].gpus) / f64::from(workload.gpus());
                target[plain(&jobs[j]).dataset] = part.min(workload.datasets()[plain(&jobs[j]).dataset].bytes);
            }
        } else {
            let known = |&j: &usize| {
                let Reads { dataset, ideal_bytes_per_s, hits } = plain(&jobs[j]);
                Job { name: String::new(), dataset, ideal_bytes_per_s, hits }
            };
            let known: Vec<_> = running.iter().map(known).collect();
            let rates: Vec<_> = known.iter().map(|job| job.ideal_bytes_per_s).collect();
            target = cache_for(&Cluster::new(total, workload.datasets().to_vec(), known).unwrap(), &rates);
        }
        let mut link = total.bandwidth_bytes_per_s;
        let wants = |j: usize, lives: &[Life]| {
            plain(&jobs[j]).ideal_bytes_per_s * (1.0 - plain(&jobs[j]).hits.at(lives[j].effective))
        };
        let mut turns = running.clone();
        // A fair queue: who wants least is served first, from an equal part of what is left.
        turns.sort_by(|&a, &b| wants(a, &lives).total_cmp(&wants(b, &lives)));
        for (served, &j) in turns.iter().enumerate() {
            let Reads { dataset, ideal_bytes_per_s: ideal, hits } = plain(&jobs[j]);
            if filled[dataset] > target[dataset] {
                lives[j].effective *= target[dataset] / filled[dataset];
                filled[dataset] = target[dataset];
            }
            let missed = 1.0 - hits.at(lives[j].effective);
            let given = (ideal * missed).min(link / (turns.len() - served) as f64);
            link -= given;
            let rate = if missed > 0.0 { ideal.min(given / missed) } else { ideal };
            let before = (lives[j].read / workload.datasets()[dataset].bytes).floor();
            lives[j].read += rate * step;
            lives[j].left -= rate / ideal * step;
            filled[dataset] = (filled[dataset] + given * step).min(target[dataset]);
            if (lives[j].read / workload.datasets()[dataset].bytes).floor() > before {
                lives[j].effective = filled[dataset];
            }
            if lives[j].left <= 0.0 {
                lives[j].running = false;
                ended[j] = now + step;
            }
        }
        if lives.iter().all(|life| life.left <= 0.0) {
            return ended;
        }
    }
    ended
}

/// Thirty clusters of fixed seeds: where an epoch ends in the same step as a job, steps may take the other order, so
/// clusters drawn anew in every run would fail one time in many.
#[test]
fn small_steps_of_time_come_to_the_same() {
    let mut waited = 0;
    for seed in 0..30 {
        let mut rng = generator(seed, 0, 0, Purpose::Draw);
        let mut draw = |from: f64, to: f64| from + (to - from) * unit(&mut rng);
        let datasets: Vec<_> = (0..5).map(|_| dataset(draw(5.0, 60.0))).collect();
        let mut jobs: Vec<_> = (0..5)
            .map(|of| {
                let bytes = datasets[of].bytes;
                let hits = match of % 2 {
                    0 => HitCurve::uniform(bytes).unwrap(),
                    _ => HitCurve::measured(&[(0.2 * bytes, 0.6), (bytes, 1.0)]).unwrap(),
                };
                submitted(draw(0.0, 40.0), 1 + (of as u32 % 3), draw(10.0, 60.0), reads(of, draw(2.0, 9.0), hits))
            })
            .collect();
        jobs.sort_by(|a, b| a.arrives_s.total_cmp(&b.arrives_s));
        let workload = Workload::new(4, resources(draw(10.0, 80.0), draw(4.0, 16.0)), datasets, jobs).unwrap();
        for cache in [CacheSystem::Static, CacheSystem::Curves] {
            const STEP: f64 = 0.002;
            let found = run(&workload, Order::Fifo, cache);
            for (ran, stepped) in found.iter().zip(in_steps(&workload, cache, STEP)) {
                assert!((ran.ended_s - stepped).abs() <= 50.0 * STEP, "seed {seed} {cache:?}: {ran:?}, {stepped}");
            }
            waited += found.iter().zip(workload.jobs()).filter(|(ran, job)| ran.started_s > job.arrives_s).count();
        }
    }
    assert!(waited > 50, "{waited} jobs waited for GPUs");
}

/// Shortest first gives the GPU to the second comer's short job before the first comer's long one.
#[test]
fn the_shortest_goes_first_and_nobody_waits_under_max_min() {
    let jobs = vec![submitted(0.0, 1, 10.0, None), submitted(1.0, 1, 100.0, None), submitted(2.0, 1, 5.0, None)];
    let workload = Workload::new(1, resources(0.0, 0.0), vec![], jobs).unwrap();
    let ends = |order| run(&workload, order, CacheSystem::Silod).iter().map(|ran| ran.ended_s).collect::<Vec<_>>();
    assert_eq!(ends(Order::Fifo), [10.0, 110.0, 115.0]);
    assert_eq!(ends(Order::Sjf), [10.0, 115.0, 15.0]);
    // A third of the time each from second 2 on: the short one ends after 15 more.
    let shared = ends(Order::MaxMin);
    assert!((shared[2] - 17.0).abs() < 1e-9 && (shared[1] - 115.0).abs() < 1e-9, "{shared:?}");
}

/// Two datasets of 100 bytes, one of them read at twice the rate, a cache for one and a half.
#[test]
fn each_system_caches_what_it_says() {
    let uniform = || HitCurve::uniform(100.0).unwrap();
    let bent = HitCurve::measured(&[(20.0, 0.8), (100.0, 1.0)]).unwrap();
    let jobs = vec![
        submitted(0.0, 1, 1e4, reads(0, 10.0, uniform())),
        submitted(0.0, 3, 1e4, reads(1, 20.0, uniform())),
        submitted(0.0, 1, 1e4, reads(2, 8.0, bent)),
    ];
    let sizes = [100.0, 100.0, 100.0].map(dataset).to_vec();
    let workload = Workload::new(5, resources(150.0, 20.0), sizes, jobs).unwrap();
    for (cache, expected) in [
        (CacheSystem::Static, [30.0, 90.0, 30.0]),
        (CacheSystem::Quiver, [0.0, 100.0, 0.0]),
        (CacheSystem::Silod, [50.0, 100.0, 0.0]),
        (CacheSystem::Curves, [30.0, 100.0, 20.0]),
    ] {
        let mut first = Vec::new();
        let watch = |moment: &Moment| {
            if first.is_empty() {
                first = moment.cache_bytes.to_vec();
            }
        };
        simulate(&workload, Rules { order: Order::Fifo, cache }, watch).unwrap();
        assert!(first.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{cache:?}: {first:?}");
    }
    assert!((lru_hits(0.2) - 0.0215).abs() < 1e-4 && lru_hits(0.0) == 0.0 && lru_hits(1.0) == 1.0);
}

/// Two jobs that want twice the link, without a cache: one after the other only where the system is named so, and then
/// the second has nothing for half of the time.
#[test]
fn the_link_is_shared_alike_unless_the_system_is_named_in_order() {
    let one = |dataset| submitted(0.0, 1, 10.0, reads(dataset, 10.0, HitCurve::uniform(100.0).unwrap()));
    let workload = Workload::new(2, resources(0.0, 10.0), vec![dataset(100.0); 2], vec![one(0), one(1)]).unwrap();
    for (cache, order, ends, fair) in [
        (CacheSystem::Silod, Order::Fifo, [20.0, 20.0], 1.0),
        (CacheSystem::Curves, Order::Sjf, [20.0, 20.0], 1.0),
        (CacheSystem::SilodInOrder, Order::Fifo, [10.0, 20.0], 0.5),
        (CacheSystem::SilodInOrder, Order::MaxMin, [20.0, 20.0], 1.0),
    ] {
        let mut means = OverTime::default();
        let found = simulate(&workload, Rules { order, cache }, |moment| means.add(&workload, moment)).unwrap();
        assert!(found.iter().zip(ends).all(|(ran, end)| (ran.ended_s - end).abs() < 1e-9), "{cache:?}: {found:?}");
        assert!((means.fairness() - fair).abs() < 1e-9, "{cache:?}: {means:?}");
    }
}

/// One job, four epochs: what is cached in the first can be hit in the others.
#[test]
fn an_epochs_bytes_are_effective_from_the_next_on() {
    let job = submitted(0.0, 1, 40.0, reads(0, 10.0, HitCurve::uniform(100.0).unwrap()));
    let workload = Workload::new(1, resources(50.0, 100.0), vec![dataset(100.0)], vec![job]).unwrap();
    let mut means = OverTime::default();
    let rules = Rules { order: Order::Fifo, cache: CacheSystem::Silod };
    simulate(&workload, rules, |moment| means.add(&workload, moment)).unwrap();
    assert!((means.effective() - 0.75).abs() < 1e-9 && (means.fairness() - 1.0).abs() < 1e-9, "{means:?}");
}

#[test]
fn what_never_ends_or_means_nothing_is_refused_by_name() {
    let one = || reads(0, 1.0, HitCurve::uniform(10.0).unwrap());
    let make = |gpus, job: Submitted| Workload::new(gpus, resources(5.0, 0.0), vec![dataset(10.0)], vec![job]);
    let stuck = make(1, submitted(0.0, 1, 5.0, one())).unwrap();
    for rules in all_rules() {
        let error = simulate(&stuck, rules, |_| {}).unwrap_err();
        assert!(error.to_string().contains("job at 0 never ends"), "{error}");
    }
    for (job, says) in [
        (submitted(0.0, 3, 5.0, None), "needs 3 GPUs of 2"),
        (submitted(0.0, 0, 5.0, None), "needs 0 GPUs of 2"),
        (submitted(-1.0, 1, 5.0, None), "has -1 seconds"),
        (submitted(0.0, 1, 0.0, None), "0 seconds of work"),
        (submitted(0.0, 1, f64::NAN, None), "NaN seconds of work"),
        (submitted(0.0, 1, 5.0, reads(1, 1.0, HitCurve::uniform(1.0).unwrap())), "dataset number 1, and there are 1"),
        (submitted(0.0, 1, 5.0, reads(0, 0.0, HitCurve::uniform(1.0).unwrap())), "0 bytes a second"),
    ] {
        let error = make(2, job).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}
