//! A trace of anybody, plain or gzip.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lossfeed::ErrorKind;
use lossfeed::journal::read_trace;

/// Rows to read at most: enough for every path, too few to spend the time on.
const ROWS: usize = 4096;

fuzz_target!(
    init: lossfeed_fuzz::start(|| {
        let plain = b"epoch,step,id,loss\n0,0,7,0.5\n0,0,9,\n0,1,7, \n1,0,9,1e-3\n";
        let sized = b"epoch,step,id,loss,bytes\r\n0,0,7,0.5,100\r\n1,0,7,0.25,100\r\n";
        vec![plain.to_vec(), sized.to_vec(), include_bytes!("../../../../golden/small.csv.gz").to_vec()]
    }),
    |bytes: &[u8]| {
        match read_trace(bytes, ROWS) {
            Ok(trace) => {
                assert!((1..=ROWS).contains(&trace.requests()));
                assert!((1..=trace.requests()).contains(&trace.samples()));
                assert!((1..=trace.requests()).contains(&trace.batches()));
                assert!(trace.total_bytes() >= trace.samples() as u64);
            }
            Err(e) => assert_eq!(e.kind(), ErrorKind::Source, "{e}"),
        }
    }
);
