//! The protocol of the node cache's owner: bytes of anybody, and scripts of sound messages.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lossfeed_node::fuzzing;

fuzz_target!(init: lossfeed_fuzz::start(fuzzing::seeds), |bytes: &[u8]| fuzzing::protocol(bytes));
