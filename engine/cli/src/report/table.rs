//! The report for a terminal, and the rows that the lab's page shows too.

use std::collections::BTreeSet;
use std::io::{self, Write};

use lossfeed_control::sim::Replay;

use super::{Report, mean, percent};

/// The columns' names and the rows under them. The first two or three are words, the others numbers.
pub struct Table {
    /// The columns' names.
    pub head: Vec<&'static str>,
    /// Whether the row is a control, and its cells.
    pub rows: Vec<(bool, Vec<String>)>,
}

/// One row a result, and one more for its control.
pub fn table(report: &Report) -> Table {
    let closed = report.results.iter().any(|row| row.sampler.is_some());
    let weighed = report.results.iter().any(|row| row.found.epochs.iter().any(|e| e.effective_samples.is_some()));
    let mut head = if closed { vec!["sampler"] } else { vec![] };
    head.extend(["policy", "capacity", "hits", "misses", "hit%", "distinct%"]);
    if weighed {
        head.push("ESS%");
    }
    let substituted = report.results.iter().any(|row| row.found.substituted.is_some());
    if substituted {
        head.push("substituted");
    }
    let watched: BTreeSet<&str> = report.results.iter().flat_map(|row| row.found.watched.keys().copied()).collect();
    head.extend(&watched);
    if report.costs.is_some() {
        head.extend(["time s", "stall s"]);
    }
    let mut rows = Vec::new();
    for row in &report.results {
        for (noise, found) in row.all() {
            let policy = if noise { "  with noise".to_owned() } else { found.policy.clone() };
            let mut cells: Vec<String> = row.sampler.iter().cloned().collect();
            cells.extend([policy, percent(found.capacity_fraction)]);
            cells.extend([found.hits.to_string(), found.misses.to_string()]);
            cells.push(format!("{:.2}", 100.0 * found.hit_ratio));
            cells.push(format!("{:.1}", 100.0 * distinct(found, report.samples)));
            if weighed {
                let ess = mean(found.epochs.iter().filter_map(|epoch| epoch.effective_samples));
                cells.push(ess.map_or("-".to_owned(), |ess| format!("{:.1}", 100.0 * ess)));
            }
            if substituted {
                cells.push(found.substituted.map_or("-".to_owned(), |times| times.to_string()));
            }
            let count = |name: &&str| found.watched.get(name).map_or("-".to_owned(), u64::to_string);
            cells.extend(watched.iter().map(count));
            if let Some(time) = found.time {
                cells.extend([format!("{:.3}", time.total_s), format!("{:.3}", time.stall_s)]);
            }
            rows.push((noise, cells));
        }
    }
    Table { head, rows }
}

/// The part of the samples that an epoch delivers, on average.
fn distinct(found: &Replay, samples: usize) -> f64 {
    mean(found.epochs.iter().map(|epoch| epoch.distinct as f64 / samples.max(1) as f64)).unwrap_or(0.0)
}

/// Prints the report.
pub(super) fn print(report: &Report, out: &mut impl Write) -> io::Result<()> {
    if let Some(run) = &report.run {
        run.print(out)?;
    }
    // A hit ratio is never shown without the coverage: replaying few samples hits very well.
    writeln!(out, "{} requests of {} samples", report.requests, report.samples)?;
    report.assumed.iter().try_for_each(|what| writeln!(out, "assumed: {what}"))?;
    let Table { head, rows } = table(report);
    let words = head.iter().position(|&name| name == "policy").map_or(1, |at| at + 1);
    let longest =
        |column: usize| rows.iter().map(|(_, cells)| cells[column].chars().count()).max().unwrap_or(0).max(12);
    let widths: Vec<usize> = (0..words).map(longest).collect();
    let mut line = |cells: &[&str]| {
        let cell = |(column, text): (usize, &&str)| match widths.get(column) {
            Some(&width) => format!("{text:<width$}"),
            None => format!("{text:>w$}", w = width(head[column])),
        };
        let text: Vec<String> = cells.iter().enumerate().map(cell).collect();
        writeln!(out, "{}", text.join(" ").trim_end())
    };
    line(&head)?;
    rows.iter().try_for_each(|(_, cells)| line(&cells.iter().map(String::as_str).collect::<Vec<_>>()))
}

fn width(column: &str) -> usize {
    match column {
        "hits" | "misses" | "substituted" | "time s" | "stall s" => 12,
        "capacity" => 8,
        name => name.len().max(7),
    }
}
