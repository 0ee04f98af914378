//! Gavel's job traces: one job a line, seven fields between tabs.

use std::collections::BTreeMap;

use lossfeed_control::{Error, Result};

/// One job of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceJob {
    /// Model and batch size, as the table of throughputs names them.
    pub kind: String,
    /// Whether it reads a dataset at all.
    pub reads: bool,
    /// How many steps it takes.
    pub steps: u64,
    /// When it comes, in seconds.
    pub arrives_s: f64,
    /// GPUs that it needs.
    pub gpus: u32,
}

/// The jobs of a trace: job type, command, the command's argument for steps, whether a data directory is needed (0 or
/// 1), steps, arrival in seconds, GPUs. Empty lines are passed over; the order is the file's.
///
/// # Errors
/// `Settings` with the number of the first line that is not one, and for a trace without jobs.
pub fn parse_trace(text: &str) -> Result<Vec<TraceJob>> {
    let lines = text.trim_start_matches('\u{feff}').lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let jobs: Vec<_> = lines
        .map(|(number, line)| {
            parse_line(line).map_err(|e| Error::settings(format!("line {} of the trace", number + 1)).because(e))
        })
        .collect::<Result<_>>()?;
    if jobs.is_empty() {
        return Err(Error::settings("the trace has no jobs"));
    }
    Ok(jobs)
}

fn parse_line(line: &str) -> Result<TraceJob> {
    let fields: Vec<&str> = line.split('\t').map(str::trim).collect();
    let &[kind, _command, _argument, reads, steps, arrives, gpus] = &fields[..] else {
        return Err(Error::settings(format!("{} fields between tabs, and a job has seven", fields.len())));
    };
    let bad = |what: &str, found: &str, needs: &str| Error::settings(format!("{what} is {found:?}: give {needs}"));
    let reads = match reads {
        "0" => false,
        "1" => true,
        other => return Err(bad("the fourth field (needs data)", other, "0 or 1")),
    };
    let steps: u64 = steps.parse().map_err(|_| bad("the fifth field (steps)", steps, "a whole number above 0"))?;
    let arrives_s: f64 = arrives.parse().map_err(|_| bad("the sixth field (arrival)", arrives, "seconds"))?;
    let gpus: u32 = gpus.parse().map_err(|_| bad("the seventh field (GPUs)", gpus, "a whole number above 0"))?;
    if steps == 0 || gpus == 0 || !arrives_s.is_finite() || arrives_s < 0.0 {
        return Err(Error::settings(format!(
            "{steps} steps on {gpus} GPUs from second {arrives_s}: give whole numbers above 0, and a time from 0 on"
        )));
    }
    Ok(TraceJob { kind: kind.to_owned(), reads, steps, arrives_s, gpus })
}

/// Steps a second of each kind of job by its number of GPUs, on one kind of GPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Throughputs(BTreeMap<(String, u32), f64>);

impl Throughputs {
    /// Adds one.
    ///
    /// # Errors
    /// `Settings` if it is not a finite number above 0.
    pub fn insert(&mut self, kind: &str, gpus: u32, steps_per_s: f64) -> Result<()> {
        if !steps_per_s.is_finite() || steps_per_s <= 0.0 || gpus == 0 {
            return Err(Error::settings(format!("{steps_per_s} steps a second of {kind} on {gpus} GPUs")));
        }
        self.0.insert((kind.to_owned(), gpus), steps_per_s);
        Ok(())
    }

    /// Seconds that the job takes if it never waits for data. For a number of GPUs that was not measured, the nearest
    /// one below it counts, in proportion.
    ///
    /// # Errors
    /// `Settings` for steps of a kind that was not measured on so few GPUs.
    pub fn ideal_s(&self, job: &TraceJob) -> Result<f64> {
        let upto = (job.kind.clone(), 1)..=(job.kind.clone(), job.gpus);
        let Some(((_, gpus), steps_per_s)) = self.0.range(upto).next_back() else {
            return Err(Error::settings(format!("the throughput of {:?} on {} GPUs is not known", job.kind, job.gpus)));
        };
        Ok(job.steps as f64 / (steps_per_s * f64::from(job.gpus) / f64::from(*gpus)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any text is a trace or an error, and never a panic; what is read can be run.
        #[test]
        fn nothing_panics(text in "(\u{feff}?[-0-9a-c.\t\n ]{0,60}|(k\tp\ta\t[01]\t[0-9.e]{0,6}\t[0-9.e-]{0,6}\t[0-9.]{0,5}\n){0,6})") {
            if let Ok(jobs) = parse_trace(&text) {
                prop_assert!(!jobs.is_empty());
                prop_assert!(jobs.iter().all(|job| job.gpus > 0 && job.steps > 0 && job.arrives_s.is_finite()));
            }
        }
    }
}
