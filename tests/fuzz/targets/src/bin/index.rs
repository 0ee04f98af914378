//! A kept index, as it lies and with its checksum put right.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lossfeed::source::fuzzing;

fuzz_target!(init: lossfeed_fuzz::start(fuzzing::index_seeds), |bytes: &[u8]| fuzzing::index(bytes));
