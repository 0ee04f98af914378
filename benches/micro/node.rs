//! A question to the owner of the node cache, beside the same samples in a map of this process.
//!
//! `cargo bench -p lossfeed-benches --bench node`. Samples of 3 KB, 1, 16 or 256 a call, all of them there. `ask` reads
//! them as a loader does and copies them; `map` copies them alone. The owner is a thread
//! here; its socket is the same.

#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::Duration;

use divan::Bencher;
use lossfeed_node::{Client, Key, Offer, Serve, Settings, Whose, serve};

const SAMPLES: u32 = 4096;
const BYTES: usize = 3126;

fn key(id: u32) -> Key {
    let mut key = [7; 16];
    key[..4].copy_from_slice(&id.to_le_bytes());
    key
}

/// The ids of each call in turn.
fn calls(many: u32) -> impl FnMut() -> Vec<(usize, Key, u64)> {
    let mut next = 0u32;
    move || {
        let first = next;
        next = next.wrapping_add(many);
        let ids = (0..many).map(|k| first.wrapping_add(k).wrapping_mul(2_654_435_761) % SAMPLES);
        ids.enumerate().map(|(k, id)| (k, key(id), BYTES as u64)).collect()
    }
}

#[divan::bench(args = [1, 16, 256])]
fn ask(bencher: Bencher, many: u32) {
    let folder = tempfile::tempdir().unwrap();
    let serving = Serve { folder: folder.path().into(), bytes: 32 << 20, idle: Duration::from_millis(500) };
    let owner = std::thread::spawn(move || serve(&serving));
    let settings = Settings {
        folders: vec![folder.path().into()],
        bytes: 32 << 20,
        command: vec!["true".into()],
        job: "bench".into(),
        dataset: 1,
        name: "bench".into(),
        samples: SAMPLES,
    };
    let (client, failed) = Client::new(settings).unwrap();
    assert_eq!(failed, None);
    let mut flight = client.flight().unwrap();
    for id in 0..SAMPLES {
        assert_eq!(flight.claim(&[key(id)], &|| false), [Whose::Ours]);
        flight.offer(&Offer { key: key(id), id, cost: Duration::ZERO, data: &vec![id as u8; BYTES] });
    }
    drop(flight);
    let mut out = vec![0; BYTES * many as usize];
    bencher.with_inputs(calls(many)).bench_local_values(|keys| {
        let mut came = 0;
        client.read(&keys, &|_| Duration::from_secs(5), &|| false, &mut |k, data| {
            out[k * BYTES..][..BYTES].copy_from_slice(data);
            came += 1;
            ControlFlow::Continue(())
        });
        assert_eq!(came, many);
    });
    drop(client);
    owner.join().unwrap().unwrap();
}

#[divan::bench(args = [1, 16, 256])]
fn map(bencher: Bencher, many: u32) {
    let samples: HashMap<Key, Vec<u8>> = (0..SAMPLES).map(|id| (key(id), vec![id as u8; BYTES])).collect();
    let mut out = vec![0; BYTES * many as usize];
    bencher.with_inputs(calls(many)).bench_local_values(|keys| {
        for (k, key, _) in &keys {
            out[k * BYTES..][..BYTES].copy_from_slice(&samples[key]);
        }
    });
}

fn main() {
    divan::main();
}
