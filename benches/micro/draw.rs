//! What an epoch's order costs: time and memory to draw it, at the size of a very large dataset.
//!
//! `cargo bench -p lossfeed-benches --bench draw`. `LOSSFEED_SAMPLES` sets the size (100,000,000), `LOSSFEED_SAMPLER`
//! names samplers (comma-separated) instead of all. One line of JSON a sampler: seconds by the clock on the wall,
//! seconds of processor time, and the most memory that was held while it was drawn, in bytes a sample. That has the
//! order itself (8), and neither the table of beliefs (8 a sample) nor the rank's ids (4), which a run holds anyway.
//! A fifth of the samples are cached; one in a hundred is unseen.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::time::Instant;

use lossfeed::index::ScoreTable;
use lossfeed::sampler::{Outlook, SamplerSettings, random_belief};

/// A field of this process's status, in bytes.
fn status(field: &str) -> f64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.split_whitespace().next().unwrap().parse::<f64>().unwrap() * 1024.0
}

/// Processor time of this process, in seconds.
fn busy() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap();
    let after = text.rsplit_once(") ").unwrap().1;
    after.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

fn main() {
    let samples: usize = std::env::var("LOSSFEED_SAMPLES").map_or(100_000_000, |s| s.parse().unwrap());
    let owned: Vec<u32> = (0..samples as u32).collect();
    let mut scores = ScoreTable::new(samples, 0.0);
    for &id in owned.iter().filter(|&id| id % 100 != 7) {
        scores.record(id, random_belief(5, id), 1);
    }
    let resident = |id: u32| id.wrapping_mul(0x9e37_79b9) >> 16 < 13_107;
    let named = std::env::var("LOSSFEED_SAMPLER");
    let all = "uniform,echo,importance,cost-aware,pads,selective,iis,infobatch,curriculum,ods,shade-as-coded";
    for name in named.as_deref().unwrap_or(all).split(',') {
        let sampler = SamplerSettings::from_name(name).unwrap().build().unwrap();
        let outlook = Outlook {
            owned: &owned,
            samples: samples as u32,
            // One that `selective` and `iis` draw by score; a `curriculum` is through with its growth by then.
            epoch: if name == "curriculum" { 1 } else { 7 },
            seed: 1,
            rank: 0,
            world_size: 1,
            scores: &scores,
            resident: &resident,
        };
        // The most memory held so far is forgotten; where that is not allowed, the first sampler's counts for all.
        let _ = fs::write("/proc/self/clear_refs", "5");
        let (before, worked, started) = (status("VmRSS:"), busy(), Instant::now());
        let order = sampler.draw(&outlook).unwrap();
        let (took, worked) = (started.elapsed().as_secs_f64(), busy() - worked);
        let held = (status("VmHWM:") - before) / samples as f64;
        assert_eq!(order.ids.len(), samples);
        println!(
            "{{\"sampler\":\"{name}\",\"samples\":{samples},\"seconds\":{took:.2},\"busy_seconds\":{worked:.2},\"bytes_per_sample\":{held:.1}}}"
        );
    }
}
