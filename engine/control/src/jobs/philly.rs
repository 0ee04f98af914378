//! The log of Microsoft's Philly clusters (Jeon et al., ATC'19): `cluster_job_log` of msr-fiddle/philly-traces.
//!
//! A JSON array of jobs, each with the attempts to run it: when each began and ended, and on which GPUs. As its authors'
//! notebook does, the GPUs are the first attempt's, and a job runs from its first attempt's beginning to its last one's
//! end. Jobs that failed or were killed count: they took GPUs and read data like the others. Its README says that jobs
//! may have no attempt, and attempts no times; those are left out.

use serde::{Deserialize, Deserializer, de};

use super::date::seconds;
use super::trace::{Collected, JobTrace, NOT_ENDED, NOT_STARTED, TraceFormat};
use crate::error::{Error, Result};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Logged {
    jobid: String,
    #[serde(deserialize_with = "status", rename = "status")]
    _status: (),
    #[serde(rename = "vc")]
    _vc: de::IgnoredAny,
    #[serde(rename = "user")]
    _user: de::IgnoredAny,
    #[serde(deserialize_with = "time")]
    submitted_time: Option<f64>,
    attempts: Vec<Attempt>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Attempt {
    #[serde(deserialize_with = "time")]
    start_time: Option<f64>,
    #[serde(deserialize_with = "time")]
    end_time: Option<f64>,
    detail: Vec<Server>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Server {
    #[serde(rename = "ip")]
    _ip: de::IgnoredAny,
    gpus: Vec<de::IgnoredAny>,
}

/// Every job of the log that ran, in the order in which they were submitted.
///
/// # Errors
/// `Settings` with the line, if it is no such log, or no job of it ran.
pub(super) fn parse_philly(text: &str) -> Result<JobTrace> {
    // Its errors name line and column.
    let logged: Vec<Logged> =
        serde_json::from_str(text).map_err(|e| Error::settings("it is no cluster_job_log").because(e))?;
    let mut collected = Collected::default();
    for job in logged {
        let first = job.attempts.first();
        let began = first.and_then(|attempt| attempt.start_time);
        let (Some(submitted), Some(first), Some(began)) = (job.submitted_time, first, began) else {
            collected.leave_out(NOT_STARTED);
            continue;
        };
        let Some(ended) = job.attempts.last().and_then(|attempt| attempt.end_time) else {
            collected.leave_out(NOT_ENDED);
            continue;
        };
        let gpus: usize = first.detail.iter().map(|server| server.gpus.len()).sum();
        collected.add(&job.jobid, submitted, ended - began, u32::try_from(gpus).unwrap_or(u32::MAX));
    }
    collected.trace(TraceFormat::Philly)
}

/// A date and time, or nothing: the log has null, an empty text or "None".
fn time<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<f64>, D::Error> {
    match Option::<String>::deserialize(from)?.as_deref() {
        None | Some("" | "None") => Ok(None),
        Some(text) => seconds(text)
            .map(Some)
            .ok_or_else(|| de::Error::custom(format!("{text:?} is no time like \"2017-10-07 01:11:39\""))),
    }
}

fn status<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<(), D::Error> {
    match String::deserialize(from)?.as_str() {
        "Pass" | "Killed" | "Failed" => Ok(()),
        other => Err(de::Error::unknown_variant(other, &["Pass", "Killed", "Failed"])),
    }
}

#[cfg(test)]
mod tests {
    use super::super::trace::{Length, NO_GPU, NO_TIME};
    use super::*;

    /// As the format's README has it, with other jobs.
    const LOG: &str = r#"[
    {"status": "Pass", "vc": "a1", "jobid": "job_2", "user": "u1", "submitted_time": "2017-10-07 01:00:00",
     "attempts": [
        {"start_time": "2017-10-07 01:10:00", "end_time": "2017-10-07 01:20:00",
         "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu7"]}]},
        {"start_time": "2017-10-07 02:00:00", "end_time": "2017-10-08 01:10:00",
         "detail": [{"ip": "m3", "gpus": ["gpu0", "gpu1", "gpu2"]}]}]},
    {"status": "Failed", "vc": "a1", "jobid": "job_1", "user": "u2", "submitted_time": "2017-10-07 00:59:30",
     "attempts": [{"start_time": "2017-10-07 00:59:31", "end_time": "2017-10-07 00:59:41",
         "detail": [{"ip": "m1", "gpus": ["gpu0"]}]}]},
    {"status": "Killed", "vc": "a2", "jobid": "job_3", "user": "u2", "submitted_time": "2017-10-07 01:00:01",
     "attempts": []},
    {"status": "Pass", "vc": "a2", "jobid": "job_4", "user": "u2", "submitted_time": "2017-10-07 01:00:02",
     "attempts": [{"start_time": "2017-10-07 01:00:02", "end_time": null, "detail": [{"ip": "m", "gpus": ["gpu0"]}]}]},
    {"status": "Pass", "vc": "a2", "jobid": "job_5", "user": "u2", "submitted_time": "2017-10-07 01:00:02",
     "attempts": [{"start_time": "None", "end_time": "", "detail": []}]},
    {"status": "Pass", "vc": "a2", "jobid": "job_6", "user": "u2", "submitted_time": "2017-10-07 01:00:02",
     "attempts": [{"start_time": "2017-10-07 01:00:02", "end_time": "2017-10-07 01:00:05", "detail": []}]},
    {"status": "Pass", "vc": "a2", "jobid": "job_7", "user": "u2", "submitted_time": "2017-10-07 01:00:02",
     "attempts": [{"start_time": "2017-10-07 01:00:02", "end_time": "2017-10-07 01:00:02",
         "detail": [{"ip": "m", "gpus": ["gpu0"]}]}]}
]"#;

    #[test]
    fn jobs_that_ran_are_taken_and_the_others_are_counted() {
        let trace = parse_philly(LOG).unwrap();
        assert_eq!(trace.format, TraceFormat::Philly);
        let rows: Vec<_> =
            trace.jobs.iter().map(|job| (job.kind.as_str(), job.arrives_s, job.length, job.gpus)).collect();
        let day = Length::Seconds(86_400.0);
        assert_eq!(rows, [("job_1", 0.0, Length::Seconds(10.0), 1), ("job_2", 30.0, day, 3)]);
        assert!(trace.jobs.iter().all(|job| job.reads));
        assert_eq!(trace.left_out, [(NOT_STARTED, 2), (NOT_ENDED, 1), (NO_GPU, 1), (NO_TIME, 1)].into());
    }

    #[test]
    fn what_is_wrong_has_its_line() {
        for (from, to, says) in [
            ("\"2017-10-07 02:00:00\"", "\"2017-10-32 02:00:00\"", "line 6"),
            ("\"2017-10-07 02:00:00\"", "\"NaN\"", "\"NaN\" is no time like"),
            ("\"2017-10-07 02:00:00\"", "7", "line 6"),
            ("\"Pass\", \"vc\": \"a1\"", "\"Fine\", \"vc\": \"a1\"", "unknown variant `Fine`"),
            ("\"user\": \"u1\"", "\"owner\": \"u1\"", "unknown field `owner`"),
            ("\"user\": \"u1\", ", "", "missing field `user`"),
            ("\"gpus\": [\"gpu7\"]", "\"gpus\": 7", "line 5"),
            ("\"job_4\"", "4", "line 13"),
        ] {
            let text = LOG.replacen(from, to, 1);
            assert_ne!(text, LOG, "{from}");
            let error = parse_philly(&text).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("line "), "{error}");
        }
        let cut = parse_philly(&LOG[..LOG.len() / 2]).unwrap_err().to_string();
        assert!(cut.contains("line ") && cut.contains("cluster_job_log"), "{cut}");
        assert!(parse_philly("[]").unwrap_err().to_string().contains("the trace has no jobs"));
        let none = parse_philly(
            r#"[{"status": "Pass", "vc": "", "jobid": "", "user": "", "submitted_time": null, "attempts": []}]"#,
        );
        assert!(none.unwrap_err().to_string().contains("can be run: 1 without a recorded beginning"));
    }
}
