//! A journal of anybody, plain or gzip.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lossfeed::ErrorKind;
use lossfeed::journal::{Limits, Recording, replay};
use lossfeed::policy::find;

/// Rows to read at most, and samples: enough for every path, too few to spend the time on.
const LIMITS: Limits = Limits { rows: 4096, samples: 4096 };

fuzz_target!(
    init: lossfeed_fuzz::start(|| {
        let plain = "# {\"lossfeed-journal\":3,\"samples\":9,\"capacity_bytes\":20,\"policy\":\"lru\",\"smoothing\":0}\n\
            event,epoch,step,row,id,drawn,verdict,bytes,weight,score,loss,gradient_norm\n\
            believe,,,0,7,,,,,1e-3,,\nsampler,,,,,,echo:fresh=0.5,,,,,\nweights,,,,,,used,,,,,\n\
            begin,0,0,0,1,,,,,,,\ndecide,0,0,0,1,1,keep,10,1,,,\nlearn,0,0,0,1,,,,,0.5,inf,\ncancel,,,0,1,,,,,,,\n\
            io,0,1,,,,threads:before=2:now=4:why=the consumer waits,,,,,\nread,,,0,1,,failed,,,,,\ntried,,,0,2,,,,,,,\n\
            lost,,,3,,,,,,,,\nend,,,,,,,,,,,\n";
        vec![plain.as_bytes().to_vec()]
    }),
    |bytes: &[u8]| {
        match Recording::read(bytes, LIMITS) {
            Ok(recording) => {
                let (hits, misses) = recording.counted();
                let replayed = replay(&recording, find("lru").expect("there is such a policy"), recording.meta.capacity_bytes).expect("it fits");
                assert_eq!(replayed.hits + replayed.misses, hits + misses);
            }
            Err(e) => assert_eq!(e.kind(), ErrorKind::Source, "{e}"),
        }
    }
);
