//! Live ranks as stats pages, so that `lossfeed smi` shows a program of any loader. A rank of `lossfeed.Loader` has its
//! engine's page already.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use lossfeed_stats::{Counters, Identity, Publisher};

use super::records::{Record, job};
use super::times;

/// The pages of this run, by pid. Each goes with this value.
#[derive(Default)]
pub(super) struct Pages {
    published: BTreeMap<u32, (Arc<Counters>, Option<Publisher>)>,
}

impl Pages {
    /// Brings the pages up to the records; a publisher writes them within the second.
    pub(super) fn refresh(&mut self, records: &[Record]) {
        let ranks: Vec<&Record> = job(records).into_iter().filter(|rank| rank.numbers.get("torch") > 0.0).collect();
        self.published.retain(|pid, _| ranks.iter().any(|rank| rank.pid == *pid));
        for rank in ranks {
            let (counters, _) = self.published.entry(rank.pid).or_insert_with(|| {
                let counters = Arc::new(Counters::default());
                // Without a page the run is still measured.
                let page = Publisher::start_for(rank.pid, identity(rank), Arc::clone(&counters)).ok();
                (counters, page)
            });
            for (name, value) in times::counters(rank) {
                if let Some(counter) = counters.named(name) {
                    Counters::set(counter, value);
                }
            }
        }
    }
}

fn identity(rank: &Record) -> Identity {
    let words = &rank.words;
    let script = Path::new(&words.script).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    Identity {
        job: script.filter(|stem| !stem.is_empty()).unwrap_or_else(|| "why".to_owned()),
        rank: words.rank,
        world_size: words.world_size.max(1),
        policy: String::new(),
        sampler: "why".to_owned(),
        source: words.source.clone(),
        device: words.device.clone(),
        gpu_uuid: words.gpu_uuid.clone().filter(|uuid| !uuid.is_empty()),
    }
}
