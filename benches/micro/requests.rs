//! What small samples in a shard of an object store cost: requests, bytes and seconds, one request a sample beside
//! samples that come together.
//!
//! `cargo bench -p lossfeed-benches --bench requests`. The store is an HTTP server on this machine's loopback that waits
//! 10 ms before each answer and sends all bodies through one link of 500, 100, 30 and 10 MB/s. One shard of 5,000 samples
//! (`LOSSFEED_SAMPLES`) of 1 to 6 KB is opened and read in batches of 256 by one thread, as a loader without workers
//! does, in four orders: as they lie, in runs of 64 neighbours, and drawn by chance (all of them, and a fifth of them, as
//! a cache would leave it). Lines of JSON; requests and bytes are the server's own count, `mb` is what it sent.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod store;

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use lossfeed::source::{OpenOptions, Source, open};
use store::{Server, next, shard, shuffle};

const BATCH: usize = 256;

/// Reads samples in this order; the bytes that came.
fn read(source: &dyn Source, ids: &[u32]) -> u64 {
    let mut bytes = 0;
    for batch in ids.chunks(BATCH) {
        source.fetch(batch, &mut |_, payload| {
            bytes += payload.unwrap().data.len() as u64;
            ControlFlow::Continue(())
        });
    }
    bytes
}

fn main() {
    let samples: usize = std::env::var("LOSSFEED_SAMPLES").map_or(5000, |s| s.parse().unwrap());
    let (server, url) = {
        let mut state = 1;
        Server::start(shard(samples, || 1000 + next(&mut state) as usize % 5000))
    };
    let in_order: Vec<u32> = (0..samples as u32).collect();
    let mut state = 7;
    let mut runs: Vec<&[u32]> = in_order.chunks(64).collect();
    shuffle(&mut runs, &mut state);
    let runs = runs.concat();
    let mut shuffled = in_order.clone();
    shuffle(&mut shuffled, &mut state);
    let fifth = shuffled[..samples / 5].to_vec();
    let orders = [("in order", in_order), ("runs of 64", runs), ("shuffled", shuffled), ("a fifth, shuffled", fifth)];
    for megabytes_per_s in [500, 100, 30, 10] {
        server.bytes_per_s.store(megabytes_per_s * 1_000_000, Ordering::Relaxed);
        for coalesce in [false, true] {
            let options = OpenOptions { coalesce, ..OpenOptions::default() };
            let head = format!("{{\"link_mb_per_s\":{megabytes_per_s},\"coalesce\":{coalesce}");
            let (source, took) = server.counted(|| open(&url, &options).unwrap());
            println!("{head},\"work\":\"open\",{took}}}");
            for (order, ids) in &orders {
                let (wanted, took) = server.counted(|| read(&*source, ids));
                let (samples, wanted) = (ids.len(), wanted as f64 / 1e6);
                println!("{head},\"work\":\"{order}\",\"samples\":{samples},\"wanted_mb\":{wanted:.2},{took}}}");
            }
        }
    }
}
