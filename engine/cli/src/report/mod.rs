//! What `lossfeed replay` found, as a table, JSON or CSV.

mod csv;
mod table;
#[cfg(test)]
mod tests;

use std::io::{self, Write};

use lossfeed_control::sim::{Costs, Population, Replay};
use lossfeed_control::{Error, Result};
use serde::Serialize;

use crate::args::ReplayArgs;
use crate::journal::Run;
use crate::term;

pub use table::{Table, table};

/// The JSON document. Its keys are a contract: `{"requests","samples","assumed":[…],"results":[{"policy",
/// "capacity_fraction","capacity_bytes","hits","misses","hit_ratio","epochs":[…],"residents"}…]}`. A journal has `run`
/// before them: what was recorded, and the same replayed. `population`: the samples at the end of the run; of a closed
/// loop every result has its own.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    /// Of a journal.
    pub run: Option<Run>,
    /// Accesses.
    pub requests: usize,
    /// Of the dataset.
    pub samples: usize,
    /// What is not told and had to be taken as given.
    pub assumed: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// What things take, where time was counted.
    pub costs: Option<Costs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// The samples at the end of a recorded run.
    pub population: Option<Population>,
    /// In the order asked for.
    pub results: Vec<Row>,
    /// What was read, for a heading.
    #[serde(skip)]
    pub title: String,
    /// Whether capacities are bytes; else they are numbers of samples.
    #[serde(skip)]
    pub sized: bool,
}

/// One policy at one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Who drew, in a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampler: Option<String>,
    /// What came of it.
    #[serde(flatten)]
    pub found: Replay,
    /// The samples at the end of a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub population: Option<Population>,
    /// The same with noise in the place of every score, where anybody looks at scores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random_scores: Option<Replay>,
}

impl Row {
    /// Sampler and policy.
    pub fn name(&self) -> String {
        match &self.sampler {
            Some(sampler) => format!("{sampler} + {}", self.found.policy),
            None => self.found.policy.clone(),
        }
    }
    /// What was found, and of the control.
    pub fn all(&self) -> impl Iterator<Item = (bool, &Replay)> {
        std::iter::once((false, &self.found)).chain(self.random_scores.as_ref().map(|control| (true, control)))
    }
}

/// Writes `text` to the file.
///
/// # Errors
/// `Source`, with the path.
pub fn write(path: &std::path::Path, text: String) -> Result<()> {
    std::fs::write(path, text).map_err(|e| Error::unreadable(format!("cannot write {}", path.display())).because(e))
}

/// Writes the CSV that was asked for, and prints.
///
/// # Errors
/// `Source` if either cannot be written.
pub fn tell(report: &Report, args: &ReplayArgs, out: &mut impl Write) -> Result<i32> {
    if let Some(path) = &args.csv {
        write(path, csv::csv(report))?;
    }
    let printed = if args.json { term::document(report, out) } else { table::print(report, out) };
    match printed.and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(Error::unreadable("cannot print").because(e)),
        _ => Ok(0),
    }
}

/// A capacity for people: percent of the dataset, without digits that say nothing.
pub fn percent(fraction: f64) -> String {
    // Fractions that were asked for are shown in full, and those that follow from bytes to a hundredth.
    let percent = (fraction * 1e10).round() / 1e8;
    let exact = format!("{percent}%");
    if exact.len() <= 8 { exact } else { format!("{percent:.2}%") }
}

/// A mean over the epochs that have the number.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}
