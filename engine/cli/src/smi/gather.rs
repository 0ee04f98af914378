//! Everything `smi` shows, collected at one instant.

use std::time::{SystemTime, UNIX_EPOCH};

use lossfeed_stats::{self as stats, JobPage, Sample};

use super::fields::harmless;
use super::snapshot::{Engine, SCHEMA_VERSION, Snapshot, Unreadable, rfc3339};
use super::{held, nvml};

/// Seconds that "lately" means for a rate.
const RATE_WINDOW: usize = 10;

/// Seconds of history handed to the drawing.
const HISTORY_S: usize = 120;

/// Reads NVML and every stats page.
pub(super) fn snapshot() -> Snapshot {
    let (nvml, mut gpus) = nvml::read();
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    let found = stats::discover_all();
    let mut engines: Vec<Engine> = found.jobs.iter().map(|page| engine(page, now_ms)).collect();
    order(&mut engines);
    held::mark(&mut gpus, &engines);
    Snapshot {
        schema_version: SCHEMA_VERSION,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        time: rfc3339(now_ms / 1000),
        host: std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|h| h.trim().to_owned()),
        nvml,
        gpus,
        engines,
        engines_of_others: found.hidden,
        unreadable: found.unreadable.iter().map(unreadable).collect(),
    }
}

/// The living by pid, then the ended, the last to end first.
pub(super) fn order(engines: &mut [Engine]) {
    engines.sort_by(|a, b| {
        let ended = a.age_seconds.total_cmp(&b.age_seconds);
        b.alive.cmp(&a.alive).then(if a.alive { a.pid.cmp(&b.pid) } else { ended })
    });
}

/// A page that cannot be read, as a row.
fn unreadable(page: &stats::Unreadable) -> Unreadable {
    // Anyone who may write to the directory chose the file's name.
    Unreadable { path: harmless(&page.path.display().to_string()), reason: page.reason.clone() }
}

/// A page, as a row.
fn engine(page: &JobPage, now_ms: u64) -> Engine {
    let identity = &page.identity;
    let recent = &page.history[page.history.len().saturating_sub(RATE_WINDOW)..];
    // What an ended engine once did a second is not what it does.
    let rate = |name: &str| page.alive.then(|| per_second(recent, name)).flatten();
    let shares = rate("wait_us_total").zip(rate("busy_us_total"));
    Engine {
        page: page.path.clone(),
        pid: page.pid,
        uid: page.uid,
        alive: page.alive,
        started: rfc3339(page.started_unix_ms / 1000),
        age_seconds: now_ms.saturating_sub(page.updated_unix_ms) as f64 / 1000.0,
        version: page.version.clone(),
        job: identity.job.clone(),
        rank: identity.rank,
        world_size: identity.world_size,
        source: identity.source.clone(),
        policy: identity.policy.clone(),
        sampler: identity.sampler.clone(),
        device: identity.device.clone(),
        gpu_uuid: identity.gpu_uuid.clone(),
        samples_per_s: rate("samples_total"),
        fetched_bytes_per_s: rate("fetched_bytes_total"),
        stall_lately: shares.and_then(|(wait, busy)| stats::stall(wait as u64, busy as u64)),
        stall_history: stalls(&page.history[page.history.len().saturating_sub(HISTORY_S)..]),
        // All that is on the page, also what this program does not know.
        counters: page.snapshot.iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        ..Engine::default()
    }
    .derive()
}

/// Growth of a counter over the samples, a second.
fn per_second(samples: &[Sample], name: &str) -> Option<f64> {
    let (first, last) = (samples.first()?, samples.last()?);
    let elapsed_ms = last.unix_ms.checked_sub(first.unix_ms).filter(|&ms| ms > 0)?;
    let grown = last.get(name)?.checked_sub(first.get(name)?)?;
    Some(grown as f64 * 1000.0 / elapsed_ms as f64)
}

/// Stall share of each second; a second in which the consumer neither waited nor worked counts as none.
fn stalls(samples: &[Sample]) -> Vec<f64> {
    let grown = |pair: &[Sample], name: &str| Some(pair[1].get(name)?.saturating_sub(pair[0].get(name)?));
    let share = |pair: &[Sample]| {
        Some(stats::stall(grown(pair, "wait_us_total")?, grown(pair, "busy_us_total")?).unwrap_or(0.0))
    };
    samples.windows(2).filter_map(share).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use lossfeed_stats::{Counters, HISTORY, Identity, Publisher};

    use super::*;

    fn sample(unix_ms: u64, numbers: &[(&str, u64)]) -> Sample {
        let mut values = [Some(0); HISTORY.len()];
        for (name, value) in numbers {
            values[HISTORY.iter().position(|n| n == name).unwrap()] = Some(*value);
        }
        Sample { unix_ms, values }
    }

    #[test]
    fn rates_are_growth_over_the_time_that_really_passed() {
        let samples = [sample(1000, &[("samples_total", 100)]), sample(3000, &[("samples_total", 1100)])];
        assert_eq!(per_second(&samples, "samples_total"), Some(500.0));
        assert_eq!(per_second(&samples[..1], "samples_total"), None);
        assert_eq!(per_second(&[samples[1], samples[0]], "samples_total"), None);
    }

    #[test]
    fn the_stall_of_a_second_is_its_own_and_not_the_runs() {
        let at = |ms, wait, busy| sample(ms, &[("wait_us_total", wait), ("busy_us_total", busy)]);
        let samples = [at(0, 900, 100), at(1000, 1000, 400), at(2000, 1000, 400)];
        assert_eq!(stalls(&samples), [0.25, 0.0]);
    }

    #[test]
    fn an_engine_that_publishes_is_shown_with_its_own_words_and_numbers() {
        let directory = tempfile::tempdir().unwrap();
        let counters = Arc::new(Counters::default());
        counters.requests_total.store(10, Ordering::Relaxed);
        counters.hits_total.store(4, Ordering::Relaxed);
        let identity =
            Identity { job: "resnet".to_owned(), world_size: 1, policy: "shade".to_owned(), ..Identity::default() };
        let place = [directory.path().join("pages")];
        let publisher = Publisher::start_in(&place, identity, counters).unwrap();
        publisher.publish();
        let found = stats::discover_in(&place);
        assert_eq!(found.jobs.len(), 1, "{:?}", found.unreadable);
        let row = engine(&found.jobs[0], found.jobs[0].updated_unix_ms + 2500);
        assert_eq!((row.job.as_str(), row.policy.as_str(), row.alive), ("resnet", "shade", true));
        assert_eq!((row.pid, row.ratio(stats::HIT_RATIO)), (std::process::id(), Some(0.4)));
        assert_eq!((row.counters.len(), row.age_seconds), (Counters::NAMES.len(), 2.5));
    }
}
