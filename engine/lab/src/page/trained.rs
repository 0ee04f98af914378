//! Accuracy against bytes: the runs of `lossfeed train` beside what was replayed.

use std::io::Read;
use std::path::Path;

use lossfeed_control::{Error, Result};
use serde::Deserialize;
use serde_json::Value;

use super::chart::{escape, short};
use super::lines::{Line, Lines};

/// The most that is read: a million runs would fit.
const BYTES_MAX: u64 = 1 << 28;

/// The contents of a `--trained` file.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Trained {
    /// None in a record of the benchmarks.
    job: Option<Job>,
    runs: Vec<Run>,
}

/// The dataset of the runs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Job {
    data: String,
    train_samples: u64,
}

/// A finished run.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Run {
    recipe: String,
    seed: u64,
    /// On the test data, 0 to 1.
    accuracy: f64,
    fetched_bytes: u64,
}

/// What `lossfeed train --json` printed, or a record of the benchmarks: one document with `runs`.
///
/// # Errors
/// `Unreadable`, with the line, if it is neither.
pub(crate) fn read(path: &Path) -> Result<Trained> {
    let failed = |what: String| Error::unreadable(format!("{}: {what}", path.display()));
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| failed("cannot open".to_owned()).because(e))?;
    let read = file.take(BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|e| failed("cannot read".to_owned()).because(e))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(failed(format!("has more than {BYTES_MAX} bytes: give what lossfeed train --json printed")));
    }
    let trained = parse(&text).map_err(failed)?;
    if trained.runs.is_empty() {
        return Err(failed("has no finished run: give what lossfeed train --json printed".to_owned()));
    }
    Ok(trained)
}

fn parse(text: &str) -> std::result::Result<Trained, String> {
    let run = |value: Value, what: &str| {
        let run: Run = serde_json::from_value(value).map_err(|e| format!("{what} is no finished run: {e}"))?;
        let fits = (0.0..=1.0).contains(&run.accuracy);
        fits.then_some(run).ok_or_else(|| format!("{what} has an accuracy that is not within 0 and 1"))
    };
    if let Ok(Value::Object(mut record)) = serde_json::from_str::<Value>(text)
        && let Some(Value::Array(runs)) = record.remove("runs")
    {
        let runs = runs.into_iter().enumerate().map(|(k, value)| run(value, &format!("run {k}")));
        return Ok(Trained { job: None, runs: runs.collect::<std::result::Result<_, _>>()? });
    }
    let mut trained = Trained::default();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let value: Value = serde_json::from_str(line).map_err(|e| format!("line {number} is no JSON: {e}"))?;
        match value.get("event").and_then(Value::as_str) {
            Some("run") => trained.runs.push(run(value, &format!("line {number}"))?),
            Some("job") => trained.job = serde_json::from_value(value).ok(),
            _ => {}
        }
    }
    Ok(trained)
}

/// Runs of one recipe, in the order of their first appearance.
fn by_recipe(runs: &[Run]) -> Vec<(&str, Vec<&Run>)> {
    let mut recipes: Vec<(&str, Vec<&Run>)> = Vec::new();
    for run in runs {
        match recipes.iter_mut().find(|(recipe, _)| *recipe == run.recipe) {
            Some((_, of)) => of.push(run),
            None => recipes.push((&run.recipe, vec![run])),
        }
    }
    recipes
}

/// The sampler and the policy of a recipe, without options: recipes that differ in options alone are one line.
fn family(recipe: &str) -> &str {
    recipe.split(':').next().unwrap_or(recipe)
}

fn mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = values.clone().count().max(1);
    values.sum::<f64>() / count as f64
}

/// Chart and table beside a replay of a dataset of so many samples; nothing without runs.
pub(super) fn section(Trained { job, runs }: &Trained, replayed: usize) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let of = job.as_ref().map_or_else(
        || "The file does not name the runs' dataset: check that it is the replayed one.".to_owned(),
        |Job { data, train_samples: n }| {
            let other = if *n == replayed as u64 { "" } else { ", so perhaps another dataset" };
            format!("The runs trained on {n} samples of {data}; {replayed} were replayed{other}.")
        },
    );
    let recipes = by_recipe(runs);
    let mut families: Vec<&str> = Vec::new();
    for (recipe, _) in &recipes {
        if !families.contains(&family(recipe)) {
            families.push(family(recipe));
        }
    }
    let mut lines: Vec<Line> = Vec::new();
    for (kind, name) in families.iter().enumerate() {
        for control in [false, true] {
            let of = recipes.iter().filter(|(r, _)| family(r) == *name && r.contains(":random_scores=") == control);
            let point = |(_, runs): &(&str, Vec<&Run>)| {
                let bytes = mean(runs.iter().map(|run| run.fetched_bytes as f64));
                (bytes / 1e6, 100.0 * mean(runs.iter().map(|run| run.accuracy)))
            };
            let mut points: Vec<_> = of.map(point).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            if !points.is_empty() {
                let name = if control { format!("{name}, noise") } else { (*name).to_owned() };
                lines.push(Line { name, kind, control, points });
            }
        }
    }
    let chart = Lines {
        what: "Accuracy by bytes fetched",
        x_name: "fetched in the whole run (MB)",
        y_name: "accuracy (%)",
        units: (" MB", "%"),
        log: (false, false),
        whole: false,
        y_most: None,
        close: true,
        lines: &lines,
    };
    let mut html = format!(
        "<h2>Accuracy against bytes</h2>\n<p>{}</p>\n<p class=\"note\">Trained, not replayed. A mark is the mean of a \
         recipe's runs; a line joins recipes that differ in options alone. Up and to the left is better. The axis of \
         accuracy does not begin at 0.</p>\n{}<div class=\"wide\"><table>\n<thead><tr><th class=\"word\">recipe</th>\
         <th>accuracy % by seed</th><th>mean</th><th>against {}</th><th>MB fetched</th></tr></thead>\n<tbody>\n",
        escape(&of),
        chart.draw(),
        escape(recipes[0].0)
    );
    let first = &recipes[0].1;
    for (recipe, of) in &recipes {
        let mut of = of.clone();
        of.sort_by_key(|run| run.seed);
        let each: Vec<String> = of.iter().map(|run| format!("{:.1}", 100.0 * run.accuracy)).collect();
        let pairs = of.iter().filter_map(|run| {
            let other = first.iter().find(|other| other.seed == run.seed)?;
            Some(100.0 * (run.accuracy - other.accuracy))
        });
        let against = match pairs.clone().count() {
            _ if *recipe == recipes[0].0 => String::new(),
            0 => "no seed in common".to_owned(),
            n => format!("{:+.1} ({n} {})", mean(pairs), if n == 1 { "pair" } else { "pairs" }),
        };
        html += &format!(
            "<tr><td class=\"word\">{}</td><td>{}</td><td>{:.1}</td><td>{against}</td><td>{}</td></tr>\n",
            escape(recipe),
            each.join(", "),
            100.0 * mean(of.iter().map(|run| run.accuracy)),
            short(mean(of.iter().map(|run| run.fetched_bytes as f64)) / 1e6),
        );
    }
    html + "</tbody></table></div>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"{"event":"note","text":"x"}
{"event":"job","data":"<digits>","train_samples":60}
{"event":"run","recipe":"uniform+minio","seed":0,"accuracy":0.78,"fetched_bytes":400000000,"more":[1]}

{"event":"run","recipe":"uniform+minio","seed":1,"accuracy":0.77,"fetched_bytes":400000000}
{"event":"run","recipe":"replay","seed":1,"accuracy":0.775,"fetched_bytes":100000000}
{"event":"run","recipe":"replay:fresh=0.125","seed":1,"accuracy":0.76,"fetched_bytes":50000000}
{"event":"run","recipe":"replay:random_scores=1","seed":4,"accuracy":0.7,"fetched_bytes":50000000}
"#;

    #[test]
    fn both_forms_say_the_same() {
        let Trained { job, runs } = parse(LINES).unwrap();
        assert_eq!((runs.len(), job.unwrap().train_samples), (5, 60));
        let listed: Vec<&str> = LINES.lines().filter(|line| line.contains("\"run\"")).collect();
        let record = parse(&format!("{{\"name\":\"cifar\",\"runs\":[{}]}}", listed.join(",\n"))).unwrap();
        assert_eq!(record, Trained { job: None, runs });
        assert!(section(&record, 60).contains("does not name the runs&#39; dataset"));
    }

    #[test]
    fn runs_of_another_dataset_are_told() {
        let trained = parse(LINES).unwrap();
        assert!(section(&trained, 60).contains("60 samples of &lt;digits&gt;; 60 were replayed."));
        assert!(section(&trained, 61).contains("61 were replayed, so perhaps another dataset."));
    }

    #[test]
    fn recipes_are_compared_seed_by_seed_and_controls_are_lines_of_their_own() {
        let html = section(&parse(LINES).unwrap(), 60);
        for shown in ["+0.5 (1 pair)", "-1.0 (1 pair)", "no seed in common", "78.0, 77.0", ">replay, noise</text>"] {
            assert!(html.contains(shown), "{shown} is not in {html}");
        }
        assert_eq!(html.matches("<polyline").count(), 3, "uniform, replay and its control");
        assert_eq!(section(&Trained::default(), 60), "");
    }

    #[test]
    fn what_is_no_run_is_refused_with_its_line() {
        let refused = |text: &str, says: &str| {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{error}");
        };
        refused("{\"event\":\"run\",\"recipe\":\"a\"}", "line 1 is no finished run: missing field `seed`");
        refused("\n{\"event\":", "line 2 is no JSON");
        let run = |accuracy: &str| {
            format!("{{\"event\":\"run\",\"recipe\":\"a\",\"seed\":0,\"accuracy\":{accuracy},\"fetched_bytes\":1}}")
        };
        refused(&run("1.5"), "line 1 has an accuracy that is not within 0 and 1");
        refused(&run("null"), "line 1 is no finished run");
        refused(&format!("{{\"runs\":[{}]}}", run("-1")), "run 0 has an accuracy");
        let nothing = tempfile::NamedTempFile::new().unwrap();
        assert!(read(nothing.path()).unwrap_err().to_string().contains("no finished run"));
        assert!(read(Path::new("/nowhere/at/all")).unwrap_err().to_string().contains("cannot open"));
    }
}
