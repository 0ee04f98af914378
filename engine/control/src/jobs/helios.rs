//! The logs of SenseTime's Helios clusters (Hu et al., SC'21): `cluster_log.csv` of S-Lab-System-Group/HeliosData.
//!
//! CSV with a header, a job a line. Half of the jobs ask for no GPU, some take no time, and a few had not ended when the
//! log was taken: those are left out. Jobs that failed or were cancelled count, as they took GPUs and read data like the
//! others.

use super::date::seconds;
use super::trace::{Collected, JobTrace, NOT_ENDED, NOT_STARTED, TraceFormat};
use crate::error::{Error, Result};

const HEADER: [&str; 12] = [
    "job_id",
    "user",
    "vc",
    "gpu_num",
    "cpu_num",
    "node_num",
    "state",
    "submit_time",
    "start_time",
    "end_time",
    "duration",
    "queue",
];

/// Every job of the log that ran on GPUs, in the order in which they were submitted.
///
/// # Errors
/// `Settings` with the line, if it is no such log, or no job of it ran.
pub(super) fn parse_helios(text: &str) -> Result<JobTrace> {
    let mut collected = Collected::default();
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (_, header) = lines.next().unwrap_or_default();
    let columns: Vec<&str> = header.split(',').map(str::trim).collect();
    if columns != HEADER {
        let strange: Vec<_> = columns.iter().filter(|name| !HEADER.contains(name)).copied().collect();
        let missing: Vec<_> = HEADER.iter().filter(|name| !columns.contains(name)).copied().collect();
        return Err(Error::settings(format!(
            "line 1: a cluster_log.csv has the columns {}; unknown here: {}; missing: {}",
            HEADER.join(","),
            if strange.is_empty() { "none".to_owned() } else { strange.join(",") },
            if missing.is_empty() { "none".to_owned() } else { missing.join(",") },
        )));
    }
    for (number, line) in lines {
        take(line, &mut collected).map_err(|what| Error::settings(format!("line {}: {what}", number + 1)))?;
    }
    collected.trace(TraceFormat::Helios)
}

fn take(line: &str, collected: &mut Collected) -> std::result::Result<(), String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let &[job, _user, _vc, gpus, _cpus, _nodes, state, submitted, _began, _ended, took, _queued] = &fields[..] else {
        return Err(format!("{} columns where the header has {}", fields.len(), HEADER.len()));
    };
    match state {
        "COMPLETED" | "CANCELLED" | "FAILED" | "TIMEOUT" | "NODE_FAIL" => {}
        "RUNNING" | "SUSPENDED" => {
            collected.leave_out(NOT_ENDED);
            return Ok(());
        }
        "PENDING" => {
            collected.leave_out(NOT_STARTED);
            return Ok(());
        }
        other => {
            return Err(format!("state is {other:?}: Helios has COMPLETED, CANCELLED, FAILED, TIMEOUT, NODE_FAIL"));
        }
    }
    let gpus: u32 = gpus.parse().map_err(|_| format!("gpu_num is {gpus:?}: it is a whole number"))?;
    let submitted =
        seconds(submitted).ok_or_else(|| format!("submit_time is {submitted:?}: it is like 2020-06-09 18:41:01"))?;
    // Below 2^32 seconds, which is 136 years.
    let took: u32 = took.parse().map_err(|_| format!("duration is {took:?}: it is whole seconds"))?;
    collected.add(job, submitted, f64::from(took), gpus);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::trace::{Length, NO_GPU, NO_TIME};
    use super::*;

    const LOG: &str = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n\
        12,uA,vcB,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-09 18:51:01,600,0\r\n\
        11,uC,vcD,4,16,1,FAILED,2020-06-09 18:40:01,2020-06-09 18:41:27,2020-06-09 18:45:36,249,86\n\
        13,uC,vcD,0,8,1,COMPLETED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0\n\
        14,uC,vcD,8,8,1,CANCELLED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:41:27,0,0\n\
        \n\
        15,uC,vcD,8,8,1,RUNNING,2020-06-09 18:41:27,2020-06-09 18:41:27,None,,0\n";

    #[test]
    fn jobs_that_ran_are_taken_and_the_others_are_counted() {
        let trace = parse_helios(LOG).unwrap();
        assert_eq!(trace.format, TraceFormat::Helios);
        let rows: Vec<_> =
            trace.jobs.iter().map(|job| (job.kind.as_str(), job.arrives_s, job.length, job.gpus)).collect();
        assert_eq!(rows, [("11", 0.0, Length::Seconds(249.0), 4), ("12", 60.0, Length::Seconds(600.0), 1)]);
        assert_eq!(trace.left_out, [(NO_GPU, 1), (NO_TIME, 1), (NOT_ENDED, 1)].into());
    }

    #[test]
    fn what_is_wrong_has_its_line() {
        for (from, to, says) in [
            ("job_id,user", "job_id,owner", "line 1: a cluster_log.csv has the columns"),
            ("job_id,user", "job_id,owner", "unknown here: owner; missing: user"),
            (",249,86", ",249", "line 3: 11 columns where the header has 12"),
            (",249,86", ",249,86,1", "line 3: 13 columns"),
            (",249,86", ",-249,86", "line 3: duration is \"-249\""),
            (",249,86", ",NaN,86", "line 3: duration is \"NaN\""),
            (",249,86", ",,86", "line 3: duration is \"\""),
            ("vcD,4", "vcD,four", "line 3: gpu_num is \"four\""),
            ("vcD,4", "vcD,-4", "line 3: gpu_num is \"-4\""),
            ("FAILED,2020-06-09", "FAILED,2020-06-31", "line 3: submit_time is \"2020-06-31 18:40:01\""),
            ("FAILED,2020-06-09 18:40:01", "FAILED,", "line 3: submit_time is \"\""),
            ("CANCELLED", "LOST", "line 5: state is \"LOST\""),
        ] {
            let text = LOG.replacen(from, to, 1);
            assert_ne!(text, LOG, "{from}");
            let error = parse_helios(&text).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let header = LOG.lines().next().unwrap();
        assert!(parse_helios(header).unwrap_err().to_string().contains("the trace has no jobs"));
    }
}
