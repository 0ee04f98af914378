//! A Parquet file of anybody: rows, or words. Panics of the library that reads it are contained.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lossfeed::source::fuzzing;
use lossfeed_fuzz::{start, tell_of_contained_panics};

fuzz_target!(
    init: {
        start(fuzzing::parquet_seeds);
        tell_of_contained_panics();
    },
    |bytes: &[u8]| fuzzing::parquet(bytes)
);
