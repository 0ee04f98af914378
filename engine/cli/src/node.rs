//! `lossfeed node`: the cache that the jobs of this machine share.

use std::io::{self, Write};
use std::time::Duration;

use lossfeed_node::{Admin, Listed, Serve, serve};

use crate::args::NodeCommand;
use crate::term;

const FAILED: i32 = 1;
const NOT_FOUND: i32 = 6;

/// Runs the command and returns its exit code.
pub(crate) fn run(command: &NodeCommand) -> i32 {
    match done(command) {
        Ok(code) => code,
        Err(reason) => {
            term::complain(&reason);
            FAILED
        }
    }
}

fn done(command: &NodeCommand) -> Result<i32, String> {
    if let NodeCommand::Serve { folder, bytes, idle, .. } = command {
        let asked = Serve { folder: folder.clone(), bytes: *bytes, idle: Duration::from_secs_f64(*idle) };
        return serve(&asked).map(|()| 0);
    }
    let Some(owner) = Admin::connect(&lossfeed_stats::candidates())? else {
        term::complain("no node cache runs for this user: a loader with cache=lf.Cache(…, share=\"node\") starts one");
        return Ok(NOT_FOUND);
    };
    match command {
        NodeCommand::Ls { json } => {
            let listed = owner.list()?;
            let mut out = io::stdout().lock();
            let written = if *json { term::document(&listed, &mut out) } else { table(&listed, &mut out) };
            Ok(term::exit_code(written.map(|()| 0)))
        }
        NodeCommand::Drop { dataset } => match owner.drop_dataset(dataset)? {
            Some(samples) => {
                println!("{dataset}: {samples} samples dropped");
                Ok(0)
            }
            None => unknown(&owner, "dataset", dataset),
        },
        NodeCommand::Pin { dataset, off } => match owner.pin(dataset, !off)? {
            true => Ok(0),
            false => unknown(&owner, "dataset", dataset),
        },
        NodeCommand::Limit { job, bytes } => match owner.limit(job, bytes.0)? {
            true => Ok(0),
            false => unknown(&owner, "job", job),
        },
        NodeCommand::Serve { .. } => Ok(0),
    }
}

fn unknown(owner: &Admin, what: &str, name: &str) -> Result<i32, String> {
    let listed = owner.list()?.jobs;
    let mut names: Vec<&str> =
        listed.iter().map(|job| if what == "job" { job.job.as_str() } else { job.dataset.as_str() }).collect();
    names.dedup();
    term::complain(&format!("the node cache knows no {what} {name:?}; it knows: {}", names.join(", ")));
    Ok(NOT_FOUND)
}

fn table(listed: &Listed, out: &mut impl Write) -> io::Result<()> {
    let Listed { pid, bytes, capacity_bytes, samples, .. } = listed;
    writeln!(out, "process {pid}: {samples} samples, {} of {} MiB", mib(*bytes), mib(*capacity_bytes))?;
    if listed.adoptable > 0 {
        writeln!(out, "{} samples of the process before are being taken over", listed.adoptable)?;
    }
    if listed.refused > 0 {
        writeln!(out, "{} connections refused, the last one for {}", listed.refused, listed.last_refusal)?;
    }
    if !listed.jobs.is_empty() {
        writeln!(
            out,
            "{:<16} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9}  DATASET",
            "JOB", "CLIENTS", "SAMPLES", "MIB", "LIMIT", "HITS", "MISSES"
        )?;
    }
    for job in &listed.jobs {
        let pinned = if job.pinned { " (pinned)" } else { "" };
        let limit = job.limit_bytes.map_or_else(|| "none".to_owned(), |bytes| mib(bytes).to_string());
        let (name, clients, samples, bytes) = (&job.job, job.clients, job.samples, mib(job.bytes));
        writeln!(
            out,
            "{name:<16} {clients:>7} {samples:>9} {bytes:>9} {limit:>9} {:>9} {:>9}  {}{pinned}",
            job.hits, job.misses, job.dataset
        )?;
    }
    Ok(())
}

fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}
