//! A cluster's log of anybody, in any of the formats, and PAI's table of jobs.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lossfeed::ErrorKind;
use lossfeed::jobs::{Length, parse_pai_jobs, parse_trace};

fuzz_target!(
    init: lossfeed_fuzz::start(|| {
        let gavel = b"small (batch size 1)\tpython3 a.py\t--steps\t1\t40000\t60.0\t2\n";
        let helios = b"job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n\
            1,u,v,4,1,1,COMPLETED,2020-06-09 00:00:00,2020-06-09 00:00:00,2020-06-09 01:00:00,3600,0\n";
        let pai = b"b,worker,2.0,Terminated,100.0,4000.0,600.0,29.3,50.0,T4\nb,ps,1.0,Failed,,,600.0,29.3,,\n";
        let pai_jobs = b"b,i,u,Terminated,50.0,4000.0\nc,i,u,Waiting,50.0,\n";
        let philly = br#"[{"status": "Pass", "vc": "v", "jobid": "p", "user": "u",
            "submitted_time": "2017-10-07 01:00:00", "attempts": [{"start_time": "2017-10-07 01:10:00",
            "end_time": "2017-10-07 02:10:00", "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}]}]}]"#;
        [&gavel[..], helios, pai, pai_jobs, philly].map(<[u8]>::to_vec).to_vec()
    }),
    |bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        match parse_trace(text, None) {
            Ok(trace) => {
                assert!(!trace.jobs.is_empty());
                for job in trace.jobs {
                    assert!(job.gpus > 0 && job.arrives_s >= 0.0 && job.arrives_s.is_finite());
                    assert!(match job.length {
                        Length::Steps(steps) => steps > 0,
                        Length::Seconds(seconds) => seconds > 0.0 && seconds.is_finite(),
                    });
                }
            }
            Err(e) => assert_eq!(e.kind(), ErrorKind::Settings, "{e}"),
        }
        let _ = parse_pai_jobs(text);
    }
);
