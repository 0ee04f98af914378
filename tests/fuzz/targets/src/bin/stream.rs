//! A store's stream of samples: members as they come, or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lossfeed::source::fuzzing;

fuzz_target!(init: lossfeed_fuzz::start(fuzzing::tar_seeds), |bytes: &[u8]| fuzzing::stream(bytes));
