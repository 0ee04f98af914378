//! The log of a cluster, in whichever format it is.

use std::collections::BTreeMap;

use super::gavel::parse_gavel;
use super::helios::parse_helios;
use super::pai::{PaiJobs, parse_pai};
use super::philly::parse_philly;
use super::trace::{JobTrace, TraceFormat};
use crate::error::Result;

/// Reads a trace in whichever format it is. `submitted` is PAI's other table, for its traces.
///
/// # Errors
/// `Settings` with the line of what cannot be read, and for a trace without a job that can be run.
pub fn parse_trace(text: &str, submitted: Option<&PaiJobs>) -> Result<JobTrace> {
    let text = text.trim_start_matches('\u{feff}');
    match TraceFormat::of(text) {
        TraceFormat::Gavel => {
            Ok(JobTrace { format: TraceFormat::Gavel, jobs: parse_gavel(text)?, left_out: BTreeMap::new() })
        }
        TraceFormat::Philly => parse_philly(text),
        TraceFormat::Helios => parse_helios(text),
        TraceFormat::Pai => parse_pai(text, submitted),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::pai::parse_pai_jobs;
    use super::*;

    #[test]
    fn formats_are_told_by_how_they_begin() {
        let helios = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n\
            1,u,v,4,1,1,COMPLETED,2020-06-09 00:00:00,2020-06-09 00:00:00,2020-06-09 01:00:00,3600,0\n";
        let philly = r#"[{"status": "Pass", "vc": "v", "jobid": "p", "user": "u",
            "submitted_time": "2017-10-07 01:00:00", "attempts": [{"start_time": "2017-10-07 01:10:00",
            "end_time": "2017-10-07 02:10:00", "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}]}]}]"#;
        for (format, text) in [
            (TraceFormat::Gavel, "small\tpython3 a.py\t--steps\t1\t40000\t60.0\t2\n"),
            (TraceFormat::Pai, "b,worker,2.0,Terminated,100.0,4000.0,,,50.0,T4\n"),
            (TraceFormat::Helios, helios),
            (TraceFormat::Philly, philly),
        ] {
            for text in [text.to_owned(), format!("\u{feff}\n{text}"), text.replace('\n', "\r\n")] {
                let trace = parse_trace(&text, None).unwrap();
                assert_eq!((trace.format, trace.jobs.len()), (format, 1), "{}", format.name());
            }
        }
        for text in ["", "\n \n", "what is this"] {
            assert!(parse_trace(text, None).is_err(), "{text:?}");
        }
    }

    proptest! {
        /// Any text is a trace or an error, and never a panic; what is read can be run.
        #[test]
        fn nothing_panics(text in "([-0-9a-c.,\t\n \\[{\"]{0,60}|j,w,[0-9.e+]{0,8},T,[0-9.e-]{0,6},[0-9.e]{0,6},,,[0-9.]{0,5},\n){0,6}") {
            if let Ok(trace) = parse_trace(&text, None) {
                prop_assert!(trace.jobs.iter().all(|job| job.gpus > 0 && job.arrives_s.is_finite()));
            }
            let _ = parse_pai_jobs(&text);
        }
    }
}
