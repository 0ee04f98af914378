//! What is computed from the counters: defined here, and used by everyone who shows a ratio.
//!
//! A ratio of nothing is unknown (`None`) and not 0.

use super::counters::{Counters, Descriptor, Kind, Snapshot, Unit};

/// Looks a counter up by its name; `None` if it is not known.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<u64>;

/// A metric that is computed from counters.
#[derive(Debug, Clone, Copy)]
pub struct Derived {
    /// Name, unit and meaning; always a gauge.
    pub descriptor: Descriptor,
    compute: fn(Lookup<'_>) -> Option<f64>,
}

impl Derived {
    const fn ratio(name: &'static str, help: &'static str, compute: fn(Lookup<'_>) -> Option<f64>) -> Self {
        Self { descriptor: Descriptor { name, kind: Kind::Gauge, unit: Unit::Ratio, help }, compute }
    }

    /// Its value, or `None` while there is nothing to divide by.
    pub fn of(&self, counter: Lookup<'_>) -> Option<f64> {
        (self.compute)(counter)
    }
}

/// Hits by requests.
pub const HIT_RATIO: Derived = Derived::ratio(
    "hit_ratio",
    "Share of the requested samples that were in the cache, since the start. Read it with `coverage_epoch`: repeating \
     few samples hits very well.",
    |of| share(of("hits_total")?, of("requests_total")?),
);

/// Over what the cache did not have. Never added to the hit ratio.
pub const ON_TIME_RATIO: Derived = Derived::ratio(
    "on_time_ratio",
    "Share of the delivered samples without a cache hit that were ready when their batch needed them, since the start.",
    |of| {
        let on_time = of("on_time_total")?;
        share(on_time, on_time.saturating_add(of("late_total")?))
    },
);

/// See [`stall`].
pub const STALL_FRACTION: Derived = Derived::ratio(
    "stall_fraction",
    "Share of the training's time spent waiting for batches, since the start.",
    |of| stall(of("wait_us_total")?, of("busy_us_total")?),
);

/// Over the samples that this rank draws from.
pub const COVERAGE_EPOCH: Derived = Derived::ratio(
    "coverage_epoch",
    "Share of this rank's samples that were delivered at least once in this epoch, so far.",
    |of| share(of("distinct_epoch")?, of("samples_in_share")?),
);

/// Over the whole dataset: over the epochs a rank may draw from all of it.
pub const COVERAGE_EVER: Derived = Derived::ratio(
    "coverage_ever",
    "Share of the whole dataset that this rank delivered at least once since the start.",
    |of| share(of("distinct_ever")?, of("samples_in_dataset")?),
);

/// Unknown before the first batch.
pub const ESS_FRACTION: Derived = Derived::ratio(
    "ess_fraction",
    "Effective sample size of this epoch's weights so far, as a share of its rows; 1: all weights are equal.",
    |of| of("ess_ppm").filter(|&ppm| ppm > 0).map(|ppm| ppm as f64 / 1e6),
);

/// All of them.
pub const DERIVED: [Derived; 6] =
    [HIT_RATIO, ON_TIME_RATIO, STALL_FRACTION, COVERAGE_EPOCH, COVERAGE_EVER, ESS_FRACTION];

/// The share of its time that a consumer waited, of what it `waited` and worked.
pub fn stall(waited: u64, worked: u64) -> Option<f64> {
    share(waited, waited.saturating_add(worked))
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// What an exporter can show: every counter, and what is computed from them.
pub fn descriptors() -> impl Iterator<Item = Descriptor> {
    Counters::DESCRIPTORS.iter().copied().chain(DERIVED.map(|metric| metric.descriptor))
}

impl Snapshot {
    /// Every number and every derived metric by name, former names included. What is unknown is 0.
    pub fn flat(&self) -> Vec<(String, f64)> {
        let counters = self.iter().map(|(name, value)| (name, value as f64));
        let renamed = super::RENAMED.map(|(old, _)| (old, self.get(old).unwrap_or(0) as f64));
        let derived = DERIVED.map(|d| (d.descriptor.name, d.of(&|name| self.get(name)).unwrap_or(0.0)));
        counters.chain(renamed).chain(derived).map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_unknown_before_there_is_anything_to_divide_by() {
        let nothing = Counters::default().snapshot();
        for metric in DERIVED {
            assert_eq!(metric.of(&|name| nothing.get(name)), None, "{}", metric.descriptor.name);
            assert_eq!(metric.of(&|_| None), None, "a page without these counters");
        }
    }

    #[test]
    fn each_is_what_its_help_says() {
        let counters = Counters::default();
        for (counter, value) in [
            (&counters.requests_total, 200),
            (&counters.hits_total, 50),
            (&counters.on_time_total, 90),
            (&counters.late_total, 10),
            (&counters.wait_us_total, 30),
            (&counters.busy_us_total, 70),
            (&counters.samples_in_dataset, 1000),
            (&counters.samples_in_share, 125),
            (&counters.distinct_epoch, 125),
            (&counters.distinct_ever, 250),
            (&counters.ess_ppm, 812_000),
        ] {
            Counters::set(counter, value);
        }
        let snapshot = counters.snapshot();
        let values = DERIVED.map(|metric| metric.of(&|name| snapshot.get(name)).unwrap());
        assert_eq!(values, [0.25, 0.9, 0.3, 1.0, 0.25, 0.812]);
        let flat = snapshot.flat();
        let get = |name: &str| flat.iter().find(|(n, _)| n == name).map(|(_, value)| *value);
        assert_eq!(
            (get("coverage_epoch"), get("hits_total"), get("wait_score_us_total")),
            (Some(1.0), Some(50.0), Some(0.0))
        );
        assert_eq!(stall(u64::MAX, u64::MAX), Some(1.0), "damaged numbers stay finite");
    }

    #[test]
    fn everything_an_exporter_shows_has_a_name_of_its_own_and_help() {
        let all: Vec<Descriptor> = descriptors().collect();
        assert_eq!(all.len(), Counters::NAMES.len() + DERIVED.len());
        let names: std::collections::HashSet<_> = all.iter().map(|d| d.name).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.iter().all(|d| d.help.ends_with('.') && !d.help.contains("  ")), "{all:?}");
    }
}
