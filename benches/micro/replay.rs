//! How fast a recorded run goes through each policy: requests a second on one core.
//!
//! `cargo bench -p lossfeed-benches --bench replay`. One line of JSON a policy and size of the dataset: the run is ten
//! million requests in shuffled epochs, batches of 256, every row with a loss; a fifth of the samples is cached. The
//! best of five replays by the processor time they took, and the same replay by the clock on the wall; reading the run
//! is not in it. `LOSSFEED_SAMPLES` (comma-separated) sets the sizes (50000,1281167), `LOSSFEED_POLICY` one policy,
//! `LOSSFEED_ROUNDS` how often it is replayed.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use std::fmt::Write;
use std::time::Instant;

use lossfeed::journal::{ROWS_MAX, read_trace};
use lossfeed::policy;
use lossfeed::random::{Purpose, generator, shuffle};
use lossfeed::sampler::random_belief;
use lossfeed::sim::{Trace, replay};

const BATCH: usize = 256;
const REQUESTS: usize = 10_000_000;

fn recorded(samples: u32) -> Trace {
    let mut text = String::from("epoch,step,id,loss\n");
    let mut ids: Vec<u32> = (0..samples).collect();
    for epoch in 0..(REQUESTS / samples as usize).max(2) {
        shuffle(&mut ids, &mut generator(1, epoch as u64, 0, Purpose::Order));
        for (step, batch) in ids.chunks(BATCH).enumerate() {
            for &id in batch {
                // Half of a loss belongs to the sample, half is new in every epoch.
                let loss = random_belief(1, id) + random_belief(2 + epoch as u64, id);
                writeln!(text, "{epoch},{step},{id},{loss}").unwrap();
            }
        }
    }
    read_trace(text.as_bytes(), ROWS_MAX).unwrap()
}

/// Seconds this process has run on a core (Linux).
fn cpu_s() -> Option<f64> {
    let ns: f64 = std::fs::read_to_string("/proc/self/schedstat").ok()?.split(' ').next()?.parse().ok()?;
    Some(ns / 1e9)
}

fn main() {
    let samples = std::env::var("LOSSFEED_SAMPLES").unwrap_or_else(|_| "50000,1281167".to_owned());
    let rounds = std::env::var("LOSSFEED_ROUNDS").map_or(5, |n| n.parse().unwrap());
    let only = std::env::var("LOSSFEED_POLICY").ok();
    for samples in samples.split(',').map(|n| n.parse().unwrap()) {
        let trace = recorded(samples);
        for entry in policy::ALL.iter().filter(|entry| only.as_ref().is_none_or(|only| only == entry.name)) {
            let name = entry.name;
            let (mut best, mut wall, mut hits) = (f64::INFINITY, f64::NAN, 0);
            for _ in 0..rounds {
                let (started, cpu) = (Instant::now(), cpu_s());
                hits = replay(&trace, entry, 0.2).unwrap().hits;
                let took = started.elapsed().as_secs_f64();
                let cpu = cpu.zip(cpu_s()).map_or(took, |(before, after)| after - before);
                if cpu < best {
                    (best, wall) = (cpu, took);
                }
            }
            let requests = trace.requests();
            let rate = |seconds: f64| requests as f64 / seconds;
            println!(
                "{{\"bench\":\"replay\",\"policy\":\"{name}\",\"samples\":{samples},\"requests\":{requests},\"hits\":{hits},\
                 \"requests_per_cpu_s\":{:.0},\"requests_per_s\":{:.0}}}",
                rate(best),
                rate(wall),
            );
        }
    }
}
