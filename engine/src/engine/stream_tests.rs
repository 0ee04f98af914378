//! Buffer samplers that are read ahead: each epoch finds its first samples there, and nothing else changes.

use super::Engine;
use super::buffer_tests::{Seen, deliver, settings, stored};
use crate::sampler::{Block, Echo, Replay, SamplerSettings};
use crate::settings::Settings;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What a sample takes where it lands: four bytes and an int64.
const LANDED: u64 = 12;

struct Run {
    engine: Engine,
    /// Samples that were read.
    all: Arc<AtomicU64>,
    /// Those that batches asked for, and no thread that reads ahead.
    by_batches: Arc<AtomicU64>,
    request_bytes: Arc<AtomicU64>,
}

fn run(sampler: SamplerSettings, workers: usize, read_ahead: u64) -> Run {
    let [all, by_batches, request_bytes] = [(); 3].map(|()| Arc::<AtomicU64>::default());
    let counts = (Arc::clone(&all), Arc::clone(&by_batches));
    let dataset = stored(false, &request_bytes, move || {
        let ahead = std::thread::current().name().unwrap_or_default().starts_with("lossfeed-ahead");
        counts.0.fetch_add(1, Relaxed);
        counts.1.fetch_add(u64::from(!ahead), Relaxed);
    });
    let with = Settings { read_ahead: Some(read_ahead), ..settings(sampler, workers) };
    Run { engine: Engine::new(dataset, with).unwrap(), all, by_batches, request_bytes }
}

impl Run {
    fn stat(&self, name: &str) -> u64 {
        self.engine.stats().into_iter().find(|(stat, _)| stat == name).unwrap().1 as u64
    }

    /// Waits until twenty samples or more were read ahead or are on their way.
    #[track_caller]
    fn rest(&self) {
        let begun = Instant::now();
        while self.stat("read_ahead_bytes") < 20 * LANDED {
            let stats = || self.engine.stats();
            assert!(begun.elapsed() < Duration::from_secs(60), "nothing is read for the next epoch: {:?}", stats());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn samplers(block: Block) -> [SamplerSettings; 3] {
    [
        SamplerSettings::Echo(Echo { lag: 16, block, ..Echo::default() }),
        SamplerSettings::Replay(Replay { lag: 16, block, ..Replay::default() }),
        SamplerSettings::Replay(Replay { lag: 16, block, fresh: 0.5, ..Replay::default() }),
    ]
}

#[test]
fn an_epochs_first_samples_are_there_when_it_begins() {
    for sampler in samplers(Block::default()) {
        // At rest more than half of the window is filled.
        let run = run(sampler, 0, 48 * LANDED);
        let mut seen = Seen::new();
        for epoch in 0..5 {
            if epoch > 0 {
                run.rest();
            }
            let before = (run.by_batches.load(Relaxed), run.stat("misses_total"));
            let pass = deliver(&run.engine, 2, &mut seen);
            if epoch > 0 {
                // Where a pass over the dataset ends, one that is cached at the last look may be gone at its turn.
                let (asked, missed) = (run.by_batches.load(Relaxed) - before.0, run.stat("misses_total") - before.1);
                assert!(missed >= 8, "two batches want something new: {missed}");
                assert!(4 * asked <= missed, "epoch {epoch}: batches asked for {asked} of {missed} by themselves");
            }
            // One epoch is left early. What was read for its rest is the next one's.
            while epoch != 3
                && let crate::loader::Next::Batch(_) = run.engine.next_batch(pass, Duration::from_secs(60)).unwrap()
            {
            }
        }
        // One that was read for the next pass may be cached at its turn, where the passes meet.
        let (vain, fetched) = (run.stat("read_ahead_vain_total"), run.stat("fetched_samples_total"));
        assert!(50 * vain <= fetched, "{vain} of {fetched} in vain");
        run.engine.close();
        assert_eq!(run.stat("fetched_samples_total"), run.all.load(Relaxed));
    }
}

#[test]
fn the_same_batches_hits_and_states_come_whatever_is_read_ahead() {
    let whole = usize::MAX;
    for block in [Block::default(), Block::Of(8), Block::Auto] {
        for sampler in samplers(block) {
            // Loader threads decide more than is delivered of an epoch that is left.
            for (workers, most) in [(0, [whole, whole, 5, 0, whole, whole]), (2, [whole; 6])] {
                let told = |read_ahead| {
                    let run = run(sampler, workers, read_ahead);
                    let (mut seen, mut states) = (Seen::new(), Vec::new());
                    for (epoch, most) in most.into_iter().enumerate() {
                        // Requests become dear: blocks, where they are found, change in the middle of the stream.
                        run.request_bytes.store(if epoch < 2 { 0 } else { 100 }, Relaxed);
                        if epoch == 4 {
                            run.engine.set_epoch(9).unwrap();
                        }
                        deliver(&run.engine, most, &mut seen);
                        states.push(run.engine.state().unwrap());
                    }
                    run.engine.close();
                    assert_eq!(run.stat("read_ahead_bytes"), 0);
                    let counted = ["hits_total", "misses_total", "admitted_total", "evicted_total"];
                    (seen, states, counted.map(|name| run.stat(name)))
                };
                let expected = told(0);
                for read_ahead in [LANDED, 24 * LANDED, 1 << 20] {
                    let got = told(read_ahead);
                    assert_eq!((&got.0, got.2), (&expected.0, expected.2), "{sampler:?} {workers} {read_ahead}");
                    assert!(got.1 == expected.1, "a state tells what was read ahead: {sampler:?} {workers}");
                }
            }
        }
    }
}
