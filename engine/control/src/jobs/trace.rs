//! Traces of clusters: which jobs came, when, on how many GPUs, and how long they ran.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// One job of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceJob {
    /// Gavel's: model and batch size, as its table of throughputs names them. Others': what the job is called.
    pub kind: String,
    /// Whether it reads a dataset at all. Only Gavel's traces say so; of the others every job is taken to.
    pub reads: bool,
    /// From its beginning to its end.
    pub length: Length,
    /// When it comes, in seconds.
    pub arrives_s: f64,
    /// GPUs that it needs.
    pub gpus: u32,
}

/// How long a job is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Length {
    /// So many steps.
    Steps(u64),
    /// It ran so many seconds, waits for data included.
    Seconds(f64),
}

/// How a trace is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFormat {
    /// Gavel's: seven fields between tabs.
    Gavel,
    /// Microsoft Philly's `cluster_job_log`: JSON.
    Philly,
    /// SenseTime Helios' `cluster_log.csv`: CSV with a header.
    Helios,
    /// Alibaba PAI's `pai_task_table.csv` of 2020: CSV without one.
    Pai,
}

impl TraceFormat {
    /// Told by the beginning of a file: no two of them begin alike.
    pub fn of(text: &str) -> Self {
        let first = text.trim_start_matches('\u{feff}').lines().find(|line| !line.trim().is_empty()).unwrap_or("");
        if first.trim_start().starts_with(['[', '{']) {
            Self::Philly
        } else if first.contains('\t') || !first.contains(',') {
            Self::Gavel
        } else if first.starts_with("job_id,") {
            Self::Helios
        } else {
            Self::Pai
        }
    }
    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gavel => "gavel",
            Self::Philly => "philly",
            Self::Helios => "helios",
            Self::Pai => "pai",
        }
    }
}

/// What a trace says.
#[derive(Debug, Clone, PartialEq)]
pub struct JobTrace {
    /// How it is written.
    pub format: TraceFormat,
    /// In the order of the file (Gavel), or in which they came.
    pub jobs: Vec<TraceJob>,
    /// How many jobs were left out, by the reason: public logs hold jobs that never ran.
    pub left_out: BTreeMap<&'static str, usize>,
}

/// Never got what it asked for, or nobody wrote down when.
pub(super) const NOT_STARTED: &str = "without a recorded beginning";
/// Was still running when the log was taken, or nobody wrote down the end.
pub(super) const NOT_ENDED: &str = "without a recorded end";
pub(super) const NO_GPU: &str = "without a GPU";
pub(super) const NO_TIME: &str = "that took no time";
pub(super) const BACKWARDS: &str = "that ended before they began";

/// The jobs of a log, while it is read.
#[derive(Debug, Default)]
pub(super) struct Collected {
    jobs: Vec<TraceJob>,
    left_out: BTreeMap<&'static str, usize>,
}

impl Collected {
    /// Takes a job that came at the second `arrives_s` of any clock and ran `seconds`, or leaves it out.
    pub(super) fn add(&mut self, kind: &str, arrives_s: f64, seconds: f64, gpus: u32) {
        let why = match () {
            () if gpus == 0 => NO_GPU,
            () if seconds < 0.0 => BACKWARDS,
            () if seconds == 0.0 => NO_TIME,
            () => {
                let length = Length::Seconds(seconds);
                self.jobs.push(TraceJob { kind: kind.to_owned(), reads: true, length, arrives_s, gpus });
                return;
            }
        };
        self.leave_out(why);
    }
    pub(super) fn leave_out(&mut self, why: &'static str) {
        *self.left_out.entry(why).or_default() += 1;
    }
    /// In the order in which they came, in seconds since the first.
    ///
    /// # Errors
    /// `Settings` if there is none.
    pub(super) fn trace(self, format: TraceFormat) -> Result<JobTrace> {
        let Self { mut jobs, left_out } = self;
        if jobs.is_empty() {
            let why: Vec<_> = left_out.iter().map(|(why, count)| format!("{count} {why}")).collect();
            let why = if why.is_empty() { String::new() } else { format!(" that can be run: {}", why.join(", ")) };
            return Err(Error::settings(format!("the trace has no jobs{why}")));
        }
        // Logs are not always in order.
        jobs.sort_by(|a, b| a.arrives_s.total_cmp(&b.arrives_s));
        let first = jobs[0].arrives_s;
        jobs.iter_mut().for_each(|job| job.arrives_s -= first);
        Ok(JobTrace { format, jobs, left_out })
    }
}
