//! How long a lock around the decisions is held: every verb of the state machine, at the size of a large dataset.
//!
//! `cargo bench -p lossfeed-benches --bench hold`. `LOSSFEED_SAMPLES` sets the size (14,000,000),
//! `LOSSFEED_POLICY` the cache policy (importance). One line of JSON a
//! verb: how often it was called, the median and the longest call in µs. What is done outside the lock is there as
//! well, for comparison.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use lossfeed::control::{Control, Cut, Drawing, PIECE, Plan, Turn};
use lossfeed::index::ScoreTable;
use lossfeed::ledger::Ledger;
use lossfeed::policy;
use lossfeed::sampler::{Batches, Blocks, SamplerSettings, random_belief};

const BATCH: usize = 256;

#[derive(Default)]
struct Holds(BTreeMap<&'static str, Vec<f64>>);

impl Holds {
    fn of<T>(&mut self, verb: &'static str, work: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let done = work();
        self.0.entry(verb).or_default().push(started.elapsed().as_secs_f64() * 1e6);
        done
    }
}

fn main() {
    let samples: usize = std::env::var("LOSSFEED_SAMPLES").map_or(14_000_000, |s| s.parse().unwrap());
    let policy = std::env::var("LOSSFEED_POLICY").unwrap_or_else(|_| "importance".to_owned());
    let ledger = Ledger::new(samples as u64 / 5, samples, policy::from_name(&policy, samples).unwrap());
    let drawing = Drawing {
        sampler: SamplerSettings::from_name("cost-aware").unwrap().build().unwrap().into(),
        samples: samples as u32,
        owned: (0..samples as u32).collect(),
        seed: 1,
        rank: 0,
        world_size: 1,
        blocks: Blocks::default(),
        awaits_weights: false,
        together: None,
    };
    let mut control = Control::new(ScoreTable::new(samples, 0.5), ledger).with_drawing(drawing);
    let cut = Cut::Even(Batches::new(samples, BATCH, false, 0, 1).unwrap());
    let mut holds = Holds::default();
    for epoch in 0..2 {
        let mut copy = holds.of("copy_begin", || control.copy_begin());
        while holds.of("copy_more", || control.copy_more(&mut copy)) == Some(false) {}
        copy.settle();
        let order = holds.of("outside: draw", || copy.draw(epoch)).unwrap();
        let plan = Plan { epoch, order: Arc::new(order), cut: cut.clone(), behind: Vec::new() };
        let mut books = holds.of("lend", || control.lend()).unwrap();
        holds.of("outside: plan", || books.plan(&plan.order.ids));
        holds.of("take_back", || control.take_back(books)).ok().unwrap();
        let pass = holds.of("begin", || control.begin(plan, 0));
        while let Turn::Decided(decision) = holds.of("decide", || control.decide(pass, &|_| 1)) {
            let scores = decision.rows.iter().map(|row| (row.delivered, random_belief(epoch, row.delivered)));
            let scores: Vec<_> = scores.collect();
            holds.of("learn", || control.learn(None, black_box(scores).into_iter()));
        }
        for start in (0..samples).step_by(PIECE) {
            holds.of("met", || control.met(pass, start..(start + PIECE).min(samples)));
        }
        drop(holds.of("end", || control.end(pass)));
    }
    for (verb, mut times) in holds.0 {
        times.sort_unstable_by(f64::total_cmp);
        let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
        println!(
            "{{\"bench\":\"hold\",\"verb\":\"{verb}\",\"samples\":{samples},\"calls\":{},\"median_us\":{median:.1},\"max_us\":{most:.1}}}",
            times.len()
        );
    }
}
