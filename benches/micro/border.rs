//! What an epoch's beginning costs, and what it would cost to keep the distribution up to date with every score.
//!
//! `cargo bench -p lossfeed-benches --bench border`. `LOSSFEED_SAMPLES` (comma-separated) sets the sizes (1281167,
//! 14000000, 100000000). One line of JSON a size, all in seconds of one core's processor time for an epoch of as many
//! scores and draws as there are samples, by importance:
//! - `copied`: beliefs and stamps are copied, as a snapshot does; `drawn`: the order is made of the copy;
//! - `updated`: every score changes one weight of a Fenwick tree, in shuffled order; `found`: every draw is looked up in
//!   it. Both are measured on a million of them and scaled.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use std::hint::black_box;

use lossfeed::index::{Fenwick, ScoreTable, Weight};
use lossfeed::random::{Purpose, below, below_u128, generator};
use lossfeed::sampler::{Outlook, SamplerSettings, random_belief};

/// How many updates and look-ups are measured.
const MEASURED: u32 = 1_000_000;

/// Seconds this process has run on a core (Linux).
fn busy() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let before = busy();
    let made = work();
    (busy() - before, made)
}

fn main() {
    let sizes = std::env::var("LOSSFEED_SAMPLES").unwrap_or_else(|_| "1281167,14000000,100000000".to_owned());
    for samples in sizes.split(',').map(|n| n.parse::<u32>().unwrap()) {
        let mut scores = ScoreTable::new(samples as usize, 0.0);
        (0..samples).for_each(|id| _ = scores.record(id, random_belief(5, id), 1));
        let (copied, scores) = timed(|| scores.clone());
        let owned: Vec<u32> = (0..samples).collect();
        let resident = &|_| false;
        let sampler = SamplerSettings::from_name("importance").unwrap().build().unwrap();
        let (epoch, seed, rank, world_size) = (3, 1, 0, 1);
        let outlook = Outlook { owned: &owned, samples, epoch, seed, rank, world_size, scores: &scores, resident };
        let (drawn, order) = timed(|| sampler.draw(&outlook).unwrap());
        assert_eq!(order.ids.len(), samples as usize);
        drop((order, owned));

        let mut tree = Fenwick::new(samples as usize);
        let weight = |id: u32| Some(Weight::Of((random_belief(6, id) * 1e6) as u32));
        // Not all of a large one: a place costs the same whatever the others hold.
        let filled = samples.min(4 * MEASURED);
        let places = (0..filled).map(|k| (u64::from(k) * u64::from(samples) / u64::from(filled)) as u32);
        places.for_each(|id| tree.set(id as usize, weight(id)));
        let scale = f64::from(samples) / f64::from(MEASURED);
        let rng = &mut generator(1, 2, 0, Purpose::Draw);
        let scored: Vec<u32> = (0..MEASURED).map(|_| below(rng, samples)).collect();
        let (updated, ()) = timed(|| scored.iter().for_each(|&id| tree.set(id as usize, weight(id))));
        let span = tree.span();
        let marks: Vec<u128> = (0..MEASURED).map(|_| below_u128(rng, span)).collect();
        let (found, _) = timed(|| black_box(marks.iter().map(|&mark| tree.find(mark)).max()));
        println!(
            "{{\"bench\":\"border\",\"samples\":{samples},\"copied\":{copied:.3},\"drawn\":{drawn:.3},\"updated\":{:.3},\
             \"found\":{:.3},\"table_bytes_per_sample\":8,\"tree_bytes_per_sample\":{:.0}}}",
            updated * scale,
            found * scale,
            tree.metadata_bytes() as f64 / f64::from(samples),
        );
    }
}
