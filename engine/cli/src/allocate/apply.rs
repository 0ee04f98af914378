//! `lossfeed allocate --apply`: limits for the jobs that run on this machine, once or again and again.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::PathBuf;

use lossfeed_control::jobs::Resources;
use lossfeed_control::{Error, printable};
use lossfeed_stats::{JobPage, Limits, discover};
use serde::Serialize;

use super::live::{Plan, Planned, Watcher};
use crate::args::{AllocateArgs, Sharing};
use crate::{smi, term};

/// No job runs.
const NOT_FOUND: i32 = 6;
/// Between two looks.
const PERIOD_S: f64 = 1.0;
/// Looks before limits are set once: what a job misses now takes two.
const LOOKS_BEFORE: u64 = 3;
/// A limit is set again if it changed by more than this part of it.
const CHANGED: f64 = 0.01;
/// A change that is larger is told.
const TOLD: f64 = 0.1;

/// A row of `--json`; absent numbers: the job is not measured yet.
#[derive(Debug, Serialize)]
struct Row {
    job: String,
    pid: u32,
    rank: u32,
    limit: Option<u64>,
    resize: Option<u64>,
    resident_bytes: f64,
    dataset_bytes: Option<f64>,
    hit_ratio_now: Option<f64>,
    ideal_bytes_per_s: Option<f64>,
    rate_bytes_per_s: Option<f64>,
}

/// One document of `--json`, a line each time that something changes.
#[derive(Debug, Serialize)]
struct Document {
    sharing: Sharing,
    unused_cache_bytes: f64,
    jobs: Vec<Row>,
}

/// Limits that were set, and those that were told last.
#[derive(Debug, Clone, Copy)]
struct Done {
    set: Limits,
    told: Limits,
}

struct Applying<'a> {
    args: &'a AllocateArgs,
    resources: Resources,
    watcher: Watcher,
    done: HashMap<PathBuf, (JobPage, Done)>,
    /// Engines that were said to be left alone, and failures that were told.
    told: HashMap<PathBuf, String>,
    waits: bool,
}

/// Runs the command and returns its exit code.
pub(super) fn run(args: &AllocateArgs) -> i32 {
    if args.sharing == Sharing::Sjf && args.epochs.is_empty() {
        return term::failed(&Error::settings(
            "--apply with --sharing sjf needs --epochs JOB=N for each job: a running job does not tell when it will end",
        ));
    }
    if args.sharing != Sharing::Sjf && !args.epochs.is_empty() {
        return term::failed(&Error::settings("--epochs is for --sharing sjf: no other way asks when a job will end"));
    }
    let (Some(cache), Some(bandwidth)) = (args.cache, args.bandwidth) else {
        return term::failed(&Error::settings("--apply needs --cache and --bandwidth: what the jobs share"));
    };
    let resources = Resources { cache_bytes: cache as f64, bandwidth_bytes_per_s: bandwidth as f64 };
    let mut applying = Applying {
        args,
        resources,
        watcher: Watcher::default(),
        done: HashMap::new(),
        told: HashMap::new(),
        waits: false,
    };
    let mut code = 0;
    let count = (!args.watch).then_some(LOOKS_BEFORE);
    let ended = smi::rounds(PERIOD_S, count, |round| {
        let plan =
            applying.watcher.plan(discover(), args.sharing, &args.epochs, resources).map_err(io::Error::other)?;
        if !args.watch && round + 1 < LOOKS_BEFORE {
            return Ok(());
        }
        if !args.watch && plan.jobs.is_empty() {
            code = NOT_FOUND;
        }
        applying.put(plan, &mut io::stdout().lock())
    });
    if args.watch {
        applying.release();
    }
    term::exit_code(ended.map(|()| code))
}

impl Applying<'_> {
    fn put(&mut self, plan: Plan, out: &mut impl Write) -> io::Result<()> {
        self.done.retain(|path, _| plan.jobs.iter().any(|planned| planned.job.page.path == *path));
        for (page, why) in &plan.left_alone {
            self.tell(page, why);
        }
        if plan.jobs.is_empty() {
            if !std::mem::replace(&mut self.waits, true) {
                term::complain("no job runs that can be given limits");
            }
            return Ok(());
        }
        self.waits = false;
        // What is taken is taken before it is given: the sum stays within what there is.
        let (mut changes, mut order): (Vec<&Planned>, Vec<&Planned>) = (Vec::new(), plan.jobs.iter().collect());
        order.sort_by_key(|planned| planned.limits.limit > self.set(planned).limit);
        for planned in order {
            let before = self.set(planned);
            let path = planned.job.page.path.clone();
            if !differs(before, planned.limits, CHANGED) {
                continue;
            }
            if let Err(why) = planned.job.page.set_limits(planned.limits) {
                self.tell(&planned.job.page, &why);
                continue;
            }
            let told = self.done.get(&path).map(|(_, done)| done.told);
            let tells = told.is_none_or(|told| differs(told, planned.limits, TOLD));
            let told = told.filter(|_| !tells).unwrap_or(planned.limits);
            self.done.insert(path, (planned.job.page.clone(), Done { set: planned.limits, told }));
            if tells {
                changes.push(planned);
            }
        }
        if changes.is_empty() {
            return Ok(());
        }
        if self.args.json {
            term::document(&self.document(&plan), out)?;
            return out.flush();
        }
        changes.sort_by_key(|planned| planned.job.page.pid);
        changes.into_iter().try_for_each(|planned| writeln!(out, "{}", line(planned, self.args.sharing)))?;
        if plan.unused_bytes > CHANGED * self.resources.cache_bytes {
            let unused = mb(plan.unused_bytes);
            let why = match self.args.sharing {
                Sharing::Aiv => {
                    "a job that it makes less than 1.5 times as fast gets none, another what its loader has room for"
                }
                _ => "no loader was made with room for more of its dataset",
            };
            writeln!(out, "{unused} MB of the cache stay unused: {why}")?;
        }
        out.flush()
    }

    /// The limits that were set last.
    fn set(&self, planned: &Planned) -> Limits {
        self.done.get(&planned.job.page.path).map_or(planned.job.has, |(_, done)| done.set)
    }

    fn document(&self, plan: &Plan) -> Document {
        let row = |planned: &Planned| {
            let measured = planned.job.measured.as_ref();
            Row {
                job: planned.job.page.identity.job.clone(),
                pid: planned.job.page.pid,
                rank: planned.job.page.identity.rank,
                limit: planned.limits.limit,
                resize: planned.limits.resize,
                resident_bytes: planned.job.resident_bytes,
                dataset_bytes: measured.map(|measured| measured.dataset_bytes),
                hit_ratio_now: measured.map(|measured| measured.hits),
                ideal_bytes_per_s: measured.map(|measured| measured.ideal_bytes_per_s),
                rate_bytes_per_s: planned.rate_bytes_per_s,
            }
        };
        Document {
            sharing: self.args.sharing,
            unused_cache_bytes: plan.unused_bytes,
            jobs: plan.jobs.iter().map(row).collect(),
        }
    }

    /// Once for each engine and reason.
    fn tell(&mut self, page: &JobPage, why: &str) {
        if self.told.insert(page.path.clone(), why.to_owned()).is_none_or(|before| before != why) {
            term::complain(&format!("{} (pid {}): {why}", printable(&page.identity.job), page.pid));
        }
    }

    /// Takes back all limits that were set.
    fn release(&mut self) {
        for (page, _) in self.done.values() {
            if let Err(why) = page.release_limits() {
                term::complain(&why);
            }
        }
    }
}

/// True if a limit changed by more than this part of it.
fn differs(before: Limits, now: Limits, part: f64) -> bool {
    let far = |before: Option<u64>, now: Option<u64>| match (before, now) {
        (Some(before), Some(now)) => (before as f64 - now as f64).abs() > part * (before.max(now)) as f64,
        (before, now) => before != now,
    };
    far(before.limit, now.limit) || far(before.resize, now.resize)
}

/// A line that says which limits a job got, and why.
fn line(planned: &Planned, sharing: Sharing) -> String {
    let Planned { job, limits, rate_bytes_per_s } = planned;
    let identity = &job.page.identity;
    let rank = if identity.world_size > 1 { format!(" rank {}", identity.rank) } else { String::new() };
    let set = |value: Option<u64>| mb(value.unwrap_or(0) as f64);
    let head = format!(
        "{} (pid {}{rank}): limit {} MB/s, cache {} MB",
        printable(&identity.job),
        job.page.pid,
        set(limits.limit),
        set(limits.resize)
    );
    let (Some(measured), Some(rate)) = (&job.measured, rate_bytes_per_s) else {
        let until = match (&job.measured, sharing) {
            (Some(_), Sharing::Sjf) => "as --epochs does not name it",
            _ => "until it is measured",
        };
        return format!("{head}: an equal part {until}");
    };
    format!(
        "{head}: {} of {} MB cached, hits {:.0}% now, so {} of {} MB/s",
        mb(job.resident_bytes),
        mb(measured.dataset_bytes),
        100.0 * measured.hits,
        mb(*rate),
        mb(measured.ideal_bytes_per_s)
    )
}

/// Millions, with three digits that count.
fn mb(bytes: f64) -> String {
    let millions = bytes / 1e6;
    let digits = if millions >= 100.0 {
        0
    } else if millions >= 10.0 {
        1
    } else {
        2
    };
    format!("{millions:.digits$}")
}
