//! `lossfeed check`: the last seconds of a running job beside limits, for scripts and schedulers.

use lossfeed_stats::{self as stats, JobPage};

use crate::args::CheckArgs;
use crate::term;

const EXCEEDED: i32 = 1;
const TOO_LITTLE: i32 = 3;
const NOT_FOUND: i32 = 6;

/// A job over the window.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Lately {
    /// The largest share that a rank waited.
    stall: f64,
    /// Samples a second, all ranks together.
    rate: f64,
}

/// Runs the command and returns its exit code.
pub(crate) fn run(args: &CheckArgs) -> i32 {
    let found = stats::discover();
    let mut pages: Vec<&JobPage> = found.iter().filter(|page| page.alive && is_of(page, &args.job)).collect();
    // Root sees the pages of all users, and another's job may have the name of one of its own.
    let own = rustix::process::geteuid().as_raw();
    if pages.iter().any(|page| page.uid == own) {
        pages.retain(|page| page.uid == own);
    }
    if pages.is_empty() {
        term::complain(&format!(
            "no running engine has pid or job {:?}; `lossfeed smi` lists those there are",
            args.job
        ));
        return NOT_FOUND;
    }
    let window_ms = (args.window * 1000.0) as u64;
    match lately(&pages, window_ms) {
        Ok(lately) => {
            let (code, line) = judge(lately, args);
            println!("{}: {line}", args.job);
            code
        }
        Err(why) => {
            println!("{}: too little data: {why}", args.job);
            TOO_LITTLE
        }
    }
}

fn is_of(page: &JobPage, job: &str) -> bool {
    page.identity.job == job || page.pid.to_string() == job
}

/// The last `window_ms` of all ranks.
fn lately(pages: &[&JobPage], window_ms: u64) -> Result<Lately, String> {
    let mut all = Lately { stall: 0.0, rate: 0.0 };
    for page in pages {
        let one = of_rank(page, window_ms).map_err(|why| format!("rank {}: {why}", page.identity.rank))?;
        all = Lately { stall: all.stall.max(one.stall), rate: all.rate + one.rate };
    }
    Ok(all)
}

fn of_rank(page: &JobPage, window_ms: u64) -> Result<Lately, String> {
    let last = page.history.last().ok_or("no seconds yet")?;
    let began = last.unix_ms.saturating_sub(window_ms);
    // Seconds come a little late; half of one is forgiven.
    let first = page.history.iter().rev().find(|second| second.unix_ms <= began.saturating_add(500));
    let first = first.ok_or_else(|| {
        let known = page.history.first().map_or(0, |oldest| last.unix_ms.saturating_sub(oldest.unix_ms));
        format!("{} of {} seconds are known", known / 1000, window_ms / 1000)
    })?;
    let grown = |name: &str| Some(last.get(name)?.saturating_sub(first.get(name)?));
    let missing = "its page lacks a counter";
    let (samples, wait) = (grown("samples_total").ok_or(missing)?, grown("wait_us_total").ok_or(missing)?);
    let elapsed_ms = last.unix_ms.saturating_sub(first.unix_ms);
    let stall = stats::stall(wait, grown("busy_us_total").ok_or(missing)?).ok_or("it took no batch")?;
    Ok(Lately { stall, rate: samples as f64 * 1000.0 / elapsed_ms.max(1) as f64 })
}

/// The exit code and the line that says why.
fn judge(lately: Lately, args: &CheckArgs) -> (i32, String) {
    let mut exceeded = false;
    let mut parts = Vec::new();
    if let Some(most) = args.max_stall {
        let holds = lately.stall <= most;
        exceeded |= !holds;
        let word = if holds { "within" } else { "over" };
        parts.push(format!("stall {:.1}% is {word} {:.1}%", 100.0 * lately.stall, 100.0 * most));
    }
    if let Some(least) = args.min_rate {
        let holds = lately.rate >= least;
        exceeded |= !holds;
        parts.push(format!("{:.0} samples/s is {} {least:.0}", lately.rate, if holds { "at least" } else { "below" }));
    }
    (if exceeded { EXCEEDED } else { 0 }, format!("{} (last {:.0} s)", parts.join(", "), args.window))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::Parser;
    use lossfeed_stats::{HISTORY, Identity, Sample};

    use super::*;
    use crate::args::{Cli, Command};

    fn args(options: &[&str]) -> Result<CheckArgs, clap::Error> {
        let typed = ["lossfeed", "check", "job"].iter().chain(options);
        Cli::try_parse_from(typed).map(|cli| match cli.command {
            Command::Check(args) => args,
            other => panic!("{other:?}"),
        })
    }

    /// A rank that was asked for `seconds`, waiting `wait_ms` and working the rest of each, 100 samples a second.
    fn page(rank: u32, seconds: u64, wait_ms: u64) -> JobPage {
        let second = |k: u64| {
            let values = HISTORY.map(|name| {
                Some(match name {
                    "samples_total" => 100 * k,
                    "wait_us_total" => 1000 * wait_ms * k,
                    "busy_us_total" => 1000 * (1000 - wait_ms) * k,
                    _ => 0,
                })
            });
            Sample { unix_ms: 5_000_000 + 1000 * k, values }
        };
        JobPage {
            path: PathBuf::new(),
            identity: Identity { job: "job".into(), rank, ..Identity::default() },
            uid: 0,
            pid: 1,
            start_ticks: 1,
            version: String::new(),
            started_unix_ms: 0,
            updated_unix_ms: 0,
            alive: true,
            snapshot: Default::default(),
            history: (0..=seconds).map(second).collect(),
        }
    }

    fn code(pages: &[JobPage], options: &[&str]) -> i32 {
        let args = args(options).unwrap();
        let pages: Vec<&JobPage> = pages.iter().collect();
        lately(&pages, (args.window * 1000.0) as u64).map_or(TOO_LITTLE, |lately| judge(lately, &args).0)
    }

    #[test]
    fn the_worst_rank_and_the_rate_of_all_are_held_to_the_limits() {
        let ranks = [page(0, 70, 10), page(1, 70, 60)];
        assert_eq!(code(&ranks, &["--max-stall", "5%"]), EXCEEDED);
        assert_eq!(code(&ranks, &["--max-stall", "7%", "--min-rate", "199"]), 0);
        assert_eq!(code(&ranks, &["--max-stall", "0.07", "--min-rate", "201"]), EXCEEDED);
    }

    #[test]
    fn less_than_the_window_is_too_little() {
        assert_eq!(code(&[page(0, 59, 10)], &["--max-stall", "5%"]), TOO_LITTLE);
        assert_eq!(code(&[page(0, 59, 10)], &["--max-stall", "5%", "--for", "30s"]), 0);
        assert_eq!(code(&[page(0, 70, 10), page(1, 3, 10)], &["--max-stall", "5%"]), TOO_LITTLE);
        let idle = JobPage {
            history: vec![Sample { unix_ms: 0, values: [Some(0); 4] }, page(0, 1, 0).history[0]],
            ..page(0, 1, 0)
        };
        assert_eq!(code(&[idle], &["--max-stall", "5%", "--for", "2s"]), TOO_LITTLE, "no batch was taken");
    }

    #[test]
    fn a_limit_is_needed_and_each_has_its_form() {
        for wrong in [&[][..], &["--max-stall", "105%"], &["--max-stall", "x"], &["--min-rate", "0"]] {
            assert!(args(wrong).is_err(), "{wrong:?}");
        }
        let long = args(&["--max-stall", "5%", "--for", "5min"]).unwrap_err().to_string();
        assert!(long.contains("keeps 100 seconds"), "{long}");
    }
}
