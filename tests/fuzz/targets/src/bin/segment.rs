//! A segment of the disk tier, as it lies and with its checksums put right.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lossfeed_disk::fuzzing;

fuzz_target!(init: lossfeed_fuzz::start(fuzzing::seeds), |bytes: &[u8]| fuzzing::segment(bytes));
