//! A cluster's trace of jobs.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lossfeed::ErrorKind;
use lossfeed::jobs::parse_trace;

fuzz_target!(
    init: lossfeed_fuzz::start(|| {
        vec![b"small (batch size 1)\tpython3 a.py\t--steps\t1\t40000\t60.0\t2\n".to_vec()]
    }),
    |bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        match parse_trace(text) {
            Ok(jobs) => {
                assert!(!jobs.is_empty());
                assert!(jobs.iter().all(|job| job.gpus > 0 && job.steps > 0 && job.arrives_s >= 0.0 && job.arrives_s.is_finite()));
            }
            Err(e) => assert_eq!(e.kind(), ErrorKind::Settings, "{e}"),
        }
    }
);
