//! A stats page of anybody.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lossfeed::stats::fuzzing;

fuzz_target!(init: lossfeed_fuzz::start(fuzzing::seeds), |bytes: &[u8]| fuzzing::page(bytes));
