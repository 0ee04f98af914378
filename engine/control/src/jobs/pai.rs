//! The tables of Alibaba's PAI (Weng et al., NSDI'22): `pai_task_table.csv` and `pai_job_table.csv` of
//! alibaba/clusterdata, cluster-trace-gpu-v2020.
//!
//! CSV without a header; the columns are those of the `.header` files beside them. A job is one or more tasks of several
//! instances. Here it asks for what all of them ask for together, in whole GPUs (the table has hundredths, and PAI
//! shares a GPU), and runs from its first task's beginning to its last one's end. A time is empty or 0 where it was not
//! recorded. Tasks that failed count like the others.

use std::collections::HashMap;

use super::trace::{Collected, JobTrace, NOT_ENDED, NOT_STARTED, TraceFormat};
use crate::error::{Error, Result};

const NO_INSTANCES: &str = "with a task without its number of instances";
const NOT_SUBMITTED: &str = "not in the table of jobs, or without a time there";

/// When each job was submitted: PAI's table of jobs. The table of tasks only says when one began.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PaiJobs(HashMap<String, Option<f64>>);

/// Of `pai_job_table.csv`: job_name, inst_id, user, status, start_time (when it was submitted), end_time.
///
/// # Errors
/// `Settings` with the line of what cannot be read, or of a job that comes twice.
pub fn parse_pai_jobs(text: &str) -> Result<PaiJobs> {
    let mut jobs = HashMap::new();
    for (number, line) in lines(text) {
        let told = |what: String| Error::settings(format!("line {number}: {what}"));
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let &[name, _inst, _user, _status, submitted, ended] = &fields[..] else {
            return Err(told(format!("{} columns, and a pai_job_table.csv has six", fields.len())));
        };
        let submitted = time("start_time", submitted).map_err(told)?;
        time("end_time", ended).map_err(told)?;
        if jobs.insert(name.to_owned(), submitted).is_some() {
            return Err(told(format!("job {name:?} comes twice")));
        }
    }
    if jobs.is_empty() {
        return Err(Error::settings("the table has no jobs"));
    }
    Ok(PaiJobs(jobs))
}

/// One job, while its tasks are read.
#[derive(Debug)]
struct Gang {
    began: f64,
    ended: f64,
    /// Hundredths of a GPU.
    percent: f64,
    why_not: Option<&'static str>,
}

/// Every job of `pai_task_table.csv` that ran on GPUs, in the order in which they came: when they were submitted, or
/// without `submitted`, when they began. Columns: job_name, task_name, inst_num, status, start_time, end_time, plan_cpu,
/// plan_mem, plan_gpu, gpu_type.
///
/// # Errors
/// `Settings` with the line, if it is no such table, or no job of it ran.
pub(super) fn parse_pai(text: &str, submitted: Option<&PaiJobs>) -> Result<JobTrace> {
    let mut gangs: Vec<(&str, Gang)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (number, line) in lines(text) {
        let (name, task) = task(line).map_err(|what| Error::settings(format!("line {number}: {what}")))?;
        let place = *places.entry(name).or_insert(gangs.len());
        let Some((_, gang)) = gangs.get_mut(place) else {
            gangs.push((name, task));
            continue;
        };
        gang.began = gang.began.min(task.began);
        gang.ended = gang.ended.max(task.ended);
        gang.percent += task.percent;
        gang.why_not = gang.why_not.or(task.why_not);
    }
    let mut collected = Collected::default();
    for (name, gang) in gangs {
        if let Some(why) = gang.why_not {
            collected.leave_out(why);
            continue;
        }
        let arrives = match submitted {
            None => Some(gang.began),
            Some(PaiJobs(jobs)) => jobs.get(name).copied().flatten(),
        };
        let Some(arrives) = arrives else {
            collected.leave_out(NOT_SUBMITTED);
            continue;
        };
        // Larger ones are more GPUs than any cluster has, and are refused there.
        let gpus = (gang.percent / 100.0).ceil().min(f64::from(u32::MAX)) as u32;
        collected.add(name, arrives, gang.ended - gang.began, gpus);
    }
    collected.trace(TraceFormat::Pai)
}

fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty())
}

fn task(line: &str) -> std::result::Result<(&str, Gang), String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    if fields.len() == 6 {
        return Err("six columns, as in pai_job_table.csv, which has no GPUs: it goes beside pai_task_table.csv".into());
    }
    let &[name, _task, instances, _status, began, ended, _cpu, _mem, gpu, _kind] = &fields[..] else {
        return Err(format!("{} columns, and a pai_task_table.csv has ten", fields.len()));
    };
    let (began, ended) = (time("start_time", began)?, time("end_time", ended)?);
    let (instances, gpu) = (amount("inst_num", instances)?, amount("plan_gpu", gpu)?);
    let why_not = match (began, ended, instances) {
        (None, ..) => Some(NOT_STARTED),
        (_, None, _) => Some(NOT_ENDED),
        (.., None) => Some(NO_INSTANCES),
        _ => None,
    };
    let percent = instances.unwrap_or(0.0) * gpu.unwrap_or(0.0);
    Ok((name, Gang { began: began.unwrap_or(0.0), ended: ended.unwrap_or(0.0), percent, why_not }))
}

/// A finite number from 0 on; nothing if the field is empty.
fn amount(column: &str, text: &str) -> std::result::Result<Option<f64>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    number.map(Some).ok_or_else(|| format!("{column} is {text:?}: it is a number from 0 on, or empty"))
}

/// Seconds; nothing if they are 0, which is no time of the trace.
fn time(column: &str, text: &str) -> std::result::Result<Option<f64>, String> {
    Ok(amount(column, text)?.filter(|&seconds| seconds > 0.0))
}

#[cfg(test)]
mod tests {
    use super::super::trace::{BACKWARDS, Length, NO_GPU, TraceJob};
    use super::*;
    use proptest::prelude::*;

    const TASKS: &str = "\
        bb,worker,2.0,Terminated,1000.0,1600.0,600.0,29.296875,50.0,MISC\n\
        aa,tensorflow,1.0,Failed,900.0,910.0,600.0,29.3,100.0,T4\n\
        bb,ps,1.0,Terminated,990.0,1500.0,600.0,29.296875,,\n\
        bb,evaluator,1.0,Terminated,1100.0,1700.0,600.0,29.296875,25.0,V100\n\
        cc,worker,1.0,Running,1000.0,,600.0,29.3,50.0,T4\n\
        dd,worker,1.0,Waiting,,,600.0,29.3,50.0,\n\
        ee,worker,4.0,Terminated,0.0,1000.0,600.0,29.3,50.0,T4\n\
        ff,worker,4.0,Terminated,1000.0,1001.0,600.0,29.3,,\n\
        gg,worker,,Terminated,1000.0,1001.0,600.0,29.3,50.0,\n\
        hh,worker,1.0,Failed,1001.0,1000.0,600.0,29.3,50.0,T4\n";
    const JOBS: &str = "\
        bb,i1,u1,Terminated,800.0,1700.0\n\
        aa,i2,u1,Failed,850.5,910.0\n";

    fn rows(trace: &JobTrace) -> Vec<(&str, f64, Length, u32)> {
        trace.jobs.iter().map(|job| (job.kind.as_str(), job.arrives_s, job.length, job.gpus)).collect()
    }

    #[test]
    fn jobs_that_ran_are_taken_and_the_others_are_counted() {
        let trace = parse_pai(TASKS, None).unwrap();
        assert_eq!(trace.format, TraceFormat::Pai);
        // 2 × 0.5 + 0.25 GPUs.
        let (aa, bb) = (Length::Seconds(10.0), Length::Seconds(710.0));
        assert_eq!(rows(&trace), [("aa", 0.0, aa, 1), ("bb", 90.0, bb, 2)]);
        let others = [(NOT_ENDED, 1), (NOT_STARTED, 2), (NO_GPU, 1), (NO_INSTANCES, 1), (BACKWARDS, 1)];
        assert_eq!(trace.left_out, others.into());
    }

    #[test]
    fn the_table_of_jobs_says_when_they_came() {
        let jobs = parse_pai_jobs(JOBS).unwrap();
        let trace = parse_pai(TASKS, Some(&jobs)).unwrap();
        let (aa, bb) = (Length::Seconds(10.0), Length::Seconds(710.0));
        assert_eq!(rows(&trace), [("bb", 0.0, bb, 2), ("aa", 50.5, aa, 1)]);
        // Nor are ff and hh there, which are left out for it before anything else.
        let one = parse_pai_jobs(&JOBS.replace("850.5", "")).unwrap();
        let trace = parse_pai(TASKS, Some(&one)).unwrap();
        assert_eq!((trace.jobs.len(), trace.left_out[NOT_SUBMITTED]), (1, 3));
    }

    #[test]
    fn what_is_wrong_has_its_line() {
        for (from, to, says) in [
            (",100.0,T4", ",100.0", "line 2: 9 columns, and a pai_task_table.csv has ten"),
            (",100.0,T4", ",100.0,T4,1", "line 2: 11 columns"),
            ("aa,tensorflow,1.0", "aa,1.0,tensorflow", "line 2: inst_num is \"tensorflow\""),
            ("900.0,910.0", "soon,910.0", "line 2: start_time is \"soon\""),
            ("900.0,910.0", "NaN,910.0", "line 2: start_time is \"NaN\""),
            ("900.0,910.0", "900.0,inf", "line 2: end_time is \"inf\""),
            ("900.0,910.0", "-900.0,910.0", "line 2: start_time is \"-900.0\""),
            ("tensorflow,1.0", "tensorflow,-1.0", "line 2: inst_num is \"-1.0\""),
            (",100.0,T4", ",all,T4", "line 2: plan_gpu is \"all\""),
        ] {
            let text = TASKS.replacen(from, to, 1);
            assert_ne!(text, TASKS, "{from}");
            let error = parse_pai(&text, None).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let header = format!("{}\n{TASKS}", "job_name,task_name,inst_num,status,start_time,end_time,a,b,plan_gpu,c");
        assert!(parse_pai(&header, None).unwrap_err().to_string().contains("line 1: start_time is \"start_time\""));
        assert!(parse_pai(JOBS, None).unwrap_err().to_string().contains("line 1: six columns"));
        for (text, says) in [
            ("", "no jobs"),
            ("a,b,c,d,1,2\nb,b,c,d,x,2\n", "line 2: start_time is \"x\""),
            ("a,b,c,d,1,2\na,b,c,d,1,2\n", "line 2: job \"a\" comes twice"),
            (TASKS, "line 1: 10 columns, and a pai_job_table.csv has six"),
        ] {
            assert!(parse_pai_jobs(text).unwrap_err().to_string().contains(says), "{says}");
        }
    }

    proptest! {
        /// The twin looks for each job's tasks in the whole table. Their order does not count.
        #[test]
        fn a_job_is_what_its_tasks_are_together(
            tasks in prop::collection::vec((0..5u32, 0..4u32, 0..500u32, 0..500u32, 0..300u32), 1..30), turn in 0..30usize,
        ) {
            let line = |&(job, instances, began, ended, gpu): &(u32, u32, u32, u32, u32)| {
                let time = |t: u32| if t.is_multiple_of(7) { String::new() } else { format!("{t}.0") };
                format!("j{job},w,{instances}.0,Terminated,{},{},,,{gpu}.0,T4\n", time(began), time(ended))
            };
            let text: String = tasks.iter().map(line).collect();
            let mut expected = Vec::new();
            let mut left_out = 0;
            for job in 0..5 {
                let of: Vec<_> = tasks.iter().filter(|task| task.0 == job).collect();
                if of.is_empty() {
                    continue;
                }
                let began = of.iter().map(|task| task.2).min().unwrap();
                let ended = of.iter().map(|task| task.3).max().unwrap();
                let gpus = of.iter().map(|task| task.1 * task.4).sum::<u32>().div_ceil(100);
                if of.iter().any(|task| task.2.is_multiple_of(7) || task.3.is_multiple_of(7)) || ended <= began || gpus == 0 {
                    left_out += 1;
                    continue;
                }
                expected.push((format!("j{job}"), f64::from(began), f64::from(ended - began), gpus));
            }
            let turned: String = tasks.iter().cycle().skip(turn % tasks.len()).take(tasks.len()).map(line).collect();
            for text in [text, turned] {
                let Ok(found) = parse_pai(&text, None) else {
                    prop_assert!(expected.is_empty());
                    continue;
                };
                prop_assert_eq!(found.left_out.values().sum::<usize>(), left_out);
                let first = expected.iter().map(|job| job.1).fold(f64::INFINITY, f64::min);
                let mut wanted: Vec<_> = expected.iter().map(|(kind, at, seconds, gpus)| {
                    let length = Length::Seconds(*seconds);
                    TraceJob { kind: kind.clone(), reads: true, length, arrives_s: at - first, gpus: *gpus }
                }).collect();
                let mut found = found.jobs;
                prop_assert!(found.is_sorted_by(|a, b| a.arrives_s <= b.arrives_s));
                wanted.sort_by(|a, b| a.kind.cmp(&b.kind));
                found.sort_by(|a, b| a.kind.cmp(&b.kind));
                prop_assert_eq!(found, wanted);
            }
        }
    }
}
