//! What deciding costs: index + ledger + policy on one core, at the size of a large dataset.
//!
//! `cargo bench -p lossfeed-benches --bench index`. `LOSSFEED_SAMPLES` sets the size (14,000,000). One line of JSON a
//! policy: accesses and score updates a second in the second epoch, batch by batch as the engine does them (a batch's
//! accesses, then its scores), a fifth of the samples cached; bytes of metadata a sample; seconds to draw and to plan
//! the epoch; and the share of the time this process was given a core (rates are by the clock on the wall: below 1 the
//! machine was not quiet).

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use std::time::{Duration, Instant};

use lossfeed::index::ScoreTable;
use lossfeed::ledger::Ledger;
use lossfeed::policy;
use lossfeed::sampler::{Outlook, SamplerSettings, random_belief};

const BATCH: usize = 256;

#[derive(Default)]
struct Spent {
    drawing: Duration,
    planning: Duration,
    accesses: Duration,
    updates: Duration,
    count: u64,
    hits: u64,
}

fn epoch(number: u64, sampler: &str, owned: &[u32], scores: &mut ScoreTable, ledger: &mut Ledger) -> Spent {
    let mut spent = Spent::default();
    let started = Instant::now();
    let sampler = SamplerSettings::from_name(sampler).unwrap().build().unwrap();
    let samples = owned.len() as u32;
    let resident = |id| ledger.contains(id);
    let outlook =
        Outlook { owned, samples, epoch: number, seed: 1, rank: 0, world_size: 1, scores, resident: &resident };
    let order = sampler.draw(&outlook).unwrap().ids;
    spent.drawing = started.elapsed();
    let started = Instant::now();
    ledger.plan(&order);
    spent.planning = started.elapsed();
    let (mut evicted, mut beliefs) = (Vec::new(), Vec::with_capacity(BATCH));
    let hits_before = ledger.counts().hits;
    for (step, batch) in order.chunks(BATCH).enumerate() {
        evicted.clear();
        // Not the cost of scoring: what arrives from the device is ready.
        beliefs.clear();
        beliefs.extend(batch.iter().map(|&id| random_belief(number, id)));
        let started = Instant::now();
        ledger.prefetch(batch, scores);
        for &id in batch {
            ledger.access(id, &|_| 1, scores, &mut evicted);
        }
        let accessed = Instant::now();
        for (&id, &score) in batch.iter().zip(&beliefs) {
            if let Some(belief) = scores.record(id, score, step as u32) {
                ledger.rescore(id, belief);
            }
        }
        spent.accesses += accessed - started;
        spent.updates += accessed.elapsed();
    }
    spent.count = order.len() as u64;
    spent.hits = ledger.counts().hits - hits_before;
    spent
}

/// Nanoseconds this process has run on a core (Linux).
fn cpu_ns() -> Option<f64> {
    std::fs::read_to_string("/proc/self/schedstat").ok()?.split(' ').next()?.parse().ok()
}

fn main() {
    let samples = std::env::var("LOSSFEED_SAMPLES").map_or(14_000_000, |s| s.parse().unwrap());
    let owned: Vec<u32> = (0..samples as u32).collect();
    let only = std::env::var("LOSSFEED_POLICY").ok();
    let all = ["importance", "shade", "belady", "lru", "fifo", "minio"];
    for name in all.into_iter().filter(|name| only.as_ref().is_none_or(|only| only == name)) {
        let sampler = if name == "importance" { "cost-aware" } else { "uniform" };
        let mut scores = ScoreTable::new(samples, 0.5);
        let mut ledger = Ledger::new(samples as u64 / 5, samples, policy::from_name(name, samples).unwrap());
        epoch(0, sampler, &owned, &mut scores, &mut ledger);
        let (started, cpu_before) = (Instant::now(), cpu_ns());
        let spent = epoch(1, sampler, &owned, &mut scores, &mut ledger);
        let cpu_share =
            cpu_before.zip(cpu_ns()).map_or(f64::NAN, |(a, b)| (b - a) / started.elapsed().as_nanos() as f64);
        let rate = |time: Duration| spent.count as f64 / time.as_secs_f64();
        println!(
            "{{\"bench\":\"index\",\"policy\":\"{name}\",\"sampler\":\"{sampler}\",\"samples\":{samples},\"accesses_per_s\":{:.0},\
             \"updates_per_s\":{:.0},\"metadata_bytes_per_sample\":{:.2},\"hit_ratio\":{:.3},\"draw_s\":{:.2},\"plan_s\":{:.2},\"cpu_share\":{cpu_share:.2}}}",
            rate(spent.accesses),
            rate(spent.updates),
            (scores.metadata_bytes() + ledger.metadata_bytes()) as f64 / samples as f64,
            spent.hits as f64 / spent.count as f64,
            spent.drawing.as_secs_f64(),
            spent.planning.as_secs_f64(),
        );
    }
}
