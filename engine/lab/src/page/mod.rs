//! The report as one page: no script, nothing from elsewhere, every word of the input escaped.

mod bars;
mod chart;
mod lines;
mod style;
#[cfg(test)]
mod tests;
mod trained;

use lossfeed_cli::report::{Report, Row, percent, table};
use lossfeed_control::sim::{Epoch, Population, Replay};

use bars::{SHADES, Stack, histogram, stacks};
use chart::{escape, short};
use lines::{Line, Lines};
use style::STYLE;
pub(crate) use trained::{Trained, read as read_trained};

/// Sizes, or rows, of which a chart is drawn; the tables and the CSV have all.
const CHARTS_MAX: usize = 6;
/// Lines of the table of epochs.
const EPOCH_ROWS_MAX: usize = 5_000;

/// The page.
pub(crate) fn page(report: &Report, trained: &Trained) -> String {
    let mut body = format!(
        "<h1>{}</h1>\n<p>{} requests of {} samples{}, replayed by lossfeed.</p>\n<ul>\n",
        escape(&report.title),
        report.requests,
        report.samples,
        if report.results.iter().any(|row| row.sampler.is_some()) { " in each closed loop" } else { "" }
    );
    if let Some(run) = &report.run {
        let mut told = Vec::new();
        let _ = run.print(&mut told);
        String::from_utf8_lossy(&told).lines().for_each(|line| body += &format!("<li>{}</li>\n", escape(line)));
    }
    report.assumed.iter().for_each(|what| body += &format!("<li>Assumed: {}</li>\n", escape(what)));
    if report.results.iter().any(|row| row.random_scores.is_some()) {
        body += "<li>Dashed lines are controls: the same with noise in the place of every score. \
                 What scores are worth is the distance between the two.</li>\n";
    }
    body += "</ul>\n";
    body += &conclusion(report);
    body += &curves(report);
    body += &by_epoch(report);
    body += &compositions(report);
    body += &populations(report);
    body += &trained::section(trained, report.samples);
    body += &tables(report);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>{}: lossfeed-lab replay</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escape(&report.title)
    )
}

/// Rows of one name, in the order of the report: a line each. The number is its colour.
fn names(report: &Report) -> Vec<String> {
    let mut names = Vec::new();
    for name in report.results.iter().map(Row::name) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// One line a name, and one more for its control, of `points` of all its results together.
fn lines(report: &Report, rows: &[&Row], points: impl Fn(&Replay) -> Vec<(f64, f64)>) -> Vec<Line> {
    let mut lines = Vec::new();
    for (kind, name) in names(report).into_iter().enumerate() {
        for control in [false, true] {
            let found = rows.iter().filter(|row| row.name() == name);
            let found = found.flat_map(|row| row.all()).filter(|found| found.0 == control);
            let mut points: Vec<_> = found.flat_map(|(_, found)| points(found)).collect();
            if !points.is_empty() {
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                let name = if control { format!("{name}, noise") } else { name.clone() };
                lines.push(Line { name, kind, control, points });
            }
        }
    }
    lines
}

/// The policies that miss least and most, for each size.
fn conclusion(report: &Report) -> String {
    let one = |size: (f64, u64)| {
        let mut rows = of_size(report, size.1);
        rows.sort_by(|a, b| b.found.hit_ratio.total_cmp(&a.found.hit_ratio));
        let misses = |row: &Row| format!("{:.0} %", 100.0 * (1.0 - row.found.hit_ratio));
        let said = match rows.as_slice() {
            [] => return String::new(),
            [only] => format!("{} misses {}", only.name(), misses(only)),
            [best, .., worst] if misses(best) == misses(worst) => format!("each misses {}", misses(best)),
            [best, .., worst] => {
                format!("{} misses least, {}; {} most, {}", best.name(), misses(best), worst.name(), misses(worst))
            }
        };
        format!("<p>{}</p>\n", escape(&format!("{}: {said}.", size_name(report, size))))
    };
    sizes(report).into_iter().take(CHARTS_MAX).map(one).collect()
}

/// Misses by size, on three pairs of axes.
fn curves(report: &Report) -> String {
    let all: Vec<&Row> = report.results.iter().collect();
    let lines = lines(report, &all, |found| vec![(100.0 * found.capacity_fraction, 100.0 * (1.0 - found.hit_ratio))]);
    let mut html = "<h2>Miss ratio by cache size</h2>\n<p class=\"note\">Lower means fewer fetches. \
                    Point at a mark for its numbers.</p>\n<div class=\"switch\">\n"
        .to_owned();
    let axes = [("linear", (false, false)), ("logarithmic size", (true, false)), ("both logarithmic", (true, true))];
    for (k, (name, _)) in axes.iter().enumerate() {
        let checked = if k == 0 { " checked" } else { "" };
        html += &format!(
            "<input type=\"radio\" name=\"axes\" id=\"axes{k}\"{checked}><label for=\"axes{k}\"> {name}</label>\n"
        );
    }
    for (k, (name, log)) in axes.into_iter().enumerate() {
        let chart = Lines {
            what: &format!("Miss ratio by cache size, {name} axes"),
            x_name: "cache size (% of the dataset)",
            y_name: "miss ratio (%)",
            units: ("%", "%"),
            log,
            whole: false,
            y_most: Some(100.0),
            close: false,
            lines: &lines,
        };
        html += &format!("<div class=\"view view{}\">{}</div>\n", k + 1, chart.draw());
    }
    html + "</div>\n"
}

/// The sizes, in the order of the report.
fn sizes(report: &Report) -> Vec<(f64, u64)> {
    let mut sizes: Vec<(f64, u64)> = Vec::new();
    for row in &report.results {
        let size = (row.found.capacity_fraction, row.found.capacity_bytes);
        if !sizes.iter().any(|known| known.1 == size.1) {
            sizes.push(size);
        }
    }
    sizes
}

fn of_size(report: &Report, bytes: u64) -> Vec<&Row> {
    report.results.iter().filter(|row| row.found.capacity_bytes == bytes).collect()
}

fn size_name(report: &Report, (fraction, bytes): (f64, u64)) -> String {
    let unit = if report.sized { "B" } else { " samples" };
    format!("Cache of {} ({}{unit})", percent(fraction), short(bytes as f64))
}

/// What one chart over the epochs shows.
type PerEpoch = (&'static str, &'static str, &'static str, fn(&Epoch, f64) -> Option<f64>);

/// Hits, coverage, weights and time, epoch by epoch.
fn by_epoch(report: &Report) -> String {
    let epochs = report.results.iter().map(|row| row.found.epochs.len()).max().unwrap_or(0);
    let mut html = "<h2>Epoch by epoch</h2>\n".to_owned();
    if epochs < 2 {
        return html + "<p class=\"note\">There is one epoch: its numbers are in the table.</p>\n";
    }
    let closed = report.results.iter().any(|row| row.sampler.is_some());
    let charts: [PerEpoch; 4] = [
        ("Hits", "hits (%)", "%", |epoch, _| {
            let all = epoch.hits + epoch.misses;
            (all > 0).then(|| 100.0 * epoch.hits as f64 / all as f64)
        }),
        ("Coverage: distinct samples", "distinct (% of samples)", "%", |epoch, samples| {
            Some(100.0 * epoch.distinct as f64 / samples)
        }),
        ("Effective sample size of the weights", "ESS (% of deliveries)", "%", |epoch, _| {
            epoch.effective_samples.map(|ess| 100.0 * ess)
        }),
        ("Stall", "stall (s)", " s", |epoch, _| epoch.time.map(|time| time.stall_s)),
    ];
    let samples = report.samples.max(1) as f64;
    for (place, size) in sizes(report).into_iter().enumerate().take(CHARTS_MAX) {
        let rows = of_size(report, size.1);
        let open = if place == 0 { " open" } else { "" };
        html += &format!("<details{open}><summary>{}</summary>\n", escape(&size_name(report, size)));
        for (what, y_name, unit, value) in &charts {
            // A recorded order covers what it covers, whatever the policy.
            let shown = if !closed && !what.starts_with("Hits") && *what != "Stall" { &rows[..1] } else { &rows[..] };
            let points = |found: &Replay| -> Vec<(f64, f64)> {
                let epochs = found.epochs.iter().enumerate();
                epochs.filter_map(|(k, epoch)| value(epoch, samples).map(|value| (k as f64, value))).collect()
            };
            let mut lines = lines(report, shown, points);
            if shown.len() == 1 && !closed {
                lines.truncate(1);
                lines.iter_mut().for_each(|line| line.name = "the recorded run".to_owned());
            }
            if lines.is_empty() {
                continue;
            }
            let percents = unit.contains('%');
            let chart = Lines {
                what,
                x_name: "epoch",
                y_name,
                units: ("", unit),
                log: (false, false),
                whole: true,
                y_most: (percents && !what.starts_with("Hits")).then_some(100.0),
                close: false,
                lines: &lines,
            };
            html += &format!("<h3>{what}</h3>\n{}", chart.draw());
        }
        html += "</details>\n";
    }
    html
}

/// Who was in the caches at the end.
fn compositions(report: &Report) -> String {
    let scored = report.results.iter().any(|row| {
        row.found.residents.as_ref().is_some_and(|found| found.score_deciles.iter().any(|&count| count > 0))
    });
    let mut html = "<h2>What the caches held at the end</h2>\n".to_owned();
    if scored {
        html += "<p class=\"note\">Residents by score: a cache that does not look at scores has a tenth of each.";
        if report.results.iter().any(|row| row.sampler.is_some()) {
            html += " In the control of a closed loop scores are noise, here too.";
        }
        html += "</p>\n";
        html += &key((0..SHADES).map(decile), true);
    } else {
        html += "<p class=\"note\">Nothing has a score: residents by the requests since their last one.</p>\n";
    }
    for size in sizes(report).into_iter().take(CHARTS_MAX) {
        let mut bars = Vec::new();
        for row in of_size(report, size.1) {
            for (noise, found) in row.all() {
                let Some(residents) = &found.residents else { continue };
                let ages = residents.ages.len().max(2) - 1;
                let mut parts: Vec<_> = if scored {
                    residents.score_deciles.iter().enumerate().map(|(k, &n)| (decile(k), Some(k), n)).collect()
                } else {
                    let shade = |k: usize| Some(k * (SHADES - 1) / ages);
                    residents.ages.iter().enumerate().map(|(k, &n)| (age(k), shade(k), n)).collect()
                };
                if scored {
                    parts.push(("no score".to_owned(), None, residents.unscored));
                }
                let name = if noise { format!("{}, noise", row.name()) } else { row.name() };
                bars.push(Stack { name, parts });
            }
        }
        let name = size_name(report, size);
        html += &format!("<h3>{}</h3>\n{}", escape(&name), stacks(&name, &bars));
    }
    html
}

fn decile(k: usize) -> String {
    match k {
        0 => "lowest tenth of scores".to_owned(),
        9 => "highest tenth".to_owned(),
        k => format!("tenth {}", k + 1),
    }
}

/// The requests of the k-th bar of ages.
fn age(k: usize) -> String {
    match k {
        0 => "the last request".to_owned(),
        1 => "1 request ago".to_owned(),
        k => format!("{} to {} requests ago", 1u64 << (k - 1).min(62), (1u128 << k) - 1),
    }
}

fn key(names: impl Iterator<Item = String>, rest: bool) -> String {
    let rest = rest.then(|| ("no score".to_owned(), "rest".to_owned()));
    let all = names.enumerate().map(|(k, name)| (name, format!("d{k}"))).chain(rest);
    let one = |(name, class)| {
        format!(
            "<span><svg viewBox=\"0 0 14 14\" aria-hidden=\"true\"><rect class=\"{class}\" width=\"14\" height=\"14\"/></svg>{name}</span>"
        )
    };
    format!("<div class=\"key\">{}</div>\n", all.map(one).collect::<Vec<_>>().join("\n"))
}

/// Scores and ages of all samples.
fn populations(report: &Report) -> String {
    let of = |name: &str, found: &Population| {
        let mut html = format!("<h3>{}</h3>\n", escape(name));
        html += &histogram("Histogram of the samples' last scores", "last score", &found.scores);
        if found.unscored > 0 {
            html += &format!("<p class=\"note\">{} samples have no score.</p>\n", found.unscored);
        }
        html += &histogram(
            "Histogram of the samples' ages",
            "requests since the sample's last one (each bar is twice as wide)",
            &found.ages,
        );
        html
    };
    let mut html = "<h2>Scores and ages of the samples at the end</h2>\n".to_owned();
    if let Some(found) = &report.population {
        html += &of("All samples of the run", found);
    }
    // Of closed loops the largest cache of each.
    let largest = sizes(report).into_iter().max_by_key(|size| size.1);
    for row in largest.map(|size| of_size(report, size.1)).unwrap_or_default().into_iter().take(CHARTS_MAX) {
        if let Some(found) = &row.population {
            html += &of(&format!("{}, cache of {}", row.name(), percent(row.found.capacity_fraction)), found);
        }
    }
    html
}

/// All results, and all epochs.
fn tables(report: &Report) -> String {
    let found = table(report);
    let words = found.head.iter().position(|&name| name == "policy").map_or(1, |at| at + 1);
    let cell = |tag: &str, k: usize, text: &str| {
        let class = if k < words { " class=\"word\"" } else { "" };
        format!("<{tag}{class}>{}</{tag}>", escape(text))
    };
    let mut html = "<h2>Table</h2>\n<div class=\"wide\"><table>\n<thead><tr>".to_owned();
    found.head.iter().enumerate().for_each(|(k, name)| html += &cell("th", k, name));
    html += "</tr></thead>\n<tbody>\n";
    for (control, cells) in &found.rows {
        html += if *control { "<tr class=\"control\">" } else { "<tr>" };
        cells.iter().enumerate().for_each(|(k, text)| html += &cell("td", k, text));
        html += "</tr>\n";
    }
    html += "</tbody></table></div>\n";
    let epochs: usize = report.results.iter().flat_map(Row::all).map(|(_, found)| found.epochs.len()).sum();
    if epochs > EPOCH_ROWS_MAX {
        return html + &format!("<p class=\"note\">{epochs} epochs of all rows: --csv FILE has them.</p>\n");
    }
    html += "<details><summary>Every epoch</summary>\n<div class=\"wide\"><table>\n<thead><tr><th class=\"word\">policy\
             </th><th>capacity</th><th>epoch</th><th>hits</th><th>misses</th><th>fetched</th><th>distinct</th></tr>\
             </thead>\n<tbody>\n";
    for row in &report.results {
        for (noise, found) in row.all() {
            let name = if noise { format!("{}, noise", row.name()) } else { row.name() };
            for (k, epoch) in found.epochs.iter().enumerate() {
                html += &format!(
                    "<tr{}><td class=\"word\">{}</td><td>{}</td><td>{k}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                    if noise { " class=\"control\"" } else { "" },
                    escape(&name),
                    percent(found.capacity_fraction),
                    epoch.hits,
                    epoch.misses,
                    epoch.fetched_bytes,
                    epoch.distinct
                );
            }
        }
    }
    html + "</tbody></table></div></details>\n"
}
