//! The report of a run: a verdict with its numbers, on a screen and as JSON.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use lossfeed_stats::verdict::{self, Loader, Measured, Verdict, Word};
use serde::Serialize;

use super::records::{self, Record};
use super::times;

/// Version of the JSON form. Added keys do not raise it.
const SCHEMA_VERSION: u32 = 1;

/// The program's end.
pub(super) struct Ended<'a> {
    pub(super) command: &'a [OsString],
    pub(super) code: i32,
    pub(super) seconds: f64,
    /// Processors that other programs had meanwhile.
    pub(super) taken: f64,
}

/// The whole report. The JSON form is this structure as it is.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    schema_version: u32,
    version: &'static str,
    command: Vec<String>,
    exit_code: i32,
    seconds: f64,
    /// The verdict in one word.
    verdict: &'static str,
    cause: Option<&'static str>,
    rank: Option<u32>,
    why: String,
    evidence: BTreeMap<&'static str, f64>,
    also: Option<Also>,
    /// The line to write.
    next: Option<String>,
    what_if: Vec<Change>,
    /// Every rank's step, the judged one's too.
    ranks: Vec<Rank>,
    #[serde(skip)]
    wrong: bool,
}

#[derive(Debug, Serialize)]
struct Also {
    cause: &'static str,
    share_ratio: f64,
}

#[derive(Debug, Serialize)]
struct Change {
    change: String,
    setting: Option<&'static str>,
    value: Option<u64>,
    step_seconds: f64,
    then_seconds: f64,
    basis: &'static str,
}

/// A rank's mean step, first batches of passes apart.
#[derive(Debug, Serialize)]
struct Rank {
    rank: u32,
    pid: u32,
    loader: &'static str,
    dataset: String,
    steps: u64,
    optimizer_steps: u64,
    samples: u64,
    step_seconds: f64,
    wait_seconds: f64,
    wait: BTreeMap<&'static str, f64>,
    copy_seconds: f64,
    /// Measured by the GPU's own clock; null without one.
    compute_seconds: Option<f64>,
    /// Backward passes and collectives; null for one rank.
    sync_seconds: Option<f64>,
    /// The rest of the step.
    rest_seconds: f64,
    passes: u64,
    first_batch_seconds: Option<f64>,
    workers: Option<u64>,
}

impl Report {
    /// Judges the records of a program that has ended.
    pub(super) fn of(records: &[Record], ended: &Ended<'_>) -> Self {
        let job = records::job(records);
        let measured: Vec<Measured> = job.iter().map(|record| times::measured(record, ended.taken)).collect();
        let mut verdict = verdict::judge(&measured);
        if job.is_empty() {
            "no process took a batch from torch's DataLoader or lossfeed.Loader".clone_into(&mut verdict.why);
        }
        let Verdict { word, cause, rank, evidence, also, why, next, what_if } = verdict;
        Self {
            schema_version: SCHEMA_VERSION,
            version: env!("CARGO_PKG_VERSION"),
            command: ended.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            exit_code: ended.code,
            seconds: ended.seconds,
            verdict: word.name(),
            cause: cause.map(|cause| cause.name()),
            rank,
            why,
            evidence: evidence.iter().map(|e| (e.name, e.value)).collect(),
            also: also.map(|(cause, share_ratio)| Also { cause: cause.name(), share_ratio }),
            next,
            what_if: what_if
                .into_iter()
                .map(|then| Change {
                    change: then.change,
                    setting: Some(then.setting).filter(|setting| !setting.is_empty()),
                    value: Some(then.value).filter(|_| !then.setting.is_empty()),
                    step_seconds: then.step_us / 1e6,
                    then_seconds: then.then_us / 1e6,
                    basis: then.basis.name(),
                })
                .collect(),
            ranks: job.iter().zip(&measured).map(|(record, m)| Rank::of(record, m)).collect(),
            wrong: word.is_wrong() && word != Word::Incomplete,
        }
    }

    /// Writes it as JSON.
    pub(super) fn write(&self, file: &Path) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(self).map_err(io::Error::from)?;
        text.push(b'\n');
        std::fs::write(file, text)
    }

    /// Writes it as lines. An output that is closed is no failure: the program has run.
    pub(super) fn show(&self, out: &mut impl Write, colored: bool) {
        let (bold, plain) = match (colored, self.wrong) {
            (true, true) => ("\x1b[1;33m", "\x1b[0m"),
            (true, false) => ("\x1b[1m", "\x1b[0m"),
            _ => ("", ""),
        };
        let mut text = format!("\nlossfeed why: {bold}{}{plain}\n", self.title());
        for line in self.lines() {
            text.push_str(&line);
            text.push('\n');
        }
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    fn title(&self) -> String {
        match self.cause.filter(|cause| *cause != "copy") {
            Some(cause) => format!("{} ({cause})", self.verdict),
            None => self.verdict.to_owned(),
        }
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("  why    {}", self.why)];
        if let Some(also) = &self.also {
            lines.push(format!("  also   {}: {:.0} % of the loss", also.cause, 100.0 * also.share_ratio));
        }
        if let Some(next) = &self.next {
            lines.push(format!("  next   {next}"));
        }
        for then in &self.what_if {
            let (now, after) = (shown(then.step_seconds), shown(then.then_seconds));
            lines.push(format!("  if     {}: a step takes {after} and not {now} ({})", then.change, then.basis));
        }
        let judged = self.ranks.iter().find(|rank| Some(rank.rank) == self.rank).or(self.ranks.first());
        if let Some(rank) = judged {
            lines.push(format!("  step   {}", rank.line()));
            if let Some(first) = rank.first_batch_seconds {
                lines.push(format!(
                    "  first  {} for the first batch{}, apart",
                    shown(first),
                    if rank.passes == 1 { String::new() } else { format!(" of each of {} passes", rank.passes) }
                ));
            }
            if self.ranks.len() > 1 {
                lines.push(format!("  ranks  {}; rank {} is shown", self.ranks.len(), rank.rank));
            }
        }
        lines
    }
}

impl Rank {
    fn of(record: &Record, m: &Measured) -> Self {
        let a_step = |us: u64| us as f64 / 1e6 / m.steps.max(1) as f64;
        let known = |us: u64| (us > 0).then(|| a_step(us));
        let pace = m.pace_wait_us();
        let sync = if record.words.world_size > 1 { known(m.sync_us) } else { None };
        let (copies, rest) = (a_step(m.copies_us), a_step(m.busy_us) - a_step(m.copies_us) - sync.unwrap_or(0.0));
        Self {
            rank: m.rank,
            pid: record.pid,
            loader: match m.loader {
                Loader::Torch => "torch",
                Loader::Lossfeed => "lossfeed",
            },
            dataset: record.words.source.clone(),
            steps: m.steps,
            optimizer_steps: record.numbers.get("steps") as u64,
            samples: m.samples,
            step_seconds: m.step_us() / 1e6,
            wait_seconds: a_step(pace),
            wait: [
                ("source_seconds", m.wait.source_us),
                ("decode_seconds", m.wait.decode_us),
                ("python_seconds", m.wait.python_us),
                ("slot_seconds", m.wait.slot_us),
                ("handover_seconds", m.wait.handover_us + m.wait.copy_us + m.wait.decide_us),
            ]
            .map(|(name, us)| (name, a_step(us)))
            .into(),
            copy_seconds: copies,
            compute_seconds: known(m.compute_us),
            sync_seconds: sync,
            rest_seconds: rest.max(0.0),
            passes: m.passes,
            first_batch_seconds: (m.passes > 0).then(|| m.wait.first_us as f64 / 1e6 / m.passes as f64),
            workers: m.settings.workers,
        }
    }

    fn line(&self) -> String {
        let mut parts = vec![format!("wait {}", shown(self.wait_seconds))];
        if self.copy_seconds > 0.0 {
            parts.push(format!("copies {}", shown(self.copy_seconds)));
        }
        if let Some(sync) = self.sync_seconds {
            parts.push(format!("backward and collectives {}", shown(sync)));
        }
        parts.push(format!("computing and rest {}", shown(self.rest_seconds)));
        if let Some(gpu) = self.compute_seconds {
            parts.push(format!("GPU {}", shown(gpu)));
        }
        format!("{} = {}   ({} steps)", shown(self.step_seconds), parts.join(" + "), self.steps)
    }
}

/// "26.1 ms".
fn shown(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.1} ms", 1e3 * s),
        s => format!("{:.0} µs", 1e6 * s),
    }
}
