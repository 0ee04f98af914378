//! Stats pages as OpenMetrics text. Pure. <https://prometheus.io/docs/specs/om/open_metrics_spec/>
//!
//! Counters and gauges have the names, help and units of their definitions, in base units: seconds for microseconds, a
//! ratio for millionths. Ratios of counters are left to queries, over the time that a query asks for.

use lossfeed_stats::{Counters, Descriptor, Discovery, JobPage, Kind, Unit};

/// The format's media type.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The exposition of all living engines.
pub(super) fn text(found: &Discovery) -> String {
    let living: Vec<&JobPage> = found.jobs.iter().filter(|page| page.alive).collect();
    let mut text = String::new();
    head(&mut text, "lossfeed_engine", "info", "", "A running engine.");
    for page in &living {
        let id = &page.identity;
        let (pid, uid, world_size) = (page.pid.to_string(), page.uid.to_string(), id.world_size.to_string());
        let more = [
            ("pid", &pid[..]),
            ("uid", &uid),
            ("world_size", &world_size),
            ("sampler", &id.sampler),
            ("policy", &id.policy),
            ("source", &id.source),
            ("device", &id.device),
            ("gpu_uuid", id.gpu_uuid.as_deref().unwrap_or("")),
            ("version", &page.version),
        ];
        text += &format!("lossfeed_engine_info{{{}}} 1\n", labels(page, &more));
    }
    head(
        &mut text,
        "lossfeed_updated_timestamp_seconds",
        "gauge",
        "seconds",
        "When the engine last wrote its numbers.",
    );
    for page in &living {
        let seconds = page.updated_unix_ms as f64 / 1e3;
        text += &format!("lossfeed_updated_timestamp_seconds{{{}}} {seconds:.3}\n", labels(page, &[]));
    }
    for number in Counters::DESCRIPTORS {
        let (family, unit, scale) = family(number);
        let (kind, suffix) = match number.kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
        };
        head(&mut text, &family, kind, unit, &help(number, unit));
        for page in &living {
            let Some(value) = page.snapshot.get(number.name) else { continue };
            let value = if scale == 1.0 { value.to_string() } else { format!("{:.6}", value as f64 * scale) };
            text += &format!("{family}{suffix}{{{}}} {value}\n", labels(page, &[]));
        }
    }
    head(&mut text, "lossfeed_unreadable_pages", "gauge", "", "Stats pages that cannot be read.");
    text += &format!("lossfeed_unreadable_pages {}\n# EOF\n", found.unreadable.len());
    text
}

/// The family of a number: its name, its unit if the name ends with it, and the scale to base units.
fn family(number: &Descriptor) -> (String, &'static str, f64) {
    let name = number.name.strip_suffix("_total").unwrap_or(number.name);
    let without = |unit: &str| name.split('_').filter(|&word| word != unit).collect::<Vec<_>>().join("_");
    let (name, unit, scale) = match number.unit {
        Unit::Microseconds => (format!("{}_seconds", without("us")), "seconds", 1e-6),
        Unit::Millionths => (format!("{}_ratio", without("ppm")), "ratio", 1e-6),
        unit => (name.to_owned(), unit.name(), 1.0),
    };
    let unit = if name.ends_with(&format!("_{unit}")) { unit } else { "" };
    (format!("lossfeed_{name}"), unit, scale)
}

/// A number's help, with its unit where no metadata says it, and the meaning of codes.
fn help(number: &Descriptor, unit: &str) -> String {
    let mut text = number.help.replace(" (µs)", "").replace(" (µs,", " (").replace(", in millionths", "");
    let codes = number.codes();
    if unit.is_empty() && codes.is_empty() {
        text += &format!(" Unit: {}.", number.unit.name());
    }
    if !codes.is_empty() {
        let codes: Vec<String> = codes.iter().map(|(code, words)| format!("{code} {words}")).collect();
        text += &format!(" Values: {}.", codes.join("; "));
    }
    text
}

fn head(text: &mut String, family: &str, kind: &str, unit: &str, help: &str) {
    *text += &format!("# TYPE {family} {kind}\n");
    if !unit.is_empty() {
        *text += &format!("# UNIT {family} {unit}\n");
    }
    *text += &format!("# HELP {family} {}\n", escaped(help));
}

/// The labels of an engine's series. Its page's name is the only thing that no other engine of the machine has.
fn labels(page: &JobPage, more: &[(&str, &str)]) -> String {
    let engine = page.path.file_stem().unwrap_or_default().to_string_lossy();
    let rank = page.identity.rank.to_string();
    let all = [("engine", &engine[..]), ("job", &page.identity.job), ("rank", &rank)];
    let all = all.iter().chain(more).filter(|(_, value)| !value.is_empty());
    all.map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect::<Vec<_>>().join(",")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use lossfeed_stats::{Identity, Publisher, discover_in};

    use super::*;

    #[test]
    fn names_are_distinct_in_base_units_and_end_with_the_unit_they_declare() {
        let families: Vec<_> = Counters::DESCRIPTORS.iter().map(family).collect();
        let names: HashSet<&String> = families.iter().map(|(name, _, _)| name).collect();
        assert_eq!(names.len(), families.len());
        let of = |name: &str| family(Counters::DESCRIPTORS.iter().find(|d| d.name == name).unwrap());
        assert_eq!(of("wait_source_us_total"), ("lossfeed_wait_source_seconds".to_owned(), "seconds", 1e-6));
        assert_eq!(of("store_us_p99"), ("lossfeed_store_p99_seconds".to_owned(), "seconds", 1e-6));
        assert_eq!(of("fetched_bytes_total"), ("lossfeed_fetched_bytes".to_owned(), "bytes", 1.0));
        assert_eq!(of("ess_ppm"), ("lossfeed_ess_ratio".to_owned(), "ratio", 1e-6));
        assert_eq!(of("hits_total"), ("lossfeed_hits".to_owned(), "", 1.0));
        for number in Counters::DESCRIPTORS {
            let (name, unit, _) = family(number);
            assert!(!name.split('_').any(|word| ["us", "ppm", "total"].contains(&word)), "{name}");
            assert!(unit.is_empty() || name.ends_with(unit), "{name} {unit}");
            assert!(!help(number, unit).contains("µs"), "{}", help(number, unit));
        }
    }

    #[test]
    fn engines_of_one_job_and_rank_have_series_of_their_own_and_names_are_escaped() {
        let directory = tempfile::tempdir().unwrap();
        let place = [directory.path().join("pages")];
        let identity = Identity { job: "a \"b\"\\c".to_owned(), rank: 3, world_size: 4, ..Identity::default() };
        let start = || {
            let counters = Arc::new(Counters::default());
            Counters::add(&counters.wait_us_total, 1_500_000);
            let publisher = Publisher::start_in(&place, identity.clone(), counters).unwrap();
            publisher.publish();
            publisher
        };
        let (_one, _two) = (start(), start());
        let text = text(&discover_in(&place));
        let series: HashSet<&str> =
            text.lines().filter(|line| line.starts_with("lossfeed_wait_seconds_total{")).collect();
        assert_eq!(series.len(), 2, "{text}");
        assert!(series.iter().all(|line| line.contains(r#",job="a \"b\"\\c",rank="3"} 1.500000"#)), "{series:?}");
        assert!(text.ends_with("\nlossfeed_unreadable_pages 0\n# EOF\n"), "{text}");
        assert!(
            text.contains("# TYPE lossfeed_wait_seconds counter\n# UNIT lossfeed_wait_seconds seconds\n"),
            "{text}"
        );
    }

    #[test]
    fn without_engines_the_families_are_there_and_no_series() {
        let text = text(&Discovery::default());
        let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(series, ["lossfeed_unreadable_pages 0"]);
    }
}
