//! The fields of an engine: one table for `-q`, `--query-engine`, its help and exported CSV. What an engine counts
//! comes from the counters' definitions, and every value from the JSON form.

use lossfeed_stats as stats;
use serde_json::Value;

use super::snapshot::Engine;
use crate::term;

/// A field.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    /// Empty for text and for numbers without one.
    unit: &'static str,
    help: &'static str,
}

const fn field(name: &'static str, unit: &'static str, help: &'static str) -> Field {
    Field { name, unit, help }
}

/// The fields that are no counters and no ratios of them.
const OWN: [Field; 23] = [
    field("pid", "", "Process id, in the engine's own pid namespace."),
    field("uid", "", "User id of the process."),
    field("job", "", "Name of the job."),
    field("rank", "", "Rank in the job."),
    field("world_size", "", "Ranks in the job."),
    field("alive", "", "False if the process has ended."),
    field("state", "", "One word: starts, the verdict, stopped, ended."),
    field("started", "", "Start of the engine, RFC 3339, UTC."),
    field(
        "age_seconds",
        "seconds",
        "Time since the engine last wrote its numbers: above 5, it is stopped or has ended.",
    ),
    field("version", "", "Version of lossfeed that the engine runs."),
    field("source", "", "Where the data is, without secrets."),
    field("policy", "", "Cache policy."),
    field("sampler", "", "Sampler."),
    field("device", "", "Device the batches go to."),
    field("gpu_uuid", "", "NVML's id of that device, if it is a GPU."),
    field("verdict", "", "Why the run waits, in one word."),
    field("cause", "", "The cause that the verdict names."),
    field("why", "", "The numbers that the verdict rests on."),
    field("next", "", "One thing to try; empty where nothing is wrong."),
    field("samples_per_s", "samples/s", "Samples delivered a second, over the last 10 seconds."),
    field("fetched_bytes_per_s", "bytes/s", "Bytes fetched from the source a second, over the last 10 seconds."),
    field("stall_lately", "ratio", "Share of the last 10 seconds in which the training waited for a batch."),
    field("step_seconds", "seconds", "Mean time of a step since the start, waiting included."),
];

/// All fields.
pub(crate) fn all() -> impl Iterator<Item = Field> {
    let counted = stats::descriptors().map(|number| {
        // A code's and a ratio's value says all without a unit.
        let unit = if number.unit == stats::Unit::Code { "" } else { number.unit.name() };
        field(number.name, unit, number.help)
    });
    OWN.into_iter().chain(counted)
}

fn names() -> Vec<&'static str> {
    all().map(|field| field.name).collect()
}

/// Unit of the field with that name; empty without one.
fn unit(name: &str) -> &'static str {
    all().find(|field| field.name == name).map_or("", |field| field.unit)
}

/// The values of these fields.
fn values(engine: &Engine, names: &[&str]) -> Vec<Value> {
    let json = serde_json::to_value(engine).unwrap_or_default();
    let value = |name: &str| json.get(name).or_else(|| json["counters"].get(name)).cloned().unwrap_or_default();
    names.iter().map(|name| value(name)).collect()
}

/// A value as text, with its unit if that is wanted.
fn shown(value: &Value, unit: &str, units: bool) -> String {
    match value {
        Value::Null => "[N/A]".to_owned(),
        Value::String(text) => harmless(text),
        Value::Number(_) if units && !unit.is_empty() && unit != "ratio" => format!("{value} {unit}"),
        other => other.to_string(),
    }
}

/// The head of a CSV document with these fields, as nvidia-smi writes it: `name [unit]`.
pub(super) fn csv_head(names: &[&str]) -> String {
    let heads = names.iter().map(|&name| match unit(name) {
        "" => name.to_owned(),
        unit => format!("{name} [{unit}]"),
    });
    heads.collect::<Vec<_>>().join(", ")
}

/// A line of CSV.
pub(super) fn csv_line(engine: &Engine, names: &[&str], units: bool) -> String {
    let cells =
        values(engine, names).into_iter().zip(names).map(|(value, name)| quoted(shown(&value, unit(name), units)));
    cells.collect::<Vec<_>>().join(", ")
}

/// A cell that a comma or a quote would break is quoted as RFC 4180 has it.
fn quoted(text: String) -> String {
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

/// A document of all fields, for export.
pub(super) fn csv(engines: &[Engine]) -> String {
    let names = names();
    let lines = engines.iter().map(|engine| csv_line(engine, &names, false));
    std::iter::once(csv_head(&names)).chain(lines).map(|line| line + "\n").collect()
}

/// Every field of an engine, one a line.
pub(super) fn full(engine: &Engine) -> String {
    let lines = values(engine, &names()).into_iter().zip(all());
    let lines = lines.map(|(value, field)| format!("    {:<32}: {}\n", field.name, shown(&value, field.unit, true)));
    format!("{}\n{}", line(engine), lines.collect::<String>())
}

/// An engine in a line, as `nvidia-smi -L` has a GPU.
pub(super) fn line(engine: &Engine) -> String {
    let Engine { pid, job, rank, world_size, device, .. } = engine;
    let uuid = engine.gpu_uuid.as_ref().map(|uuid| format!(", UUID: {uuid}")).unwrap_or_default();
    let text = format!("Engine {pid}: {job} (rank {rank} of {world_size}, {device}{uuid}): {}", engine.state);
    harmless(&text)
}

/// Text that cannot steer a terminal.
pub(super) fn harmless(text: &str) -> String {
    text.chars().map(|c| if stats::steers_terminal(c) { '?' } else { c }).collect()
}

/// The help of `--query-engine`: every field with unit and meaning.
pub(super) fn help() -> String {
    let width = usize::from(term::width()) - 4;
    let text = |field: Field| {
        let unit = if field.unit.is_empty() { String::new() } else { format!(" [{}]", field.unit) };
        let lines: String = term::wrap(field.help, width).iter().map(|line| format!("    {line}\n")).collect();
        format!("{}{unit}\n{lines}", field.name)
    };
    format!("Fields of --query-engine:\n\n{}", all().map(text).collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::super::demo;
    use super::*;

    #[test]
    fn every_key_of_the_json_form_is_a_field_and_every_field_has_a_value() {
        let engine = &demo::snapshot(600.0).engines[0];
        let json = serde_json::to_value(engine).unwrap();
        let names: Vec<&str> = all().map(|field| field.name).collect();
        let keys = json.as_object().unwrap().keys().filter(|key| !["counters", "stall_history"].contains(&&key[..]));
        assert!(keys.clone().count() > 20);
        for key in keys {
            assert!(names.contains(&&key[..]), "{key} has no line in the table of fields");
        }
        for name in &names {
            let found = json.get(name).or_else(|| json["counters"].get(name));
            assert!(found.is_some(), "{name} is no key of the JSON form");
        }
        assert_eq!(names.iter().collect::<std::collections::HashSet<_>>().len(), names.len());
        assert!(all().all(|field| field.help.ends_with('.')));
    }

    #[test]
    fn csv_is_nvidia_smis_with_quotes_where_a_name_would_break_it() {
        let mut engine = demo::snapshot(600.0).engines.remove(0);
        engine.job = "a, \"b\"\n\u{1b}[2J".to_owned();
        engine.samples_per_s = None;
        let names = ["job", "cache_capacity_bytes", "samples_per_s", "rank"];
        assert_eq!(csv_head(&names), "job, cache_capacity_bytes [bytes], samples_per_s [samples/s], rank");
        let bytes = engine.counters["cache_capacity_bytes"];
        assert_eq!(csv_line(&engine, &names, true), format!("\"a, \"\"b\"\"??[2J\", {bytes} bytes, [N/A], 0"));
        assert_eq!(csv_line(&engine, &names[1..], false), format!("{bytes}, [N/A], 0"));
        assert!(full(&engine).lines().count() > 80 && !full(&engine).contains('\u{1b}'));
    }
}
