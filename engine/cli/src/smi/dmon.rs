//! `lossfeed smi dmon`: a line for each living engine and round, of what happened since the round before.

use super::fields;
use super::snapshot::{Engine, Snapshot};

/// Rounds between two heads, as nvidia-smi has it.
const HEAD_EVERY: u64 = 20;

/// Names and units of the columns, and their widths.
const COLUMNS: [(&str, &str, usize); 11] = [
    ("time", "UTC", 8),
    ("pid", "-", 7),
    ("rank", "-", 4),
    ("sample/s", "1/s", 8),
    ("MB/s", "MB/s", 8),
    ("wait", "%", 5),
    ("source", "%", 6),
    ("decode", "%", 6),
    ("hit", "%", 5),
    ("ready", "batch", 5),
    ("job", "name", 3),
];

/// The state between rounds.
#[derive(Debug, Default)]
pub(super) struct Monitor {
    before: Vec<Engine>,
    rounds: u64,
}

impl Monitor {
    /// The lines of a round, with the head where it is due.
    pub(super) fn round(&mut self, snapshot: Snapshot) -> String {
        let mut text = String::new();
        if self.rounds.is_multiple_of(HEAD_EVERY) {
            text += &line("#", COLUMNS.map(|(name, _, _)| name.to_owned()));
            text += &line("#", COLUMNS.map(|(_, unit, _)| unit.to_owned()));
        }
        self.rounds += 1;
        let living: Vec<Engine> = snapshot.engines.into_iter().filter(|engine| engine.alive).collect();
        let clock = snapshot.time.get(11..19).unwrap_or("-");
        for engine in &living {
            text += &line(" ", row(clock, engine, self.before.iter().find(|before| before.page == engine.page)));
        }
        self.before = living;
        text
    }
}

fn line(mark: &str, cells: [String; COLUMNS.len()]) -> String {
    // The last column is text of any length.
    let padded = cells.iter().zip(COLUMNS).enumerate().map(|(k, (cell, (_, _, width)))| match k {
        k if k + 1 == COLUMNS.len() => cell.clone(),
        _ => format!("{cell:>width$}"),
    });
    format!("{mark} {}\n", padded.collect::<Vec<_>>().join(" "))
}

fn row(clock: &str, now: &Engine, before: Option<&Engine>) -> [String; COLUMNS.len()] {
    let grown = |name: &str| Some(now.counter(name)?.saturating_sub(before?.counter(name)?) as f64);
    // Waits and the training's own time are all the time there is.
    let time_us =
        grown("wait_us_total").zip(grown("busy_us_total")).map(|(wait, busy)| wait + busy).filter(|&us| us > 0.0);
    let rate = |name: &str, scale: f64| grown(name).zip(time_us).map(|(n, us)| n * 1e6 / us / scale);
    let share =
        |part: &str, whole: Option<f64>| grown(part).zip(whole.filter(|&n| n > 0.0)).map(|(n, all)| 100.0 * n / all);
    let number = |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
    let plain = |name: &str| now.counter(name).map_or("-".to_owned(), |n| n.to_string());
    [
        clock.to_owned(),
        now.pid.to_string(),
        now.rank.to_string(),
        number(rate("samples_total", 1.0), 0),
        number(rate("fetched_bytes_total", 1e6), 1),
        number(share("wait_us_total", time_us), 1),
        number(share("wait_source_us_total", time_us), 1),
        number(share("wait_decode_us_total", time_us), 1),
        number(share("hits_total", grown("requests_total")), 1),
        plain("slots_ready"),
        fields::harmless(&now.job),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::demo;
    use super::*;

    #[test]
    fn a_round_tells_what_happened_since_the_one_before() {
        let mut monitor = Monitor::default();
        let first = monitor.round(demo::snapshot(600.0));
        let lines: Vec<&str> = first.lines().collect();
        assert_eq!(lines.len(), 2 + 5, "a head of two lines, and the living\n{first}");
        assert!(lines[0].starts_with("#     time") && lines[1].starts_with("#      UTC"), "{first}");
        assert!(
            lines[2].ends_with("- 0 resnet50-in1k") || lines[2].contains("     -"),
            "nothing to compare with\n{first}"
        );
        let second = monitor.round(demo::snapshot(610.0));
        let words: Vec<&str> = second.lines().next().unwrap().split_whitespace().collect();
        assert_eq!(words[1..3], ["41822", "0"]);
        assert_eq!(words[5..9], ["61.0", "55.0", "5.0", "38.0"], "{second}");
        assert_eq!((words[3], words[10]), ("4914", "resnet50-in1k"), "{second}");
        assert!(!second.contains('#'));
        let third = monitor.round(demo::snapshot(610.0));
        assert!(third.lines().next().unwrap().contains(" - "), "no time has passed\n{third}");
        let heads = (3..41).filter(|_| monitor.round(demo::snapshot(620.0)).contains('#')).count();
        assert_eq!(heads, 2, "rounds 21 and 41");
    }
}
