//! How long a training waits for a store: with samples read ahead and without, and what that costs in requests.
//!
//! `cargo bench -p lossfeed-benches --bench ahead`. The store is an HTTP server on this machine's loopback; its answers
//! wait 10 ms or 50 ms, and in one setting one in a hundred waits 500 ms. Bodies share one link. A training step is a
//! sleep, as long as the link needs for a batch times a factor: at 1 the store is exactly as fast as the training, at 2
//! there is twice the bandwidth that is needed, at 0.25 a quarter. No cache, so every sample comes from the store, in a
//! new order each epoch, and what can be reached at all is max(steps, link). Small samples: 20,000 of 3 KB,
//! batches of 256. Large ones: 1,500 of 110 KB, batches of 32. Two loader threads; shown is the second epoch, and what
//! was waited in the first. What was read of the second while the first was under way is no part of its seconds, and a
//! sample that both want is read once: the small ones fit in the window. Lines of JSON; `floor_seconds` is what the
//! steps alone or the link alone would take.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

#[allow(dead_code)]
mod store;

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use lossfeed::engine::Dataset;
use lossfeed::error::Result;
use lossfeed::loader::Next;
use lossfeed::sampler::{SamplerSettings, Uniform};
use lossfeed::source::{Facts, Form, ImageMode, Link, OpenOptions, Payload, Size, Source, Traffic, open};
use lossfeed::tune::fetch_plan::{Ask, Plan};
use lossfeed::{Dtype, Engine, SampleId, Settings, TensorSpec};
use store::{Server, shard};

/// One epoch, each batch followed by a step of `step`. Batches, and the seconds that were waited for them.
fn epoch(engine: &Engine, step: Duration) -> (usize, f64) {
    let pass = engine.start_epoch().unwrap();
    let (mut batches, mut waited) = (0, 0.0);
    let mut due = Instant::now();
    loop {
        let asked = Instant::now();
        let next = loop {
            match engine.next_batch(pass, Duration::from_millis(100)).unwrap() {
                Next::Pending => {}
                next => break next,
            }
        };
        waited += asked.elapsed().as_secs_f64();
        let Next::Batch(batch) = next else { return (batches, waited) };
        batches += 1;
        // A step begins when the one before has ended and its batch is there. Where nothing was waited for, what the
        // timer oversleeps is not added up.
        let ready = Instant::now();
        due = if ready - asked < Duration::from_millis(1) { due + step } else { ready + step };
        thread::sleep(due.saturating_duration_since(ready));
        drop(batch);
    }
}

/// Samples as they are stored, so that nothing but reading is measured.
struct Stored(Arc<dyn Source>, Facts);

impl Source for Stored {
    fn facts(&self) -> &Facts {
        &self.1
    }
    fn name(&self, id: SampleId) -> String {
        self.0.name(id)
    }
    fn size(&self, id: SampleId) -> Size {
        self.0.size(id)
    }
    fn fetch_by(
        &self,
        request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        self.0.fetch_by(request_bytes, stopped, ids, sink)
    }
    fn plan(&self, ids: &[SampleId], call: Ask) -> Option<Plan> {
        self.0.plan(ids, call)
    }
    fn along(&self, ids: &[SampleId], first: usize, request_bytes: u64) -> Vec<usize> {
        self.0.along(ids, first, request_bytes)
    }
    fn labels(&self) -> Option<&[i64]> {
        self.0.labels()
    }
    fn link(&self) -> Link {
        self.0.link()
    }
}

fn main() {
    let kinds = [("small", 20_000, 3000, 256), ("large", 1500, 110_000, 32)];
    let stores = [("10 ms", 10, 10), ("50 ms, 1 % 500 ms", 50, 500)];
    // Of which kind, if not of both, and whether only with samples read ahead: `-- large ahead`.
    let mut only: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let ahead = only.iter().any(|named| named == "ahead");
    only.retain(|named| named != "ahead");
    for (kind, samples, size, batch_size) in kinds {
        if !only.is_empty() && !only.iter().any(|named| named == kind) {
            continue;
        }
        let (server, url) = Server::start(shard(samples, || size));
        server.bytes_per_s.store(1 << 40, Ordering::Relaxed);
        let bytes = samples * size;
        for (store, latency, tail) in stores {
            server.latency_ms.store(latency, Ordering::Relaxed);
            server.tail_ms.store(tail, Ordering::Relaxed);
            for (mb_per_s, factor) in [(40u64, 2.0), (40, 1.0), (40, 0.25)] {
                for read_ahead in [0, 128 << 20].into_iter().filter(|&bytes| bytes > 0 || !ahead) {
                    server.bytes_per_s.store(1 << 40, Ordering::Relaxed);
                    let source = open(&url, &OpenOptions::default()).unwrap();
                    server.bytes_per_s.store(mb_per_s * 1_000_000, Ordering::Relaxed);
                    let batches = samples.div_ceil(batch_size);
                    let link = bytes as f64 / (mb_per_s as f64 * 1e6);
                    let step = Duration::from_secs_f64(link * factor / batches as f64);
                    let settings = Settings {
                        batch_size,
                        workers: Some(2),
                        read_ahead: Some(read_ahead),
                        sampler: SamplerSettings::Uniform(Uniform::default()),
                        stats: false,
                        ..Settings::default()
                    };
                    let form = Form::Rows(TensorSpec::new(Dtype::U8, [size]));
                    let facts = Facts { form, ..source.facts().clone() };
                    let dataset = Dataset::new(Arc::new(Stored(source, facts)), ImageMode::Auto, None).unwrap();
                    let engine = Engine::new(dataset, settings).unwrap();
                    let (_, cold_waited) = epoch(&engine, step);
                    let ((count, waited), took) = server.counted(|| epoch(&engine, step));
                    assert_eq!(count, batches);
                    let requests = engine.source().link().requests_ahead;
                    let floor = link.max(step.as_secs_f64() * batches as f64);
                    println!(
                        "{{\"samples\":\"{kind}\",\"store\":\"{store}\",\"compute_over_link\":{factor},\"read_ahead\":{read_ahead},\
                         \"floor_seconds\":{floor:.2},\"waited_seconds\":{waited:.3},\"cold_waited_seconds\":{cold_waited:.3},\"requests_in_flight\":{requests},{took}}}"
                    );
                    std::io::stdout().flush().unwrap();
                    engine.close();
                }
            }
        }
    }
}
