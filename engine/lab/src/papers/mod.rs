//! `lossfeed-lab papers`: numbers that papers print, computed again here.

mod claims;
mod dlcache;
mod gavel;
mod icache;
mod seneca;
mod silod;

use std::io::{self, Write};

use lossfeed_cli::parallel::in_parallel;
use lossfeed_cli::term;
use lossfeed_control::Result;
use serde::Serialize;

use crate::args::PapersArgs;
use claims::{Agrees, CLAIMS, Claim, NOT_CHECKED};

/// One line: a claim and what came of it.
#[derive(Debug, Serialize)]
struct Checked {
    paper: &'static str,
    claim: String,
    says: f64,
    /// How far ours may be off; null if it has to be above what the paper says.
    within: Option<f64>,
    ours: f64,
    agrees: bool,
    /// What was assumed, and what the number means.
    note: &'static str,
}

/// The JSON document: `{"checked": [{"paper", "claim", "says", "within", "ours", "agrees", "note"}…], "not_checked":
/// [{"paper", "claims", "why"}…]}`.
#[derive(Debug, Serialize)]
struct Report {
    checked: Vec<Checked>,
    not_checked: Vec<NotChecked>,
}

#[derive(Debug, Serialize)]
struct NotChecked {
    paper: &'static str,
    claims: &'static str,
    why: &'static str,
}

/// Runs the command and returns its exit code: a number that differs is a result, not a failure.
pub(crate) fn run(args: &PapersArgs) -> i32 {
    let report = || {
        let mut report = check(&all(args.whole))?;
        // One paper's claims stand together.
        let more = args.gavel.as_deref().map_or(Ok(Vec::new()), gavel::check)?;
        report.checked.extend(more);
        Ok::<_, lossfeed_control::Error>(report)
    };
    match report() {
        Ok(report) => term::exit_code(print(&report, args.json, &mut io::stdout().lock())),
        Err(e) => term::failed(&e),
    }
}

/// Every claim, by paper.
fn all(whole: bool) -> Vec<Claim> {
    let dlcache = if whole { &dlcache::WHOLE } else { &dlcache::SAMPLED };
    [&CLAIMS[..], &icache::CLAIMS, &silod::CLAIMS, dlcache, &seneca::CLAIMS].concat()
}

impl Checked {
    fn new(
        paper: &'static str,
        claim: impl Into<String>,
        says: f64,
        agrees: Agrees,
        ours: f64,
        note: &'static str,
    ) -> Self {
        let (within, agrees) = match agrees {
            Agrees::Within(within) => (Some(within), (ours - says).abs() <= within),
            Agrees::Above => (None, ours > says),
        };
        Self { paper, claim: claim.into(), says, within, ours, agrees, note }
    }
}

fn check(claims: &[Claim]) -> Result<Report> {
    let one = |claim: &Claim| {
        let &Claim { paper, claim, says, agrees, note, ours } = claim;
        ours().map(|ours| Checked::new(paper, claim, says, agrees, ours, note))
    };
    let checked = in_parallel(claims, one).into_iter().collect::<Result<_>>()?;
    let not_checked = NOT_CHECKED.map(|(paper, claims, why)| NotChecked { paper, claims, why }).into();
    Ok(Report { checked, not_checked })
}

fn print(report: &Report, json: bool, out: &mut impl Write) -> io::Result<i32> {
    if json {
        term::document(report, out)?;
        out.flush()?;
        return Ok(0);
    }
    let mut paper = "";
    for row in &report.checked {
        if row.paper != paper {
            paper = row.paper;
            writeln!(out, "{paper}")?;
        }
        let verdict = if row.agrees { "agrees" } else { "DIFFERS" };
        let says = if row.within.is_some() { number(row.says) } else { format!("> {}", number(row.says)) };
        writeln!(out, "  {:<58} paper {says:>9} ours {:>9}  {verdict}", row.claim, number(row.ours))?;
        if !row.note.is_empty() {
            writeln!(out, "    {}", row.note)?;
        }
    }
    writeln!(out, "not checked here")?;
    for NotChecked { paper, claims, why } in &report.not_checked {
        writeln!(out, "  {paper}, {claims}: {why}")?;
    }
    out.flush()?;
    Ok(0)
}

/// As many digits as are worth reading.
fn number(value: f64) -> String {
    if value.abs() >= 1000.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each number twice: against the paper, as users see it, and against what was found when the claim was written.
    #[test]
    fn every_claim_is_as_it_was_found() {
        let report = check(&all(false)).unwrap();
        let differing: Vec<_> = report.checked.iter().filter(|row| !row.agrees).map(|row| &row.claim[..]).collect();
        let found = [
            "samples read three times or more in an epoch, %",
            "hits under APP over LRU's on the same draws, cache 20 %, times",
            "the same 20 %, where losses say nothing of the samples, %",
            "the same 20 %, requests that cost no read, %",
            "Fig. 4: rate of each of two jobs under max-min, MB/s",
            "LRU over CLRFU, if a use ages by 1 a job, times",
            "CLRFU with costs in whole seconds over CLRFU, times",
            "without costs, of equals the newest gives way, over CLRFU",
            "hits of three jobs in step, cache 20 %, %",
        ];
        assert_eq!(differing, found, "{:#?}", report.checked);
        assert!(report.checked.iter().all(|row| row.ours.is_finite() && row.within.is_none_or(|within| within >= 0.0)));
    }

    #[test]
    fn a_difference_is_told_and_is_no_failure() {
        let claim =
            |agrees, ours| Claim { paper: "a paper", claim: "a number", says: 2.0, agrees, note: "assumed", ours };
        let (near, above) = (Agrees::Within(0.5), Agrees::Above);
        let near: [Claim; 3] = [claim(near, || Ok(2.5)), claim(near, || Ok(2.6)), claim(near, || Ok(f64::NAN))];
        let above = [claim(above, || Ok(2.1)), claim(above, || Ok(2.0)), claim(above, || Ok(f64::NAN))];
        let report = check(&[near, above].concat()).unwrap();
        let found = report.checked.iter().map(|row| row.agrees).collect::<Vec<_>>();
        assert_eq!(found, [true, false, false, true, false, false]);
        let mut out = Vec::new();
        assert_eq!(print(&report, false, &mut out).unwrap(), 0);
        let text = String::from_utf8(out).unwrap();
        assert!(text.matches("> 2.00 ours").count() == 3, "{text}");
        assert!(text.matches("DIFFERS").count() == 4 && text.matches("a paper\n").count() == 1, "{text}");
        let mut out = Vec::new();
        print(&report, true, &mut out).unwrap();
        let found: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert!(found["checked"][1]["agrees"] == false && found["not_checked"][0]["why"].is_string());
    }
}
