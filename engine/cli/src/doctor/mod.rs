//! `lossfeed doctor`: what this machine can and cannot do, each shortcoming with its remedy.
//!
//! Nothing here is needed to train: a machine without a GPU gets fewer things, not an error. The exit code is 1 only
//! if lossfeed could not work at all.

mod cache_form;
mod machine;
mod python;

use std::io::{self, Write};

use serde::Serialize;

use crate::args::DoctorArgs;
use crate::smi::snapshot::SCHEMA_VERSION;
use crate::term;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// As it should be.
    Ok,
    /// Works, with less.
    Limited,
    /// lossfeed cannot work like this.
    Broken,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    name: &'static str,
    state: State,
    finding: String,
    /// What to do; only where something can be done.
    remedy: Option<String>,
}

impl Check {
    pub(crate) fn ok(name: &'static str, finding: impl Into<String>) -> Self {
        Self { name, state: State::Ok, finding: finding.into(), remedy: None }
    }
    pub(crate) fn limited(name: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, state: State::Limited, finding: finding.into(), remedy: Some(remedy.into()) }
    }
    pub(crate) fn broken(name: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, state: State::Broken, finding: finding.into(), remedy: Some(remedy.into()) }
    }
}

/// The report, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    schema_version: u32,
    version: &'static str,
    checks: Vec<Check>,
}

/// Runs the command and returns its exit code.
pub(crate) fn run(args: &DoctorArgs) -> i32 {
    let checks = [
        machine::processor(),
        machine::vector_units(),
        machine::memory(),
        machine::locked_memory(),
        machine::nvml(),
        machine::cuda(),
        cache_form::check(),
        machine::stats_pages(),
        python::check(),
    ];
    let report = Report { schema_version: SCHEMA_VERSION, version: env!("CARGO_PKG_VERSION"), checks: checks.to_vec() };
    term::exit_code(print(&report, args.json, &mut io::stdout().lock()))
}

fn print(report: &Report, json: bool, out: &mut impl Write) -> io::Result<i32> {
    if json {
        term::document(report, out)?;
    } else {
        writeln!(out, "lossfeed {}", report.version)?;
        for check in &report.checks {
            let state = match check.state {
                State::Ok => "ok",
                State::Limited => "limited",
                State::Broken => "BROKEN",
            };
            hanging(out, &format!("{state:>8}  {:<14} ", check.name), &check.finding)?;
            if let Some(remedy) = &check.remedy {
                hanging(out, &format!("{:>24} -> ", ""), remedy)?;
            }
        }
    }
    out.flush()?;
    Ok(i32::from(report.checks.iter().any(|c| c.state == State::Broken)))
}

/// Text after a label, as lines of the terminal's width.
fn hanging(out: &mut impl Write, label: &str, text: &str) -> io::Result<()> {
    for (k, line) in term::wrap(text, usize::from(term::width()) - label.len()).iter().enumerate() {
        writeln!(out, "{}{line}", if k == 0 { label.to_owned() } else { " ".repeat(label.len()) })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(checks: Vec<Check>) -> Report {
        Report { schema_version: 1, version: "9.9.9", checks }
    }

    #[test]
    fn every_shortcoming_is_followed_by_its_remedy_and_only_a_broken_machine_fails() {
        let mut out = Vec::new();
        let checks = vec![Check::ok("processor", "8 cores"), Check::limited("nvml", "not found", "install the driver")];
        assert_eq!(print(&report(checks.clone()), false, &mut out).unwrap(), 0);
        let text = String::from_utf8(out).unwrap();
        let golden = "lossfeed 9.9.9\n      ok  processor      8 cores\n limited  nvml           not found\n                         -> install the driver\n";
        assert_eq!(text, golden);
        let broken = [checks, vec![Check::broken("memory", "none", "add some")]].concat();
        assert_eq!(print(&report(broken), false, &mut Vec::new()).unwrap(), 1);
    }

    #[test]
    fn the_json_report_parses_and_has_null_where_there_is_no_remedy() {
        let mut out = Vec::new();
        print(&report(vec![Check::ok("processor", "8 cores")]), true, &mut out).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(json["checks"][0]["state"], "ok");
        assert!(json["checks"][0]["remedy"].is_null());
    }
}
